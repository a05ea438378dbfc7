"""How does a request with pictures and sounds become a prompt? In two steps, both on a thread of their own: what is
shown is read and checked, and after the template has written the text around it, it is decoded and cut into tokens.

One request at a time: a decoded picture takes many times the bytes that were sent.
"""

import asyncio
from collections.abc import Mapping, Sequence
from typing import TypeVar

import msgspec

from llamactl.bodies import ChatBody, Prompt, PromptObject, TemplateBody, refuse
from llamactl.instance.chat.media import (
    Item,
    MediaSources,
    decode_media,
    extract_media,
    refuse_item,
    shows_media,
    split_prompt,
)
from llamactl.instance.engine.background import BackgroundWork
from llamactl.instance.engine.media import Encoder, ItemError, MediaPrompt, Span
from llamactl.instance.engine.places import is_place
from llamactl.instance.http.prompts import MAX_PROMPTS, PromptReader
from llamactl.instance.llama.model import Vocabulary
from llamactl.instance.llama.projector import MediaError

_Conversation = TypeVar("_Conversation", ChatBody, TemplateBody)


class MediaPrompts:
    """Of one model. Belongs to the event loop."""

    def __init__(
        self, encoder: Encoder | None, directory: str, vocabulary: Vocabulary, background: BackgroundWork
    ) -> None:
        """`encoder`: None for a model that reads text alone; `directory`: below which files may be named."""
        self._reader = encoder.reader if encoder is not None else None
        projector = self._reader.projector if self._reader is not None else None
        self.sources = MediaSources(
            sees=projector is not None and projector.sees,
            hears=projector is not None and projector.hears,
            directory=directory,
        )
        self._vocabulary = vocabulary
        self._background = background
        self._turn = asyncio.Lock()

    async def extract(self, body: _Conversation) -> tuple[_Conversation, Sequence[Item]]:
        """The conversation with marks for what it shows, and that. Raises LlamactlError that names the part."""
        if not shows_media(body.messages):
            return body, ()
        messages, items = await self._background.run(lambda: extract_media(body.messages, self.sources), self._turn)
        return msgspec.structs.replace(body, messages=messages), items

    async def read_prompts(
        self, given: Prompt, reader: PromptReader
    ) -> tuple[list[list[int]], list[Mapping[int, Span]]]:
        """Tokens of each, and what stands in them for pictures and sounds."""
        entries = given if isinstance(given, list) else [given]
        if not any(isinstance(entry, PromptObject) and entry.multimodal_data is not None for entry in entries):
            prompts = await reader.read_prompts(given)
            return prompts, []
        if len(entries) > MAX_PROMPTS:
            raise refuse(f"cannot use `prompt`: {len(entries)} prompts, at most {MAX_PROMPTS} are taken")
        prompts = []
        media: list[Mapping[int, Span]] = []
        for entry in entries:
            if isinstance(entry, PromptObject) and entry.multimodal_data is not None:
                shown = await self.read_object(entry)
                prompts.append(shown.tokens)
                media.append(shown.spans)
            else:
                text: Prompt = entry if isinstance(entry, str | PromptObject) else [entry]
                prompts += await reader.read_prompts(text)
                media.append({})
        return prompts, media

    async def read_object(self, given: PromptObject) -> MediaPrompt:
        """llama-server's form of a text with marks, as `/props` tells them, and what stands in their places."""
        data = given.multimodal_data or ()
        if self._reader is None:
            raise refuse("cannot use `multimodal_data`: the model reads text alone, it has no `mmproj`")
        items = await self._background.run(lambda: decode_media(data, "multimodal_data"), self._turn)
        return await self.read(given.prompt_string, items)

    async def read(self, text: str, items: Sequence[Item]) -> MediaPrompt:
        """Of a text with marks. Raises LlamactlError that names the part."""
        reader = self._reader
        assert reader is not None
        parts = split_prompt(text, items)
        data = [item.data for item in items]
        try:
            prompt = await self._background.run(lambda: reader.read(parts, data, bos=self._vocabulary.bos), self._turn)
        except ItemError as error:
            raise refuse_item(items[error.item].place, str(error)) from None
        except MediaError as error:
            raise refuse(f"cannot use what the request shows: {error}") from None
        if is_place(prompt.tokens[-1]):
            raise refuse_item(items[-1].place, "the prompt ends with it, and text must follow")
        return prompt
