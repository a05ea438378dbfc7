"""Can any request body bring an instance down, or have it say that it has a bug? Valid bodies of every endpoint, with
something in them replaced, removed, added or cut.

Each ends in 200 or in a 4xx that says what is wrong; afterwards the same process answers as before.
"""

import contextlib
import copy
import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from llamactl.settings import ModelSettings
from tests.socket.instance.harness import Child, run_child

N_MUTANTS = 60
"""Of each body."""

MESSAGES = [{"role": "system", "content": "s"}, {"role": "user", "content": [{"type": "text", "text": "hello"}]}]
SAMPLING = {
    "max_tokens": 3,
    "temperature": 0.7,
    "top_k": 5,
    "top_p": 0.9,
    "min_p": 0.1,
    "typical_p": 0.9,
    "repeat_penalty": 1.1,
    "repeat_last_n": 8,
    "presence_penalty": 0.1,
    "frequency_penalty": 0.1,
    "mirostat": 1,
    "dry_multiplier": 0.5,
    "dry_sequence_breakers": ["\n"],
    "xtc_probability": 0.1,
    "samplers": ["top_k", "temperature"],
    "seed": 1,
    "stop": ["x", "yz"],
    "logit_bias": {"5": 1.5},
    "ignore_eos": True,
    "cache_prompt": True,
}
SCHEMA = {"type": "object", "properties": {"a": {"type": "integer", "maximum": 9}}, "required": ["a"]}
BODIES: list[tuple[str, Any]] = [
    ("/v1/chat/completions", {"messages": MESSAGES, **SAMPLING, "n": 2, "logprobs": True, "top_logprobs": 2}),
    (
        "/v1/chat/completions",
        {"messages": MESSAGES, "max_tokens": 3, "stream": True, "stream_options": {"include_usage": True}},
    ),
    (
        "/v1/chat/completions",
        {
            "messages": MESSAGES,
            "max_tokens": 4,
            "response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": SCHEMA}},
            "chat_template_kwargs": {"a": 1},
            "tools": [{"type": "function", "function": {"name": "f", "parameters": SCHEMA}}],
        },
    ),
    ("/v1/completions", {"prompt": "hello", **SAMPLING, "echo": True, "logprobs": 2, "best_of": 1}),
    ("/v1/completions", {"prompt": [[5, 6], [7]], "max_tokens": 2, "suffix": None}),
    ("/infill", {"input_prefix": "a", "input_suffix": "b", "response_fields": ["content", "timings/prompt_n"]}),
    ("/completion", {"prompt": "a", "n_predict": 8, "n_indent": 2, "t_max_predict_ms": 1, "samplers": ["adaptive_p"]}),
    ("/completion", {"prompt": [1, "text", 5], "n_predict": 3, "n_probs": 2, "grammar": 'root ::= "a" | "b"'}),
    ("/infill", {"input_prefix": "a", "input_suffix": "b", "input_extra": [{"text": "c"}], "n_predict": 2}),
    ("/v1/embeddings", {"input": ["a", "b"], "encoding_format": "float", "dimensions": 8}),
    ("/embedding", {"content": [[5, 6], "b"]}),
    ("/v1/rerank", {"query": "q", "documents": ["a", "b"], "top_n": 1}),
    ("/tokenize", {"content": "hello", "add_special": True, "with_pieces": True}),
    ("/detokenize", {"tokens": [5, 6, 7]}),
    ("/apply-template", {"messages": MESSAGES}),
]

VALUES: list[Any] = [
    None,
    True,
    False,
    0,
    -1,
    1,
    2**31 - 1,
    2**31,
    -(2**31) - 1,
    2**63,
    2**64,
    10**30,
    0.5,
    -0.0,
    -1.5,
    1e308,
    1e-320,
    "",
    "x",
    "\x00",
    "\ud800",
    "🙂" * 50,
    "%s%n{{ 7*7 }}",
    [],
    [[]],
    [None],
    [1, "a", None],
    {},
    {"a": {}},
    {"": None},
    {"type": "x"},
]
RAW = [
    b"",
    b"{",
    b"[]",
    b"null",
    b"1",
    b'"x"',
    b"\xff\xfe",
    b"{}" * 2,
    b"[" * 5000,
    b'{"a":' * 3000,
    b'{"max_tokens":NaN}',
]


