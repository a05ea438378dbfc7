"""Do the clients that programs are written with work, unmodified, through the front with instances of ours?

Each is driven by a program of `tests/clients`, once, which tells what came of everything that it did. The model is
scripted; template, grammar, samplers and parser are the real ones. `scripts/setup --test` brings the clients.
"""

import contextlib
import json
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import pytest

from llamactl.settings import ModelSettings
from tests.clients import run_program
from tests.models import write_embedding_model
from tests.socket.front.whole import run_front
from tests.socket.instance.harness import run_child
from tests.socket.instance.scripted import run_scripted

HELLO = "Hello there."
CALL = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Paris"}}\n</tool_call>'
CALL_TIME = '<tool_call>\n{"name": "get_time", "arguments": {}}\n</tool_call>'
ADA = '{"name": "Ada", "age": 36}'


def write_call(name: str, arguments: str) -> str:
    return f'<tool_call>\n{{"name": "{name}", "arguments": {arguments}}}\n</tool_call>'


SCRIPT = (
    ("Say hello", HELLO),
    ("weather in Paris?", CALL),
    ("<tool_response>\n18 degrees", "It has 18 degrees."),
    ("Weather and time?", f"{CALL}\n{CALL_TIME}"),
    ("<tool_response>\nnoon", "18 degrees at noon."),
    ("Who is Ada?", ADA),
    ("Call Person", write_call("Person", ADA)),
    ("Call final_result", write_call("final_result", ADA)),
    ("Call json", write_call("json", ADA)),
    ("Use a fence", f"```json\n{ADA}\n```"),
    ("Who are they?", write_call("IterablePerson", f'{{"tasks": [{ADA}, {{"name": "Bo", "age": 7}}]}}')),
    ("How old is Bo?", write_call("Grown", '{"name": "Bo", "age": 7}')),
    ("too young", write_call("Grown", '{"name": "Bo", "age": 70}')),
    ("Think of rain", "<think>\nLet me think.\n</think>\n\nIt rains."),
    ("Talk on", "and on " * 500),
)
PLAIN = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}assistant:"
WEATHER = {"calls": [["get_weather", {"city": "Paris"}]], "answer": "It has 18 degrees."}
BOTH = {"calls": [["get_weather", {"city": "Paris"}], ["get_time", {}]], "answer": "18 degrees at noon."}
THOUGHT = {"reasoning": "Let me think.\n", "answer": "It rains."}
PERSON = json.loads(ADA)
TOO_LONG = "prompt is too long"
UNKNOWN = "cannot find model"
NO_TOOLS = "does not tell the model of them"


def expect(cases: str, result: Any) -> dict[str, Any]:
    return dict.fromkeys(cases.split(), result)


def refuse(cases: str, message: str, name: str, status: int | None, **more: Any) -> dict[str, Any]:
    """An error with these attributes, whose message has these words."""
    return expect(cases, {"message": message, "name": name, "status": status, **more})


def expect_of_vercel(provider: str) -> dict[str, Any]:
    cases = {
        **expect("chat stream", HELLO),
        **expect("usage", True),
        **expect("tool tool_streamed", {**WEATHER, "reason": "tool-calls"}),
        **expect("parallel parallel_streamed", {**BOTH, "reason": "tool-calls"}),
        **expect("structured structured_streamed", PERSON),
        **expect("reasoning reasoning_streamed", THOUGHT),
        **refuse("too_long too_long_streamed", TOO_LONG, "AI_APICallError", 400, retryable=False),
        **refuse("unknown_model", UNKNOWN, "AI_APICallError", 404, retryable=False),
        **refuse("no_tools", NO_TOOLS, "AI_APICallError", 400, retryable=False),
    }
    return {f"{provider}_{case}": result for case, result in cases.items()}


