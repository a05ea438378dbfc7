"""Which spellings have the numbers between two bounds? Digit by digit, as GBNF.

Integers have at most 16 digits, fractions few more than their bounds: what a 64-bit number can tell apart, so that a
number that is read back is still within its bounds. Bounded numbers are written without exponents.
"""

from dataclasses import dataclass, replace
from decimal import Decimal

from llamactl.instance.grammar.gbnf import SchemaError, format_literal, join_alternatives

MAX_DIGITS = 16
FREE_DIGITS = 6
MAX_BOUND_DIGITS = 30
INTEGER = '"-"? ("0" | [1-9] [0-9]{0,15})'
NUMBER = '"-"? ("0" | [1-9] [0-9]{0,15}) ("." [0-9]{1,16})? ([eE] [-+]? [0-9]{1,2})?'
_ANY = f"[0-9]{{0,{FREE_DIGITS}}}"
_SOME_NONZERO = f'"0"{{0,{FREE_DIGITS}}} [1-9] {_ANY}'
_ZEROS = f'"0"{{0,{FREE_DIGITS}}}'


@dataclass(frozen=True)
class Bounds:
    """Of a number; None: none. `above` and `below`: the bound itself is not within."""

    low: Decimal | None = None
    high: Decimal | None = None
    above: bool = False
    below: bool = False

    def mirror(self) -> "Bounds":
        """Of the number with the other sign."""
        return Bounds(
            None if self.high is None else -self.high, None if self.low is None else -self.low, self.below, self.above
        )


def format_integer(bounds: Bounds) -> str:
    """Raises SchemaError where no integer is within."""
    low = None if bounds.low is None else _round_up(bounds.low, bounds.above)
    high = None if bounds.high is None else -_round_up(-bounds.high, bounds.below)
    alternatives = []
    if low is None or low < 0:
        start = 1 if high is None or high >= 0 else -high
        negative = _list_integers(start, None if low is None else -low)
        alternatives += [f'"-" {spelling}' for spelling in negative]
    if high is None or high >= 0:
        alternatives += _list_integers(0 if low is None or low < 0 else low, high)
    if not alternatives:
        raise SchemaError(f"no integer is from {low} to {high}")
    return join_alternatives(alternatives)


def format_number(bounds: Bounds) -> str:
    """Raises SchemaError where no number is within."""
    alternatives = []
    zero = Decimal(0)
    if bounds.low is None or bounds.low < 0:
        mirrored = bounds.mirror()
        if mirrored.low is None or mirrored.low < 0:
            mirrored = replace(mirrored, low=zero, above=False)
        alternatives += [f'"-" {spelling}' for spelling in _list_numbers(mirrored)]
    if bounds.high is None or bounds.high >= 0:
        positive = replace(bounds, low=zero, above=False) if bounds.low is None or bounds.low < 0 else bounds
        alternatives += _list_numbers(positive)
    if not alternatives:
        raise SchemaError(f"no number is from {bounds.low} to {bounds.high}")
    return join_alternatives(alternatives)


