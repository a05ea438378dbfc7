"""What can a loaded model be asked? Requests become jobs of the engine here: templates, tokens, bounds; all that is
not HTTP.

Long texts are tokenized on another thread (llama.cpp releases nothing that the event loop needs meanwhile), so that
one client's book does not stall the others' tokens.
"""

import asyncio
from dataclasses import dataclass
from typing import Any

from llamactl.errors import ErrorCode, LlamactlError
from llamactl.instance.bodies import (
    ChatBody,
    ChatMessage,
    CompletionBody,
    EmbeddingBody,
    check_choices,
    choose_max_tokens,
    choose_sampling,
    choose_stops,
    format_messages,
    refuse,
)
from llamactl.instance.engine import Engine
from llamactl.instance.jobs import EmbeddingRequest, GenerationRequest, Job
from llamactl.instance.model import Vocabulary
from llamactl.instance.template import ChatTemplate
from llamactl.protocol import Facts
from llamactl.settings import ModelSettings

_LONG_TEXT_CHARS = 8192


@dataclass(frozen=True)
class Service:
    """One ready model."""

    settings: ModelSettings
    facts: Facts
    vocabulary: Vocabulary
    template: ChatTemplate
    engine: Engine
    n_ctx: int
    n_batch: int
    embeds: bool
    pooling: str
    """Of embeddings, in the settings' words."""

    async def submit_chat(self, body: ChatBody) -> Job:
        self._require_text()
        check_choices(body)
        prompt = self.render(body.messages, body.tools, body.add_generation_prompt, body.chat_template_kwargs)
        return await self._submit_generation(body, await self.tokenize_prompt(prompt))

    async def submit_completion(self, body: CompletionBody) -> Job:
        self._require_text()
        check_choices(body)
        if body.echo:
            raise refuse("cannot use `echo`: it is not supported")
        if body.suffix:
            raise refuse("cannot use `suffix`: it is not supported")
        if body.best_of not in (None, 1):
            raise refuse(f"cannot use `best_of`: {body.best_of} is not supported, only 1 is")
        return await self._submit_generation(body, await self._read_prompt(body.prompt))

    async def submit_embedding(self, body: EmbeddingBody) -> tuple[Job, int]:
        """The job, and how many tokens its inputs have together."""
        if not self.embeds:
            raise refuse(
                f"cannot make embeddings: {self.settings.name!r} generates text; set `pooling` in its configuration "
                "to use it for embeddings"
            )
        if self.pooling in ("none", "rank"):
            raise refuse(f"cannot make embeddings: pooling {self.pooling!r} gives no vector for a text")
        if body.encoding_format not in (None, "float", "base64"):
            raise refuse(f"cannot use `encoding_format`: {body.encoding_format!r} is neither float nor base64")
        inputs = await self._read_inputs(body.input)
        for tokens in inputs:
            limit = min(self.n_batch, self.n_ctx)
            if len(tokens) > limit:
                raise _refuse_length(len(tokens), limit)
        job = Job(EmbeddingRequest(inputs))
        self.engine.submit(job)
        return job, sum(len(tokens) for tokens in inputs)

    def render(
        self,
        messages: list[ChatMessage],
        tools: list[dict[str, Any]] | None,
        add_generation_prompt: bool,
        variables: dict[str, Any] | None,
    ) -> str:
        given = {"tools": tools, "add_generation_prompt": add_generation_prompt}
        reserved = {"messages", *given}
        extra = {name: value for name, value in (variables or {}).items() if name not in reserved}
        return self.template.render(format_messages(messages), **extra, **given)

    async def tokenize_prompt(self, text: str) -> list[int]:
        if len(text) < _LONG_TEXT_CHARS:
            return self.vocabulary.tokenize_prompt(text)
        return await asyncio.to_thread(self.vocabulary.tokenize_prompt, text)

    async def _submit_generation(self, body: ChatBody | CompletionBody, prompt: list[int]) -> Job:
        if not prompt:
            raise refuse("cannot continue an empty prompt")
        if len(prompt) >= self.n_ctx:
            raise _refuse_length(len(prompt), self.n_ctx)
        request = GenerationRequest(
            prompt=prompt,
            sampling=choose_sampling(body),
            max_tokens=choose_max_tokens(body),
            stops=choose_stops(body),
            cache_prompt=body.cache_prompt,
        )
        job = Job(request)
        self.engine.submit(job)
        return job

    async def _read_prompt(self, prompt: str | list[str | int]) -> list[int]:
        if isinstance(prompt, str):
            return await self.tokenize_prompt(prompt)
        tokens = [token for token in prompt if isinstance(token, int)]
        if len(tokens) == len(prompt):
            return self._check_tokens(tokens)
        if len(prompt) == 1 and isinstance(prompt[0], str):
            return await self.tokenize_prompt(prompt[0])
        raise refuse("cannot use `prompt`: several prompts in one request are not supported")

    async def _read_inputs(self, given: str | list[str | int | list[int]]) -> list[list[int]]:
        if isinstance(given, str):
            given = [given]
        whole = [token for token in given if isinstance(token, int)]
        if whole and len(whole) == len(given):
            return [self._check_tokens(whole)]
        inputs = []
        for index, entry in enumerate(given):
            if isinstance(entry, str):
                tokens = await self.tokenize_prompt(entry)
            elif isinstance(entry, list):
                tokens = self._check_tokens(entry)
            else:
                raise refuse("cannot use `input`: texts and token numbers are mixed")
            if not tokens:
                raise refuse(f"cannot use `input[{index}]`: it is empty")
            inputs.append(tokens)
        if not inputs:
            raise refuse("cannot use `input`: it is empty")
        return inputs

    def _check_tokens(self, tokens: list[int]) -> list[int]:
        self.check_tokens(tokens)
        return tokens

    def check_tokens(self, tokens: list[int]) -> None:
        for token in tokens:
            if not 0 <= token < self.vocabulary.n_tokens:
                raise refuse(f"cannot use token {token}: the vocabulary has {self.vocabulary.n_tokens}")

    def _require_text(self) -> None:
        if self.embeds:
            raise refuse(f"cannot generate text: {self.settings.name!r} is a model for embeddings")


def _refuse_length(n_tokens: int, limit: int) -> LlamactlError:
    return LlamactlError(
        ErrorCode.CONTEXT_SIZE,
        f"cannot take the prompt: it has {n_tokens} tokens, the context has room for {limit}",
        details={"n_prompt_tokens": n_tokens, "n_ctx": limit},
    )
