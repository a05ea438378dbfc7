"""Which settings of sampling may the table `sampling` of a model have? Requests that say nothing else get them.

They are llama-server's, by its names, and each is a field of `Sampling`.
"""

import difflib
from typing import Any

from llamactl.config.keys import Key
from llamactl.config.kinds import (
    SAMPLER_LIST,
    TEXTS,
    Kind,
    make_integer,
    make_number,
    show_plain,
)
from llamactl.config.value_parsers import parse_entries

SAMPLING_KEYS: tuple[Key, ...] = (
    Key("temperature", make_number(0, 100), "How random the choice is; `0`: always the likeliest."),
    Key("dynatemp_range", make_number(0, 100), "How far the temperature moves with the entropy."),
    Key("dynatemp_exponent", make_number(0, 100), "How the entropy becomes a temperature."),
    Key("top_k", make_integer(0), "Of the likeliest tokens, so many; `0`: all."),
    Key("top_p", make_number(0, 1), "Of the likeliest tokens, those that make up so much together."),
    Key("min_p", make_number(0, 1), "Tokens at least so likely as this share of the likeliest."),
    Key("typical_p", make_number(0, 1), "Locally typical sampling; `1`: off."),
    Key("top_n_sigma", make_number(-1, 1000), "Tokens within so many deviations of the likeliest."),
    Key("xtc_probability", make_number(0, 1), "How often the likeliest tokens are left out (XTC)."),
    Key("xtc_threshold", make_number(0, 1), "How likely these are at least; above 0.5: off."),
    Key("repeat_penalty", make_number(0.001, 1000), "Against tokens that have come; `1`: off."),
    Key("repeat_last_n", make_integer(-1), "How far penalties look back; `-1`: all of the context."),
    Key("presence_penalty", make_number(-100, 100), "Once for each token that has come."),
    Key("frequency_penalty", make_number(-100, 100), "Each time that a token has come."),
    Key("dry_multiplier", make_number(0, 1000), "Against repeated passages (DRY); `0`: off."),
    Key("dry_base", make_number(1, 1000), "How its penalty grows with the passage."),
    Key("dry_allowed_length", make_integer(0), "Passages of this length may repeat."),
    Key(
        "dry_penalty_last_n",
        make_integer(-1),
        "How far it looks back; `-1`: all of the context.",
    ),
    Key("dry_sequence_breakers", TEXTS, "Texts at which passages end."),
    Key("mirostat", make_integer(0, 2), "Mirostat 1 or 2, instead of the samplers; `0`: off."),
    Key("mirostat_tau", make_number(0, 1000), "The surprise that it aims at."),
    Key("mirostat_eta", make_number(0, 1000), "How fast it learns."),
    Key("min_keep", make_integer(0), "Samplers leave at least so many tokens."),
    Key("samplers", SAMPLER_LIST, "Which samplers there are, and their order."),
)
"""All in llama-server's names; what is not set is as the model file says, and else as llama.cpp has it."""


def _parse_sampling(value: object) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise ValueError("must be a table, as in { temperature = 0.6 }")
    known = {key.name: key for key in SAMPLING_KEYS}

    def parse(name: str, content: object) -> Any:
        if name not in known:
            close = difflib.get_close_matches(name[:100], known, n=1)
            hint = f"; did you mean {close[0]!r}?" if close else ""
            raise ValueError(f"{name!r} is no setting of sampling{hint}")
        try:
            return known[name].kind.parse(content)
        except ValueError as error:
            raise ValueError(f"{name} {error}") from None

    return parse_entries(value, parse)


SAMPLING = Kind("table, see below", _parse_sampling, show_plain)
