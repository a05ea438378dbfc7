"""What does a request ask for? The fields of its body, checked for sense and completed by the model's defaults.

What is sent but not supported is refused rather than ignored where ignoring it would change the answer's meaning.
Numbers out of llama-server's soft ranges (`top_k` -1, `temperature` below 0) are taken as it takes them: as the end of
the range; which numbers llama.cpp bears is `sampling`'s matter.
"""

import math
from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from llamactl.bodies import ChatBody, CompletionBody, EmbeddingBody, GenerationBody, SamplingBody, refuse
from llamactl.instance.engine.embed import NO_NORM
from llamactl.instance.engine.sampling import SamplingParams
from llamactl.settings import Sampling

MAX_STOPS = 1024
MAX_BREAKERS, MAX_BREAKER_CHARS = 1024, 40
MAX_BIASES = 1 << 16
MAX_N = 128
QUIET_S = 15.0
"""What a stream says nothing for: then a comment, so that nobody on the way takes a long prompt for a dead server."""
_INT32_MAX = (1 << 31) - 1
_NEVER = float("-inf")

_SAMPLER_CHARS = {
    "e": "penalties",
    "d": "dry",
    "s": "top_n_sigma",
    "k": "top_k",
    "y": "typ_p",
    "p": "top_p",
    "m": "min_p",
    "x": "xtc",
    "t": "temperature",
    "i": "infill",
    "a": "adaptive_p",
}
_SAMPLER_NAMES = {
    **{name.replace("_", ""): name for name in _SAMPLER_CHARS.values()},
    "nucleus": "top_p",
    "temp": "temperature",
    "typ": "typ_p",
    "typicalp": "typ_p",
}
"""As llama.cpp's common_sampler_types_from_names takes them, with all dashes and underscores removed."""

_OF_REQUESTS = ("adaptive_target", "adaptive_decay")

_IN_FILE: dict[str, tuple[str, type[int] | type[float]]] = {
    "top_k": ("top_k", int),
    "top_p": ("top_p", float),
    "min_p": ("min_p", float),
    "xtc_probability": ("xtc_probability", float),
    "xtc_threshold": ("xtc_threshold", float),
    "temp": ("temperature", float),
    "penalty_last_n": ("repeat_last_n", int),
    "penalty_repeat": ("repeat_penalty", float),
    "mirostat": ("mirostat", int),
    "mirostat_tau": ("mirostat_tau", float),
    "mirostat_eta": ("mirostat_eta", float),
}
"""Keys below general.sampling in a model file, and what they set (llama.cpp: common_init_sampler_from_model)."""


def choose_defaults(configured: Mapping[str, Any], read_meta: Callable[[str], str | None]) -> Sampling:
    """For requests that say nothing: as configured, else as the file says, else as llama.cpp has it."""
    chosen: dict[str, Any] = {}
    for key, (name, kind) in _IN_FILE.items():
        text = read_meta(f"general.sampling.{key}")
        try:
            number = math.nan if text is None else float(text)
        except ValueError:
            continue
        if math.isfinite(number):
            chosen[name] = kind(number)
    sequence = read_meta("general.sampling.sequence")
    if sequence:
        names = [find_sampler(name) for name in sequence.split(";")]
        chosen["samplers"] = [name for name in names if name is not None]
    return msgspec.convert({**chosen, **configured}, Sampling)


def find_sampler(name: str) -> str | None:
    """A sampler by one of its names."""
    return _SAMPLER_NAMES.get(name.strip().lower().replace("-", "").replace("_", ""))


