"""How does an answer go on when its context is full? Its beginning stays, a part of what comes after is forgotten,
and the rest moves up.

What goes is llama-server's choice (`--context-shift`): of all that comes after the first `n_keep` tokens the older
half, or `n_discard` tokens. The cells that move keep what they were computed from, which is in part gone; so nothing
but the text in front of them can be the beginning of another request.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from llamactl.instance.engine.cache import PrefixCache
from llamactl.instance.engine.sequence import Sequence
from llamactl.instance.llama.library import llama
from llamactl.instance.llama.loading import Loaded
from llamactl.journal_events import JournalEvent
from llamactl.settings import ModelSettings
from llamactl.systemd.journal import get_logger

log = get_logger()

_LEAST_MOVED = 4
"""llama-server's: at least so many tokens, less the one that comes next, are not kept."""


@dataclass(frozen=True)
class Shift:
    """Behind the first `n_keep` tokens `n_discard` go."""

    n_keep: int
    n_discard: int


def choose_shift(n_past: int, n_prompt: int, n_ctx: int, *, n_keep: int, n_discard: int, adds_bos: bool) -> Shift:
    """For a sequence with `n_past` tokens in memory. `n_keep` and `n_discard` are the request's: below 0, all of the
    prompt; 0, half of what is not kept. (server-context.cpp: pre_decode)
    """
    kept = (n_prompt if n_keep < 0 else n_keep) + adds_bos
    kept = min(kept, n_ctx - _LEAST_MOVED)
    n_left = n_past - kept
    return Shift(kept, max(0, min(n_discard or n_left // 2, n_left - 1)))


@dataclass(frozen=True)
class ContextShift:
    """For the sequences of one context."""

    n_ctx: int
    n_ctx_train: int
    adds_bos: bool

    def apply(self, sequences: Iterable[Sequence], cache: PrefixCache) -> None:
        """Makes room for those that run and are as long as the context. What cannot be moved is left pending, to be
        decoded again.
        """
        for sequence in sequences:
            if len(sequence.tokens) >= self.n_ctx:
                self._apply(sequence, cache)

    def _apply(self, sequence: Sequence, cache: PrefixCache) -> None:
        prefix, request = sequence.prefix, sequence.request
        assert prefix is not None
        shift = choose_shift(
            len(sequence.tokens) - 1,
            len(request.prompt),
            self.n_ctx,
            n_keep=request.n_keep,
            n_discard=request.n_discard,
            adds_bos=self.adds_bos,
        )
        cache.shift(prefix, shift.n_keep, shift.n_discard)
        del sequence.tokens[shift.n_keep : shift.n_keep + shift.n_discard]
        sequence.n_past = len(prefix.tokens)
        sequence.is_shifted = True


def choose_context_shift(settings: ModelSettings, loaded: Loaded) -> ContextShift | None:
    """None: it is not configured, or, with a word in the journal, what this context holds cannot be moved. Then answers
    end where it is full, as in llama-server.
    """
    if not settings.context_shift:
        return None
    reason = ""
    if loaded.projector is not None:
        reason = "pictures and sounds cannot be moved; without mmproj the context can shift"
    elif not llama.llama_memory_can_shift(llama.llama_get_memory(loaded.context)):
        reason = "llama.cpp cannot move what this context holds; with a sliding window, swa_full = true helps"
    if reason:
        log.warning(JournalEvent.CONTEXT_SHIFT_UNAVAILABLE, architecture=loaded.facts.architecture, reason=reason)
        return None
    return ContextShift(loaded.facts.n_ctx, loaded.facts.n_ctx_train, loaded.model.vocabulary.adds_bos)
