"""What does llama.cpp's own chat layer make of a conversation, and of an answer? A prompt, with the grammar, the stops
and the parser that go with it; and deltas, as text by text is parsed.

It is C++, reached through `instance.llama.chat_library`. Applying a template takes milliseconds and runs what strangers
wrote: it belongs on a thread of its own. Everything here may be called from any thread.
"""

import hashlib
import threading
import weakref
from collections.abc import Iterable
from typing import Any, Literal

import msgspec

from llamactl.errors import ErrorCode, LlamactlError
from llamactl.instance.llama.chat_library import ChatLibrary, ChatLibraryError, load_chat_library

MAX_REQUEST_BYTES = 32 << 20
"""llama.cpp takes some twenty times as much for it."""
MAX_PROPERTIES = 500
"""Of one object in a schema."""
MAX_ANSWER_BYTES = 4 << 20
"""What is parsed is parsed again with each text that is added."""


class TemplateInfo(msgspec.Struct, frozen=True):
    """What llama.cpp knows of a template."""

    capabilities: dict[str, bool]
    """Under llama-server's names, `supports_tools` among them. Of the template for tools, where the file has one."""
    supports_thinking: bool
    is_explicit: bool
    """Whether the file, or the configuration, has a template at all."""
    source: str
    tool_use_source: str
    """Of the file's own template for requests with tools; mostly empty."""