def choose_sampling(
    body: SamplingBody, defaults: Sampling, grammar: str, tokenize: Callable[[str], list[int]], seed: int = -1
) -> SamplingParams:
    """`seed`: of requests that say none; negative: none at all, which is what requests mean by it, too."""
    seed = seed if body.seed is None else body.seed
    chosen = msgspec.structs.asdict(defaults)
    for name in Sampling.__struct_fields__:
        value = getattr(body, name)
        if value is not None:
            chosen[name] = value
    for name in ("top_k", "repeat_last_n", "dry_allowed_length", "dry_penalty_last_n", "min_keep"):
        if abs(chosen[name]) > _INT32_MAX:
            raise refuse(f"cannot use `{name}`: {chosen[name]} is out of range")
    if chosen["repeat_penalty"] <= 0:
        raise refuse("cannot use `repeat_penalty`: it must be greater than 0")
    for name in ("repeat_last_n", "dry_penalty_last_n"):
        if chosen[name] < -1:
            raise refuse(f"cannot use `{name}`: it must be at least -1")
    if not 0 <= chosen["mirostat"] <= 2:
        raise refuse(f"cannot use `mirostat`: {chosen['mirostat']} is none of 0, 1 and 2")
    chosen["samplers"] = _parse_samplers(chosen["samplers"])
    chosen["dry_sequence_breakers"] = _check_breakers(chosen["dry_sequence_breakers"])
    return SamplingParams(
        **chosen,
        seed=seed & 0xFFFFFFFF if seed >= 0 else None,
        logit_bias=_parse_logit_bias(body.logit_bias, tokenize),
        ignore_eos=bool(body.ignore_eos),
        **{name: value for name in _OF_REQUESTS if (value := getattr(body, name)) is not None},
        grammar=grammar,
        n_probs=_count_computed(choose_n_top(body)),
        post_sampling_probs=bool(body.post_sampling_probs),
    )


def choose_n_top(body: SamplingBody) -> int | None:
    """How many alternatives to each token are told; None: no probabilities at all."""
    if isinstance(body, ChatBody):
        if body.top_logprobs is not None and not body.logprobs:
            raise refuse("cannot use `top_logprobs`: `logprobs` must be true")
        if not isinstance(body.logprobs, bool | None):
            raise refuse("cannot use `logprobs`: it must be true or false")
        wanted = (body.top_logprobs or 0) if body.logprobs else None
    elif isinstance(body.logprobs, bool):
        wanted = (body.top_logprobs or 0) if body.logprobs else None
    else:
        wanted = body.logprobs
    if wanted is None and body.n_probs:
        wanted = body.n_probs
    if wanted is not None and not 0 <= wanted <= _INT32_MAX:
        raise refuse(f"cannot use `logprobs`: {wanted} alternatives cannot be told")
    return wanted


def _count_computed(n_top: int | None) -> int:
    return 0 if n_top is None else max(1, n_top)


def choose_schema(body: SamplingBody) -> dict[str, Any] | bool | None:
    """The JSON schema that the answer must follow; None: any text."""
    schema = body.json_schema
    form = body.response_format
    if form is not None:
        if form.type == "json_object":
            schema = form.schema if form.schema is not None else {"type": "object"}
        elif form.type == "json_schema":
            schema = form.schema if form.json_schema is None else form.json_schema.schema
            if schema is None:
                raise refuse("cannot use `response_format`: `json_schema.schema` is missing")
        elif form.type != "text":
            raise refuse(
                f"cannot use `response_format.type`: {form.type!r} is none of text, json_object and json_schema"
            )
    if body.grammar and body.grammar_lazy:
        raise refuse("cannot use `grammar_lazy`: what a grammar waits for is known of tool calls only")
    if body.grammar and schema in ({}, True):  # it asks for nothing that the grammar could not
        return None
    if schema is not None and body.grammar:
        raise refuse("cannot use `grammar` and a JSON schema together")
    return schema


def choose_stops(body: GenerationBody) -> tuple[str, ...]:
    """Choose the stop strings of a request, without empty ones. Raises LlamactlError for more than MAX_STOPS."""
    stops = (body.stop,) if isinstance(body.stop, str) else tuple(body.stop or ())
    if len(stops) > MAX_STOPS:
        raise refuse(f"cannot use `stop`: {len(stops)} strings, at most {MAX_STOPS} are taken")
    return tuple(stop for stop in stops if stop)


def choose_max_tokens(body: GenerationBody, default: int = -1) -> int | None:
    """None: no limit. -1 says the same, and as in llama-server `default` holds then; its own name for it comes before
    OpenAI's.
    """
    for name in ("n_predict", "max_completion_tokens", "max_tokens"):
        value: int | None = getattr(body, name)
        if value is None:
            continue
        if value < -1:
            raise refuse(f"cannot use `{name}`: {value} is negative")
        if value != -1:
            return value
        break
    return None if default == -1 else default


