"""How likely was a token, and which others were likely in its place? For requests that ask for it."""

from functools import cached_property
from typing import Any

from llamactl.instance.engine.candidates import Candidates
from llamactl.instance.engine.jobs import TokenInfo
from llamactl.instance.engine.sampling import TokenProbs
from llamactl.instance.engine.sequence import Sequence
from llamactl.instance.llama.model import Vocabulary


class Probabilities:
    """Of one model's tokens. On the engine's thread."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._vocabulary = vocabulary

    @cached_property
    def candidates(self) -> Candidates:
        """As large as the vocabulary, so it is made when it is first needed."""
        return Candidates(self._vocabulary.n_tokens)

    def probe(self, context: Any, sequence: Sequence) -> None:
        """Of the prompt's next token, by the logits before it."""
        self.candidates.fill(context, sequence.probe_index)
        token = sequence.request.prompt[len(sequence.prompt_infos)]
        probs = TokenProbs(token, *self.candidates.read_logprobs(token, sequence.request.sampling.n_probs))
        sequence.prompt_infos.append(self.describe(probs))

    def describe(self, probs: TokenProbs) -> TokenInfo:
        """With the texts of all tokens."""
        piece = self._vocabulary.piece
        top = [(token, piece(token, special=True), value) for token, value in probs.top]
        return TokenInfo(probs.token, piece(probs.token, special=True), probs.value, top)
