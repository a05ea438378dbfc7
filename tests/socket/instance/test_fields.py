"""Is what docs/http.md says of every field of a request so? Its tables are walked, against running instances.

A field that is done changes the answer, and is refused where it has a type that it cannot have; one that is ignored
may be anything and changes nothing. `EFFECTS` has for each field that is done a value whose effect shows.
"""

import contextlib
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gguf
import pytest

from llamactl import bodies
from llamactl.dialects import messages, responses
from llamactl.instance.http.unknown_fields import IGNORED, list_known
from llamactl.settings import ModelSettings
from tests.models import write_embedding_model, write_model
from tests.scripted_instance import VARIABLE
from tests.socket.instance.harness import Child, run_child
from tests.socket.instance.scripted import CONTROL
from tests.socket.instance.scripted import TEMPLATE as CALLS_TEMPLATE

PAGE = Path(__file__).parents[3] / "docs/http.md"
CHAT, COMPLETION, NATIVE = "/v1/chat/completions", "/v1/completions", "/completion"
MESSAGES_PATH, RESPONSES = "/v1/messages", "/v1/responses"
MESSAGES = [{"role": "user", "content": "hello"}]
LONG = "hello world and the rest of it " * 12
"""So long that a stream is quiet while it is read."""
WRONG: Any = [[{}]]
"""Of no field's type."""
JUNK: tuple[Any, ...] = (True, 3, "low", ["a"], {"a": 1})
TEMPLATE = "{{ word }}" + CALLS_TEMPLATE
TOOLS = [{"type": "function", "function": {"name": name, "parameters": {}}} for name in ("look", "go")]
FUNCTIONS = [tool["function"] for tool in TOOLS]
OWN_TOOLS = [{"type": "function", **function} for function in FUNCTIONS]
TWO = "".join(f'<tool_call>\n{{"name": "{name}", "arguments": {{}}}}\n</tool_call>\n' for name in ("look", "go"))
CALLING = {"messages": [{"role": "user", "content": "call"}], "n_predict": 200, "ignore_eos": False, "tools": TOOLS}
THINKING = {"messages": [{"role": "user", "content": "think"}], "n_predict": 200, "ignore_eos": False}
SCRIPT = [("call", TWO), ("think", "<think>\nNow this is a thought.\n</think>\n\nAnd this is none.")]
NEVER_THE_SAME = re.compile(r"_ms$|_per_second$|^(id|item_id|created|created_at|completed_at|id_slot)$")


@dataclass(frozen=True)
class Group:
    """The fields of one table: its routes' first, what stands in a body anyway, and the type that it becomes."""

    path: str
    base: dict[str, Any]
    kind: type


CHOSEN: dict[str, Any] = {"temperature": 0, "ignore_eos": True, "cache_prompt": False}
FIXED: dict[str, Any] = {**CHOSEN, "n_predict": 6}
GROUPS = {
    "Every generation": Group(NATIVE, {"prompt": "hello", **FIXED}, bodies.GenerationBody),
    "Chats": Group(CHAT, {"messages": MESSAGES, **FIXED}, bodies.ChatBody),
    "Responses": Group(RESPONSES, {"input": "hello", **CHOSEN, "max_output_tokens": 6}, responses.ResponsesBody),
    "Messages": Group(MESSAGES_PATH, {"messages": MESSAGES, **CHOSEN, "max_tokens": 6}, messages.MessagesBody),
    "Completions": Group(COMPLETION, {"prompt": "hello", **FIXED}, bodies.CompletionBody),
    "Gaps": Group("/infill", {"input_prefix": "a", "input_suffix": "b", **FIXED}, bodies.InfillBody),
    "Embeddings": Group("/v1/embeddings", {"input": "hello"}, bodies.EmbeddingBody),
    "Own embeddings": Group("/embedding", {"content": "hello"}, bodies.NativeEmbeddingBody),
    "Reranking": Group("/v1/rerank", {"query": "a", "documents": ["hello", "the"]}, bodies.RerankBody),
    "Tokens": Group("/tokenize", {"content": "hello<s>"}, bodies.TokenizeBody),
    "Texts of tokens": Group("/detokenize", {"tokens": [72]}, bodies.DetokenizeBody),
    "Templates": Group("/apply-template", {"messages": MESSAGES}, bodies.TemplateBody),
}