def choose_norm(body: EmbeddingBody) -> int:
    """Of the vectors; 2, which is length 1, unless the request says another. No float is raised to a larger power."""
    return 2 if body.embd_normalize is None else max(NO_NORM, min(body.embd_normalize, _INT32_MAX))


def choose_slot(body: GenerationBody, n_slots: int) -> int | None:
    """The slot that the request waits for; None: any, as for numbers that no slot has."""
    return body.id_slot if body.id_slot is not None and 0 <= body.id_slot < n_slots else None


def choose_shift(body: GenerationBody) -> tuple[int, int]:
    """`n_keep` and `n_discard`, for when the context is full; -1 keeps all of the prompt, 0 gives up a half."""
    for name, least in (("n_keep", -1), ("n_discard", 0)):
        value: int | None = getattr(body, name)
        if value is not None and not least <= value <= _INT32_MAX:
            raise refuse(f"cannot use `{name}`: {value} is out of range, from {least} on")
    return body.n_keep or 0, body.n_discard or 0


def choose_quiet_s(body: GenerationBody) -> float | None:
    """After how long without an event a stream gets a comment; None: never, as llama-server's -1 says."""
    interval_s = body.sse_ping_interval
    if interval_s is None:
        return QUIET_S
    return interval_s if interval_s > 0 else None


def check_adapters(body: GenerationBody) -> None:
    """Raises for adapters that would change the answer: there are none to choose from."""
    for entry in body.lora or ():
        if not isinstance(entry, dict) or entry.get("scale", 1) != 0:
            raise refuse("cannot use `lora`: no adapters are loaded with this model")


def check_abilities(body: ChatBody) -> None:
    """Raises for what no model here can do, where an answer without it would look like one with it."""
    if any(kind != "text" for kind in body.modalities or ()):
        raise refuse("cannot use `modalities`: models answer with text alone")
    for name in ("audio", "web_search_options"):
        if getattr(body, name) is not None:
            raise refuse(f"cannot use `{name}`: models answer with text alone, and from what they know")


def choose_n(body: GenerationBody) -> int:
    """How many choices for each prompt."""
    n = next((n for n in (body.n_cmpl, body.n) if n is not None), 1)
    if not 1 <= n <= MAX_N:
        raise refuse(f"cannot use `n`: {n} choices, from 1 to {MAX_N} are made")
    if isinstance(body, CompletionBody) and body.best_of not in (None, n):
        raise refuse(f"cannot use `best_of`: {body.best_of} is not the number of choices, which is {n}")
    return n


def _parse_samplers(given: str | list[str] | tuple[str, ...]) -> tuple[str, ...]:
    """Names, or one letter for each. Unknown ones are passed over, as by llama.cpp: presets of chat programs name some
    that it had once.
    """
    find = _SAMPLER_CHARS.get if isinstance(given, str) else find_sampler
    return tuple(dict.fromkeys(sampler for name in given if (sampler := find(name)) is not None))


def _check_breakers(breakers: list[str] | tuple[str, ...]) -> tuple[str, ...]:
    if len(breakers) > MAX_BREAKERS:
        raise refuse(f"cannot use `dry_sequence_breakers`: {len(breakers)} texts, at most {MAX_BREAKERS} are taken")
    return tuple(text[:MAX_BREAKER_CHARS].replace("\0", "") for text in breakers)


def _parse_logit_bias(
    given: dict[str, Any] | list[tuple[int | str, Any]] | None, tokenize: Callable[[str], list[int]]
) -> dict[int, float]:
    """Tokens by number or as text; false: never. Biases that are neither false nor a number are passed over, as by
    llama-server.
    """
    if given is not None and len(given) > MAX_BIASES:
        raise refuse(f"cannot use `logit_bias`: {len(given)} entries, at most {MAX_BIASES} are taken")
    pairs = given.items() if isinstance(given, dict) else given or []
    biases = {}
    for token, bias in pairs:
        if bias is True or not isinstance(bias, int | float):
            continue
        value = _NEVER if bias is False else float(bias)
        if isinstance(token, int):
            biases[token] = value
        elif token.removeprefix("-").isdecimal() and token.isascii() and len(token) < 12:
            biases[int(token)] = value
        else:
            biases.update(dict.fromkeys(tokenize(token), value))
    return biases
