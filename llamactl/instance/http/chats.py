"""What does a chat become that may have tools and thoughts? A prompt, the rules that the engine goes by, and a reader
of the answer: all three are of one application of the template by llama.cpp's chat layer.

The template is applied on a thread of its own: that takes milliseconds, tenths of a second with many functions and long
histories. What is made of a grammar is kept (`AnswerRules.prepare`), so that requests with the same tools share it.
"""

import secrets
import string
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from llamactl.bodies import ChatBody, refuse
from llamactl.errors import ErrorCode, LlamactlError
from llamactl.instance.chat.conversation import make_request
from llamactl.instance.chat.layer import Applied, ApplyRequest, LayerTemplate
from llamactl.instance.engine.grammars import GrammarError, check_grammar
from llamactl.instance.engine.guide import AnswerRules, GrammarStart
from llamactl.instance.engine.thinking import ThinkingRules
from llamactl.instance.engine.triggers import Trigger, TriggerKind
from llamactl.instance.http.deltas import PlainReader, Reader
from llamactl.instance.http.reading import ParsingReader, ReadingPace, is_all_content
from llamactl.instance.http.thinking import ReasoningFormat, ThinkingWishes
from llamactl.instance.http.tools import ToolPlan
from llamactl.instance.llama.model import Vocabulary

_ID_CHARS = string.ascii_letters + string.digits
_ID_PREFIX_CHARS = 8
"""With the number behind it nine, which is what Mistral's templates want of an id, and no others mind."""


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


@dataclass
class ChatPlanner:
    """Of one loaded model."""

    template: LayerTemplate
    vocabulary: Vocabulary
    name: str
    """The model's, for errors."""
    pace: ReadingPace = field(default_factory=ReadingPace)
    _checked: set[bytes] = field(default_factory=set)
    """Grammars that can be used, by `Applied.key`."""

    def plan(self, request: ApplyRequest, tools: ToolPlan, wishes: ThinkingWishes) -> ChatPlan:
        """On any thread. Raises LlamactlError."""
        applied = self.template.apply(request)
        if tools.are_callable:
            self._require_tools(applied, tools)
        plan = self._make_plan(applied, request, wishes)
        return replace(plan, prompt=applied.prompt, is_legacy=tools.is_legacy)

    def make_request(
        self, body: ChatBody, tools: ToolPlan, variables: dict[str, Any], reasoning: ReasoningFormat
    ) -> ApplyRequest:
        """`body`: with messages of one form. Raises LlamactlError(INVALID_REQUEST) that names the field."""
        return make_request(
            body.messages,
            self.template.info,
            variables,
            tools=list(tools.tools),
            add_generation_prompt=body.add_generation_prompt,
            continue_final_message=body.continue_final_message,
            tool_choice=tools.choice,
            parallel_tool_calls=tools.is_parallel,
            reasoning_format=reasoning,
        )

    def write(self, request: ApplyRequest) -> str:
        """The prompt alone."""
        return self.template.apply(request).prompt

    def _make_plan(self, applied: Applied, request: ApplyRequest, wishes: ThinkingWishes) -> ChatPlan:
        return ChatPlan(
            prompt="",
            rules=self._make_rules(applied, wishes),
            shown_tokens=self._find_shown(applied),
            stops=tuple(applied.additional_stops),
            make_reader=self._choose_reader(applied, request),
        )

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

    def _make_rules(self, applied: Applied, wishes: ThinkingWishes) -> AnswerRules | None:
        thinking = self._make_thinking(applied, wishes)
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

    def _make_thinking(self, applied: Applied, wishes: ThinkingWishes) -> ThinkingRules | None:
        if not applied.thinking_end_tags or (wishes.budget is None and not applied.grammar_lazy):
            return None
        forced: list[int] = []
        if wishes.budget is not None:
            for text in (wishes.message, applied.thinking_end_tags[0]):
                forced += self.vocabulary.tokenize(text, add_special=False, parse_special=True) if text else []
        return ThinkingRules(applied.thinking_start_tag, tuple(applied.thinking_end_tags), wishes.budget, tuple(forced))

    def _find_shown(self, applied: Applied) -> frozenset[int]:
        shown = set()
        for text in applied.preserved_tokens:
            tokens = self.vocabulary.tokenize(text, add_special=False, parse_special=True)
            if len(tokens) == 1:
                shown.add(tokens[0])
        return frozenset(shown)

    def _choose_reader(self, applied: Applied, request: ApplyRequest) -> Callable[[], Reader]:
        if is_all_content(applied):
            return PlainReader

        is_continuation = bool(request.continue_final_message)
        n_calls = 1 if request.parallel_tool_calls is False else None

        def make() -> Reader:
            prefix = "".join(secrets.choice(_ID_CHARS) for _ in range(_ID_PREFIX_CHARS))
            parser = self.template.start_answer(applied, id_prefix=prefix, is_continuation=is_continuation)
            return ParsingReader(parser, self.pace, n_calls=n_calls)

        return make