def _round_up(value: Decimal, above: bool) -> int:
    """The smallest integer from `value` on; `above`: greater than it. Integers too long to be written are all one."""
    limit: int = 10**MAX_DIGITS
    if abs(value) >= limit:
        # Decimal cannot even divide much longer ones.
        return limit if value > 0 else -limit
    whole = int(value // 1)
    if value < whole:
        whole -= 1
    return whole if value == whole and not above else whole + 1


def _list_integers(low: int, high: int | None) -> list[str]:
    """Spellings of the integers from `low` (at least 0) to `high`."""
    if low >= 10**MAX_DIGITS:
        raise SchemaError(f"integers of more than {MAX_DIGITS} digits, as {low}, are not written")
    high = 10**MAX_DIGITS - 1 if high is None else min(high, 10**MAX_DIGITS - 1)
    spellings = []
    for length in range(len(str(low)), len(str(max(high, 0))) + 1):
        first = max(low, 0 if length == 1 else 10 ** (length - 1))
        last = min(high, 10**length - 1)
        if first <= last:
            spellings.append(_match_between(str(first), str(last)))
    return spellings


def _match_between(low: str, high: str) -> str:
    """Digits from `low` to `high`, which have the same length."""
    length = len(low)
    if not length:
        return ""
    if set(low) == {"0"} and set(high) == {"9"}:
        return f"[0-9]{{{length}}}"
    if length == 1:
        return f"[{low}-{high}]"
    if low[0] == high[0]:
        return f'"{low[0]}" {_match_between(low[1:], high[1:])}'.strip()
    alternatives = [f'"{low[0]}" {_match_between(low[1:], "9" * (length - 1))}'.strip()]
    if int(low[0]) + 1 < int(high[0]):
        alternatives.append(f"[{int(low[0]) + 1}-{int(high[0]) - 1}] [0-9]{{{length - 1}}}")
    alternatives.append(f'"{high[0]}" {_match_between("0" * (length - 1), high[1:])}'.strip())
    return "(" + " | ".join(alternatives) + ")"


def _list_numbers(bounds: Bounds) -> list[str]:
    """Spellings of the numbers within bounds of which the lower one is at least 0."""
    assert bounds.low is not None
    if bounds.high is not None and (
        bounds.low > bounds.high or (bounds.low == bounds.high and (bounds.above or bounds.below))
    ):
        return []
    whole, fraction = _split(bounds.low)
    if bounds.high is None:
        return [
            f"{format_literal(str(whole))} {_match_from(fraction, bounds.above)}",
            *(f'{spelling} ("." [0-9]{{1,{FREE_DIGITS}}})?' for spelling in _list_integers(whole + 1, None)),
        ]
    last_whole, last_fraction = _split(bounds.high)
    if whole == last_whole:
        return _list_within(whole, fraction, last_fraction, bounds)
    spellings = [f"{format_literal(str(whole))} {_match_from(fraction, bounds.above)}"]
    if whole + 1 < last_whole:
        between = _list_integers(whole + 1, last_whole - 1)
        spellings += [f'{spelling} ("." [0-9]{{1,{FREE_DIGITS}}})?' for spelling in between]
    up_to = _match_up_to(last_fraction, bounds.below)
    if up_to is not None:
        spellings.append(f"{format_literal(str(last_whole))} {up_to}".strip())
    return spellings


def _split(value: Decimal) -> tuple[int, str]:
    """The integer part, and the digits of the fraction without zeros at the end."""
    text = format(value, "f")
    if len(text) > MAX_BOUND_DIGITS:
        raise SchemaError(f"a bound of more than {MAX_BOUND_DIGITS} digits, as {value}, is not supported")
    whole, _, fraction = text.partition(".")
    return int(whole), fraction.rstrip("0")


def _match_from(fraction: str, above: bool) -> str:
    """The point and digits that make at least `fraction`."""
    if not fraction and not above:
        return f'("." [0-9]{{1,{FREE_DIGITS}}})?'
    return f'"." {_digits_from(fraction, above)}'


def _digits_from(digits: str, above: bool) -> str:
    if not digits:
        return f"({_SOME_NONZERO})" if above else _ANY
    alternatives = [f'"{digits[0]}" {_digits_from(digits[1:], above)}']
    if digits[0] != "9":
        alternatives.append(f"[{int(digits[0]) + 1}-9] {_ANY}")
    return "(" + " | ".join(alternatives) + ")"


def _match_up_to(fraction: str, below: bool) -> str | None:
    """Nothing, or the point and digits that make at most `fraction`. None: not even nothing."""
    if not fraction:
        return None if below else f'("." "0"{{1,{FREE_DIGITS}}})?'
    return f'("." {_digits_up_to(fraction, below)})?'


def _digits_up_to(digits: str, below: bool) -> str:
    """At least one digit."""
    first, rest = digits[0], digits[1:]
    alternatives = [f"[0-{int(first) - 1}] {_ANY}"] if first != "0" else []
    if rest:
        # Without further digits it is less, since the last digit of a fraction is none of 0.
        alternatives.append(f'"{first}" {_digits_up_to(rest, below)}?')
    elif not below:
        alternatives.append(f'"{first}" {_ZEROS}')
    return "(" + " | ".join(alternatives) + ")"


def _list_within(whole: int, low: str, high: str, bounds: Bounds) -> list[str]:
    """Numbers with one integer part, and fractions from `low` to `high`."""
    number = format_literal(str(whole))
    if not high:
        return [f'{number} ("." "0"{{1,{FREE_DIGITS}}})?']
    length = max(len(low), len(high))
    digits = _digits_within(low.ljust(length, "0"), high.ljust(length, "0"), bounds)
    spellings = [] if digits is None else [f'{number} "." {digits}']
    return [number, *spellings] if not low and not bounds.above else spellings


def _digits_within(low: str, high: str, bounds: Bounds) -> str | None:
    """None: there are none."""
    if not low:
        return None if bounds.above or bounds.below else _ZEROS
    if low[0] == high[0]:
        rest = _digits_within(low[1:], high[1:], bounds)
        return None if rest is None else f'"{low[0]}" {rest}'
    alternatives = [f'"{low[0]}" {_digits_from(low[1:].rstrip("0"), bounds.above)}']
    if int(low[0]) + 1 < int(high[0]):
        alternatives.append(f"[{int(low[0]) + 1}-{int(high[0]) - 1}] {_ANY}")
    rest = high[1:].rstrip("0")
    if rest:
        alternatives.append(f'"{high[0]}" {_digits_up_to(rest, bounds.below)}?')
    elif not bounds.below:
        alternatives.append(f'"{high[0]}" {_ZEROS}')
    return "(" + " | ".join(alternatives) + ")"
