"""How do a request's texts become the tokens that the model sees? Prompts in all their forms, the middle of a file, a
query with a document.

Texts of clients are tokenized with their special tokens, as llama-server does. Long texts are tokenized on another
thread (llama.cpp releases nothing that the event loop needs meanwhile), so that one client's book does not stall the
others' tokens; whole libraries one after the other, because llama.cpp takes sixty times their size for it.
"""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

from llamactl.bodies import InfillChunk, Input, InputObject, Prompt, PromptObject, refuse
from llamactl.instance.engine.background import BackgroundWork, trim_memory
from llamactl.instance.llama.library import llama
from llamactl.instance.llama.model import Vocabulary

_T = TypeVar("_T")

LONG_TEXT_CHARS = 8192
HUGE_TEXT_CHARS = 1 << 20
MAX_PROMPTS = 2048
_NULL_TOKEN = -1
_CHUNK_SEPARATOR = "\n\n--- snippet ---\n\n"
_PROJECT, _FILE = "myproject\n", "filename\n"
"""llama-server's words for the names that requests cannot give."""


@dataclass(frozen=True)
class InfillTokens:
    """What a model trained on filling gaps marks their edges with; -1: it does not have that token."""

    prefix: int
    suffix: int
    middle: int
    repository: int
    separator: int

    @property
    def is_complete(self) -> bool:
        return _NULL_TOKEN not in (self.prefix, self.suffix, self.middle)


def read_infill_tokens(vocabulary: Vocabulary) -> InfillTokens:
    """Read which tokens mark the parts of a prompt with a gap; -1 for those that the model lacks."""
    return InfillTokens(
        llama.llama_vocab_fim_pre(vocabulary.pointer),
        llama.llama_vocab_fim_suf(vocabulary.pointer),
        llama.llama_vocab_fim_mid(vocabulary.pointer),
        llama.llama_vocab_fim_rep(vocabulary.pointer),
        llama.llama_vocab_fim_sep(vocabulary.pointer),
    )


def read_text(given: str | PromptObject) -> str:
    """Raises for what would be shown beside it, where only text can stand."""
    if isinstance(given, str):
        return given
    if given.multimodal_data is not None:
        raise refuse("cannot use `multimodal_data` here: a text alone is taken")
    if isinstance(given, InputObject):
        return _join_input(given)
    return given.prompt_string


def _join_input(given: InputObject) -> str:
    parts = given.content
    for part in parts or ():
        if part.type != "text" or part.text is None:
            raise refuse(f"cannot use `content`: a part of type {part.type[:40]!r} has no text, which is what is taken")
    return given.prompt_string if parts is None else "".join(part.text or "" for part in parts)


def run_huge(work: Callable[[], _T]) -> _T:
    """Gives back what it took."""
    try:
        return work()
    finally:
        trim_memory()


