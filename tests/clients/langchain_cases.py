"""What do programs do with LangChain?"""

from typing import Any

import tiktoken
from cases import LONG, RESULTS, URL, case, find_refusal, run
from langchain_core.messages import HumanMessage, ToolMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI, OpenAIEmbeddings
from pydantic import BaseModel


class Person(BaseModel):
    """Somebody."""

    name: str
    age: int


@tool
def get_weather(city: str) -> str:
    """Tells the weather."""
    return RESULTS["get_weather"]


@tool
def get_time() -> str:
    """Tells the time."""
    return RESULTS["get_time"]


TOOLS = {"get_weather": get_weather, "get_time": get_time}


def connect(model: str = "scripted", **more: Any) -> ChatOpenAI:
    return ChatOpenAI(model=model, base_url=f"{URL}/v1", api_key="none", max_retries=0, **more)  # type: ignore[arg-type]


def converse(llm: ChatOpenAI, question: str, streamed: bool) -> dict[str, Any]:
    bound = llm.bind_tools([*TOOLS.values()])

    def complete(messages: list[Any]) -> Any:
        if not streamed:
            return bound.invoke(messages)
        whole = None
        for chunk in bound.stream(messages):
            whole = chunk if whole is None else whole + chunk
        return whole

    messages: list[Any] = [HumanMessage(question)]
    first = complete(messages)
    messages.append(first)
    for call in first.tool_calls:
        answer = TOOLS[call["name"]].invoke(call)
        assert isinstance(answer, ToolMessage)
        messages.append(answer)
    second = complete(messages)
    return {
        "calls": [[call["name"], call["args"]] for call in first.tool_calls],
        "reason": first.response_metadata.get("finish_reason"),
        "answer": second.text,
    }


@case
def chat() -> Any:
    return connect().invoke("Say hello").text


@case
def stream() -> Any:
    return [chunk.text for chunk in connect().stream("Say hello") if chunk.text]


@case
def usage() -> Any:
    usage = None
    for chunk in connect(stream_usage=True).stream("Say hello"):
        usage = chunk.usage_metadata or usage
    return bool(usage and usage["output_tokens"] and usage["input_tokens"])


@case
def tool_whole() -> Any:
    return converse(connect(), "How is the weather in Paris?", False)


@case
def tool_streamed() -> Any:
    return converse(connect(), "How is the weather in Paris?", True)


@case
def parallel() -> Any:
    return converse(connect(), "Weather and time?", False)


@case
def parallel_streamed() -> Any:
    return converse(connect(), "Weather and time?", True)


@case
def structured() -> Any:
    return connect().with_structured_output(Person).invoke("Who is Ada?").model_dump()


@case
def structured_streamed() -> Any:
    return list(connect().with_structured_output(Person).stream("Who is Ada?"))[-1].model_dump()


@case
def structured_by_call() -> Any:
    asked = connect().with_structured_output(Person, method="function_calling")
    return asked.invoke("Who is Ada? Call Person").model_dump()


@case
def structured_json() -> Any:
    return connect().with_structured_output(Person, method="json_mode").invoke("Who is Ada?").model_dump()


@case
def too_long() -> Any:
    return find_refusal(lambda: connect().invoke(LONG))


@case
def too_long_streamed() -> Any:
    return find_refusal(lambda: list(connect().stream(LONG)))


@case
def unknown_model() -> Any:
    return find_refusal(lambda: connect("nobody").invoke("Say hello"))


@case
def no_tools() -> Any:
    return find_refusal(lambda: connect("plain").bind_tools([get_time]).invoke("Say hello"))


@case
def responses() -> Any:
    return connect(use_responses_api=True).invoke("Say hello").text


@case
def responses_streamed() -> Any:
    return [chunk.text for chunk in connect(use_responses_api=True).stream("Say hello") if chunk.text]


@case
def responses_tool() -> Any:
    return converse(connect(use_responses_api=True), "How is the weather in Paris?", False)


@case
def responses_tool_streamed() -> Any:
    return converse(connect(use_responses_api=True), "How is the weather in Paris?", True)


@case
def responses_structured() -> Any:
    return connect(use_responses_api=True).with_structured_output(Person).invoke("Who is Ada?").model_dump()


@case
def responses_reasoning() -> Any:
    llm = connect(use_responses_api=True, reasoning={"summary": "auto"}, output_version="v1")
    message = llm.invoke("Think of rain")
    reasoning = [block["reasoning"] for block in message.content_blocks if block["type"] == "reasoning"]
    return {"reasoning": "".join(reasoning), "answer": message.text}


def embed(**more: Any) -> list[list[float]]:
    made = OpenAIEmbeddings(model="embed", base_url=f"{URL}/v1", api_key="none", max_retries=0, **more)  # type: ignore[arg-type]
    return made.embed_documents(["hello", "world"])


@case
def embeddings() -> Any:
    return [len(vector) for vector in embed(check_embedding_ctx_length=False)]


@case
def embeddings_of_numbers() -> Any:
    """LangChain's default: numbers of OpenAI's vocabulary, which is fetched; this one stands in for it."""
    ranks = {bytes([byte]): (byte - ord("a")) % 256 for byte in range(256)}
    tiktoken.registry.ENCODINGS["cl100k_base"] = tiktoken.Encoding(
        "cl100k_base", pat_str=r"(?s).", mergeable_ranks=ranks, special_tokens={}
    )
    return [len(vector) for vector in embed()]


run()
