"""What do programs do with LiteLLM?"""

import os

os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"  # else it is fetched

import json
from typing import Any

import litellm
from cases import LONG, RESULTS, URL, case, find_refusal, run
from pydantic import BaseModel

litellm.suppress_debug_info = True
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "get_weather",
            "description": "Tells the weather.",
            "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
        },
    },
    {"type": "function", "function": {"name": "get_time", "parameters": {"type": "object", "properties": {}}}},
]


class Person(BaseModel):
    """Somebody."""

    name: str
    age: int


def complete(question: Any, model: str = "openai/scripted", **more: Any) -> Any:
    messages = question if isinstance(question, list) else [{"role": "user", "content": question}]
    # Each provider's base is what its own documentation says.
    base = URL if model.startswith("anthropic/") else f"{URL}/v1"
    return litellm.completion(model=model, messages=messages, api_base=base, api_key="none", num_retries=0, **more)


def converse(question: str, streamed: bool, **more: Any) -> dict[str, Any]:
    messages: list[Any] = [{"role": "user", "content": question}]

    def ask() -> Any:
        answer = complete(messages, tools=TOOLS, stream=streamed, **more)
        return litellm.stream_chunk_builder(list(answer), messages=messages) if streamed else answer

    first = ask().choices[0]
    messages.append(first.message.model_dump())
    for call in first.message.tool_calls:
        messages.append({"role": "tool", "tool_call_id": call.id, "content": RESULTS[call.function.name]})
    return {
        "calls": [[call.function.name, json.loads(call.function.arguments)] for call in first.message.tool_calls],
        "reason": first.finish_reason,
        "answer": ask().choices[0].message.content,
    }


@case
def chat() -> Any:
    return complete("Say hello").choices[0].message.content


@case
def stream() -> Any:
    chunks = complete("Say hello", stream=True)
    return [chunk.choices[0].delta.content for chunk in chunks if chunk.choices and chunk.choices[0].delta.content]


@case
def tool() -> Any:
    return converse("How is the weather in Paris?", False)


@case
def tool_streamed() -> Any:
    return converse("How is the weather in Paris?", True)


@case
def parallel() -> Any:
    return converse("Weather and time?", False)


@case
def parallel_streamed() -> Any:
    return converse("Weather and time?", True)


@case
def structured() -> Any:
    return json.loads(complete("Who is Ada?", response_format=Person).choices[0].message.content)


@case
def reasoning() -> Any:
    message = complete("Think of rain").choices[0].message
    return {"reasoning": message.reasoning_content, "answer": message.content}


@case
def reasoning_streamed() -> Any:
    message = litellm.stream_chunk_builder(list(complete("Think of rain", stream=True))).choices[0].message
    return {"reasoning": message.reasoning_content, "answer": message.content}


@case
def too_long() -> Any:
    return find_refusal(lambda: complete(LONG))


@case
def too_long_streamed() -> Any:
    return find_refusal(lambda: list(complete(LONG, stream=True)))


@case
def unknown_model() -> Any:
    return find_refusal(lambda: complete("Say hello", model="openai/nobody"))


@case
def no_tools() -> Any:
    return find_refusal(lambda: complete("Say hello", model="openai/plain", tools=TOOLS))


@case
def embeddings() -> Any:
    answer = litellm.embedding(model="openai/embed", input=["hello", "world"], api_base=f"{URL}/v1", api_key="none")
    return [len(item["embedding"]) for item in answer.data]


@case
def responses() -> Any:
    answer = litellm.responses(model="openai/scripted", input="Say hello", api_base=f"{URL}/v1", api_key="none")
    return answer.output[-1].content[0].text


@case
def messages() -> Any:
    return complete("Say hello", model="anthropic/scripted").choices[0].message.content


@case
def messages_tool() -> Any:
    return converse("How is the weather in Paris?", False, model="anthropic/scripted")


@case
def messages_tool_streamed() -> Any:
    return converse("How is the weather in Paris?", True, model="anthropic/scripted")


@case
def messages_too_long() -> Any:
    return find_refusal(lambda: complete(LONG, model="anthropic/scripted"))


run()
