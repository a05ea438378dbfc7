"""What may `chat_template` hold? A Jinja template, or the name of one that llama.cpp has built in.

Whether a template is Jinja is found out where Jinja is: by `check`, and by the instance. Here a word that is neither is
refused, since it would be taken for a template that says that word and nothing else.
"""

import difflib

BUILTIN = (
    *("bailing", "bailing-think", "bailing2", "chatglm3", "chatglm4", "chatml", "command-r", "deepseek"),
    *("deepseek-ocr", "deepseek2", "deepseek3", "exaone-moe", "exaone3", "exaone4", "falcon3", "gemma", "gigachat"),
    *("glmedge", "gpt-oss", "granite", "granite-4.0", "granite-4.1", "grok-2", "hunyuan-dense", "hunyuan-moe"),
    *("hunyuan-vl", "kimi-k2", "llama2", "llama2-sys", "llama2-sys-bos", "llama2-sys-strip", "llama3", "llama4"),
    *("megrez", "minicpm", "mistral-v1", "mistral-v3", "mistral-v3-tekken", "mistral-v7", "mistral-v7-tekken"),
    *("monarch", "openchat", "orion", "pangu-embedded", "phi3", "phi4", "rwkv-world", "seed_oss", "smolvlm"),
    *("solar-open", "vicuna", "vicuna-orca", "yandex", "zephyr"),
)
"""llama_chat_builtin_templates() of llama.cpp."""


def check_template(text: str) -> str:
    """The text. Raises ValueError where it is neither a name nor a template that could use a message."""
    if not text or text in BUILTIN or "messages" in text:
        return text
    close = difflib.get_close_matches(text[:100], BUILTIN, n=1)
    if close:
        raise ValueError(f"is no name of a built-in template; did you mean {close[0]!r}?")
    raise ValueError("must be a Jinja template that uses `messages`, or the name of a built-in one, as 'chatml'")
