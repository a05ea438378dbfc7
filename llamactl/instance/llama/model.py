"""What is one loaded model to the rest of this package? A pointer with an owner, its vocabulary, and what its file
says about it.

Loading takes place under `no_alloc` or for real; both raise the same error, with llama.cpp's own error lines as the
reason.
"""

import ctypes
import os
from collections.abc import Callable, Iterable
from functools import cached_property
from typing import Any

from llamactl.child.orders import ChildEnvironment
from llamactl.errors import ErrorCode, LlamactlError
from llamactl.instance.llama.bindings import load_extra, read_build
from llamactl.instance.llama.library import llama
from llamactl.instance.llama.log import LlamaLog
from llamactl.instance.llama.memory import read_device_name
from llamactl.instance.llama.params import POOLING_TYPES, ModelParams, ModelTraits
from llamactl.protocol.values import Facts

_NULL_TOKEN = -1
_MROPE_TYPES = (llama.LLAMA_ROPE_TYPE_MROPE, llama.LLAMA_ROPE_TYPE_IMROPE)


class Vocabulary:
    """Text to tokens and back. Safe to use from any thread: llama.cpp only reads it."""

    def __init__(self, model: Any) -> None:
        self.pointer = llama.llama_model_get_vocab(model)
        self.n_tokens: int = llama.llama_vocab_n_tokens(self.pointer)
        self.bos: int = llama.llama_vocab_bos(self.pointer)
        self.eos: int = llama.llama_vocab_eos(self.pointer)
        self.separator: int = llama.llama_vocab_sep(self.pointer)
        self.adds_bos: bool = llama.llama_vocab_get_add_bos(self.pointer)
        self.adds_eos: bool = llama.llama_vocab_get_add_eos(self.pointer)
        self.adds_separator: bool = llama.llama_vocab_get_add_sep(self.pointer)
        self._pieces: dict[int, bytes] = {}
        self._special_pieces: dict[int, bytes] = {}
        self._ends: dict[int, bool] = {}
        count = ctypes.c_int32(0)
        suppressed = llama.llama_vocab_get_suppress_tokens(self.pointer, ctypes.byref(count))
        self.suppressed: tuple[int, ...] = tuple(suppressed[: count.value]) if count.value else ()
        """Tokens that the file says are never to be generated."""

    def tokenize(self, text: str, *, add_special: bool, parse_special: bool) -> list[int]:
        """Tokenize any text; lone surrogates become replacement characters. `parse_special`: names of special tokens
        are they.
        """
        data = text.encode("utf-8", "surrogatepass").decode("utf-8", "replace").encode()
        n_max = len(data) + 8
        while True:
            buffer = (llama.llama_token * n_max)()
            count = llama.llama_tokenize(self.pointer, data, len(data), buffer, n_max, add_special, parse_special)
            if count >= 0:
                return list(buffer[:count])
            if -count <= n_max:
                raise RuntimeError(f"llama_tokenize failed on {len(data)} bytes")
            n_max = -count

    def tokenize_prompt(self, text: str) -> list[int]:
        """A prompt with its special tokens. One BOS at the most: templates often write what the tokenizer would add."""
        tokens = self.tokenize(text, add_special=True, parse_special=True)
        if self.adds_bos and tokens[:2] == [self.bos, self.bos]:
            del tokens[0]
        return tokens

    def piece(self, token: int, *, special: bool = False) -> bytes:
        """The bytes of one token, which may be a part of a character. Control tokens are empty unless `special`."""
        pieces = self._special_pieces if special else self._pieces
        cached = pieces.get(token)
        if cached is None:
            cached = pieces[token] = self._read_piece(token, special)
        return cached

    def detokenize(self, tokens: Iterable[int]) -> str:
        """The text of tokens, special ones by their names; what is no UTF-8 becomes replacement characters."""
        return b"".join(self.piece(token, special=True) for token in tokens).decode(errors="replace")

    def is_end(self, token: int) -> bool:
        """Whether the token ends a generation (EOS, EOT ...)."""
        cached = self._ends.get(token)
        if cached is None:
            cached = self._ends[token] = bool(llama.llama_vocab_is_eog(self.pointer, token))
        return cached

    @property
    def knows_ends(self) -> bool:
        """Whether `ends` have been looked up; the first time goes through the whole vocabulary."""
        return "ends" in self.__dict__

    @cached_property
    def ends(self) -> tuple[int, ...]:
        """All tokens that end a generation."""
        is_end = llama.llama_vocab_is_eog
        return tuple(token for token in range(self.n_tokens) if is_end(self.pointer, token))

    @cached_property
    def byte_tokens(self) -> dict[int, int]:
        """By byte the token that is nothing else, where there is one. The first look goes through all tokens."""
        found: dict[int, int] = {}
        for token in range(self.n_tokens):
            piece = self._read_piece(token, True)
            if len(piece) == 1:
                found.setdefault(piece[0], token)
        return found

    def text_of(self, token: int) -> str:
        """A special token as templates write it; empty for a token that the vocabulary lacks."""
        return "" if token == _NULL_TOKEN else self.piece(token, special=True).decode(errors="replace")

    def _read_piece(self, token: int, special: bool) -> bytes:
        size = 64
        while True:
            buffer = ctypes.create_string_buffer(size)
            count = llama.llama_token_to_piece(self.pointer, token, buffer, size, 0, special)
            if count >= 0:
                return buffer.raw[:count]
            size = -count


