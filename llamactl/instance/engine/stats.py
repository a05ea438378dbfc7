"""What has this instance done since it started? Sums that the engine's thread adds to and /metrics reads.

Each is one number that only grows, written by one thread: a reader may be one request behind, never wrong for good.
"""

from dataclasses import dataclass


@dataclass
class Stats:
    """Sums over all requests; times are those of single requests, added up."""

    n_prompt: int = 0
    """Prompt tokens that were decoded."""
    n_prompt_cached: int = 0
    """Prompt tokens that were in memory already."""
    prompt_s: float = 0.0
    n_predicted: int = 0
    n_predict_steps: int = 0
    """Of these tokens, all but each request's first, which comes of its prompt."""
    predicted_s: float = 0.0
    n_decodes: int = 0
    """Calls of llama_decode."""
    n_busy: int = 0
    """Sequences in them."""
    n_tokens_max: int = 0
    """The longest sequence."""

    @property
    def prompt_rate(self) -> float:
        """Tokens per second of a request."""
        return self.n_prompt / self.prompt_s if self.prompt_s else 0.0

    @property
    def predicted_rate(self) -> float:
        return self.n_predict_steps / self.predicted_s if self.predicted_s else 0.0

    @property
    def busy_per_decode(self) -> float:
        return self.n_busy / self.n_decodes if self.n_decodes else 0.0


@dataclass(frozen=True)
class Load:
    """Of one moment."""

    n_running: int
    n_waiting: int
