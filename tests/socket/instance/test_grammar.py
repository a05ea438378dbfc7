"""Does even a model of random weights write what a grammar or a JSON schema says, and does nothing that a client may
send as one end the process?

Conformity is jsonschema's verdict, on 25 answers for each schema. An answer that the context cuts off has no verdict.
"""

import json
import re
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import jsonschema
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.socket.instance.harness import Child
from tests.unit.instance.test_ambiguity import BOMBS

CHAT, NATIVE = "/v1/chat/completions", "/completion"
MESSAGES = [{"role": "user", "content": "hello"}]
N_ANSWERS, N_SPARE = 25, 5

SCHEMAS: dict[str, Any] = {
    "flat": {
        "type": "object",
        "properties": {
            "name": {"type": "string", "minLength": 1, "maxLength": 12},
            "age": {"type": "integer", "minimum": 0, "maximum": 130},
            "score": {"type": "number", "exclusiveMinimum": -1.5, "maximum": 2.25},
            "tags": {"type": "array", "items": {"enum": ["a", "b", 3, None]}, "minItems": 1, "maxItems": 4},
        },
        "required": ["name", "age", "tags"],
        "additionalProperties": False,
    },
    "tree": {
        "$defs": {
            "node": {
                "type": "object",
                "properties": {
                    "value": {"type": "boolean"},
                    "left": {"anyOf": [{"type": "null"}, {"$ref": "#/$defs/leaf"}]},
                },
                "required": ["value", "left"],
                "additionalProperties": False,
            },
            "leaf": {
                "type": "object",
                "properties": {"x": {"const": 7}},
                "required": ["x"],
                "additionalProperties": False,
            },
        },
        "$ref": "#/$defs/node",
    },
    "formats": {
        "type": "object",
        "properties": {
            "id": {"type": "string", "format": "uuid"},
            "day": {"type": "string", "format": "date"},
            "at": {"type": "string", "format": "date-time"},
            "code": {"type": "string", "pattern": "^[A-Z]{2}-\\d{3,5}(?:x|yz)?$"},
        },
        "required": ["id", "day", "at", "code"],
        "additionalProperties": False,
    },
    "others": {
        "type": "object",
        "properties": {"kind": {"const": 'é"\\n'}},
        "required": ["kind"],
        "additionalProperties": {"type": "integer", "minimum": -3, "maximum": -1},
    },
    "tuple": {
        "type": "array",
        "prefixItems": [{"type": ["null", "boolean"]}, {"type": "number", "minimum": 10}],
        "items": {"type": "string", "maxLength": 3},
        "minItems": 2,
        "maxItems": 4,
    },
    "combined": {
        "allOf": [
            {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]},
            {"properties": {"a": {"minimum": 100}, "b": {"type": "string", "maxLength": 4}}, "required": ["b"]},
        ],
        "oneOf": [
            {"properties": {"c": {"const": 1}}, "required": ["c"]},
            {"properties": {"c": {"const": 2}}, "required": ["c"]},
        ],
    },
    "long": {"type": "string", "minLength": 110, "maxLength": 230},
}


def ask(child: Child, schema: Any, seed: int) -> tuple[str, str]:
    body = {
        "messages": MESSAGES,
        "seed": seed,
        "temperature": 1.5,
        "response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": schema, "strict": True}},
    }
    status, answer = child.request("POST", CHAT, body)
    assert status == 200, answer
    (choice,) = answer["choices"]
    return choice["message"]["content"], choice["finish_reason"]


@pytest.mark.parametrize("name", SCHEMAS)
def test_answers_follow_the_schema(instance: Child, name: str) -> None:
    schema = SCHEMAS[name]
    validator = jsonschema.Draft202012Validator(schema, format_checker=jsonschema.FormatChecker())
    with ThreadPoolExecutor(4) as pool:
        answers = list(pool.map(lambda seed: ask(instance, schema, seed), range(N_ANSWERS + N_SPARE)))
    whole = [text for text, reason in answers if reason == "stop"]
    assert len(whole) >= N_ANSWERS
    for text in whole:
        validator.validate(json.loads(text))
    assert len(set(whole)) > 1


def test_json_object_is_an_object(instance: Child) -> None:
    body = {"messages": MESSAGES, "response_format": {"type": "json_object"}, "temperature": 1.0}
    n_whole = 0
    for seed in range(20):
        _, answer = instance.request("POST", CHAT, {**body, "seed": seed, "max_tokens": 200})
        choice = answer["choices"][0]
        assert choice["message"]["content"].startswith("{")
        if choice["finish_reason"] == "stop":
            n_whole += 1
            assert isinstance(json.loads(choice["message"]["content"]), dict)
    assert n_whole


def test_streamed_answer_follows_the_schema_too(instance: Child) -> None:
    body = {"prompt": "a", "seed": 3, "json_schema": {"enum": ["left", "right"]}, "temperature": 1.0}
    events = [json.loads(event) for event in instance.stream(NATIVE, body)]
    assert json.loads("".join(event["content"] for event in events)) in ("left", "right")
    assert events[-1]["stop_type"] == "eos"


