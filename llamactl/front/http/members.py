"""What does a body say that decides what is done with its request? Three members at its top, read once.

Small bodies are decoded, large ones are scanned while they come (`scan`); what a value means, and when it is refused,
is the same for both and stands here. All other members are skipped. Only where a body has one member twice do the two
differ: a decoder takes the last `model`, and a scanner, which cannot wait for it, the first.
"""

import math
import re
from typing import Any

import msgspec

from llamactl.errors import ErrorCode, LlamactlError

MAX_KEEP_ALIVE_S = 10 * 365 * 86400.0
_DURATION = re.compile(r"(\d+(?:\.\d*)?|\.\d+)(ns|us|µs|ms|s|m|h)")
_UNITS_S = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0}


class Members(msgspec.Struct):
    """The values as JSON has them; None: not there, not there yet, or null."""

    model: Any = None
    stream: Any = None
    keep_alive: Any = None

    def read_model(self) -> str | None:
        """The name as the client wrote it; None where there is none. Raises LlamactlError for anything but a text."""
        model = self.model
        if model is None or model == "":
            return None
        if type(model) is not str:
            raise LlamactlError(ErrorCode.INVALID_REQUEST, 'cannot route request: "model" is not a string')
        return model

    @property
    def wants_stream(self) -> bool:
        """Whether the answer shall be an event stream."""
        return self.stream is True

    def read_keep_alive_s(self) -> float | None:
        """Seconds that the model shall stay, negative for ever; None: the request does not say. Raises LlamactlError
        for what is no duration.
        """
        if self.keep_alive is None or self.keep_alive == "":
            return None
        try:
            return parse_keep_alive(self.keep_alive)
        except ValueError as error:
            raise LlamactlError(
                ErrorCode.INVALID_REQUEST,
                f'cannot read "keep_alive": {error}',
                hint='as in 300, "5m", -1 or 0',
            ) from None


NO_MEMBERS = Members()
"""Of a request without a body, or with one that says nothing."""


def parse_keep_alive(value: object) -> float:
    """Seconds of a `keep_alive` as Ollama has it: a number of seconds, or a duration as Go writes it ("5m", "1h30m",
    "-1m"); negative: for ever. A text that is a number counts as seconds. Raises ValueError.
    """
    if isinstance(value, str):
        text = value.strip()
        rest = text.lstrip("+-")
        sign = -1.0 if text.startswith("-") else 1.0
        parts = _DURATION.findall(rest)
        if parts and "".join(number + unit for number, unit in parts) == rest:
            seconds = sign * sum(float(number) * _UNITS_S[unit] for number, unit in parts)
        else:
            try:
                seconds = float(text)
            except ValueError:
                raise ValueError(f"{value!r} is no duration") from None
    elif isinstance(value, int | float) and not isinstance(value, bool):
        try:
            seconds = float(value)
        except OverflowError:  # an integer of hundreds of digits
            raise ValueError("it is larger than any number of seconds") from None
    else:
        raise ValueError("it is neither a number nor a text")
    if math.isnan(seconds):
        raise ValueError(f"{value!r} is no duration")
    return -1.0 if seconds < 0 or seconds > MAX_KEEP_ALIVE_S else seconds
