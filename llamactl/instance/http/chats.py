"""What does a chat become that may have tools and thoughts? A prompt, the rules that the engine goes by, and a reader
of the answer: all three are of one application of the template by llama.cpp's chat layer.

The template is applied on a thread of its own: that takes milliseconds, tenths of a second with many functions and long
histories. What is made of a grammar is kept (`AnswerRules.prepare`), so that requests with the same tools share it.
"""

import secrets
import string
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import msgspec

from llamactl.bodies import ChatBody, refuse
from llamactl.errors import ErrorCode, LlamactlError
from llamactl.instance.chat.conversation import make_request
from llamactl.instance.chat.layer import Applied, ApplyRequest, ChatLayer, LayerTemplate, ParseError
from llamactl.instance.engine.grammars import GrammarError, check_grammar
from llamactl.instance.engine.guide import AnswerRules, GrammarStart
from llamactl.instance.engine.thinking import ThinkingRules
from llamactl.instance.engine.triggers import Trigger, TriggerKind
from llamactl.instance.http.deltas import PlainReader, Reader
from llamactl.instance.http.prompted_tools import make_template, write_tools
from llamactl.instance.http.reading import ParsingReader, ReadingPace, is_all_content
from llamactl.instance.http.thinking import ReasoningFormat, ThinkingParameters
from llamactl.instance.http.tools import ToolPlan
from llamactl.instance.llama.model import Vocabulary

_ID_CHARS = string.ascii_letters + string.digits
_ID_PREFIX_CHARS = 8
"""With the number behind it nine, which is what Mistral's templates want of an id, and no others mind."""
_CONTENT = '{"a": 1}'
_MAX_KEPT = 64


LONG_CHAT_MESSAGES = 500
LONG_CHAT_CHARS = 1 << 20
"""Templates are known that take a second for either, and twenty times the memory."""


def is_long(request: ApplyRequest) -> bool:
    """Whether one such conversation at a time is enough."""
    if len(request.messages) > LONG_CHAT_MESSAGES:
        return True
    texts = [text for message in request.messages for text in _list_texts(message)]
    return sum(map(len, texts)) > LONG_CHAT_CHARS


def _list_texts(message: dict[str, Any]) -> list[str]:
    content = message.get("content")
    texts = [part["text"] for part in content] if isinstance(content, list) else [content]
    texts += [call["function"]["arguments"] for call in message.get("tool_calls", ())]
    return [text for text in (*texts, message.get("reasoning_content")) if isinstance(text, str)]


@dataclass(frozen=True)
class ChatPlan:
    """How one request is answered."""

    prompt: str
    rules: AnswerRules | None = None
    shown_tokens: frozenset[int] = frozenset()
    stops: tuple[str, ...] = ()
    make_reader: Callable[[], Reader] = PlainReader
    is_legacy: bool = False
    """Answered in OpenAI's older form."""
    follows_schema: bool = False
    """Its grammar is that of the JSON schema, too."""