@pytest.fixture(scope="module")
def target(tiny: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Child]:
    settings = ModelSettings(name="tiny", path=str(tiny), ctx=256, parallel=2, threads=1)
    with run_child(tmp_path_factory.mktemp("target"), "serve", settings) as child:
        child.supervisor.wait_for("ready")
        yield child


@pytest.fixture(scope="module")
def target_embed(tiny_embed: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Child]:
    settings = ModelSettings(name="embed", path=str(tiny_embed), parallel=2, threads=1)
    with run_child(tmp_path_factory.mktemp("target-embed"), "serve", settings) as child:
        child.supervisor.wait_for("ready")
        yield child


def mutate(body: Any, chance: random.Random) -> bytes:
    """One to three changes, then perhaps a cut."""
    body = copy.deepcopy(body)
    for _ in range(chance.randint(1, 3)):
        change(body, chance)
    data = json.dumps(body).encode()
    if chance.random() < 0.1:
        data = data[: chance.randrange(len(data))]
    if chance.random() < 0.05:
        place = chance.randint(0, len(data))
        data = data[:place] + bytes([chance.randrange(256)]) + data[place:]
    return data


def change(body: Any, chance: random.Random) -> None:
    """Somewhere in it."""
    places = list(list_places(body))
    if not places:
        return
    container, key = chance.choice(places)
    kind = chance.random()
    if kind < 0.6:
        container[key] = copy.deepcopy(chance.choice(VALUES))
    elif kind < 0.75:
        del container[key]
    elif kind < 0.85 and isinstance(container, dict):
        container[chance.choice(list(SAMPLING))] = copy.deepcopy(chance.choice(VALUES))
    else:
        container[key] = [container[key]] * chance.choice([1, 2, 300])


def list_places(value: Any) -> Iterator[tuple[Any, Any]]:
    """Every container in a value, with every key or index of it."""
    if isinstance(value, dict):
        items: list[tuple[Any, Any]] = list(value.items())
    elif isinstance(value, list):
        items = list(enumerate(value[:10]))
    else:
        return
    for key, child in items:
        yield value, key
        yield from list_places(child)


def post_all(child: Child, path: str, bodies: list[bytes]) -> dict[int, int]:
    """How often which status came."""
    statuses: dict[int, int] = {}
    with contextlib.closing(child.connect()) as connection:
        for data in bodies:
            connection.request("POST", path, data)
            response = connection.getresponse()
            text = response.read()
            assert response.status == 200 or 400 <= response.status < 500, (path, data[:2000], response.status, text)
            assert b"event: error" not in text, (path, data[:2000], text)
            if response.status != 200:
                assert json.loads(text)["error"]["message"], (path, data[:2000], text)
            statuses[response.status] = statuses.get(response.status, 0) + 1
    return statuses


@pytest.mark.parametrize(("path", "body"), BODIES, ids=[f"{number}-{path}" for number, (path, _) in enumerate(BODIES)])
def test_mutated_bodies_end_in_200_or_4xx(target: Child, path: str, body: Any) -> None:
    chance = random.Random(f"{path} {json.dumps(body)}")
    statuses = post_all(target, path, [mutate(body, chance) for _ in range(N_MUTANTS)])
    assert any(status != 200 for status in statuses)
    assert target.request("POST", "/v1/completions", {"prompt": "hello", "max_tokens": 2})[0] == 200
    assert target.process.poll() is None


@pytest.mark.parametrize(("path", "body"), [entry for entry in BODIES if entry[0] in ("/v1/embeddings", "/v1/rerank")])
def test_mutated_bodies_for_a_model_of_embeddings_end_in_200_or_4xx(target_embed: Child, path: str, body: Any) -> None:
    chance = random.Random(path)
    post_all(target_embed, path, [mutate(body, chance) for _ in range(N_MUTANTS)])
    assert target_embed.request("POST", "/v1/embeddings", {"input": "hello"})[0] == 200


@pytest.mark.parametrize("path", sorted({path for path, _ in BODIES}))
def test_bodies_that_are_no_request_are_refused(target: Child, path: str) -> None:
    assert 200 not in post_all(target, path, RAW)
