"""Which token comes next? One chain of llama.cpp's samplers per sequence, built from the request.

Defaults and order are llama-server's, so that a model answers as it does there. The chain keeps state (penalties,
random numbers): it belongs to one sequence from its first token to its last, also while that sequence waits for room.
A grammar stands beside the chain and is asked about the chosen token first: only where that does not fit is the whole
vocabulary tried. Whether there is one, and which token is none of the chain's, is the guide's matter.
Numbers are clamped to what llama.cpp can bear: it allocates what it is told to look back.
"""

import codecs
import ctypes
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import msgspec

from llamactl.instance.engine.candidates import Candidates
from llamactl.instance.engine.grammars import Grammar, Prototype
from llamactl.instance.engine.guide import AnswerGuide, AnswerRules, guide_by_grammar
from llamactl.instance.llama.library import llama
from llamactl.instance.llama.model import Vocabulary
from llamactl.settings import Sampling

_NEVER = float("-inf")
_MIN_TEMPERATURE = 1e-4
"""Below it, except for 0, logits divided by the temperature leave the range of 32 bits."""
_LARGEST = 1e6
_MIROSTAT_M = 100
_MAX_BARRED = 256


class SamplingParams(Sampling, frozen=True, kw_only=True):
    """Of one request: what a configuration may say, and what only a request says."""

    seed: int | None = None
    """None: a new one for each request."""
    logit_bias: dict[int, float] = msgspec.field(default_factory=dict)
    ignore_eos: bool = False
    adaptive_target: float = -1.0
    """How likely the chosen tokens are to be on average; below 0: `adaptive_p` changes nothing."""
    adaptive_decay: float = 0.9
    grammar: str = ""
    """GBNF; empty: none."""
    n_probs: int = 0
    """Of each token, how many alternatives are told with their probabilities; 0: not even its own."""
    post_sampling_probs: bool = False
    """Probabilities after the samplers instead of the model's own."""

    def for_choice(self, index: int) -> "SamplingParams":
        """Of one of several choices: a seed would make them all the same."""
        return self if self.seed is None or not index else msgspec.structs.replace(self, seed=self.seed + index)

    @property
    def penalizes(self) -> bool:
        return self.repeat_last_n != 0 and (
            self.repeat_penalty != 1.0 or self.presence_penalty != 0.0 or self.frequency_penalty != 0.0
        )

    @property
    def penalizes_passages(self) -> bool:
        return self.dry_multiplier > 0 and self.dry_penalty_last_n != 0

    @property
    def is_greedy(self) -> bool:
        """Whether it is the likeliest token in any case. Typical sampling, XTC and adaptive-p can leave it out."""
        bars_likeliest = (
            (self.typical_p < 1 and "typ_p" in self.samplers)
            or (self.removes_likeliest and "xtc" in self.samplers)
            or (self.adaptive_target >= 0 and "adaptive_p" in self.samplers)
        )
        is_cold = self.temperature <= 0 and self.dynatemp_range <= 0 and "temperature" in self.samplers
        return is_cold and not bars_likeliest

    @property
    def removes_likeliest(self) -> bool:
        """XTC."""
        return self.xtc_probability > 0 and self.xtc_threshold <= 0.5


@dataclass(frozen=True)
class TokenProbs:
    """One token with its probability (or the logarithm of it), and the likeliest alternatives."""

    token: int
    value: float | None
    """None: unknown."""
    top: list[tuple[int, float]]


@dataclass(frozen=True)
class Sampled:
    """`token` None: no token fits the grammar; `is_complete`: because it is fulfilled."""

    token: int | None
    probs: TokenProbs | None = None
    is_complete: bool = False


