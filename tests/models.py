"""Where do tests get models from? They write them: real GGUF files with random weights, some hundred kilobytes, the
same bytes for the same arguments.

The vocabulary is llama's SPM with all 256 bytes and a few words, so any text can be tokenized, and generated text is
often no whole UTF-8: what a detokenizer must survive. For tests of memory, `write_large_model` makes a file of a
given size.
"""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import gguf
import numpy as np

CHAT_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)

CONTROL = ("<unk>", "<s>", "</s>", "<|im_start|>", "<|im_end|>")
WORDS = ("▁", "▁the", "▁a", "▁of", "▁and", "the", "ing", "er", "hello", "▁hello", "é", "▁世界", "🙂")


def write_model(
    path: Path,
    *,
    name: str = "tiny",
    n_ctx_train: int = 2048,
    n_layer: int = 2,
    n_head: int = 4,
    n_embd: int = 64,
    chat_template: str | Sequence[Mapping[str, str]] | None = CHAT_TEMPLATE,
    add_bos: bool = True,
    space_prefix: bool = False,
    fills_gaps: bool = False,
    control: Sequence[str] = (),
    words: Sequence[str] = (),
    output_scale: float = 1.0,
    is_plain: bool = False,
    sampling: Mapping[str, int | float | str] | None = None,
    tensors_per_shard: int = 0,
    mrope: bool = False,
    seed: int = 1,
) -> Path:
    """A causal model of the llama architecture; with `mrope`, one of qwen2vl, whose positions have several parts.
    `chat_template`: several have a `name` and a `template` each;
    `fills_gaps`: it has tokens for the edges of a gap (/infill);
    `control`: further tokens that are no text; `words`: what else is a token, and so are their beginnings;
    `output_scale`: the smaller, the less sure it is of the next token; `is_plain`: that is hardly ever one that ends
    the text, or is only a part of a character; `sampling`: what the file recommends; `tensors_per_shard`: `path`
    becomes so many files as that takes.
    """
    writer = gguf.GGUFWriter(path, "qwen2vl" if mrope else "llama", split_max_tensors=tensors_per_shard)
    tokens, n_ff = _add_vocabulary(writer, add_bos, space_prefix, control, words), 2 * n_embd
    for token, part in enumerate(("pre", "suf", "mid") if fills_gaps else ()):
        writer.add_uint32(f"tokenizer.ggml.fim_{part}_token_id", 2 + token)
    kinds: dict[type, Callable[[str, Any], None]]
    kinds = {int: writer.add_int32, float: writer.add_float32, str: writer.add_string}
    for key, value in (sampling or {}).items():
        kinds[type(value)](f"general.sampling.{key}", value)
    writer.add_name(name)
    writer.add_context_length(n_ctx_train)
    writer.add_embedding_length(n_embd)
    writer.add_block_count(n_layer)
    writer.add_feed_forward_length(n_ff)
    writer.add_head_count(n_head)
    writer.add_head_count_kv(n_head)
    writer.add_rope_dimension_count(n_embd // n_head)
    writer.add_layer_norm_rms_eps(1e-5)
    if mrope:
        half = n_embd // n_head // 2
        writer.add_rope_dimension_sections([half - 2 * (half // 3), half // 3, half // 3, 0])
    writer.add_vocab_size(len(tokens))
    writer.add_file_type(gguf.LlamaFileType.ALL_F32)
    if chat_template is not None:
        writer.add_chat_template(chat_template)

    random = np.random.default_rng(seed)

    def add(tensor: str, *shape: int, scale: float = 0.08) -> None:
        writer.add_tensor(tensor, (random.standard_normal(shape) * scale).astype(np.float32))

    def add_ones(tensor: str, size: int) -> None:
        writer.add_tensor(tensor, np.ones(size, dtype=np.float32))

    # Loud embeddings make the next token depend on the last ones: greedy text wanders instead of repeating one token.
    add("token_embd.weight", len(tokens), n_embd, scale=1.0)
    add_ones("output_norm.weight", n_embd)
    output = (random.standard_normal((len(tokens), n_embd)) * output_scale).astype(np.float32)
    if is_plain:
        n_control = len(CONTROL) + len(control)
        output[:n_control] = output[n_control + 0x80 : n_control + 0x100] = 0.0
    writer.add_tensor("output.weight", output)
    for layer in range(n_layer):
        prefix = f"blk.{layer}"
        add_ones(f"{prefix}.attn_norm.weight", n_embd)
        for part in ("q", "k", "v", "output"):
            add(f"{prefix}.attn_{part}.weight", n_embd, n_embd, scale=0.2)
        add_ones(f"{prefix}.ffn_norm.weight", n_embd)
        add(f"{prefix}.ffn_gate.weight", n_ff, n_embd, scale=0.2)
        add(f"{prefix}.ffn_up.weight", n_ff, n_embd, scale=0.2)
        add(f"{prefix}.ffn_down.weight", n_embd, n_ff, scale=0.2)
    return _finish(writer, path)


def write_large_model(path: Path, size_bytes: int, *, name: str = "large", seed: int = 1) -> Path:
    """A causal model of about `size_bytes`, nearly all of them weights of the feed-forward layers."""
    n_embd = 256
    layer_bytes = 4 * n_embd * n_embd * (4 + 3 * 2)
    return write_model(path, name=name, n_embd=n_embd, n_layer=max(1, size_bytes // layer_bytes), seed=seed)


def write_projector(
    path: Path, *, projector: str = "gemma3", width: int = 64, name: str = "tiny-vision", hidden: int = 32
) -> Path:
    """The head of a multimodal projector of a kind, and of its tensors only what tells its width."""
    writer = gguf.GGUFWriter(path, "clip")
    writer.add_name(name)
    writer.add_bool("clip.has_vision_encoder", True)
    writer.add_string("clip.projector_type", projector)
    # As converters have it: for llava the width of CLIP's own projection, which is none of the model's.
    writer.add_uint32("clip.vision.projection_dim", hidden if projector == "mlp" else width)
    writer.add_tensor("mm.2.weight", np.zeros((width, hidden), dtype=np.float32))
    return _finish(writer, path)


def write_eye(
    path: Path, *, width: int = 64, image_size: int = 28, n_embd: int = 32, projector: str = "mlp", seed: int = 3
) -> Path:
    """A projector that works: pictures become tokens for a model with embeddings of `width`. As LLaVA has it
    (`mlp`), one for each patch of a small square; as Qwen2-VL has it (`qwen2vl_merger`), a grid of them, the larger the
    picture the more; as Gemma 3 has it (`gemma3`), one for four patches, each of which attends to all others.
    """
    patch_size, n_layer = 14, 2
    writer = gguf.GGUFWriter(path, "clip")
    writer.add_name("tiny-eye")
    writer.add_bool("clip.has_vision_encoder", True)
    writer.add_string("clip.projector_type", projector)
    writer.add_bool("clip.use_gelu", True)
    writer.add_uint32("clip.vision.image_size", image_size)
    writer.add_uint32("clip.vision.patch_size", patch_size)
    writer.add_uint32("clip.vision.embedding_length", n_embd)
    writer.add_uint32("clip.vision.feed_forward_length", 2 * n_embd)
    writer.add_uint32("clip.vision.block_count", n_layer)
    writer.add_uint32("clip.vision.projection_dim", n_embd)
    writer.add_uint32("clip.vision.attention.head_count", 2)
    writer.add_float32("clip.vision.attention.layer_norm_epsilon", 1e-5)
    writer.add_array("clip.vision.image_mean", [0.48, 0.46, 0.41])
    writer.add_array("clip.vision.image_std", [0.27, 0.26, 0.28])

    random = np.random.default_rng(seed)

    def add(tensor: str, *shape: int, scale: float = 0.3) -> None:
        writer.add_tensor(tensor, (random.standard_normal(shape) * scale).astype(np.float32))

    def add_norm(tensor: str) -> None:
        writer.add_tensor(f"{tensor}.weight", np.ones(n_embd, dtype=np.float32))
        writer.add_tensor(f"{tensor}.bias", np.zeros(n_embd, dtype=np.float32))

    add("v.patch_embd.weight", n_embd, 3, patch_size, patch_size)
    if projector == "qwen2vl_merger":
        add("v.patch_embd.weight.1", n_embd, 3, patch_size, patch_size)
    else:
        n_classes = int(projector == "mlp")
        add("v.position_embd.weight", (image_size // patch_size) ** 2 + n_classes, n_embd)
    if projector == "mlp":
        add("v.class_embd", n_embd)
    add_norm("v.pre_ln")
    for layer in range(n_layer):
        prefix = f"v.blk.{layer}"
        for part in ("attn_q", "attn_k", "attn_v", "attn_out"):
            add(f"{prefix}.{part}.weight", n_embd, n_embd)
            add(f"{prefix}.{part}.bias", n_embd)
        add_norm(f"{prefix}.ln1")
        add_norm(f"{prefix}.ln2")
        add(f"{prefix}.ffn_up.weight", 2 * n_embd, n_embd)
        add(f"{prefix}.ffn_up.bias", 2 * n_embd)
        add(f"{prefix}.ffn_down.weight", n_embd, 2 * n_embd)
        add(f"{prefix}.ffn_down.bias", n_embd)
    # Loud, as the embeddings of `write_model` are: what is seen decides what is said.
    if projector == "gemma3":
        writer.add_uint32("clip.vision.projector.scale_factor", 2)
        add("mm.input_projection.weight", n_embd, width)
        writer.add_tensor("mm.soft_emb_norm.weight", np.ones(n_embd, dtype=np.float32))
        return _finish(writer, path)
    n_merged, n_inner = (4 * n_embd, 4 * n_embd) if projector == "qwen2vl_merger" else (n_embd, width)
    add("mm.0.weight", n_inner, n_merged)
    add("mm.0.bias", n_inner)
    add("mm.2.weight", width, n_inner)
    add("mm.2.bias", width)
    return _finish(writer, path)


def write_ear(path: Path, *, width: int = 64, seed: int = 4) -> Path:
    """A projector that works, as Gemma 4 has it without an encoder: each 640 samples of sound become a token."""
    writer = gguf.GGUFWriter(path, "clip")
    writer.add_name("tiny-ear")
    writer.add_bool("clip.has_audio_encoder", True)
    writer.add_string("clip.audio.projector_type", "gemma4ua")
    for key in ("embedding_length", "feed_forward_length", "projection_dim", "num_mel_bins"):
        writer.add_uint32(f"clip.audio.{key}", width if key == "projection_dim" else 640)
    writer.add_uint32("clip.audio.block_count", 0)
    writer.add_uint32("clip.audio.attention.head_count", 1)
    writer.add_float32("clip.audio.attention.layer_norm_epsilon", 1e-6)
    random = np.random.default_rng(seed)
    weights = (random.standard_normal((width, 640)) * 0.1).astype(np.float32)
    writer.add_tensor("mm.a.input_projection.weight", weights)
    return _finish(writer, path)


def write_embedding_model(
    path: Path,
    *,
    name: str = "tiny-embed",
    n_ctx_train: int = 512,
    n_layer: int = 2,
    n_head: int = 4,
    n_embd: int = 64,
    pooling: gguf.PoolingType = gguf.PoolingType.MEAN,
    seed: int = 2,
) -> Path:
    """An encoder of the bert architecture with pooling. With pooling RANK it is a reranker."""
    writer = gguf.GGUFWriter(path, "bert")
    tokens, n_ff = _add_bert_vocabulary(writer), 2 * n_embd
    writer.add_name(name)
    writer.add_context_length(n_ctx_train)
    writer.add_embedding_length(n_embd)
    writer.add_block_count(n_layer)
    writer.add_feed_forward_length(n_ff)
    writer.add_head_count(n_head)
    writer.add_layer_norm_eps(1e-12)
    writer.add_causal_attention(False)
    writer.add_pooling_type(pooling)
    writer.add_vocab_size(len(tokens))
    writer.add_token_type_count(2)
    writer.add_file_type(gguf.LlamaFileType.ALL_F32)

    random = np.random.default_rng(seed)

    def add(tensor: str, *shape: int) -> None:
        writer.add_tensor(tensor, (random.standard_normal(shape) * 0.2).astype(np.float32))

    def add_norm(tensor: str) -> None:
        writer.add_tensor(f"{tensor}.weight", np.ones(n_embd, dtype=np.float32))
        writer.add_tensor(f"{tensor}.bias", np.zeros(n_embd, dtype=np.float32))

    add("token_embd.weight", len(tokens), n_embd)
    add("token_types.weight", 2, n_embd)
    add("position_embd.weight", n_ctx_train, n_embd)
    add_norm("token_embd_norm")
    if pooling is gguf.PoolingType.RANK:
        add("cls.output.weight", 1, n_embd)
        writer.add_tensor("cls.output.bias", np.zeros(1, dtype=np.float32))
    for layer in range(n_layer):
        prefix = f"blk.{layer}"
        for part in ("q", "k", "v", "output"):
            add(f"{prefix}.attn_{part}.weight", n_embd, n_embd)
            add(f"{prefix}.attn_{part}.bias", n_embd)
        add_norm(f"{prefix}.attn_output_norm")
        add(f"{prefix}.ffn_up.weight", n_ff, n_embd)
        add(f"{prefix}.ffn_up.bias", n_ff)
        add(f"{prefix}.ffn_down.weight", n_embd, n_ff)
        add(f"{prefix}.ffn_down.bias", n_embd)
        add_norm(f"{prefix}.layer_output_norm")
    return _finish(writer, path)


def _add_vocabulary(
    writer: gguf.GGUFWriter, add_bos: bool, space_prefix: bool, more: Sequence[str], words: Sequence[str]
) -> Sequence[str]:
    control = (*CONTROL, *more)
    # A token is put together from two others, so there must be all beginnings of a long one.
    starts = [f"▁{word}"[:length] for word in words for length in range(2, len(word) + 2)]
    texts = tuple(dict.fromkeys((*WORDS, *starts)))
    tokens = [*control, *(f"<0x{byte:02X}>" for byte in range(256)), *texts]
    kinds = [
        gguf.TokenType.UNKNOWN,
        *[gguf.TokenType.CONTROL] * (len(control) - 1),
        *[gguf.TokenType.BYTE] * 256,
        *[gguf.TokenType.NORMAL] * len(texts),
    ]
    scores = [0.0] * (len(control) + 256) + [-float(index) for index in range(len(texts))]
    writer.add_tokenizer_model("llama")
    writer.add_token_list(tokens)
    writer.add_token_scores(scores)
    writer.add_token_types(kinds)
    writer.add_unk_token_id(0)
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_eot_token_id(4)
    writer.add_add_bos_token(add_bos)
    writer.add_add_space_prefix(space_prefix)
    return tokens


def _add_bert_vocabulary(writer: gguf.GGUFWriter) -> Sequence[str]:
    control = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
    letters = "abcdefghijklmnopqrstuvwxyz0123456789.,!?"
    # llama.cpp marks the beginnings of words where WordPiece marks their continuations.
    tokens = [*control, *(f"▁{letter}" for letter in letters), *letters, "▁hello", "▁world"]
    kinds = [gguf.TokenType.CONTROL] * len(control) + [gguf.TokenType.NORMAL] * (len(tokens) - len(control))
    writer.add_tokenizer_model("bert")
    writer.add_token_list(tokens)
    writer.add_token_types(kinds)
    writer.add_unk_token_id(1)
    writer.add_pad_token_id(0)
    writer.add_bos_token_id(2)
    writer.add_sep_token_id(3)
    writer.add_eos_token_id(3)
    return tokens


def _finish(writer: gguf.GGUFWriter, path: Path) -> Path:
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path