@dataclass(frozen=True)
class Claim:
    group: str
    field: str
    says: str

    def __str__(self) -> str:
        return f"{self.group}-{self.field}"


def read_claims() -> list[Claim]:
    claims, group = [], ""
    text = PAGE.read_text().partition("\n## Every field of a request\n")[2].partition("\n## ")[0]
    for line in text.splitlines():
        if heading := re.match(r"\*\*([\w ]+)\*\*: (chats|`/)", line):
            group = heading[1]
        elif row := re.match(r"\| (`.+`) \| ([a-z ]+) \| .*\|$", line.replace("| |", "|  |")):
            claims += [Claim(group, field, row[2]) for field in re.findall(r"`([\w.]+)`", row[1])]
    return claims


CLAIMS = read_claims()
SCHEMA = {"type": "string", "maxLength": 1}
BEGUN = [*MESSAGES, {"role": "assistant", "content": "Hel"}]
TWO_LINES = 'root ::= "a\\n" "b\\n" "c\\n"'
STREAM = {"stream": True}
FULL = {"prompt": "hello " * 80, "n_predict": 48, "response_fields": ["content"]}
"""More than the context holds."""
SPOKEN = {"n_probs": 2, "temperature": 1, "seed": 1}


def keep_response(children: "dict[str, Child]") -> str:
    return str(ask(children, RESPONSES, {"input": "the", "max_output_tokens": 2})[1]["id"])


