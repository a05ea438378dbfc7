"""Which beginnings of texts does the context still hold, which does a request go on from, and what is given up for it?

A prefix is one llama.cpp sequence and the tokens that its memory holds. After a request its tokens stay: the next
request that begins alike decodes only the rest. There are more prefixes than requests that run at once, since they
cost nothing but the cells that they use; and several may share cells, so what is counted is cells, not tokens.

Cells cost room, and time as well: each token that is decoded looks at all cells in use, if only to find that they are
another's. So what is idle is given up when it has cost as much as to decode it again would, which is at most twice as
much as the best that could have been done.

All prompts of a model begin alike, with the head of its template. So the longest common beginning decides nothing by
itself: a request takes the place that saves more tokens than it costs, and what a place costs are the tokens that
nobody else holds, the less the longer nobody has asked for them. Cells that are short are taken from the end of
what has been idle for longest: the cost of decoding them again grows with their number alone.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from llamactl.instance.engine.places import find_chunk_start

MIN_WORTH = 16
"""To keep fewer tokens is worth no trouble."""
MIN_CUT = 64
"""So many cells are given up at once, so that not each step must give up one."""
MOVED = -1
"""In place of a token whose cell has been moved: it was read behind others that are gone, so no prompt begins like it.
"""
_STRIDE = 256


@dataclass(eq=False)
class Run:
    """Neighbouring cells that the same prefixes hold."""

    length: int
    n_holders: int = 1


@dataclass(eq=False)
class Prefix:
    """The memory of one text."""

    id: int
    """llama.cpp's sequence."""
    home: int = -1
    """The one that it is in while it is idle."""
    tokens: list[int] = field(default_factory=list)
    """In the memory of the context, in order."""
    runs: list[Run] = field(default_factory=list)
    """The cells of these tokens, in order."""
    moved_from: int | None = None
    """From here on tokens were moved; None: none were."""
    busy: bool = False
    last_used: int = 0
    """Which request used it last, counted from the first one on."""
    n_prompt: int = 0
    """How many tokens that request's prompt had; what comes behind them is its answer."""
    idle_since: int = 0
    """How many tokens had been decoded for all when it became idle."""

    def count_own(self) -> int:
        """Cells that nobody else holds; all of them lie behind the shared ones."""
        return sum(run.length for run in self.runs if run.n_holders == 1)


@dataclass(frozen=True)
class Place:
    """Where a request goes on."""

    prefix: Prefix
    n_kept: int
    """So many of the tokens that the prefix holds stay."""
    donor: Prefix | None = None
    """Another one, whose first tokens are copied first."""
    n_copied: int = 0


@dataclass(frozen=True)
class Cut:
    """A prefix that is shortened for its cells."""

    prefix: Prefix
    n_kept: int


class Cells:
    """Which prefix holds how many cells, and how many are in use. Keeps the books of what is done to the context."""

    def __init__(self, homes: Iterable[int]) -> None:
        self.prefixes = [Prefix(home, home) for home in homes]
        self.n_used = 0

    def extend(self, prefix: Prefix, tokens: Sequence[int]) -> None:
        """These were decoded behind what it holds."""
        prefix.tokens += tokens
        self.n_used += len(tokens)
        if prefix.runs and prefix.runs[-1].n_holders == 1:
            prefix.runs[-1].length += len(tokens)
        else:
            prefix.runs.append(Run(len(tokens)))

    def cut(self, prefix: Prefix, length: int) -> None:
        """It holds its first `length` tokens and no more."""
        n_whole = self._split(prefix, length)
        self._release(prefix.runs[n_whole:])
        del prefix.runs[n_whole:]
        del prefix.tokens[length:]
        if prefix.moved_from is not None and length <= prefix.moved_from:
            prefix.moved_from = None

    def copy(self, donor: Prefix, prefix: Prefix, length: int) -> None:
        """`prefix`, which is empty, holds the first `length` cells of `donor` as well."""
        n_whole = self._split(donor, length)
        prefix.tokens[:] = donor.tokens[:length]
        prefix.runs[:] = donor.runs[:n_whole]
        for run in prefix.runs:
            run.n_holders += 1

    def shift(self, prefix: Prefix, n_keep: int, n_discard: int) -> None:
        """Behind its first `n_keep` tokens it no longer holds the next `n_discard`; those behind them have moved up."""
        end = n_keep + n_discard
        first, last = self._split(prefix, n_keep), self._split(prefix, end)
        self._release(prefix.runs[first:last])
        del prefix.runs[first:last]
        prefix.tokens[n_keep:] = [MOVED] * (len(prefix.tokens) - end)
        prefix.moved_from = n_keep

    def list_sharers(self, prefix: Prefix, start: int) -> list[Prefix]:
        """Which others hold a cell of what it holds from `start` on."""
        index = self._split(prefix, start)
        if index == len(prefix.runs):
            return []
        run = prefix.runs[index]  # whoever holds a later one holds this one, too
        return [other for other in self.prefixes if other is not prefix and run in other.runs]

    def clear(self) -> None:
        """Nobody holds anything."""
        for prefix in self.prefixes:
            prefix.id, prefix.tokens, prefix.runs, prefix.busy = prefix.home, [], [], False
            prefix.moved_from = None
        self.n_used = 0

    def _release(self, runs: Iterable[Run]) -> None:
        for run in runs:
            run.n_holders -= 1
            if not run.n_holders:
                self.n_used -= run.length

    def _split(self, prefix: Prefix, length: int) -> int:
        """Lets a run end at `length`, for all that share it. Returns how many runs that are."""
        start = 0
        for index, run in enumerate(prefix.runs):
            if start >= length:
                return index
            if start + run.length > length:
                self._divide(run, length - start)
            start += run.length
        return len(prefix.runs)

    def _divide(self, run: Run, length: int) -> None:
        rest = Run(run.length - length, run.n_holders)
        run.length = length
        for prefix in self.prefixes:
            if run in prefix.runs:
                prefix.runs.insert(prefix.runs.index(run) + 1, rest)