class LoadedModel:
    """Owns a llama_model. `close` it after everything that was made from it."""

    def __init__(self, pointer: Any, params: ModelParams) -> None:
        self.pointer = pointer
        self.params = params
        self.vocabulary = Vocabulary(pointer)

    def close(self) -> None:
        """Free the model, whose contexts are freed already."""
        if self.pointer:
            llama.llama_model_free(self.pointer)
            self.pointer = None

    def read_meta(self, key: str) -> str | None:
        """A value of the file's metadata as text; None where the key is missing. Values may be long: chat templates
        are.
        """
        size = 1024
        while True:
            buffer = ctypes.create_string_buffer(size)
            length = llama.llama_model_meta_val_str(self.pointer, key.encode(), buffer, size)
            if length < 0:
                return None
            if length < size:
                return buffer.raw[:length].decode(errors="replace")
            size = length + 1

    def read_device_names(self) -> list[str]:
        """The model's devices in its own order, which is not the registry's. Empty: it has none, or this build does
        not tell.
        """
        extra = load_extra()
        if extra.model_n_devices is None or extra.model_get_device is None:
            return []
        return [
            read_device_name(extra.model_get_device(self.pointer, index))
            for index in range(extra.model_n_devices(self.pointer))
        ]

    def read_traits(self, swa_full: bool) -> ModelTraits:
        """`swa_full`: layers with a sliding window keep all of the context, as those without one do."""
        architecture = self.read_meta("general.architecture") or ""
        pooling = self.read_meta(f"{architecture}.pooling_type")
        named = int(pooling) if pooling is not None and pooling.lstrip("-").isdecimal() else None
        return ModelTraits(
            n_ctx_train=llama.llama_model_n_ctx_train(self.pointer),
            n_swa=0 if swa_full else llama.llama_model_n_swa(self.pointer),
            pooling=named if named in POOLING_TYPES.values() and named != POOLING_TYPES["none"] else None,
            causal=self.read_meta(f"{architecture}.attention.causal") != "false",
            uses_mrope=llama.llama_model_rope_type(self.pointer) in _MROPE_TYPES,
            recurrent=llama.llama_model_is_recurrent(self.pointer) or llama.llama_model_is_hybrid(self.pointer),
        )

    def read_facts(self, n_ctx: int, extra_bufts: bool, input_modalities: tuple[str, ...] = ("text",)) -> Facts:
        """Read what the model's file says of it. `n_ctx`: tokens that a context of it holds."""
        description = ctypes.create_string_buffer(256)
        llama.llama_model_desc(self.pointer, description, len(description))
        return Facts(
            architecture=self.read_meta("general.architecture") or "",
            description=description.value.decode(errors="replace"),
            n_ctx=n_ctx,
            n_ctx_train=llama.llama_model_n_ctx_train(self.pointer),
            n_embd=llama.llama_model_n_embd(self.pointer),
            n_vocab=self.vocabulary.n_tokens,
            n_params=llama.llama_model_n_params(self.pointer),
            size_bytes=llama.llama_model_size(self.pointer),
            ftype=(llama.llama_ftype_name(llama.llama_model_ftype(self.pointer)) or b"").decode(errors="replace"),
            vocab_type=llama.llama_vocab_type(self.vocabulary.pointer),
            build=read_build(),
            extra_bufts=extra_bufts,
            input_modalities=input_modalities,
        )


def load_model(
    environment: ChildEnvironment,
    params: ModelParams,
    log: LlamaLog,
    on_progress: Callable[[float], bool] | None = None,
) -> LoadedModel:
    """Raises LlamactlError with llama.cpp's reason. `on_progress` gets 0 to 1 from the loading thread; False ends the
    load.
    """
    if on_progress is not None:
        callback = llama.llama_progress_callback(lambda fraction, _data: on_progress(fraction))
        params.struct.progress_callback = callback
        params.keep.append(callback)
    log.forget()
    pointer = llama.llama_model_load_from_file(os.fsencode(environment.settings.path), params.struct)
    if not pointer:
        raise _explain_failure(environment, log, f"cannot load {environment.settings.path}")
    return LoadedModel(pointer, params)


def create_context_quickly(model: LoadedModel, params: Any, log: LlamaLog) -> Any | None:
    """Without a word, not even of what fails: None then."""
    with log.silenced():
        return llama.llama_init_from_model(model.pointer, params)


def create_context(environment: ChildEnvironment, model: LoadedModel, params: Any, log: LlamaLog) -> Any:
    """A llama_context, which the caller frees. Raises LlamactlError with llama.cpp's reason."""
    log.forget()
    context = llama.llama_init_from_model(model.pointer, params)
    if not context:
        raise _explain_failure(environment, log, f"cannot create a context of {params.n_ctx} tokens")
    return context


def _explain_failure(environment: ChildEnvironment, log: LlamaLog, what: str) -> LlamactlError:
    reason = log.explain() or "llama.cpp gives no reason"
    return LlamactlError(ErrorCode.LOAD_FAILED, f"{what}: {reason}", model=environment.model)