EXPECTED: dict[str, dict[str, Any]] = {
    "openai.mjs": {
        **expect("chat stream abort responses responses_streamed", HELLO),
        **expect("usage", True),
        **expect("tool tool_streamed", {**WEATHER, "reason": "tool_calls"}),
        **expect("tool_loop tool_loop_streamed", WEATHER),
        **expect("responses_tool responses_tool_streamed responses_tool_by_id", WEATHER),
        **expect("parallel parallel_streamed", {**BOTH, "reason": "tool_calls"}),
        **expect("responses_parsed_tool", {"city": "Paris"}),
        **expect("structured structured_streamed responses_structured responses_structured_streamed", PERSON),
        **expect("reasoning responses_reasoning", THOUGHT),
        **refuse(
            "too_long too_long_streamed responses_too_long",
            TOO_LONG,
            "BadRequestError",
            400,
            code="context_length_exceeded",
        ),
        **refuse("unknown_model responses_unknown_model", UNKNOWN, "NotFoundError", 404, code="model_not_found"),
        **refuse("no_tools", NO_TOOLS, "BadRequestError", 400),
        **expect("embeddings", [64, 64]),
        **expect("embeddings_as_numbers", [64]),
    },
    "vercel.mjs": {
        **expect_of_vercel("compatible"),
        **expect_of_vercel("openai"),
        **expect_of_vercel("anthropic"),
        **expect("strict_structured strict_structured_streamed openai_chat_structured", PERSON),
        **expect("openai_chat_chat compatible_completion", HELLO),
        **expect("openai_chat_tool_streamed", WEATHER),
        **expect("compatible_embeddings openai_embeddings", [64, 64]),
    },
    "anthropic.mjs": {
        **expect("chat stream", HELLO),
        **expect("tool tool_streamed", {**WEATHER, "reason": "tool_use"}),
        **expect("parallel parallel_streamed", {**BOTH, "reason": "tool_use"}),
        **expect("reasoning reasoning_streamed", THOUGHT),
        **expect("count", True),
        **refuse("too_long", TOO_LONG, "BadRequestError", 400, type="invalid_request_error"),
        **refuse("unknown_model", UNKNOWN, "NotFoundError", 404, type="not_found_error"),
        **refuse("no_tools", NO_TOOLS, "BadRequestError", 400, type="invalid_request_error"),
    },
    "langchain_cases.py": {
        **expect("chat stream responses responses_streamed", HELLO),
        **expect("usage", True),
        **expect("tool_whole tool_streamed", {**WEATHER, "reason": "tool_calls"}),
        **expect("parallel parallel_streamed", {**BOTH, "reason": "tool_calls"}),
        **expect("responses_tool responses_tool_streamed", WEATHER),
        **expect("structured structured_streamed structured_by_call structured_json responses_structured", PERSON),
        **expect("responses_reasoning", THOUGHT),
        **refuse("too_long too_long_streamed", TOO_LONG, "OpenAIContextOverflowError", 400),
        **refuse("unknown_model", UNKNOWN, "OpenAIModelNotFoundError", 404),
        **refuse("no_tools", NO_TOOLS, "OpenAIInvalidRequestError", 400),
        **expect("embeddings embeddings_of_numbers", [64, 64]),
    },
    "pydantic_ai_cases.py": {
        **expect("chat stream responses responses_streamed", HELLO),
        **expect("tool tool_streamed responses_tool responses_tool_streamed", WEATHER),
        **expect("parallel parallel_streamed", BOTH),
        **expect(
            "structured structured_by_call structured_by_call_streamed structured_json responses_structured_by_call",
            PERSON,
        ),
        **expect("reasoning responses_reasoning", THOUGHT),
        **refuse("too_long too_long_streamed", TOO_LONG, "ModelContextWindowExceededError", 400),
        **refuse("unknown_model", UNKNOWN, "ModelNotFoundError", 404),
        **refuse("no_tools", NO_TOOLS, "ModelRequestRejectedError", 400),
    },
    "litellm_cases.py": {
        **expect("chat stream responses messages", HELLO),
        **expect("tool tool_streamed messages_tool messages_tool_streamed", {**WEATHER, "reason": "tool_calls"}),
        **expect("parallel parallel_streamed", {**BOTH, "reason": "tool_calls"}),
        **expect("structured", PERSON),
        **expect("reasoning reasoning_streamed", THOUGHT),
        **refuse("too_long too_long_streamed messages_too_long", TOO_LONG, "ContextWindowExceededError", 400),
        **refuse("unknown_model", UNKNOWN, "NotFoundError", 404),
        **refuse("no_tools", NO_TOOLS, "BadRequestError", 400),
        **expect("embeddings", [64, 64]),
    },
    "instructor_cases.py": {
        **expect("structured structured_by_call structured_json structured_markdown partial", PERSON),
        **expect("several several_streamed", [PERSON, {"name": "Bo", "age": 7}]),
        **expect("asked_again", {"name": "Bo", "age": 70}),
        **refuse("too_long", TOO_LONG, "InstructorRetryException", None),
        **refuse("unknown_model", UNKNOWN, "InstructorRetryException", None),
        **refuse("no_tools", NO_TOOLS, "InstructorRetryException", None),
    },
}


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A front before a scripted model, one that takes no tools, and one for embeddings."""
    with contextlib.ExitStack() as stack:
        scripted, plain = (
            stack.enter_context(run_scripted(tmp_path_factory.mktemp(name), **more))
            for name, more in (("scripted", {"n_predict": 2000}), ("plain", {"template": PLAIN}))
        )
        scripted.say(*SCRIPT)
        directory = tmp_path_factory.mktemp("embed")
        path = write_embedding_model(directory / "embed.gguf")
        settings = ModelSettings(name="embed", path=str(path), threads=1)
        embed = stack.enter_context(run_child(directory, "serve", settings))
        embed.supervisor.wait_for("ready")
        sockets = {
            "scripted": scripted.child.http_socket,
            "plain": plain.child.http_socket,
            "embed": embed.http_socket,
        }
        yield stack.enter_context(run_front(tmp_path_factory.mktemp("front"), sockets))


@pytest.fixture(scope="module")
def results(
    request: pytest.FixtureRequest, url: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[dict[str, Future[dict[str, Any]]]]:
    """What came of each program that is asked for. It is run once; two at a time, since they import for long."""
    wanted = [program for program in EXPECTED if any(program in item.name for item in request.session.items)]
    with ThreadPoolExecutor(2) as pool:
        yield {
            program: pool.submit(run_program, program, url, tmp_path_factory.mktemp("program")) for program in wanted
        }


@pytest.mark.parametrize(
    ("program", "case"), [(program, case) for program, cases in EXPECTED.items() for case in cases]
)
def test_client(results: dict[str, Future[dict[str, Any]]], program: str, case: str) -> None:
    result, expected = results[program].result()[case], EXPECTED[program][case]
    if isinstance(expected, str) and isinstance(result, list):
        result = "".join(result)  # pieces of a stream
    if isinstance(expected, dict) and "message" in expected:
        assert expected["message"] in result["message"], result
        result = {**result, "message": expected["message"]}
    if isinstance(expected, dict):
        result = {key: value for key, value in result.items() if key in expected or key == "failed"}
    assert result == expected


@pytest.mark.parametrize("program", EXPECTED)
def test_all_that_a_program_does_is_looked_at(results: dict[str, Future[dict[str, Any]]], program: str) -> None:
    assert results[program].result().keys() == EXPECTED[program].keys()