class PromptReader:
    """Tokens of one vocabulary."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self.vocabulary = vocabulary
        self.huge_text = asyncio.Lock()
        self.background = BackgroundWork()
        self.infill = read_infill_tokens(vocabulary)

    async def tokenize_prompt(self, text: str) -> list[int]:
        """Tokenize a text with what the model begins a prompt with; long ones on a thread of their own."""
        return await self._run(text, self.vocabulary.tokenize_prompt)

    async def tokenize(self, text: str, *, add_special: bool = False, parse_special: bool = True) -> list[int]:
        """A part of a prompt: nothing is added at its ends, unless it is asked for."""
        tokenize = partial(self.vocabulary.tokenize, add_special=add_special, parse_special=parse_special)
        return await self._run(text, tokenize)

    async def _run(self, text: str, tokenize: Callable[[str], list[int]]) -> list[int]:
        if len(text) < LONG_TEXT_CHARS:
            return tokenize(text)
        if len(text) < HUGE_TEXT_CHARS:
            return await self.background.run(lambda: tokenize(text))
        return await self.background.run(lambda: run_huge(lambda: tokenize(text)), self.huge_text)

    async def read_prompts(self, given: Prompt | Input) -> list[list[int]]:
        """One text or one list of tokens is one prompt; a list of texts, or of lists, is several."""
        if isinstance(given, str | PromptObject):
            return [await self.tokenize_prompt(read_text(given))]
        if any(isinstance(entry, int) for entry in given):
            return [await self._read_mixed(given)]
        if len(given) > MAX_PROMPTS:
            raise refuse(f"cannot use `prompt`: {len(given)} prompts, at most {MAX_PROMPTS} are taken")
        return [
            await self._read_mixed(entry) if isinstance(entry, list) else await self.tokenize_prompt(read_text(entry))
            for entry in given
            if not isinstance(entry, int)
        ]

    async def _read_mixed(self, entries: Sequence[Any]) -> list[int]:
        """Tokens and texts in turn. A text at the beginning gets what belongs at the beginning of prompts."""
        tokens: list[int] = []
        for index, entry in enumerate(entries):
            if isinstance(entry, int):
                self.check_tokens([entry])
                tokens.append(entry)
            elif isinstance(entry, str | PromptObject):
                text = read_text(entry)
                tokens += await (self.tokenize(text) if index else self.tokenize_prompt(text))
            else:
                raise refuse("cannot use `prompt`: a list of tokens holds another list")
        return tokens

    def check_tokens(self, tokens: list[int]) -> None:
        """Raise LlamactlError(INVALID_REQUEST) for a number that is no token of the vocabulary."""
        for token in tokens:
            if not 0 <= token < self.vocabulary.n_tokens:
                raise refuse(f"cannot use token {token}: the vocabulary has {self.vocabulary.n_tokens}")

    async def read_inputs(self, given: Input) -> list[list[int]]:
        """Of embeddings: as prompts, but none empty."""
        inputs = await self.read_prompts(given)
        for index, tokens in enumerate(inputs):
            if not tokens:
                raise refuse(f"cannot use `input[{index}]`: it is empty")
        if not inputs:
            raise refuse("cannot use `input`: it is empty")
        return inputs

    async def tokenize_parts(self, parts: Sequence[str | int], *, add_special: bool, parse_special: bool) -> list[int]:
        """Texts and tokens in turn; what belongs at the beginning is put before a text that stands there."""
        tokens: list[int] = []
        for index, part in enumerate(parts):
            if isinstance(part, int):
                self.check_tokens([part])
                tokens.append(part)
            else:
                tokens += await self.tokenize(part, add_special=add_special and not index, parse_special=parse_special)
        return tokens

    async def fill_gap(
        self, prefix: str, suffix: str, extra: Sequence[InfillChunk], start: str, room: int, n_batch: int
    ) -> list[int]:
        """A prompt for what stands between `prefix` + `start` and `suffix`. As llama-server makes it: what is near
        the gap fills a batch, three parts before it and one after it, and other files fill the rest of `room`.
        """
        before, after = await self.tokenize(prefix), await self.tokenize(suffix)
        beginning = await self.tokenize(start)
        n_before = min(len(before), 3 * (n_batch // 4))
        n_after = min(len(after), max(0, n_batch // 4 - (2 + len(beginning))))
        near = [
            *([self.vocabulary.bos] if self.vocabulary.adds_bos else []),
            *(self.infill.prefix, *before[len(before) - n_before :], *beginning),
            *(self.infill.suffix, *after[:n_after]),
            self.infill.middle,
        ]
        others = await self._read_other_files(extra)
        n_others = max(0, min(len(others), room - len(near)))
        return others[len(others) - n_others :] + near

    async def _read_other_files(self, extra: Sequence[InfillChunk]) -> list[int]:
        tokens: list[int] = []
        has_separator = self.infill.separator != _NULL_TOKEN
        if self.infill.repository != _NULL_TOKEN:
            tokens += [self.infill.repository, *await self.tokenize(_PROJECT)]
        for chunk in extra:
            if has_separator:
                tokens += [self.infill.separator, *await self.tokenize(f"{chunk.filename or 'tmp'}\n")]
            else:
                tokens += await self.tokenize(_CHUNK_SEPARATOR)
            tokens += await self.tokenize(chunk.text)
        if has_separator:
            tokens += [self.infill.separator, *await self.tokenize(_FILE)]
        return tokens

    async def pair(self, query: str, document: str, template: str | None) -> list[int]:
        """A query and a document as a reranker reads them: by the file's template, or with the separators of BERT."""
        if template is not None:
            parts = [part.split("{document}") for part in template.split("{query}")]
            return await self.tokenize(query.join(document.join(part) for part in parts))
        vocabulary = self.vocabulary
        end = vocabulary.eos if vocabulary.eos != _NULL_TOKEN else vocabulary.separator
        ends = [end] if vocabulary.adds_eos else []
        return [
            *([vocabulary.bos] if vocabulary.adds_bos else []),
            *(*await self.tokenize(query), *ends),
            *([vocabulary.separator] if vocabulary.adds_separator else []),
            *(*await self.tokenize(document), *ends),
        ]