class SamplerChain:
    """Owns a chain; `close` it. Raises GrammarError."""

    def __init__(
        self,
        params: SamplingParams,
        vocabulary: Vocabulary,
        n_ctx: int,
        prompt: Sequence[int],
        rules: AnswerRules | None = None,
        shown_tokens: frozenset[int] = frozenset(),
    ) -> None:
        """`rules`: of an answer that is more than text, its grammar among them; `shown_tokens`: control tokens that are
        part of it.
        """
        self._params = params
        self._vocabulary = vocabulary
        self._shown_tokens = shown_tokens
        self._guide: AnswerGuide | None = None
        if rules is not None:
            self._guide = AnswerGuide(rules, vocabulary)
        elif params.grammar:
            self._guide = guide_by_grammar(vocabulary, params.grammar)
        self._decoder = codecs.getincrementaldecoder("utf-8")("strict")
        self._chain = llama.llama_sampler_chain_init(llama.llama_sampler_chain_default_params())
        for sampler in _build_samplers(params, vocabulary, n_ctx):
            llama.llama_sampler_chain_add(self._chain, sampler)
        # Penalties look back into the prompt, as llama-server's do.
        n_back = max(
            _clamp_back(params.repeat_last_n, n_ctx) if params.penalizes else 0,
            _clamp_back(params.dry_penalty_last_n, n_ctx) if params.penalizes_passages else 0,
        )
        for token in prompt[-n_back:] if n_back else ():
            llama.llama_sampler_accept(self._chain, token)

    @property
    def is_plain(self) -> bool:
        """Whether `sample` will do for the next token: there is no grammar now, and no probabilities are wanted."""
        guide = self._guide
        return (guide is None or guide.grammar is None) and self._params.n_probs == 0

    @property
    def _grammar(self) -> Grammar | None:
        return None if self._guide is None else self._guide.grammar

    def sample(self, context: Any, index: int) -> int:
        """From the logits of the batch's token `index`; the token is accepted. Only for chains that are plain."""
        if self._guide is None:
            return int(llama.llama_sampler_sample(self._chain, context, index))
        token = self._guide.pop_forced()
        if token is None:
            token = int(llama.llama_sampler_sample(self._chain, context, index))
        else:
            llama.llama_sampler_accept(self._chain, token)
        self._guide.accept(token)
        return token

    def sample_closely(self, context: Any, index: int, candidates: Candidates) -> Sampled:
        """The same, with a grammar or with probabilities."""
        forced = None if self._guide is None else self._guide.pop_forced()
        grammar = self._grammar
        candidates.fill(context, index)
        candidates.apply(self._chain)
        token = candidates.selected if forced is None else forced
        if grammar is not None and forced is None and not self._fits(grammar, token):
            found = self._sample_within_grammar(grammar, context, index, candidates)
            if found is None:
                return Sampled(None, is_complete=any(grammar.allows(end) for end in self._vocabulary.ends))
            token = found
        probs = self._read_probs(context, index, candidates, token) if self._params.n_probs else None
        llama.llama_sampler_accept(self._chain, token)
        if self._guide is not None:
            self._guide.accept(token, is_tried=forced is None)
        if grammar is not None:
            self._decode(token)
        return Sampled(token, probs)

    def close(self) -> None:
        if self._chain:
            llama.llama_sampler_free(self._chain)
            self._chain = None
        if self._guide is not None:
            self._guide.close()

    def _fits(self, grammar: Grammar, token: int) -> bool:
        if self._guide is not None and self._guide.opens(token):
            return True
        return grammar.allows(token) and self._continues_text(token)

    def _sample_within_grammar(self, grammar: Grammar, context: Any, index: int, candidates: Candidates) -> int | None:
        """None: no token fits."""
        barred: list[int] = []
        while len(barred) < _MAX_BARRED:
            candidates.fill(context, index)
            candidates.apply(grammar.sampler)
            candidates.bar(barred)
            candidates.apply(self._chain)
            token = candidates.selected
            if not candidates.selected_is_possible:
                return None
            if self._fits(grammar, token):
                return token
            barred.append(token)
        return None

    def _decode(self, token: int) -> None:
        try:
            self._decoder.decode(self._read_piece(token))
        except UnicodeDecodeError:  # what came before the grammar, or was forced, ended within a character
            self._decoder.reset()

    def _read_piece(self, token: int) -> bytes:
        """What the client gets of it."""
        return self._vocabulary.piece(token, special=token in self._shown_tokens)

    def _continues_text(self, token: int) -> bool:
        """Whether the client gets the characters that the grammar counts. llama.cpp's grammars take some bytes that are
        no UTF-8, and read control tokens, which show nothing, as their names.
        """
        piece = self._read_piece(token)
        if not piece:
            return self._vocabulary.is_end(token)
        state = self._decoder.getstate()
        try:
            self._decoder.decode(piece)
            pending = self._decoder.getstate()[0]
        except UnicodeDecodeError:
            return False
        finally:
            self._decoder.setstate(state)
        # Half of a surrogate: Python's decoder sees that only with the third byte, when it is too late.
        return not (pending[:1] == b"\xed" and pending[1:2] >= b"\xa0")

    def _read_probs(self, context: Any, index: int, candidates: Candidates, token: int) -> TokenProbs:
        n_probs = self._params.n_probs
        if self._params.post_sampling_probs:
            if self._params.is_greedy:
                return TokenProbs(token, 1.0, [(token, 1.0)])
            return TokenProbs(token, *candidates.read_probabilities(token, n_probs))
        candidates.fill(context, index)
        return TokenProbs(token, *candidates.read_logprobs(token, n_probs))


