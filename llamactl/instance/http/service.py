"""What can a loaded model be asked? Requests become jobs of the engine here: templates, tokens, bounds; all that is
not HTTP.

One HTTP request may be several jobs, which share a mailbox: a choice of a prompt is a job. Grammars are tried here,
so that one that llama.cpp cannot use is refused before anything runs.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeVar

import msgspec

from llamactl.bodies import (
    ChatBody,
    ChatMessage,
    CompletionBody,
    GenerationBody,
    InfillBody,
    format_messages,
    parse_template_variables,
    refuse,
)
from llamactl.errors import ErrorCode, LlamactlError
from llamactl.instance.chat.layer import ApplyRequest
from llamactl.instance.chat.template import Template, format_tool
from llamactl.instance.engine.background import BackgroundWork
from llamactl.instance.engine.embed import Embedder
from llamactl.instance.engine.engine import Engine
from llamactl.instance.engine.generate import Generator
from llamactl.instance.engine.grammars import GrammarError, check_grammar
from llamactl.instance.engine.jobs import (
    FinishEvent,
    FinishReason,
    GenerationRequest,
    Job,
    Mailbox,
    Timings,
)
from llamactl.instance.engine.media import Span
from llamactl.instance.engine.places import keep_text
from llamactl.instance.engine.sampling import needs_preparation, prepare_samplers
from llamactl.instance.http.chats import ChatPlan, ChatPlanner, is_long
from llamactl.instance.http.formats import FormatOptions, format_params
from llamactl.instance.http.grammar_check import GrammarChecker
from llamactl.instance.http.later_system import LaterSystem
from llamactl.instance.http.media_prompts import MediaPrompts
from llamactl.instance.http.numbers import NumberWatch
from llamactl.instance.http.parameters import (
    check_abilities,
    check_adapters,
    choose_max_tokens,
    choose_n,
    choose_n_top,
    choose_sampling,
    choose_schema,
    choose_shift,
    choose_slot,
    choose_stops,
)
from llamactl.instance.http.prompts import LONG_TEXT_CHARS, MAX_PROMPTS, PromptReader, read_text, run_huge
from llamactl.instance.http.thinking import ThinkingParameters, choose_thinking
from llamactl.instance.http.tools import ToolPlan, plan_tools, unify_messages
from llamactl.instance.llama.model import Vocabulary
from llamactl.protocol.values import Facts
from llamactl.settings import TEMPLATE_RESERVED, ModelSettings, Sampling, Switch

_T = TypeVar("_T")
_NO_PLAN = ChatPlan("")


@dataclass(frozen=True)
class Service:
    """One ready model."""

    settings: ModelSettings
    facts: Facts
    vocabulary: Vocabulary
    prompts: PromptReader
    template: Template
    engine: Engine
    worker: Generator | Embedder
    n_ctx: int
    n_batch: int
    embeds: bool
    pooling: str
    """Of embeddings, in the settings' words."""
    sampling: Sampling
    """For requests that say nothing else."""
    media: MediaPrompts
    planner: ChatPlanner | None = None
    """None: chats are text alone, for this reason:"""
    no_planner: LlamactlError | None = None
    created: int = 0
    """When the model's file was written, in seconds since 1970."""
    rerank_template: str | None = None

    @property
    def background(self) -> BackgroundWork:
        return self.prompts.background

    @cached_property
    def grammars(self) -> GrammarChecker:
        return GrammarChecker(self.background)

    @cached_property
    def numbers(self) -> NumberWatch:
        return NumberWatch(self.settings.name)

    @cached_property
    def later_system(self) -> LaterSystem:
        return LaterSystem(self.write_prompt)

    @property
    def embeds_tokens(self) -> bool:
        """Whether each token of an input has a vector, and the input none."""
        return self.pooling == "none"

    async def submit_chat(self, body: ChatBody) -> tuple[list[Job], FormatOptions]:
        """Submit a chat. Raises LlamactlError for what cannot be done; nothing is submitted then."""
        self._require_text()
        check_abilities(body)
        plan, tokens, spans = await self.read_chat(body)
        return await self._submit(body, [tokens], plan=plan, media=[spans])

    async def read_chat(self, body: ChatBody) -> tuple[ChatPlan, list[int], Mapping[int, Span]]:
        """How a conversation is answered, its prompt, and what stands in that for pictures and sounds."""
        body, items = await self.media.extract(body)
        plan = await self.plan_chat(body)
        if not items:
            return plan, await self.prompts.tokenize_prompt(plan.prompt), {}
        prompt = await self.media.read(plan.prompt, items)
        return plan, prompt.tokens, prompt.spans

    async def plan_chat(self, body: ChatBody) -> ChatPlan:
        """How a conversation is answered."""
        body, tools, parameters, variables = self._read_chat(body)
        if tools.are_callable and body.grammar:
            raise refuse("cannot use `grammar` together with `tools`: calls have a grammar of their own")
        planner = self.planner
        if planner is None:
            if tools.are_callable:
                raise self._refuse_tools()
            return ChatPlan(self.render_body(body))
        request = planner.make_request(body, tools, variables, parameters.format)
        schema = choose_schema(body)
        return await self._run_plan(request, lambda: planner.plan(request, tools, parameters, schema))

    async def write_prompt(self, body: ChatBody) -> str:
        """Of a conversation that is not answered."""
        body, _ = await self.media.extract(body)
        body, tools, parameters, variables = self._read_chat(body)
        planner = self.planner
        if planner is None:
            return self.render_body(body)
        request = planner.make_request(body, tools, variables, parameters.format)
        return await self._run_plan(request, lambda: planner.write(request))

    async def _run_plan(self, request: ApplyRequest, work: Callable[[], _T]) -> _T:
        """On a thread of its own; of long conversations one after the other."""
        if not is_long(request):
            return await self.background.run(work)
        return await self.background.run(lambda: run_huge(work), self.prompts.huge_text)

    def _read_chat(self, body: ChatBody) -> tuple[ChatBody, ToolPlan, ThinkingParameters, dict[str, Any]]:
        """With messages of one form, the functions that may be called, and what the template is told besides."""
        tools = plan_tools(body)
        parameters, variables = choose_thinking(body, self.settings)
        body = msgspec.structs.replace(
            body,
            messages=unify_messages(body.messages),
            tools=list(tools.tools) or None,
            chat_template_kwargs=variables,
        )
        return body, tools, parameters, variables

    def _refuse_tools(self) -> LlamactlError:
        if self.no_planner is None:
            return refuse(f"cannot use `tools`: the chat template of {self.settings.name!r} knows none")
        why = self.no_planner
        return LlamactlError(why.code, f"cannot use `tools`: {why.message}", hint=why.hint)

    async def count_tokens(self, body: ChatBody) -> int:
        """Of a chat's prompt."""
        self._require_text()
        check_abilities(body)
        _, tokens, _ = await self.read_chat(body)
        return len(tokens)

    async def submit_completion(self, body: CompletionBody) -> tuple[list[Job], FormatOptions]:
        """Submit completions of each prompt. Raises LlamactlError as `submit_chat`."""
        self._require_text()
        self.numbers.look(body.model, body.prompt)
        if body.suffix:
            if isinstance(body.prompt, list):
                raise refuse("cannot use `suffix`: `prompt` must be one text")
            self._require_infill()
            media: list[Mapping[int, Span]] = [{}]
            prompts = [await self._fill_gap(body, read_text(body.prompt), body.suffix)]
        else:
            prompts, media = await self.media.read_prompts(body.prompt, self.prompts)
        if not body.echo:
            return await self._submit(body, prompts, media=media)
        if any(media) and choose_n_top(body) is not None:
            raise refuse("cannot use `echo` with `logprobs`: pictures and sounds have none")
        echoes = [body.prompt] if isinstance(body.prompt, str) else [self._show(prompt) for prompt in prompts]
        return await self._submit(body, prompts, echoes, media=media)

    async def submit_infill(self, body: InfillBody) -> tuple[list[Job], FormatOptions]:
        """Submit what belongs between a beginning and an end. Raises LlamactlError as `submit_chat`."""
        self._require_text()
        self._require_infill()
        return await self._submit(body, [await self._fill_gap(body, body.input_prefix, body.input_suffix)])

    def render_body(self, body: ChatBody) -> str:
        """The prompt of a conversation, without llama.cpp's chat layer."""
        if body.continue_final_message and body.add_generation_prompt:
            raise refuse("cannot use `continue_final_message` together with `add_generation_prompt`")
        variables = parse_template_variables(body.chat_template_kwargs)
        return self.render(body.messages, body.tools, body.add_generation_prompt, variables)

    def render(
        self,
        messages: list[ChatMessage],
        tools: list[dict[str, Any]] | None,
        add_generation_prompt: bool | None,
        variables: dict[str, Any] | None,
    ) -> str:
        """The prompt. An answer that the conversation ends with is continued, as by llama-server."""
        formatted = format_messages(messages)
        begun = ""
        if len(messages) > 1 and messages[-1].role == "assistant" and not messages[-1].tool_calls:
            begun, add_generation_prompt = formatted.pop()["content"], True
        # What there is none of is not defined, as templates ask for it.
        given: dict[str, Any] = {"tools": [format_tool(tool) for tool in tools]} if tools else {}
        if add_generation_prompt is not False:
            given["add_generation_prompt"] = True
        settings = self.settings
        chosen = {"enable_thinking": settings.reasoning is not Switch.OFF, **settings.chat_template_kwargs}
        chosen |= variables or {}
        if not isinstance(chosen["enable_thinking"], bool):
            raise refuse("cannot use `chat_template_kwargs.enable_thinking`: it must be true or false")
        extra = {name: value for name, value in chosen.items() if name not in TEMPLATE_RESERVED}
        return self.template.render(formatted, **extra, **given) + begun

    # --- jobs -------------------------------------------------------------------------------------

    async def _submit(
        self,
        body: GenerationBody,
        prompts: list[list[int]],
        echoes: Sequence[str] = (),
        plan: ChatPlan | None = None,
        media: Sequence[Mapping[int, Span]] = (),
    ) -> tuple[list[Job], FormatOptions]:
        """`plan`: of a chat."""
        plan = plan or _NO_PLAN
        n = choose_n(body)
        if not prompts:
            raise refuse("cannot use `prompt`: there is none")
        if len(prompts) * n > MAX_PROMPTS:
            raise refuse(f"cannot use `n`: {len(prompts)} prompts times {n} are more than {MAX_PROMPTS} choices")
        check_adapters(body)
        field = "messages" if isinstance(body, ChatBody) else "prompt"
        for prompt in prompts:
            if len(prompt) >= self.n_ctx:
                raise refuse_length(len(prompt), self.n_ctx, field)
        grammar = "" if plan.follows_schema else await self._choose_grammar(body)
        sampling = choose_sampling(body, self.sampling, grammar, self._tokenize_plain, self.settings.seed)
        if needs_preparation(sampling, self.vocabulary):
            await self.background.run(lambda: prepare_samplers(sampling, self.vocabulary, self.n_ctx))
        rules = plan.rules
        if rules is not None and grammar:
            rules = rules.add_grammar(grammar, of_content=not body.grammar)
        mailbox = Mailbox()
        n_top = choose_n_top(body)
        n_keep, n_discard = choose_shift(body)
        wants_prompt_probs = bool(echoes) and n_top is not None
        jobs = []
        for index in range(len(prompts) * n):
            request = GenerationRequest(
                prompt=prompts[index // n],
                sampling=sampling.for_choice(index % n),
                max_tokens=choose_max_tokens(body, self.settings.n_predict),
                stops=(*choose_stops(body), *plan.stops),
                rules=rules,
                shown_tokens=plan.shown_tokens,
                min_indent=max(0, body.n_indent or 0),
                max_predict_s=max(0.0, body.t_max_predict_ms or 0.0) / 1e3 or None,
                slot=choose_slot(body, self.settings.parallel),
                n_keep=n_keep,
                n_discard=n_discard,
                cache_prompt=body.cache_prompt is not False and not wants_prompt_probs,
                media=media[index // n] if media else {},
                wants_timings=bool(body.timings_per_token),
                wants_progress=bool(body.stream and body.return_progress),
                wants_prompt_probs=wants_prompt_probs and bool(prompts[index // n]),
            )
            jobs.append(Job(request, index, mailbox))
        options = FormatOptions(
            model=self.settings.name,
            build=self.facts.build,
            n_choices=n,
            n_top=n_top,
            post_sampling=bool(body.post_sampling_probs),
            include_usage=body.include_usage,
            return_tokens=bool(body.return_tokens),
            fields=body.response_fields or None,
            verbose=bool(body.verbose),
            echoes=[echo for echo in echoes for _ in range(n)],
            n_prompt=[len(prompt) for prompt in prompts for _ in range(n)],
            describe=lambda index: self._describe(jobs[index]),
            make_reader=plan.make_reader,
            count_tokens=lambda text: len(self.vocabulary.tokenize(text, add_special=False, parse_special=False)),
            is_legacy=plan.is_legacy,
        )
        for index, job in enumerate(jobs):
            if prompts[index // n]:
                self.engine.submit(job)
            else:  # there is nothing to continue; llama-server answers likewise
                job.push(FinishEvent(FinishReason.LENGTH, 0, 0, 0, Timings(0, 0, 0.0, 0, 0.0)))
        return jobs, options

    def _describe(self, job: Job) -> dict[str, Any]:
        """What llama-server's own answers tell of their request."""
        request = job.request
        assert isinstance(request, GenerationRequest)
        ends = self.vocabulary.ends if request.sampling.ignore_eos else ()
        return {
            "generation_settings": {**format_params(request, ends), "stop": request.stops},
            "prompt": self.vocabulary.detokenize(keep_text(request.prompt)),
        }

    async def _choose_grammar(self, body: GenerationBody) -> str:
        schema = choose_schema(body)
        if schema is not None:
            # Imported when it is first needed: starting is faster without it.
            from llamactl.instance.grammar.schema import SchemaError, format_grammar

            try:
                grammar = await asyncio.to_thread(format_grammar, schema)
            except SchemaError as error:
                raise refuse(f"cannot use the JSON schema: {error}") from None
        else:
            grammar = body.grammar or ""
        if grammar:
            try:
                await self.grammars.run(lambda: check_grammar(self.vocabulary, grammar))
            except GrammarError as error:
                what = "the JSON schema" if schema is not None else "`grammar`"
                raise refuse(f"cannot use {what}: {error}") from None
        return grammar

    async def _fill_gap(self, body: CompletionBody | InfillBody, prefix: str, suffix: str) -> list[int]:
        extra = (body.input_extra or ()) if isinstance(body, InfillBody) else ()
        start = (body.prompt or "") if isinstance(body, InfillBody) else ""
        # As llama-server: other files leave room for the answer twice over.
        room = self.n_ctx - self.n_batch - 2 * (choose_max_tokens(body, self.settings.n_predict) or 0)
        return await self.prompts.fill_gap(prefix, suffix, extra, start, room, self.n_batch)

    def _tokenize_plain(self, text: str) -> list[int]:
        return self.vocabulary.tokenize(text[:LONG_TEXT_CHARS], add_special=False, parse_special=True)

    def _show(self, tokens: list[int]) -> str:
        tokens = keep_text(tokens)
        if tokens[:1] == [self.vocabulary.bos]:
            tokens = tokens[1:]
        return self.vocabulary.detokenize(tokens)

    def _require_text(self) -> None:
        if self.embeds:
            raise refuse(f"cannot generate text: {self.settings.name!r} is a model for embeddings")

    def _require_infill(self) -> None:
        if not self.prompts.infill.is_complete:
            raise refuse(
                f"cannot fill a gap: {self.settings.name!r} is not made for it, its vocabulary lacks the tokens that "
                "mark prefix, suffix and middle"
            )


def refuse_length(n_tokens: int, limit: int, field: str) -> LlamactlError:
    """Make the error that answers a request whose `field` has more tokens than the context holds: HTTP 400."""
    return LlamactlError(
        ErrorCode.CONTEXT_SIZE,
        # In Anthropic's words and in llama-server's, by which clients know that they have to send less: Claude Code and
        # LangChain look for the former (and LangChain for OpenAI's code, where its client shows the message alone).
        f"cannot take `{field}`: prompt is too long: {n_tokens} tokens > {limit} maximum, "
        f"request ({n_tokens} tokens) exceeds the available context size ({limit} tokens)",
        details={"n_prompt_tokens": n_tokens, "n_ctx": limit},
    )