class ApplyRequest(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A conversation, in the form of chat completions."""

    messages: list[dict[str, Any]]
    tools: list[dict[str, Any]] | None = None
    tool_choice: Literal["auto", "none", "required"] = "auto"
    parallel_tool_calls: bool | None = None
    """None: where the template can."""
    json_schema: Any = None
    grammar: str = ""
    add_generation_prompt: bool = True
    continue_final_message: bool | Literal["content", "reasoning_content"] = False
    """Whether the last message is an answer that goes on; with it there is no generation prompt."""
    enable_thinking: bool = True
    reasoning_format: Literal["none", "auto", "deepseek", "deepseek-legacy"] = "deepseek"
    """Whether thoughts are parsed out of the answer: not with `none`."""
    chat_template_kwargs: dict[str, Any] = {}


class GrammarTrigger(msgspec.Struct, frozen=True):
    """What a lazy grammar begins with."""

    type: Literal["token", "word", "pattern", "pattern_full"]
    value: str
    token: int
    """-1: `value` says it."""


class MessageDelimiter(msgspec.Struct, frozen=True):
    """What a message of this role begins with."""

    role: str
    delimiter: str


class Applied(msgspec.Struct, frozen=True):
    """What is generated from, and how."""

    prompt: str
    format: int
    format_name: str
    grammar: str
    """GBNF; empty: the text is free."""
    grammar_lazy: bool
    """Whether it holds only from a trigger on. If not, its root begins with the generation prompt."""
    grammar_triggers: list[GrammarTrigger]
    preserved_tokens: list[str]
    """Special tokens whose text the parser reads."""
    additional_stops: list[str]
    generation_prompt: str
    """The end of the prompt that is the answer's beginning."""
    supports_thinking: bool
    thinking_start_tag: str
    thinking_end_tags: list[str]
    message_delimiters: list[MessageDelimiter]
    parser: str
    """Opaque. It depends on tools and options, not on messages."""

    @property
    def thinking_end_tag(self) -> str:
        return self.thinking_end_tags[0] if self.thinking_end_tags else ""

    @property
    def key(self) -> bytes:
        """The same for all that can share a grammar: what is made of it may be kept under this."""
        triggers = [(trigger.type, trigger.value, trigger.token) for trigger in self.grammar_triggers]
        parts = (self.grammar, self.grammar_lazy, triggers, self.preserved_tokens)
        return hashlib.blake2b(msgspec.json.encode(parts), digest_size=16).digest()


class CallDelta(msgspec.Struct, frozen=True):
    """A part of a call of a tool. The first one of a call has its id and name, the others what is added to its
    arguments.
    """

    index: int
    id: str
    name: str
    arguments: str


class Delta(msgspec.Struct, frozen=True):
    """What an answer has become longer by: one of the three."""

    reasoning_content: str = ""
    content: str = ""
    call: CallDelta | None = None


class ToolCall(msgspec.Struct, frozen=True):
    id: str
    name: str
    arguments: str


class Message(msgspec.Struct, frozen=True):
    """A whole answer."""

    content: str
    reasoning_content: str
    tool_calls: list[ToolCall]


class _Fed(msgspec.Struct, frozen=True):
    deltas: list[Delta]
    message: Message | None = None


def check_schemas(schemas: Iterable[Any]) -> None:
    """Raises LlamactlError(INVALID_REQUEST) for an object of so many properties that making a grammar of it would take
    minutes: the time grows with the third power of those that may be left out.
    """
    waiting = list(schemas)
    while waiting:
        schema = waiting.pop()
        if isinstance(schema, list):
            waiting += schema
        elif isinstance(schema, dict):
            properties = schema.get("properties")
            if isinstance(properties, dict) and len(properties) > MAX_PROPERTIES:
                raise _refuse(f"a schema has {len(properties)} properties, at most {MAX_PROPERTIES} are taken")
            waiting += schema.values()


class ParseError(Exception):
    """The answer is not in the form that its parser reads: models make mistakes. What was told before stands."""


_encode = msgspec.json.Encoder().encode
_decode_info = msgspec.json.Decoder(TemplateInfo).decode
_decode_applied = msgspec.json.Decoder(Applied).decode
_decode_fed = msgspec.json.Decoder(_Fed).decode


class ChatLayer:
    """The library. Raises LlamactlError(NOT_SUPPORTED) where it cannot be used; the hint is the command that builds
    it.
    """

    def __init__(self, library: ChatLibrary | None = None) -> None:
        self._library = library or load_chat_library()

    def open_template(
        self, source: str | None, model_handle: Any | None, bos: str = "", eos: str = ""
    ) -> "LayerTemplate":
        """`source` or, if there is none, what the file of the model says. With a model `bos` and `eos` are its own, and
        not in the prompt where its tokenizer adds them. Raises LlamactlError(INVALID_MODEL).
        """
        request = _encode({"source": source or "", "bos": bos, "eos": eos})
        try:
            return LayerTemplate(self._library, self._library.open_template(request, model_handle))
        except ChatLibraryError as error:
            raise LlamactlError(ErrorCode.INVALID_MODEL, f"cannot use the chat template: {error}") from None


class LayerTemplate:
    """One template, or the two of a model's file. Freed with the last reference."""

    def __init__(self, library: ChatLibrary, handle: int) -> None:
        self._library = library
        self._handle = handle
        weakref.finalize(self, library.close_template, handle)
        self.info = _decode_info(library.read_info(handle))

    def apply(self, request: ApplyRequest) -> Applied:
        """Raises LlamactlError(INVALID_REQUEST) where the template refuses this."""
        check_schemas([request.tools, request.json_schema])
        try:
            data = _encode(request)
        except (OverflowError, RecursionError, TypeError, ValueError) as error:
            raise _refuse(str(error)) from None
        if len(data) > MAX_REQUEST_BYTES:
            raise _refuse(f"the conversation is larger than {MAX_REQUEST_BYTES} bytes")
        try:
            return _decode_applied(self._library.apply(self._handle, data))
        except ChatLibraryError as error:
            if error.kind == "memory":
                raise MemoryError(str(error)) from None
            raise _refuse(str(error)) from None

    def start_answer(
        self, applied: Applied, *, id_prefix: str = "call_", is_continuation: bool = False
    ) -> "AnswerParser":
        """`id_prefix`: of the ids of calls to which the model gives none. `is_continuation`: the request began the
        answer, and is not told what it said.
        """
        request = {
            "format": applied.format,
            "generation_prompt": applied.generation_prompt,
            "parser": applied.parser,
            "id_prefix": id_prefix,
            "is_continuation": is_continuation,
        }
        try:
            handle = self._library.open_answer(_encode(request))
        except ChatLibraryError:
            if not is_continuation:
                raise
            # What the request began is in no form that the parser reads, so that it will tell nothing of it either.
            handle = self._library.open_answer(_encode({**request, "is_continuation": False}))
        return AnswerParser(self._library, handle)


class AnswerParser:
    """One answer, text by text. Close it, or drop it."""

    def __init__(self, library: ChatLibrary, handle: int) -> None:
        self._library = library
        self._handle = handle
        self._free = weakref.finalize(self, library.close_answer, handle)
        self._in_use = threading.Lock()
        self._is_closed = False
        self._n_bytes = 0

    def feed(self, text: str, is_partial: bool) -> tuple[list[Delta], Message | None]:
        """What is new, and with the last text (`is_partial` false) the whole. All of it is parsed again, so that the
        cost grows with its length: feed long answers in steps. Raises ParseError; then what was fed before, and what is
        fed next, still counts.
        """
        data = text.encode("utf-8", "replace")
        with self._in_use:
            self._n_bytes += len(data)
            if self._is_closed or self._n_bytes > MAX_ANSWER_BYTES:
                raise ParseError("it is closed" if self._is_closed else f"it is longer than {MAX_ANSWER_BYTES} bytes")
            try:
                fed = _decode_fed(self._library.feed_answer(self._handle, data, is_partial))
            except ChatLibraryError as error:
                raise ParseError(str(error)) from None
            finally:
                self._free_if_closed()  # meanwhile, by who does not wait any more
        return fed.deltas, fed.message

    def close(self) -> None:
        """At once, or after the feed that is running on another thread."""
        self._is_closed = True
        if self._in_use.acquire(blocking=False):
            self._free_if_closed()
            self._in_use.release()

    def _free_if_closed(self) -> None:
        if self._is_closed:
            self._free()


def _refuse(reason: str) -> LlamactlError:
    return LlamactlError(ErrorCode.INVALID_REQUEST, f"cannot apply the chat template: {reason}")