EFFECTS: dict[tuple[str, str], tuple[Any, dict[str, Any]] | tuple[Any, dict[str, Any], str]] = {
    # field: value that shows (or what makes it), what else stands in the body, another route
    ("Every generation", "stream"): (True, {}),
    ("Every generation", "stream_options"): ({"include_usage": True}, STREAM, COMPLETION),
    ("Every generation", "max_tokens"): (2, {"n_predict": None, "max_tokens": 6}),
    ("Every generation", "max_completion_tokens"): (2, {"n_predict": None, "max_tokens": 6}),
    ("Every generation", "n_predict"): (2, {}),
    ("Every generation", "n_indent"): (4, {"grammar": TWO_LINES, "n_predict": 12, "ignore_eos": False}),
    ("Every generation", "t_max_predict_ms"): (1e-6, {"grammar": TWO_LINES, "n_predict": 12, "ignore_eos": False}),
    ("Every generation", "n"): (2, {}),
    ("Every generation", "n_cmpl"): (2, {}),
    ("Every generation", "stop"): (["x"], {}),
    ("Every generation", "ignore_eos"): (False, {}),
    ("Every generation", "n_keep"): (-1, {**FULL}),
    ("Every generation", "n_discard"): (7, {**FULL}),
    ("Every generation", "cache_prompt"): (True, {}),
    ("Every generation", "id_slot"): (2, {}),
    ("Every generation", "return_progress"): (True, STREAM),
    ("Every generation", "timings_per_token"): (True, STREAM),
    ("Every generation", "sse_ping_interval"): (1e-6, {**STREAM, "prompt": LONG, "n_predict": 80}),
    ("Every generation", "return_tokens"): (True, {}),
    ("Every generation", "response_fields"): (["content"], {}),
    ("Every generation", "samplers"): (["top_k"], {}),
    ("Every generation", "seed"): (5, {}),
    ("Every generation", "logit_bias"): ([["hello", 3.5]], {}),
    ("Every generation", "grammar"): ('root ::= "ab"', {}),
    ("Every generation", "json_schema"): (SCHEMA, {}),
    ("Every generation", "response_format"): ({"type": "json_schema", "json_schema": {"schema": SCHEMA}}, {}),
    ("Every generation", "logprobs"): (2, {}, COMPLETION),
    ("Every generation", "top_logprobs"): (2, {"logprobs": True}, CHAT),
    ("Every generation", "n_probs"): (2, {}),
    ("Every generation", "post_sampling_probs"): (True, SPOKEN),
    ("Every generation", "verbose"): (True, {}, COMPLETION),
    ("Every generation", "dry_sequence_breakers"): (["x"], {}),
    ("Every generation", "mirostat"): (2, {}),
    ("Chats", "messages"): ([{"role": "user", "content": "the"}], {}),
    ("Chats", "add_generation_prompt"): (False, {}),
    ("Chats", "continue_final_message"): (True, {"messages": BEGUN, "add_generation_prompt": True}),
    ("Chats", "chat_template_kwargs"): ({"word": "the"}, {}),
    ("Chats", "tools"): (TOOLS, {}),
    ("Chats", "tool_choice"): ({"type": "function", "function": {"name": "go"}}, {"tools": TOOLS}),
    ("Chats", "parallel_tool_calls"): (False, CALLING),
    ("Chats", "functions"): (FUNCTIONS, {}),
    ("Chats", "function_call"): ({"name": "look"}, {"functions": FUNCTIONS}),
    ("Chats", "enable_thinking"): (False, {}),
    ("Chats", "reasoning_effort"): ("none", {}),
    ("Chats", "reasoning_format"): ("none", THINKING),
    ("Chats", "thinking_budget_tokens"): (5, THINKING),
    ("Chats", "reasoning_budget_tokens"): (5, THINKING),
    ("Chats", "reasoning_budget_message"): ("Enough.", {**THINKING, "thinking_budget_tokens": 5}),
    ("Responses", "input"): ("the", {}),
    ("Responses", "instructions"): ("the", {}),
    ("Responses", "max_output_tokens"): (2, {}),
    ("Responses", "stream"): (True, {}),
    ("Responses", "store"): (False, {}),
    ("Responses", "previous_response_id"): (keep_response, {}),
    ("Responses", "tools"): ([{"type": "function", "name": "look"}], {}),
    ("Responses", "tool_choice"): ({"type": "function", "name": "go"}, {"tools": OWN_TOOLS}),
    ("Responses", "text"): ({"format": {"type": "json_schema", "schema": SCHEMA}}, {"ignore_eos": False}),
    ("Responses", "reasoning"): ({"effort": "none"}, {}),
    ("Responses", "include"): (["message.output_text.logprobs"], {}),
    ("Responses", "top_logprobs"): (2, {}),
    ("Responses", "metadata"): ({"a": "b"}, {}),
    ("Responses", "truncation"): ("auto", {}),
    ("Responses", "parallel_tool_calls"): (False, {}),
    ("Responses", "stop"): (["b"], {"grammar": 'root ::= "a" "b" "c"', "ignore_eos": False}),
    ("Responses", "cache_prompt"): (True, {}),
    ("Responses", "chat_template_kwargs"): ({"word": "the"}, {}),
    ("Responses", "timings_per_token"): (True, STREAM),
    ("Responses", "return_progress"): (True, STREAM),
    ("Responses", "sse_ping_interval"): (1e-6, {**STREAM, "input": LONG}),
    ("Messages", "messages"): ([{"role": "user", "content": "the"}], {}),
    ("Messages", "system"): ("the", {}),
    ("Messages", "max_tokens"): (2, {}),
    ("Messages", "stop_sequences"): (["b"], {"grammar": 'root ::= "a" "b" "c"', "ignore_eos": False}),
    ("Messages", "stream"): (True, {}),
    ("Messages", "tools"): ([{"name": "look", "input_schema": {}}], {}),
    ("Messages", "tool_choice"): ({"type": "tool", "name": "go"}, {"tools": [{"name": "look"}, {"name": "go"}]}),
    ("Messages", "thinking"): ({"type": "disabled"}, {}),
    ("Messages", "output_config"): ({"format": {"type": "json_schema", "schema": SCHEMA}}, {"ignore_eos": False}),
    ("Messages", "output_format"): ({"type": "json_schema", "schema": SCHEMA}, {"ignore_eos": False}),
    ("Messages", "context_management"): ({"edits": []}, {}),
    ("Messages", "chat_template_kwargs"): ({"word": "the"}, {}),
    ("Messages", "cache_prompt"): (True, {}),
    ("Completions", "prompt"): ("the", {}),
    ("Completions", "echo"): (True, {}),
    ("Completions", "suffix"): ("the", {}),
    ("Gaps", "input_prefix"): ("the", {}),
    ("Gaps", "input_suffix"): ("the", {}),
    ("Gaps", "input_extra"): ([{"text": "the"}], {}),
    ("Gaps", "prompt"): ("the", {}),
    ("Embeddings", "input"): ("the", {}),
    ("Embeddings", "encoding_format"): ("base64", {}),
    ("Embeddings", "dimensions"): (3, {}),
    ("Embeddings", "embd_normalize"): (-1, {}),
    ("Own embeddings", "content"): ("the", {}),
    ("Own embeddings", "input"): ("the", {}),
    ("Own embeddings", "embd_normalize"): (1, {}),
    ("Reranking", "query"): ("hello the", {}),
    ("Reranking", "documents"): (["a"], {}),
    ("Reranking", "texts"): (["hello", "a"], {"documents": None, "texts": ["hello"]}),
    ("Reranking", "top_n"): (1, {}),
    ("Reranking", "return_documents"): (True, {}),
    ("Reranking", "return_text"): (True, {"documents": None, "texts": ["hello"]}),
    ("Tokens", "content"): ("the", {}),
    ("Tokens", "add_special"): (True, {}),
    ("Tokens", "parse_special"): (False, {}),
    ("Tokens", "with_pieces"): (True, {}),
    ("Texts of tokens", "tokens"): ([73], {}),
    ("Templates", "messages"): ([{"role": "user", "content": "the"}], {}),
    ("Templates", "add_generation_prompt"): (False, {}),
    ("Templates", "continue_final_message"): (True, {"messages": BEGUN, "add_generation_prompt": True}),
    ("Templates", "chat_template_kwargs"): ({"word": "the"}, {}),
    ("Templates", "tools"): (TOOLS, {}),
    ("Templates", "functions"): (FUNCTIONS, {}),
    ("Templates", "tool_choice"): ({"type": "function", "function": {"name": "go"}}, {"tools": TOOLS}),
    ("Templates", "function_call"): ({"name": "look"}, {"functions": FUNCTIONS}),
    ("Templates", "enable_thinking"): (False, {}),
    ("Templates", "reasoning_effort"): ("none", {}),
}
BY_CHANCE = {"sse_ping_interval"}
"""Its effect shows only where the engine is not faster than the event loop."""
REFUSALS: dict[str, tuple[Any, dict[str, Any]]] = {
    "lora": ([{"id": 0, "scale": 0.5}], {}),
    "grammar_lazy": (True, {"grammar": 'root ::= "a"'}),
    "modalities": (["text", "audio"], {}),
    "audio": ({"voice": "alloy", "format": "wav"}, {}),
    "web_search_options": ({}, {}),
    "best_of": (3, {}),
    "logprobs": (True, {}),
    "top_logprobs": (2, {}),
    "n_probs": (2, {}),
    "post_sampling_probs": (True, {}),
    "mcp_servers": ([{"url": "http://x"}], {}),
    "container": ("c", {}),
}
OWN_REFUSALS: dict[tuple[str, str], tuple[Any, dict[str, Any]]] = {}
OWN_REFUSALS: dict[tuple[str, str], tuple[Any, dict[str, Any]]] = {
    ("Messages", "tool_choice"): ({"type": "any"}, {}),
    ("Responses", "background"): (True, {}),
    ("Responses", "conversation"): ("conv_1", {}),
    ("Responses", "prompt"): ({"id": "p"}, {}),
}


