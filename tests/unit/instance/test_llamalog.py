"""Of the lines that llama.cpp logs about one failure, does the one that says why come first?"""

import pytest

from llamactl.instance.llama.log import choose_reasons

TRUNCATED = "tensor 'blk.1.attn_v.weight' data is not within the file bounds, model is corrupted or incomplete"


@pytest.mark.parametrize(
    ("lines", "reasons"),
    [
        (
            [
                f"llama_model_load: error loading model: {TRUNCATED}",
                "llama_model_load_from_file_impl: failed to load model",
            ],
            [TRUNCATED],
        ),
        (
            [
                "gguf_init_from_reader: this GGUF file is version 9 but this software only supports up to version 3",
                "gguf_init_from_reader: failed to read header",
                "llama_model_load: error loading model: llama_model_loader: failed to load model from /m/a.gguf",
                "llama_model_load_from_file_impl: failed to load model",
            ],
            ["this GGUF file is version 9 but this software only supports up to version 3"],
        ),
        (
            ["ggml_backend_cuda_buffer_type_alloc_buffer: allocating 1 MiB: cudaMalloc failed: out of memory"],
            ["allocating 1 MiB: cudaMalloc failed: out of memory"],
        ),
        (["llama_model_load_from_file_impl: failed to load model"], ["failed to load model"]),
        ([], []),
    ],
)
def test_reason_stands_alone_where_there_is_one(lines: list[str], reasons: list[str]) -> None:
    assert choose_reasons(lines) == reasons