def needs_preparation(params: SamplingParams, vocabulary: Vocabulary) -> bool:
    """Whether `prepare_samplers` may have something to make. A thread for nothing costs a request more than all else
    that is done before its prompt is decoded: while others generate, each change of threads waits for Python's lock.
    """
    return (params.penalizes_passages and not params.mirostat) or (params.ignore_eos and not vocabulary.knows_ends)


def prepare_samplers(params: SamplingParams, vocabulary: Vocabulary, n_ctx: int) -> None:
    """Makes on this thread what takes long, so that the engine's finds it made."""
    if params.penalizes_passages and not params.mirostat:
        _find_dry(params, vocabulary, n_ctx)
    if params.ignore_eos:
        _ = vocabulary.ends


def _clamp_back(last_n: int, n_ctx: int) -> int:
    return n_ctx if last_n < 0 else min(last_n, n_ctx)


def _clamp(value: float, low: float = -_LARGEST, high: float = _LARGEST) -> float:
    return min(max(value, low), high)


def _build_samplers(params: SamplingParams, vocabulary: Vocabulary, n_ctx: int) -> list[Any]:
    samplers = []
    biases = {token: _clamp(bias) if bias != _NEVER else bias for token, bias in params.logit_bias.items()}
    if params.ignore_eos:
        biases.update(dict.fromkeys(vocabulary.ends, _NEVER))
    biases.update(dict.fromkeys(vocabulary.suppressed, _NEVER))
    biases = {token: bias for token, bias in biases.items() if 0 <= token < vocabulary.n_tokens}
    if biases:
        entries = (llama.llama_logit_bias * len(biases))()
        for entry, (token, bias) in zip(entries, biases.items(), strict=True):
            entry.token, entry.bias = token, bias
        samplers.append(llama.llama_sampler_init_logit_bias(vocabulary.n_tokens, len(biases), entries))
    seed = ctypes.c_uint32(secrets.randbits(32) if params.seed is None else params.seed).value
    if params.mirostat:
        samplers.append(llama.llama_sampler_init_temp(_clamp_temperature(params.temperature)))
        tau, eta = _clamp(params.mirostat_tau), _clamp(params.mirostat_eta)
        if params.mirostat == 1:
            samplers.append(llama.llama_sampler_init_mirostat(vocabulary.n_tokens, seed, tau, eta, _MIROSTAT_M))
        else:
            samplers.append(llama.llama_sampler_init_mirostat_v2(seed, tau, eta))
        return samplers
    for name in params.samplers:
        sampler = _build_sampler(name, params, vocabulary, n_ctx, seed)
        if sampler is not None:
            samplers.append(sampler)
    samplers.append(_build_last_sampler(params, seed))
    return samplers