@pytest.fixture(scope="module")
def children(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Child]]:
    """An instance for each kind of route."""
    directory = tmp_path_factory.mktemp("fields")
    text = write_model(directory / "text.gguf", fills_gaps=True, control=CONTROL)
    vectors = write_embedding_model(directory / "vectors.gguf")
    scores = write_embedding_model(directory / "scores.gguf", pooling=gguf.PoolingType.RANK)
    small: dict[str, Any] = {"threads": 1, "batch": 128, "ubatch": 128, "parallel": 4}
    models = {
        "text": ModelSettings(
            name="text", path=str(text), ctx=512, chat_template=TEMPLATE, context_shift=True, **small
        ),
        "vectors": ModelSettings(name="vectors", path=str(vectors), **small),
        "scores": ModelSettings(name="scores", path=str(scores), **small),
    }
    with contextlib.ExitStack() as stack:
        found = {}
        for name, model in models.items():
            (directory / name).mkdir()
            script = directory / "script.json"
            script.write_text(json.dumps(SCRIPT))
            child = run_child(
                directory / name, "serve", model, module="tests.scripted_instance", **{VARIABLE: str(script)}
            )
            found[name] = stack.enter_context(child)
        for child in found.values():
            child.supervisor.wait_for("ready")
        yield found


def ask(children: dict[str, Child], path: str, body: dict[str, Any]) -> tuple[int, Any]:
    """Status and answer; of a stream its bytes' events and comments."""
    kind = "vectors" if "embed" in path else "scores" if "rerank" in path else "text"
    with contextlib.closing(children[kind].connect()) as connection:
        connection.request("POST", path, json.dumps(body))
        response = connection.getresponse()
        data = response.read().decode()
    if not data.startswith(("data:", ":", "event:")):
        return response.status, json.loads(data)
    events = [line.removeprefix("data: ") for line in data.splitlines() if line]
    decoded = [json.loads(event) if event[0] == "{" else event for event in events]
    return response.status, list_kinds(decoded) if path == RESPONSES else decoded


