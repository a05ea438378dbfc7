"""What do programs do with pydantic-ai?"""

import asyncio
from typing import Any

from cases import LONG, RESULTS, URL, case, find_refusal, run
from pydantic import BaseModel
from pydantic_ai import Agent, NativeOutput, PromptedOutput
from pydantic_ai.messages import ThinkingPart
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
from pydantic_ai.providers.openai import OpenAIProvider

PROVIDER = OpenAIProvider(base_url=f"{URL}/v1", api_key="none")


class Person(BaseModel):
    """Somebody."""

    name: str
    age: int


def make(model: str = "scripted", kind: Any = OpenAIChatModel, **more: Any) -> Any:
    return Agent(kind(model, provider=PROVIDER), retries=0, **more)


def equip(agent: Any) -> list[list[Any]]:
    """Gives it tools; what they are called with is in the list."""
    calls: list[list[Any]] = []

    @agent.tool_plain
    def get_weather(city: str) -> str:
        """Tells the weather."""
        calls.append(["get_weather", {"city": city}])
        return RESULTS["get_weather"]

    @agent.tool_plain
    def get_time() -> str:
        """Tells the time."""
        calls.append(["get_time", {}])
        return RESULTS["get_time"]

    return calls


def converse(question: str, **more: Any) -> dict[str, Any]:
    agent = make(**more)
    calls = equip(agent)
    answer = agent.run_sync(question).output
    return {"calls": sorted(calls, reverse=True), "answer": answer}


def converse_streamed(question: str, **more: Any) -> dict[str, Any]:
    agent = make(**more)
    calls = equip(agent)
    pieces = stream_text(agent, question)
    return {"calls": sorted(calls, reverse=True), "answer": "".join(pieces)}


def stream_text(agent: Any, question: str) -> list[str]:
    async def read() -> list[str]:
        async with agent.run_stream(question) as result:
            return [text async for text in result.stream_text(delta=True, debounce_by=None)]

    return asyncio.run(read())


def stream_output(agent: Any, question: str) -> Any:
    async def read() -> Any:
        async with agent.run_stream(question) as result:
            return await result.get_output()

    return asyncio.run(read()).model_dump()


def think(**more: Any) -> dict[str, Any]:
    result = make(**more).run_sync("Think of rain")
    thoughts = [part for message in result.all_messages() for part in message.parts if isinstance(part, ThinkingPart)]
    return {"reasoning": "".join(part.content for part in thoughts), "answer": result.output}


@case
def chat() -> Any:
    return make().run_sync("Say hello").output


@case
def stream() -> Any:
    return stream_text(make(), "Say hello")


@case
def tool() -> Any:
    return converse("How is the weather in Paris?")


@case
def tool_streamed() -> Any:
    return converse_streamed("How is the weather in Paris?")


@case
def parallel() -> Any:
    return converse("Weather and time?")


@case
def parallel_streamed() -> Any:
    return converse_streamed("Weather and time?")


@case
def structured() -> Any:
    return make(output_type=NativeOutput(Person)).run_sync("Who is Ada?").output.model_dump()


@case
def structured_by_call() -> Any:
    return make(output_type=Person).run_sync("Who is Ada? Call final_result").output.model_dump()


@case
def structured_by_call_streamed() -> Any:
    return stream_output(make(output_type=Person), "Who is Ada? Call final_result")


@case
def structured_json() -> Any:
    return make(output_type=PromptedOutput(Person)).run_sync("Who is Ada?").output.model_dump()


@case
def reasoning() -> Any:
    return think()


@case
def too_long() -> Any:
    return find_refusal(lambda: make().run_sync(LONG))


@case
def too_long_streamed() -> Any:
    return find_refusal(lambda: stream_text(make(), LONG))


@case
def unknown_model() -> Any:
    return find_refusal(lambda: make("nobody").run_sync("Say hello"))


@case
def no_tools() -> Any:
    agent = make("plain")
    equip(agent)
    return find_refusal(lambda: agent.run_sync("Say hello"))


@case
def responses() -> Any:
    return make(kind=OpenAIResponsesModel).run_sync("Say hello").output


@case
def responses_streamed() -> Any:
    return stream_text(make(kind=OpenAIResponsesModel), "Say hello")


@case
def responses_tool() -> Any:
    return converse("How is the weather in Paris?", kind=OpenAIResponsesModel)


@case
def responses_tool_streamed() -> Any:
    return converse_streamed("How is the weather in Paris?", kind=OpenAIResponsesModel)


@case
def responses_structured_by_call() -> Any:
    agent = make(kind=OpenAIResponsesModel, output_type=Person)
    return agent.run_sync("Who is Ada? Call final_result").output.model_dump()


@case
def responses_reasoning() -> Any:
    return think(kind=OpenAIResponsesModel, model_settings={"openai_reasoning_summary": "auto"})


run()
