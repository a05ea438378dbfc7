"""Where do pictures stand among the tokens of a prompt?

Each embedding of what is seen or heard has a place in the lists of tokens, and there a number below -1 that says it
all: of which content it is a part, so that what a prefix holds and what a prompt asks for are compared like text; how
far into its chunk, so that no chunk is cut in two; and by how much fewer positions than cells the chunk takes, as with
M-RoPE, where a picture of 20 times 30 embeddings moves the text behind it by 30 positions.
"""

from collections import OrderedDict
from collections.abc import Hashable, Sequence

_LAST_OTHER = -1
"""Numbers down to this one are no embeddings."""
_BITS = 24
_MASK = (1 << _BITS) - 1
MAX_CHUNK = _MASK
"""Embeddings in one chunk."""
_MAX_CONTENTS = 4096


class Contents:
    """Numbers for contents: the same one for the same content. Of contents that nobody has asked for in a long time it
    is forgotten, and never given to another one.
    """

    def __init__(self) -> None:
        self._numbers: OrderedDict[Hashable, int] = OrderedDict()
        self._n_given = 0

    def give(self, content: Hashable) -> int:
        """Give a content its number, which it keeps while it is among the last that were asked for."""
        number = self._numbers.get(content)
        if number is None:
            self._n_given += 1
            number = self._numbers[content] = self._n_given
            if len(self._numbers) > _MAX_CONTENTS:
                self._numbers.popitem(last=False)
        self._numbers.move_to_end(content)
        return number


def make_places(number: int, n_tokens: int, n_positions: int) -> list[int]:
    """The numbers in a prompt for a chunk of the content with this number."""
    if not 0 < n_tokens <= MAX_CHUNK or not 0 <= n_tokens - n_positions <= MAX_CHUNK:
        raise ValueError(f"a chunk of {n_tokens} embeddings at {n_positions} positions")
    first = (number << _BITS | (n_tokens - n_positions)) << _BITS
    return [_LAST_OTHER - 1 - (first + index) for index in range(n_tokens)]


def is_place(token: int) -> bool:
    """Whether it is an embedding's place, and no token."""
    return token < _LAST_OTHER


def find_chunk_start(tokens: Sequence[int], index: int) -> int:
    """`index`, or where the chunk begins that a cut there would divide."""
    if 0 <= index < len(tokens) and is_place(tokens[index]):
        return index - (_LAST_OTHER - 1 - tokens[index] & _MASK)
    return index


def count_positions(tokens: Sequence[int], length: int) -> int:
    """How many positions the first `length` tokens take. No chunk is divided there."""
    spared = 0
    for token in tokens[:length]:
        if token < _LAST_OTHER:
            value = _LAST_OTHER - 1 - token
            if not value & _MASK:
                spared += value >> _BITS & _MASK
    return length - spared


def keep_text(tokens: Sequence[int]) -> list[int]:
    """Without the places of embeddings."""
    return [token for token in tokens if token >= 0]
