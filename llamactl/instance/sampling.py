"""Which token comes next? One chain of llama.cpp's samplers per sequence, built from the request.

Defaults and order are llama-server's, so that a model answers as it does there. The chain keeps state (penalties,
random numbers): it belongs to one sequence from its first token to its last, also while that sequence waits for room.
"""

import ctypes
import secrets
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from llamactl.instance.bindings import llama

_NEVER = float("-inf")


class SamplingParams(msgspec.Struct, frozen=True, kw_only=True):
    """llama-server's names and defaults."""

    temperature: float = 0.8
    top_k: int = 40
    top_p: float = 0.95
    min_p: float = 0.05
    typical_p: float = 1.0
    repeat_penalty: float = 1.0
    repeat_last_n: int = 64
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    seed: int | None = None
    """None: a new one for each request."""
    logit_bias: dict[int, float] = {}
    ignore_eos: bool = False

    @property
    def penalizes(self) -> bool:
        return self.repeat_last_n != 0 and (
            self.repeat_penalty != 1.0 or self.presence_penalty != 0.0 or self.frequency_penalty != 0.0
        )


class SamplerChain:
    """Owns a chain; `close` it."""

    def __init__(
        self, params: SamplingParams, n_vocab: int, is_end: Callable[[int], bool], prompt: Sequence[int]
    ) -> None:
        self._chain = llama.llama_sampler_chain_init(llama.llama_sampler_chain_default_params())
        for sampler in _build_samplers(params, n_vocab, is_end):
            llama.llama_sampler_chain_add(self._chain, sampler)
        if params.penalizes:
            # Penalties look back into the prompt, as llama-server's do.
            for token in prompt[-params.repeat_last_n :] if params.repeat_last_n > 0 else prompt:
                llama.llama_sampler_accept(self._chain, token)

    def sample(self, context: Any, index: int) -> int:
        """From the logits of the batch's token `index`; the token is accepted."""
        return int(llama.llama_sampler_sample(self._chain, context, index))

    def close(self) -> None:
        if self._chain:
            llama.llama_sampler_free(self._chain)
            self._chain = None


def _build_samplers(params: SamplingParams, n_vocab: int, is_end: Callable[[int], bool]) -> list[Any]:
    samplers = []
    biases = dict(params.logit_bias)
    if params.ignore_eos:
        biases.update(dict.fromkeys(filter(is_end, range(n_vocab)), _NEVER))
    biases = {token: bias for token, bias in biases.items() if 0 <= token < n_vocab}
    if biases:
        array = (llama.llama_logit_bias * len(biases))()
        for entry, (token, bias) in zip(array, biases.items(), strict=True):
            entry.token, entry.bias = token, bias
        samplers.append(llama.llama_sampler_init_logit_bias(n_vocab, len(biases), array))
    if params.penalizes:
        samplers.append(
            llama.llama_sampler_init_penalties(
                n_vocab,
                params.repeat_last_n,
                params.repeat_penalty,
                params.frequency_penalty,
                params.presence_penalty,
            )
        )
    if params.temperature <= 0:
        samplers.append(llama.llama_sampler_init_greedy())
        return samplers
    seed = secrets.randbits(32) if params.seed is None else params.seed & 0xFFFFFFFF
    samplers += [
        llama.llama_sampler_init_top_k(params.top_k),
        llama.llama_sampler_init_typical(params.typical_p, 1),
        llama.llama_sampler_init_top_p(params.top_p, 1),
        llama.llama_sampler_init_min_p(params.min_p, 1),
        llama.llama_sampler_init_temp(params.temperature),
        llama.llama_sampler_init_dist(ctypes.c_uint32(seed).value),
    ]
    return samplers