@pytest.mark.parametrize(
    "grammar", ['root ::= "yes" | "no"', "root ::= [a-c]{3,5}", "root ::= [^a-z]{4} x*\nx ::= [0-9]"]
)
@pytest.mark.parametrize("more", [{}, {"temperature": 0}, {"ignore_eos": True, "n_predict": 40}, {"n_probs": 2}])
def test_answer_follows_the_grammar_and_ends_with_it(instance: Child, grammar: str, more: dict[str, Any]) -> None:
    patterns = {"r": "yes|no", "[": "[a-c]{3,5}", "x": "[^a-z]{4}[0-9]*"}
    pattern = patterns["x" if "x*" in grammar else "[" if "[a-c]" in grammar else "r"]
    _, answer = instance.request(
        "POST", NATIVE, {"prompt": "a", "grammar": grammar, "seed": 1, "n_predict": 30, **more}
    )
    if answer["stop_type"] != "limit":
        assert re.fullmatch(pattern, answer["content"], re.DOTALL), answer["content"]


def test_grammar_lasts_while_others_are_decoded_beside_it(instance: Child) -> None:
    """Chains are the sequences' own: neither is the grammar forgotten, nor does it reach the neighbours."""
    bodies = [{"prompt": "a", "n_predict": 40, "seed": seed, "ignore_eos": True} for seed in range(3)]
    bodies += [{"prompt": "a", "n_predict": 40, "seed": seed, "grammar": "root ::= [xy]{30}"} for seed in range(3)]
    with ThreadPoolExecutor(6) as pool:
        answers = [answer for _, answer in pool.map(lambda body: instance.request("POST", NATIVE, body), bodies)]
    assert all(re.fullmatch("[xy]{30}", answer["content"]) for answer in answers[3:])
    assert all(answer["tokens_predicted"] == 40 for answer in answers[:3])


@pytest.mark.parametrize(
    "grammar",
    [
        "",
        "root",
        "root ::=",
        "root ::= foo",
        'root ::= root "a"',
        "root ::= (" * 5000,
        'root ::= "a"{3000}',
        'x ::= "a"',
        'root ::= "a\0b"',
        "root ::= [a",
        'root ::= ((("a"*)*)*)*',
        "\n".join(f"r{n} ::= r{n + 1}" for n in range(4000)) + "\nroot ::= r0",
        "root ::= r0\n"
        + "\n".join(f"r{n} ::= r{n + 1} | {chr(34)}a{chr(34)}" for n in range(4900))
        + '\nr4900 ::= "b"',
        "root ::= " + "(" * 150 + '"a"' + ")" * 150,
    ],
)
def test_no_grammar_ends_the_process(instance: Child, grammar: str) -> None:
    status, answer = instance.request("POST", NATIVE, {"prompt": "a", "grammar": grammar, "n_predict": 3})
    assert status in (200, 400), answer
    assert instance.request("GET", "/health") == (200, {"status": "ok"})


@pytest.mark.parametrize("name", BOMBS)
def test_grammar_with_too_many_readings_is_refused_and_holds_up_nobody(instance: Child, name: str) -> None:
    bodies = [{"prompt": "a", "grammar": BOMBS[name], "n_predict": 3}] * 8 + [{"prompt": "a", "n_predict": 3}]
    begun_s = time.monotonic()
    with ThreadPoolExecutor(9) as pool:
        answers = list(pool.map(lambda body: instance.request("POST", NATIVE, body), bodies))
    assert [status for status, _ in answers] == [400] * 8 + [200]
    assert all("`grammar`" in answer["error"]["message"] for _, answer in answers[:8])
    assert time.monotonic() - begun_s < 10


@pytest.mark.parametrize(
    ("grammar", "reason"),
    [
        ("nonsense", "expecting ::= at"),
        ('root ::= "a', "unexpected end of input"),
        ("root ::= other", "Undefined rule identifier 'other'"),
        ('other ::= "a"', "does not contain a 'root' symbol"),
        ('root ::= root "a"', "left recursion"),
    ],
)
def test_client_is_told_what_llama_cpp_does_not_like_about_a_grammar(
    instance: Child, grammar: str, reason: str
) -> None:
    status, answer = instance.request("POST", NATIVE, {"prompt": "a", "grammar": grammar, "n_predict": 3})
    assert status == 400
    assert reason in answer["error"]["message"]
    assert "\n" not in answer["error"]["message"]


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(grammar=st.text(st.sampled_from('root::=ab"[]()*+?|{}0123,^-\\x \n'), max_size=30), has_head=st.booleans())
def test_any_text_as_a_grammar_is_taken_or_refused(instance: Child, grammar: str, has_head: bool) -> None:
    grammar = ("root ::= " if has_head else "") + grammar
    status, answer = instance.request("POST", NATIVE, {"prompt": "a", "grammar": grammar, "n_predict": 4})
    assert status in (200, 400), answer


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"response_format": {"type": "xml"}}, "response_format.type"),
        ({"response_format": {"type": "json_schema"}}, "json_schema.schema"),
        ({"response_format": {"type": "json_schema", "schema": {"not": {}}}}, "'not'"),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"schema": 5}}},
            "response_format.json_schema.schema",
        ),
        ({"response_format": {"type": "json_schema", "json_schema": {"schema": {"not": {}}}}}, "'not'"),
        ({"json_schema": {"type": "string"}, "grammar": 'root ::= "a"'}, "together"),
        ({"grammar": 5}, "grammar"),
        ({"grammar": "nonsense"}, "`grammar`"),
    ],
)
def test_wrong_constraint_is_refused_and_named(instance: Child, body: dict[str, Any], field: str) -> None:
    status, answer = instance.request("POST", CHAT, {"messages": MESSAGES, **body})
    assert status == 400
    assert field in answer["error"]["message"]
