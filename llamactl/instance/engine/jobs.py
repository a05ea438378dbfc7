"""What passes between the event loop and the engine's thread?

Requests go in, events come out. A job's `push` is called on the event loop only; `cancelled` is the one thing that
the event loop may set on a job that the engine has, and the engine looks at it before each step.
"""

import asyncio
import itertools
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

import msgspec

from llamactl.errors import LlamactlError
from llamactl.instance.engine.guide import AnswerRules
from llamactl.instance.engine.media import Span
from llamactl.instance.engine.sampling import SamplingParams


class FinishReason(StrEnum):
    """OpenAI's words."""

    STOP = "stop"
    LENGTH = "length"


@dataclass(frozen=True)
class GenerationRequest:
    """One prompt to continue."""

    prompt: list[int]
    sampling: SamplingParams
    max_tokens: int | None = None
    """None: until the model ends, or its room does."""
    stops: tuple[str, ...] = ()
    min_indent: int = 0
    """A line after the first that is indented less ends the text."""
    max_predict_s: float | None = None
    """The first new line after it ends the text."""
    n_keep: int = 0
    """Of the prompt, so many tokens stay when the context is full and shifts; below 0: all."""
    n_discard: int = 0
    """So many go then; 0: half of those that may."""
    cache_prompt: bool = True
    slot: int | None = None
    """It waits for this one of the slots; None: for any."""
    rules: AnswerRules | None = None
    """Of an answer that is more than text."""
    special_text: bool = False
    """Whether control tokens are part of the text."""
    shown_tokens: frozenset[int] = frozenset()
    """Those that are in any case."""
    wants_timings: bool = False
    """With each piece of text."""
    wants_progress: bool = False
    """Before the prompt is decoded, and after each part of it."""
    media: Mapping[int, Span] = field(default_factory=dict)
    """What stands in the prompt for pictures and sounds, in order, by the index of its first place."""
    wants_prompt_probs: bool = False
    """Of the prompt's own tokens as well. It is decoded one token at a time then: contexts have room for the logits of
    one token of each sequence and step.
    """


@dataclass(frozen=True)
class EmbeddingRequest:
    """Prompts of which each becomes one vector: of length 1, or as the model makes it (scores of a reranker)."""

    inputs: list[list[int]]
    norm: int = 2
    """As `normalize_as` of `embed` has it."""


@dataclass(frozen=True)
class Timings:
    """Milliseconds and tokens of one generation, in llama-server's words."""

    cache_n: int
    prompt_n: int
    prompt_ms: float
    predicted_n: int
    predicted_ms: float
    """From the first token on, which comes of the prompt."""

    @property
    def n_steps(self) -> int:
        """How many tokens that time was spent on."""
        return max(0, self.predicted_n - 1)


@dataclass(frozen=True)
class TokenInfo:
    """A token and the likeliest tokens in its place, with logarithms of probabilities (or probabilities, if these were
    asked for).
    """

    token: int
    piece: bytes
    value: float | None
    """None: of the first token of a prompt, which follows nothing."""
    top: list[tuple[int, bytes, float]]


class TextEvent(msgspec.Struct, frozen=True):
    """Text that is certain, with the tokens generated so far. `tokens`: those that have come since the last event."""

    text: str
    n_generated: int
    tokens: tuple[int, ...] = ()
    infos: tuple[TokenInfo, ...] = ()
    """Of each of these tokens, where it was asked for; without text, of the prompt's."""
    timings: Timings | None = None

    @property
    def is_first(self) -> bool:
        """Whether no tokens of the answer were told before these."""
        return len(self.tokens) == self.n_generated


@dataclass(frozen=True)
class ProgressEvent:
    """How far the prompt is decoded; `cached` of its tokens were in memory already."""

    n_total: int
    n_cached: int
    n_processed: int
    time_ms: float
    timings: Timings | None = None


@dataclass(frozen=True)
class FinishEvent:
    """The end of a generation. `n_cached` of the prompt's tokens were in memory already."""

    reason: FinishReason
    n_prompt: int
    n_generated: int
    n_cached: int
    timings: Timings
    stopped_by: str | None = None
    slot: int = -1
    truncated: bool = False
    """The end of the context was its end, or a part of its text was given up for it to go on."""
    end_text: str = ""
    """How templates write the token with which the model has ended. It is no part of the text."""


@dataclass(frozen=True)
class EmbeddingEvent:
    """All vectors of a request, in order: one for each input, or without pooling one for each token of these."""

    vectors: list[list[float]]


@dataclass(frozen=True)
class FailureEvent:
    """The end of a job that has no result."""

    error: LlamactlError


Event = TextEvent | ProgressEvent | FinishEvent | EmbeddingEvent | FailureEvent


@dataclass(eq=False)
class Mailbox:
    """Where the events of all jobs of one HTTP request arrive, each with its job's index. Belongs to the event loop."""

    _events: deque[tuple[int, Event]] = field(default_factory=deque)
    _waiter: asyncio.Future[None] | None = None

    def push(self, index: int, event: Event) -> None:
        """Put in an event of the job of this index, and wake who waits."""
        self._events.append((index, event))
        self._wake()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    async def receive(self, patience_s: float | None = None) -> list[tuple[int, Event]]:
        """Everything that has come since the last call: at least one event, or none after `patience_s`. For one
        reader.
        """
        if not self._events:
            loop = asyncio.get_running_loop()
            self._waiter = loop.create_future()
            timer = None if patience_s is None else loop.call_later(patience_s, self._wake)
            try:
                await self._waiter
            finally:
                self._waiter = None
                if timer is not None:
                    timer.cancel()
        events = list(self._events)
        self._events.clear()
        return events


@dataclass(eq=False)
class Job:
    """One prompt on its way through the engine."""

    request: GenerationRequest | EmbeddingRequest
    index: int = 0
    """Which of the choices of its HTTP request it makes."""
    mailbox: Mailbox = field(default_factory=Mailbox)
    number: int = field(default_factory=itertools.count().__next__)
    """In order of arrival."""
    cancelled: bool = False

    def push(self, event: Event) -> None:
        """Put an event into the mailbox that the jobs of its request share."""
        self.mailbox.push(self.index, event)

    async def receive(self) -> list[Event]:
        """For a job that is alone in its mailbox."""
        return [event for _, event in await self.mailbox.receive()]


Deliveries = list[tuple[Job, Event]]
