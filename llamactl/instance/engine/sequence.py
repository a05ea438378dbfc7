"""What is known of one generation between two steps? Its tokens, how far the context has them, and what has come of it.

Apart from the generator, which moves it: this is what is looked at, from the engine's thread and, of running ones,
from the event loop.
"""

import codecs
from collections.abc import Callable
from dataclasses import dataclass, field

from llamactl.instance.engine.jobs import GenerationRequest, Job, ProgressEvent, TextEvent, Timings, TokenInfo
from llamactl.instance.engine.media import Span
from llamactl.instance.engine.prefixes import Prefix
from llamactl.instance.engine.sampling import SamplerChain
from llamactl.instance.engine.stats import Stats
from llamactl.instance.engine.text import TextStream


@dataclass(eq=False)
class Sequence:
    """One generation."""

    job: Job
    request: GenerationRequest
    tokens: list[int]
    """The prompt and what was generated, less what a shift of the context has left out."""
    text: TextStream
    chain: SamplerChain
    prefix: Prefix | None = None
    """Its memory, while it runs."""
    n_past: int = 0
    n_spared: int = 0
    """By so much fewer positions than cells those tokens take."""
    n_cached: int = 0
    n_generated: int = 0
    waits_for_end: int = -1
    """Put back when so many sequences had ended: it waits for one more."""
    started_s: float = 0.0
    first_token_s: float = 0.0
    output_index: int = -1
    """Of the running step, the token from whose logits the next one is drawn; -1: none yet."""
    probe_index: int = -1
    """Likewise, the token from whose logits the probability of the prompt's next one is read."""
    generated: list[int] = field(default_factory=list)
    is_shifted: bool = False
    """Whether its context was full, and a part of `tokens` left out."""
    held_tokens: list[int] = field(default_factory=list)
    """Generated since the last text that went out."""
    held_infos: list[TokenInfo] = field(default_factory=list)
    prompt_infos: list[TokenInfo] = field(default_factory=list)
    """Of the prompt's first tokens, where they are wanted; kept until all are known."""

    @property
    def slot(self) -> int:
        """Its number among those that run; -1: it waits."""
        return -1 if self.prefix is None else self.prefix.id

    @property
    def n_pending(self) -> int:
        return len(self.tokens) - self.n_past

    @property
    def next_text(self) -> int:
        """How many of the pending tokens come before the next place of an embedding."""
        span = self.next_span if self.request.media else None
        return self.n_pending if span is None else max(0, span.start - self.n_past)

    @property
    def next_span(self) -> Span | None:
        """The next picture or sound that is not decoded, or not wholly."""
        return next((span for span in self.request.media.values() if span.end > self.n_past), None)

    @property
    def next_probe(self) -> int | None:
        """The position of the prompt whose logits tell how likely the next of its tokens is; None: none is wanted."""
        if not self.request.wants_prompt_probs:
            return None
        n_known = len(self.prompt_infos)
        return None if n_known >= len(self.request.prompt) else n_known - 1

    def measure_timings(self, now_s: float) -> Timings:
        """Measure llama-server's `timings` up to `now_s`, in milliseconds."""
        return Timings(
            cache_n=self.n_cached,
            prompt_n=len(self.request.prompt) - self.n_cached,
            prompt_ms=(self.first_token_s - self.started_s) * 1e3,
            predicted_n=self.n_generated,
            predicted_ms=(now_s - self.first_token_s) * 1e3,
        )

    def measure_progress(self, now_s: float) -> ProgressEvent:
        """Measure how far the prompt has been read at `now_s`, in tokens and milliseconds."""
        n_processed = min(self.n_past, len(self.request.prompt))
        elapsed_ms = (now_s - self.started_s) * 1e3
        timings = None
        if self.request.wants_timings:
            timings = Timings(self.n_cached, max(0, n_processed - self.n_cached), elapsed_ms, 0, 0.0)
        return ProgressEvent(len(self.request.prompt), self.n_cached, n_processed, elapsed_ms, timings)

    def pop_text(self, text: str, now_s: float) -> TextEvent:
        """An event with this text, and all tokens since the last one."""
        tokens, infos = tuple(self.held_tokens), tuple(self.held_infos)
        self.held_tokens.clear()
        self.held_infos.clear()
        timings = self.measure_timings(now_s) if self.request.wants_timings else None
        return TextEvent(text, self.n_generated, tokens, infos, timings)

    def drop_stopped_tokens(self, text: str, read_piece: Callable[["Sequence", int], bytes]) -> None:
        """Tokens of which all the text belongs to a stop string, or comes after it, are not told of."""
        decode = codecs.getincrementaldecoder("utf-8")("replace").decode
        n_chars, n_kept = 0, 0
        for token in self.held_tokens:
            if n_chars >= len(text):
                break
            n_chars += len(decode(read_piece(self, token)))
            n_kept += 1
        del self.held_tokens[n_kept:]
        del self.held_infos[n_kept:]

    def add_to(self, stats: Stats, now_s: float) -> None:
        """What it took, at its end."""
        stats.n_tokens_max = max(stats.n_tokens_max, len(self.tokens))
        stats.n_prompt_cached += self.n_cached
        if not self.first_token_s:
            stats.n_prompt += max(0, self.n_past - self.n_cached)
            stats.prompt_s += now_s - self.started_s
            return
        timings = self.measure_timings(now_s)
        stats.n_prompt += timings.prompt_n
        stats.prompt_s += timings.prompt_ms / 1e3
        stats.n_predicted += timings.predicted_n
        stats.n_predict_steps += timings.n_steps
        stats.predicted_s += timings.predicted_ms / 1e3