@dataclass
class ChatPlanner:
    """Of one loaded model."""

    template: LayerTemplate
    vocabulary: Vocabulary
    name: str
    """The model's, for errors."""
    tools_in_prompt: bool = False
    """Its system prompt tells of functions, not its template."""
    pace: ReadingPace = field(default_factory=ReadingPace)
    _checked: set[bytes] = field(default_factory=set)
    """Grammars that can be used, by `Applied.key`."""
    _bare: dict[str, bool] = field(default_factory=dict)
    """By parser."""
    _forms: dict[str, LayerTemplate] = field(default_factory=dict)
    """Templates of our own, by their sources."""

    def plan(
        self,
        request: ApplyRequest,
        tools: ToolPlan,
        parameters: ThinkingParameters,
        schema: dict[str, Any] | bool | None = None,
    ) -> ChatPlan:
        """On any thread. `schema`: that the content follows. Raises LlamactlError."""
        template, applied = self.template, self.template.apply(request)
        form = applied
        """From which the answer is read."""
        if self.tools_in_prompt and tools.tools:
            template, form = self._apply_form(applied, request, tools)
        elif tools.are_callable:
            self._require_tools(applied, tools)
        follows_schema = False
        if schema is not None and not self._takes_bare_content(template, form):
            if tools.are_callable:
                raise refuse(
                    f"cannot use `response_format` with `tools`: {self.name!r} writes text in a form of its own"
                )
            form = self.template.apply(msgspec.structs.replace(request, json_schema=schema))
            follows_schema = True
        return ChatPlan(
            prompt=applied.prompt,
            rules=self._make_rules(form, parameters, is_constrained=schema is not None),
            shown_tokens=self._find_shown(applied) | self._find_shown(form),
            stops=tuple(applied.additional_stops),
            make_reader=self._choose_reader(template, form, request, tools),
            is_legacy=tools.is_legacy,
            follows_schema=follows_schema,
        )

    def _apply_form(self, applied: Applied, request: ApplyRequest, tools: ToolPlan) -> tuple[LayerTemplate, Applied]:
        """Of answers that call functions in their text."""
        start, end, written = applied.thinking_start_tag, applied.thinking_end_tag, applied.generation_prompt
        begun = written[written.rfind(start) :] if start and start in written else ""
        source = make_template(start, end, "" if end and end in begun else begun)
        template = self._forms.get(source)
        if template is None:
            template = self._forms[source] = ChatLayer().open_template(source, None)
        form = ApplyRequest(
            messages=[{"role": "user", "content": "?"}],
            tools=list(tools.tools),
            tool_choice=tools.choice,
            parallel_tool_calls=tools.is_parallel,
            reasoning_format=request.reasoning_format,
        )
        return template, template.apply(form)

    def _takes_bare_content(self, template: LayerTemplate, applied: Applied) -> bool:
        """Whether content stands in an answer, behind its thoughts, without a mark."""
        known = self._bare.get(applied.parser)
        if known is None:
            written, start, end = applied.generation_prompt, applied.thinking_start_tag, applied.thinking_end_tag
            is_open = bool(start) and written.rfind(start) > written.rfind(end)
            parser = template.start_answer(applied)
            try:
                message = parser.feed((end if is_open else "") + _CONTENT, False)[1]
                known = message is not None and message.content == _CONTENT
            except ParseError:
                known = False
            finally:
                parser.close()
            if len(self._bare) >= _MAX_KEPT:
                self._bare.clear()
            self._bare[applied.parser] = known
        return known

    def make_request(
        self, body: ChatBody, tools: ToolPlan, variables: dict[str, Any], reasoning: ReasoningFormat
    ) -> ApplyRequest:
        """`body`: with messages of one form. Raises LlamactlError(INVALID_REQUEST) that names the field."""
        messages, told = body.messages, list(tools.tools)
        if self.tools_in_prompt:
            messages, told = write_tools(messages, told if tools.are_callable else ()), []
        return make_request(
            messages,
            self.template.info,
            variables,
            tools=told,
            add_generation_prompt=body.add_generation_prompt,
            continue_final_message=body.continue_final_message,
            tool_choice=tools.choice if told else "auto",
            parallel_tool_calls=tools.is_parallel,
            reasoning_format=reasoning,
        )

    def write(self, request: ApplyRequest) -> str:
        """The prompt alone."""
        return self.template.apply(request).prompt

    def _require_tools(self, applied: Applied, tools: ToolPlan) -> None:
        """The prompt tells of them, and calls can be told from text."""
        capabilities = self.template.info.capabilities
        is_told = capabilities.get("supports_tools") or all(name in applied.prompt for name in tools.names)
        if is_told and (capabilities.get("supports_tool_calls") or applied.grammar):
            return
        what = "writes no calls" if is_told else "does not tell the model of them"
        raise LlamactlError(
            ErrorCode.INVALID_REQUEST,
            f"cannot use `tools`: the chat template of {self.name!r} {what}",
            hint='set tools = "prompt" in its configuration: then its system prompt tells of them',
        )

    def _make_rules(
        self, applied: Applied, parameters: ThinkingParameters, *, is_constrained: bool
    ) -> AnswerRules | None:
        thinking = self._make_thinking(applied, parameters, is_constrained=is_constrained)
        if not applied.grammar and thinking is None:
            return None
        is_lazy = applied.grammar_lazy
        triggers = tuple(Trigger(TriggerKind(entry.type), entry.value) for entry in applied.grammar_triggers)
        rules = AnswerRules(
            grammar=applied.grammar,
            start=GrammarStart.ON_TRIGGER if is_lazy else GrammarStart.AT_ONCE,
            triggers=triggers,
            written=applied.generation_prompt,
            grammar_reads_written=not is_lazy,
            thinking=thinking,
        )
        if applied.grammar and applied.key not in self._checked:
            try:
                check_grammar(self.vocabulary, applied.grammar)
                rules.prepare(self.vocabulary)
            except (GrammarError, ValueError) as error:
                raise refuse(f"cannot use `tools`: the grammar of their calls: {error}") from None
            self._checked.add(applied.key)
        return rules

    def _make_thinking(
        self, applied: Applied, parameters: ThinkingParameters, *, is_constrained: bool
    ) -> ThinkingRules | None:
        is_needed = is_constrained or parameters.budget is not None or applied.grammar_lazy
        if not applied.thinking_end_tags or not is_needed:
            return None
        forced: list[int] = []
        if parameters.budget is not None:
            for text in (parameters.message, applied.thinking_end_tags[0]):
                forced += self.vocabulary.tokenize(text, add_special=False, parse_special=True) if text else []
        return ThinkingRules(
            applied.thinking_start_tag, tuple(applied.thinking_end_tags), parameters.budget, tuple(forced)
        )

    def _find_shown(self, applied: Applied) -> frozenset[int]:
        shown = set()
        for text in applied.preserved_tokens:
            tokens = self.vocabulary.tokenize(text, add_special=False, parse_special=True)
            if len(tokens) == 1:
                shown.add(tokens[0])
        return frozenset(shown)

    def _choose_reader(
        self, template: LayerTemplate, applied: Applied, request: ApplyRequest, tools: ToolPlan
    ) -> Callable[[], Reader]:
        if is_all_content(applied):
            return PlainReader

        is_continuation = bool(request.continue_final_message) and template is self.template
        n_calls = 1 if tools.is_parallel is False else None

        def make() -> Reader:
            prefix = "".join(secrets.choice(_ID_CHARS) for _ in range(_ID_PREFIX_CHARS))
            parser = template.start_answer(applied, id_prefix=prefix, is_continuation=is_continuation)
            return ParsingReader(parser, self.pace, n_calls=n_calls)

        return make
