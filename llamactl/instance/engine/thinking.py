"""Is the model thinking, and may it go on? The text of its tokens goes in; out comes where a block of thoughts begins
and ends, and what ends it when its budget is used up.

Tags are looked for in the text, as the parser of the answer does it, not among the tokens: a tag that is no token of
its own may be cut into tokens in several ways. A block may begin in the prompt. After one has ended another may begin,
with a budget of its own (llama.cpp: common/reasoning-budget.cpp does the same by tokens).
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class ThinkingRules:
    """How a model marks its thoughts, and how long they may be."""

    start: str
    ends: tuple[str, ...]
    """Any of them; some models end a block by calling a function."""
    budget: int | None = None
    """Tokens within a block; None: any number."""
    forced: tuple[int, ...] = ()
    """The tokens that end a block whose budget is used up."""


class ThinkingWatch:
    """Of one answer."""

    def __init__(self, rules: ThinkingRules, prompt: str = "") -> None:
        """`prompt`: what the template has written of the answer. It costs nothing of the budget."""
        self._rules = rules
        self._starts = (rules.start.encode(),) if rules.start else ()
        self._ends = tuple(end.encode() for end in rules.ends if end)
        self._n_tail = max((len(tag) for tag in (*self._starts, *self._ends)), default=1) - 1
        self._tail = b""
        """What a tag may have begun with."""
        self._n_used = 0
        self._forced: list[int] = []
        self._is_forced = False
        """The last of the forced tokens has been taken."""
        self.is_within = False
        self._read(prompt.encode())
        self.has_thought = self.is_within or bool(self._starts and self._starts[0] in prompt.encode())

    def accept(self, piece: bytes) -> bytes:
        """The next token's text. Returns what of it stands outside of thoughts, with the tag that has ended them: some
        calls begin with it.
        """
        was_within = self.is_within
        outside = self._read(piece)
        if self.is_within and self._is_forced:
            self._leave()  # whether the text of the forced tokens shows it or not
        elif self.is_within and was_within and not self._forced and self._rules.budget is not None:
            self._n_used += 1
            if self._n_used >= self._rules.budget and not _is_cut(self._tail or piece):
                self._forced = list(self._rules.forced)
        return outside

    def pop_forced(self) -> int | None:
        """The token that must come next; None: any may. Its text is accepted as that of any other."""
        if not self._forced:
            return None
        token = self._forced.pop(0)
        self._is_forced = not self._forced
        return token

    def _read(self, piece: bytes) -> bytes:
        text, n_known, outside = self._tail + piece, len(self._tail), b""
        while True:
            found = _find_first(text, self._ends if self.is_within else self._starts)
            if found is None:
                outside += b"" if self.is_within else text[n_known:]
                break
            start, end = found
            if self.is_within:
                outside += text[start:end]
                self._leave()
            else:
                outside += text[n_known:end]
                self._enter()
            text, n_known = text[end:], 0
        self._tail = text[len(text) - min(self._n_tail, len(text)) :]
        return outside

    def _enter(self) -> None:
        self.is_within = self.has_thought = True
        self._n_used = 0
        if self._rules.budget == 0:
            self._forced = list(self._rules.forced)

    def _leave(self) -> None:
        self.is_within = self._is_forced = False
        self._forced = []


def _find_first(text: bytes, tags: tuple[bytes, ...]) -> tuple[int, int] | None:
    """Where the first of some tags begins and ends; of those that begin at one place, the longest."""
    found = [(start, -len(tag)) for tag in tags if (start := text.find(tag)) >= 0]
    if not found:
        return None
    start, length = min(found)
    return start, start - length


def _is_cut(text: bytes) -> bool:
    """Whether it ends within a character."""
    for back in range(1, min(3, len(text)) + 1):
        byte = text[-back]
        if byte < 0x80:
            return False
        if byte >= 0xC0:
            return back < (2 if byte < 0xE0 else 3 if byte < 0xF0 else 4)
    return False
