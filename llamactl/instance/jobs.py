"""What passes between the event loop and the engine's thread?

Requests go in, events come out. A job's `push` is called on the event loop only; `cancelled` is the one thing that
the event loop may set on a job that the engine has, and the engine looks at it before each step.
"""

import asyncio
from collections import deque
from dataclasses import dataclass, field
from enum import StrEnum

from llamactl.errors import LlamactlError
from llamactl.instance.sampling import SamplingParams


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
    cache_prompt: bool = True
    special_text: bool = False
    """Whether control tokens are part of the text."""


@dataclass(frozen=True)
class EmbeddingRequest:
    """Prompts of which each becomes one vector."""

    inputs: list[list[int]]


@dataclass(frozen=True)
class Timings:
    """Milliseconds and tokens of one generation, in llama-server's words."""

    cache_n: int
    prompt_n: int
    prompt_ms: float
    predicted_n: int
    predicted_ms: float


@dataclass(frozen=True)
class TextEvent:
    """Text that is certain, with the tokens generated so far."""

    text: str
    n_generated: int


@dataclass(frozen=True)
class FinishEvent:
    """The end of a generation. `n_cached` of the prompt's tokens were in memory already."""

    reason: FinishReason
    n_prompt: int
    n_generated: int
    n_cached: int
    timings: Timings
    stopped_by: str | None = None


@dataclass(frozen=True)
class EmbeddingEvent:
    """All vectors of a request, in order."""

    vectors: list[list[float]]


@dataclass(frozen=True)
class FailureEvent:
    """The end of a job that has no result."""

    error: LlamactlError


Event = TextEvent | FinishEvent | EmbeddingEvent | FailureEvent


@dataclass(eq=False)
class Job:
    """One request on its way through the engine, and the mailbox of its events."""

    request: GenerationRequest | EmbeddingRequest
    cancelled: bool = False
    _events: deque[Event] = field(default_factory=deque)
    _waiter: asyncio.Future[None] | None = None

    def push(self, event: Event) -> None:
        self._events.append(event)
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    async def receive(self) -> list[Event]:
        """Everything that has come since the last call, at least one event. For one reader."""
        if not self._events:
            self._waiter = asyncio.get_running_loop().create_future()
            await self._waiter
            self._waiter = None
        events = list(self._events)
        self._events.clear()
        return events


Deliveries = list[tuple[Job, Event]]