def list_kinds(events: list[Any]) -> list[str]:
    """Where pieces are cut depends on how fast they are read."""
    return sorted({f"{event['type']} {sorted(event)}" if isinstance(event, dict) else event for event in events})


def keep_stable(answer: Any, *, slot: bool = False) -> Any:
    """Without what is another each time."""
    if isinstance(answer, dict):
        kept = {}
        for name, value in answer.items():
            if name == "id_slot" and slot:
                kept[name] = value
            elif not NEVER_THE_SAME.search(name):
                kept[name] = keep_stable(value, slot=slot)
        return kept
    return [keep_stable(entry, slot=slot) for entry in answer] if isinstance(answer, list) else answer


def list_claims(*words: str) -> list[Claim]:
    return [claim for claim in CLAIMS if claim.says in words]


@pytest.mark.parametrize("claim", [c for c in list_claims("done") if c.field != "model"], ids=str)
def test_field_that_is_done_changes_the_answer(children: dict[str, Child], claim: Claim) -> None:
    group = GROUPS[claim.group]
    known = EFFECTS.get((claim.group, claim.field))
    if known is None:
        # How tokens are chosen: `generation_settings` of the answer tells with what they were.
        assert claim.field in bodies.SamplingBody.__struct_fields__, "a value whose effect shows is missing above"
        default = ask(children, NATIVE, group.base)[1]["generation_settings"][claim.field]
        known = (default + 1 if isinstance(default, int) else default / 2 + 0.125, {})
    value, more = known[0](children) if callable(known[0]) else known[0], known[1]
    path = known[2] if len(known) > 2 else group.path
    base = {**group.base, **({"messages": MESSAGES} if path == CHAT else {}), **more}
    slot = claim.field == "id_slot"
    (status, plain), again = [ask(children, path, base) for _ in range(2)]
    assert status == 200, plain
    assert keep_stable(again[1], slot=slot) == keep_stable(plain, slot=slot), "not what the field does"
    for _ in range(20 if claim.field in BY_CHANCE else 1):
        status, changed = ask(children, path, {**base, claim.field: value})
        assert status == 200 or f"`{claim.field}`" in changed["error"]["message"], changed
        if keep_stable(changed, slot=slot) != keep_stable(plain, slot=slot):
            return
    pytest.fail(f"{claim.field} changes nothing")