def _build_last_sampler(params: SamplingParams, seed: int) -> Any:
    """It chooses, wherever adaptive-p stands in the order."""
    if params.is_greedy:
        return llama.llama_sampler_init_greedy()
    if "adaptive_p" in params.samplers:
        return llama.llama_sampler_init_adaptive_p(_clamp(params.adaptive_target), _clamp(params.adaptive_decay), seed)
    return llama.llama_sampler_init_dist(seed)


def _build_sampler(name: str, params: SamplingParams, vocabulary: Vocabulary, n_ctx: int, seed: int) -> Any | None:
    """None where the sampler would change nothing; those that cannot change which token is the likeliest are left out
    for greedy requests.
    """
    keep = int(_clamp(params.min_keep, 0, vocabulary.n_tokens))
    random = not params.is_greedy
    match name:
        case "penalties" if params.penalizes:
            return llama.llama_sampler_init_penalties(
                vocabulary.n_tokens,
                _clamp_back(params.repeat_last_n, n_ctx),
                _clamp(params.repeat_penalty, 1 / _LARGEST),
                _clamp(params.frequency_penalty),
                _clamp(params.presence_penalty),
            )
        case "dry" if params.penalizes_passages:
            return _find_dry(params, vocabulary, n_ctx).clone()
        case "top_n_sigma" if random and params.top_n_sigma > 0:
            return llama.llama_sampler_init_top_n_sigma(_clamp(params.top_n_sigma))
        case "top_k" if random and params.top_k > 0:
            return llama.llama_sampler_init_top_k(min(params.top_k, vocabulary.n_tokens))
        case "typ_p" if params.typical_p < 1:
            return llama.llama_sampler_init_typical(_clamp(params.typical_p), keep)
        case "top_p" if random and params.top_p < 1:
            return llama.llama_sampler_init_top_p(_clamp(params.top_p), keep)
        case "min_p" if random and params.min_p > 0:
            return llama.llama_sampler_init_min_p(_clamp(params.min_p), keep)
        case "xtc" if params.removes_likeliest:
            return llama.llama_sampler_init_xtc(
                _clamp(params.xtc_probability), _clamp(params.xtc_threshold), keep, seed
            )
        case "infill":
            return llama.llama_sampler_init_infill(vocabulary.pointer)
        case "temperature" if random:
            return llama.llama_sampler_init_temp_ext(
                _clamp_temperature(params.temperature), _clamp(params.dynatemp_range), _clamp(params.dynatemp_exponent)
            )
    return None


@lru_cache(maxsize=8)
def _create_dry(
    vocabulary: Vocabulary, breakers: tuple[str, ...], multiplier: float, base: float, allowed_length: int, last_n: int
) -> Prototype:
    """llama.cpp looks through the whole vocabulary for what ends a passage: a tenth of a second for a large one."""
    texts = [text.encode() for text in breakers if text]
    return Prototype(
        llama.llama_sampler_init_dry(
            *(vocabulary.pointer, multiplier, base, allowed_length, last_n),
            (ctypes.c_char_p * len(texts))(*texts),
            len(texts),
        )
    )


def _find_dry(params: SamplingParams, vocabulary: Vocabulary, n_ctx: int) -> Prototype:
    return _create_dry(
        vocabulary,
        params.dry_sequence_breakers,
        _clamp(params.dry_multiplier),
        # As llama-server: what makes no sense is replaced by the default.
        _clamp(params.dry_base) if params.dry_base >= 1 else Sampling().dry_base,
        int(_clamp(params.dry_allowed_length, 0)),
        _clamp_back(params.dry_penalty_last_n, n_ctx),
    )


def _clamp_temperature(value: float) -> float:
    return 0.0 if value <= 0 else _clamp(value, _MIN_TEMPERATURE)