def count_common_prefix(left: Sequence[int], right: Sequence[int]) -> int:
    """How many tokens both begin with. Long ones are compared in strides, which is not Python's work."""
    length = min(len(left), len(right))
    for start in range(0, length, _STRIDE):
        end = min(start + _STRIDE, length)
        if left[start:end] != right[start:end]:
            return next(index for index in range(start, end) if left[index] != right[index])
    return length


def choose_place(
    prefixes: Sequence[Prefix],
    tokens: Sequence[int],
    now: int,
    *,
    can_copy: bool,
    count_kept: Callable[[Prefix, int], int] = lambda prefix, n_common: n_common,
) -> Place | None:
    """The place that saves most tokens less what it costs; among equals where it was, else the least recently used.

    The last token is decoded in any case: its logits are what comes next. `now` is the number of this request;
    `count_kept(prefix, n)` says how many of its first `n` tokens a prefix can be cut to. None: all are busy.
    """
    free = [prefix for prefix in prefixes if not prefix.busy]
    if not free:
        return None
    n_usable = max(0, len(tokens) - 1)
    common = {
        prefix.id: find_chunk_start(tokens, min(count_common_prefix(prefix.tokens, tokens), n_usable))
        for prefix in prefixes
    }
    donor = max(prefixes, key=lambda prefix: common[prefix.id]) if can_copy else None
    n_donated = common[donor.id] if donor is not None else 0
    held_elsewhere = _count_held_elsewhere(prefixes, free)

    def choose_for(prefix: Prefix) -> tuple[float, Place]:
        n_common = common[prefix.id]
        n_kept = count_kept(prefix, n_common)
        n_lost = len(prefix.tokens) - max(n_common, held_elsewhere[prefix.id])
        cost = n_lost / (1 + max(0, now - prefix.last_used))
        if n_kept and n_common == n_usable and len(tokens) == prefix.n_prompt:
            cost = 0  # asked again: another answer is wanted
        if donor is not None and donor is not prefix and n_donated > n_kept:
            return n_donated - cost, Place(prefix, 0, donor, n_donated)
        # A few tokens at its end are no reason to leave a branch behind with each turn.
        return n_kept - (cost if n_lost > MIN_WORTH else 0), Place(prefix, n_kept)

    choices = [(*choose_for(prefix), prefix) for prefix in free]
    return max(choices, key=lambda choice: (choice[0], choice[1].n_kept, -choice[2].last_used, -choice[2].id))[1]


def _count_held_elsewhere(prefixes: Sequence[Prefix], wanted: Iterable[Prefix]) -> dict[int, int]:
    """By id, how many of a prefix's first tokens another one holds as well. In lexical order that is a neighbour."""
    in_order = sorted(prefixes, key=lambda prefix: prefix.tokens)
    held = {prefix.id: 0 for prefix in wanted}
    for left, right in pairwise(in_order):
        n_common = count_common_prefix(left.tokens, right.tokens)
        for prefix in (left, right):
            if prefix.id in held:
                held[prefix.id] = max(held[prefix.id], n_common)
    return held


def choose_patience(n_ctx: int, model_bytes: int, context_bytes: int) -> int | None:
    """How many tokens may be decoded for others until an idle prefix has cost what it would to decode it again, for
    each of its tokens alike. None: any number, since tokens have no cells.

    To decode a token costs a part of a look at the whole model, since a prompt is read in batches, and an idle cell
    costs each token a part of a look at that cell, since it is passed over. The first part is about twice the second:
    1.2 and 2.3 times on a CPU, with models of 0.2 and 135 million weights. Where prompts are cheaper, as on a GPU,
    what is idle goes later than it might.
    """
    return 2 * n_ctx * model_bytes // context_bytes if context_bytes else None


def list_expired(prefixes: Iterable[Prefix], n_decoded: int, patience: int) -> list[Prefix]:
    """Idle ones that have cost enough, now that `n_decoded` tokens have been decoded. Those whose cells are all held by
    others as well cost nothing.
    """
    return [
        prefix
        for prefix in prefixes
        if not prefix.busy and n_decoded - prefix.idle_since >= patience and prefix.count_own()
    ]


def choose_cut(prefixes: Iterable[Prefix], n_missing: int, *, can_cut: bool) -> Cut | None:
    """The next idle prefix to shorten for `n_missing` cells, the least recently used one. None: there is none.

    It may free fewer, or none where others hold all that it holds: then nothing is lost with it, and the cells may be
    another one's own after that. Those that cannot be cut go whole.
    """
    idle = [prefix for prefix in prefixes if not prefix.busy and prefix.tokens]
    prefix = min(idle, key=lambda prefix: (prefix.last_used, prefix.id), default=None)
    if prefix is None:
        return None
    n_own = prefix.count_own()
    n_kept = find_chunk_start(prefix.tokens, len(prefix.tokens) - min(n_own, max(n_missing, MIN_CUT)))
    return Cut(prefix, n_kept if n_own and can_cut and n_kept >= MIN_WORTH else 0)