@pytest.mark.parametrize("claim", list_claims("done"), ids=str)
def test_field_that_is_read_has_a_type(children: dict[str, Child], claim: Claim) -> None:
    group = GROUPS[claim.group]
    status, answer = ask(children, group.path, {**group.base, claim.field: WRONG})
    assert status == 400, answer
    assert claim.field in answer["error"]["message"]


@pytest.mark.parametrize("claim", list_claims("refused"), ids=str)
def test_field_that_is_refused_is_named(children: dict[str, Child], claim: Claim) -> None:
    group = GROUPS[claim.group]
    value, more = OWN_REFUSALS.get((claim.group, claim.field)) or REFUSALS[claim.field]
    status, answer = ask(children, group.path, {**group.base, **more, claim.field: value})
    assert status == 400, answer
    assert f"`{claim.field}`" in answer["error"]["message"]


@pytest.mark.parametrize("claim", list_claims("ignored", "not yet"), ids=str)
def test_field_that_is_ignored_may_be_anything_and_changes_nothing(children: dict[str, Child], claim: Claim) -> None:
    group = GROUPS[claim.group]
    _, plain = ask(children, group.path, group.base)
    for value in JUNK:
        status, answer = ask(children, group.path, {**group.base, claim.field: value})
        assert status == 200, answer
        assert keep_stable(answer) == keep_stable(plain)


def test_every_field_that_is_read_has_a_row() -> None:
    for name, group in GROUPS.items():
        rows = {claim.field for claim in CLAIMS if claim.group == name}
        inherited = set() if name == "Every generation" else set(bodies.GenerationBody.__struct_fields__)
        missing = set(group.kind.__struct_fields__) - inherited - rows
        assert not missing, f"docs/http.md has no row for {missing} in {name}"
    assert len(CLAIMS) > 120


def test_no_field_has_two_rows() -> None:
    seen = [(claim.group, claim.field) for claim in CLAIMS]
    assert len(set(seen)) == len(seen)


def test_fields_that_are_ignored_are_those_that_the_page_calls_so() -> None:
    for name, group in GROUPS.items():
        told = {claim.field for claim in list_claims("ignored") if claim.group == name}
        assert IGNORED.get(group.kind, frozenset()) == told, name


@pytest.mark.parametrize("name", GROUPS)
def test_field_that_nothing_knows_is_told_of_once(children: dict[str, Child], name: str) -> None:
    group, unknown = GROUPS[name], f"unknown_to_{name.lower().replace(' ', '_')}"
    told_before = {kind: len(child.errors) for kind, child in children.items()}
    for _ in range(2):
        assert ask(children, group.path, {**group.base, unknown: WRONG})[0] == 200
    told = "".join(child.errors[told_before[kind] :] for kind, child in children.items())
    lines = [line for line in told.splitlines() if "field ignored" in line]
    assert sum(unknown in line for line in lines) == 1
    assert not [line for line in lines for field in list_known(group.kind) if f"field={field} " in f"{line} "]
