"""An instance whose model says what a test wants: `python -m tests.scripted_instance serve`.

All is real, the template, the grammar, the samplers, the parser, but the logits, which make the next token of the
script by far the likeliest. What the grammar forbids is therefore not said, and what is forced is.

`LLAMACTL_TEST_SCRIPT` names a file of JSON: a list of pairs, a text of the prompt and the answer to it. Of those that
the prompt has, the last one counts.
"""

import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from llamactl.instance.engine import generate
from llamactl.instance.engine.candidates import Candidates
from llamactl.instance.engine.sampling import Sampled, SamplerChain

VARIABLE = "LLAMACTL_TEST_SCRIPT"
_CERTAIN = 1e5


def find_answer(prompt: str) -> str | None:
    """None: the model may say what it likes."""
    pairs = json.loads(Path(os.environ[VARIABLE]).read_text())
    found = [(prompt.rfind(key), answer) for key, answer in pairs if key in prompt]
    return max(found, key=lambda pair: pair[0])[1] if found else None


class ScriptedCandidates(Candidates):
    """One token of which is the likeliest."""

    wanted: int | None = None

    def fill(self, context: Any, index: int) -> None:
        super().fill(context, index)
        if self.wanted is not None:
            self._entries[self.wanted].logit = _CERTAIN


class ScriptedChain(SamplerChain):
    """Of one answer."""

    def __init__(self, params: Any, vocabulary: Any, n_ctx: int, prompt: Sequence[int], *more: Any) -> None:
        super().__init__(params, vocabulary, n_ctx, prompt, *more)
        answer = find_answer(vocabulary.detokenize(prompt))
        self._script: list[int] | None = None
        if answer is not None:
            said = vocabulary.tokenize(answer, add_special=False, parse_special=True)
            self._script = [*said, vocabulary.eos]
        self._candidates = ScriptedCandidates(vocabulary.n_tokens)

    def sample(self, context: Any, index: int) -> int:
        if self._script is None:
            return super().sample(context, index)
        sampled = super().sample_closely(context, index, self._prepare())
        assert sampled.token is not None
        self._go_on(sampled.token)
        return sampled.token

    def sample_closely(self, context: Any, index: int, candidates: Candidates) -> Sampled:
        if self._script is None:
            return super().sample_closely(context, index, candidates)
        sampled = super().sample_closely(context, index, self._prepare())
        if sampled.token is not None:
            self._go_on(sampled.token)
        return sampled

    def _prepare(self) -> Candidates:
        assert self._script is not None
        self._candidates.wanted = self._script[0] if self._script else None
        return self._candidates

    def _go_on(self, token: int) -> None:
        if self._script and self._script[0] == token:
            del self._script[0]


def main() -> int:
    from llamactl.instance.__main__ import main as run_instance

    generate.SamplerChain = ScriptedChain  # type: ignore[misc]
    return run_instance(sys.argv[1:])


if __name__ == "__main__":
    sys.exit(main())
