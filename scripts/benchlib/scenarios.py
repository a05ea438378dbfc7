"""What is an engine asked in a round, and what is measured of the answers? One function for each scenario, which asks
one server and returns its figures; ROWS has them all, with what the servers of each are started with.

Prompts are new in each round, so that nothing is reused that should not be; what should be has scenarios of its own.
"""

import base64
import random
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchlib.report import BenchError
from benchlib.streams import Stream, run_streams
from tests.media import write_png

PARALLEL = 4
N_STREAM = 128
N_SHORT_PROMPT = 24
N_LONG_PROMPT = 2000
N_SHARED = 1500
N_OWN = 100
N_CONVERSATIONS = 4
N_CONVERSATION = 1200
N_SIDE = 300
N_TURN = 60
N_TOOLS = 30
PICTURE_PX = 96
CHAT = "/v1/chat/completions"
RATES = ("tokens",)
"""Figures of which more is better begin so; all others are times."""
CACHED = "tokens cached"

WORDS = (
    "time year people way day man thing woman life child world school state family student group country problem hand "
    "part place case week company system program question work number night point home water room mother area money "
    "story fact month lot right study book eye job word business issue side kind head house service friend father"
)


@dataclass(frozen=True)
class Prompts:
    """Token numbers that are new each time, the same for the same seed."""

    pool: list[int]
    random: random.Random

    def make(self, length: int) -> list[int]:
        return self.random.choices(self.pool, k=length)

    def make_text(self, length: int) -> str:
        return " ".join(self.random.choices(WORDS.split(), k=length))


Figures = dict[str, float]
Scenario = Callable[[Path, Prompts], Figures]


@dataclass(frozen=True)
class Setup:
    """What both servers of a row are started with."""

    parallel: int = PARALLEL
    template: str = ""
    """A chat template of llama.cpp's collection, in the place of the model's."""
    sees: bool = False
    """With a projector of random weights."""
    is_tiny: bool = False
    """A model whose steps are so short that what remains is the server; once, whichever models are measured."""
    yardstick: str = "--cache-ram 0"
    """Options that only llama-server knows."""


@dataclass(frozen=True)
class Row:
    scenario: Scenario
    setup: Setup = Setup()


def format_body(prompt: list[int], n_tokens: int, **more: Any) -> dict[str, Any]:
    return {
        "prompt": prompt,
        "max_tokens": n_tokens,
        "stream": True,
        "stream_options": {"include_usage": True},
        "ignore_eos": True,
        "seed": 1,
        **more,
    }


def format_chat(content: Any, n_tokens: int, **more: Any) -> dict[str, Any]:
    body = format_body([], n_tokens, messages=[{"role": "user", "content": content}], **more)
    del body["prompt"]
    return body


def run_alone(server: Path, prompt: list[int], n_tokens: int) -> Stream:
    (stream,) = run_streams(server, [format_body(prompt, n_tokens)])
    return stream


def run_chat(server: Path, content: Any, n_tokens: int, **more: Any) -> Stream:
    (stream,) = run_streams(server, [format_chat(content, n_tokens, **more)], path=CHAT)
    stream.read_usage()
    return stream


def stream_together(count: int, parallel: int = PARALLEL, length: int = N_STREAM, **more: Any) -> Scenario:
    def scenario(server: Path, prompts: Prompts) -> Figures:
        bodies = [format_body(prompts.make(N_SHORT_PROMPT), length, **more) for _ in range(count)]
        streams = run_streams(server, bodies)
        n_tokens = sum(stream.read_usage()["completion_tokens"] for stream in streams)
        if n_tokens != count * length:
            raise BenchError(f"cannot measure: {n_tokens} tokens came instead of {count * length}")
        elapsed_s = max(stream.end_s for stream in streams) - min(stream.sent_s for stream in streams)
        # The middle one of those that need not wait for a free sequence.
        firsts = sorted(stream.first_s for stream in streams)[: min(count, parallel)]
        return {"tokens": n_tokens / elapsed_s, "first token": firsts[len(firsts) // 2]}

    return scenario


def read_long_prompt(server: Path, prompts: Prompts) -> Figures:
    stream = run_alone(server, prompts.make(N_LONG_PROMPT), 1)
    stream.read_usage()
    return {"tokens": N_LONG_PROMPT / stream.first_s}


def share_prefix(server: Path, prompts: Prompts) -> Figures:
    shared = prompts.make(N_SHARED)
    run_alone(server, shared + prompts.make(N_OWN), 8).read_usage()
    second = run_alone(server, shared + prompts.make(N_OWN), 8)
    second.read_usage()
    return {"first token": second.first_s}


def talk_in_turns(server: Path, prompts: Prompts) -> Figures:
    """Each conversation's second turn, after the others' first ones and a side request for each, such as for a title.
    All begin alike, as a template's head lets them.
    """
    head = prompts.make(8)
    turns = [head + prompts.make(N_CONVERSATION) for _ in range(N_CONVERSATIONS)]
    seconds: list[Stream] = []
    for is_second in (False, True):
        for turn in turns:
            stream = run_alone(server, turn, 8)
            stream.read_usage()
            if is_second:
                seconds.append(stream)
            run_alone(server, head + prompts.make(N_SIDE), 8).read_usage()
            turn += prompts.make(N_TURN)
    cached = [stream.read_usage()["prompt_tokens_details"]["cached_tokens"] for stream in seconds]
    first_s = sum(stream.first_s for stream in seconds)
    return {CACHED: sum(cached) / N_CONVERSATIONS, "first token": first_s / N_CONVERSATIONS}


def interrupt_with_long_prompt(server: Path, prompts: Prompts) -> Figures:
    """Three streams; when each has some tokens, a long prompt comes."""
    bodies = [format_body(prompts.make(N_SHORT_PROMPT), 160) for _ in range(PARALLEL - 1)]
    long = format_body(prompts.make(N_LONG_PROMPT), 1)

    def arrive(streams: list[Stream]) -> dict[str, Any] | None:
        return long if all(len(stream.pieces) > 30 for stream in streams) else None

    *running, late = run_streams(server, bodies, arrive)
    for stream in (*running, late):
        stream.read_usage()
    pause_s = max(max(stream.list_gaps(late.sent_s)) for stream in running)
    return {"longest pause": pause_s, "first token": late.first_s}


def offer_tools(server: Path, prompts: Prompts) -> Figures:
    """An agent's next request: the same functions as ever, and another question."""
    stream = run_chat(server, prompts.make_text(12), 8, tools=TOOLS, temperature=0)
    return {"first token": stream.first_content_s}


def show_picture(server: Path, prompts: Prompts) -> Figures:
    """One that it has not seen."""
    shades = [prompts.random.randrange(256) for _ in range(3)]
    picture = write_png(PICTURE_PX, PICTURE_PX, lambda x, y: ((shades[0] + x) % 256, (shades[1] + y) % 256, shades[2]))
    url = f"data:image/png;base64,{base64.b64encode(picture).decode()}"
    parts = [{"type": "image_url", "image_url": {"url": url}}, {"type": "text", "text": prompts.make_text(12)}]
    return {"first token": run_chat(server, parts, 8, temperature=0).first_content_s}


def _make_tool(number: int) -> dict[str, Any]:
    properties = {
        "path": {"type": "string", "description": "Where it is, below the root of the project"},
        "count": {"type": "integer", "description": "How many of them are wanted at most"},
    }
    return {
        "type": "function",
        "function": {
            "name": f"find_{WORDS.split()[number]}",
            "description": f"Finds each {WORDS.split()[number]} of a file, and tells its line",
            "parameters": {"type": "object", "properties": properties, "required": ["path"]},
        },
    }


TOOLS = [_make_tool(number) for number in range(N_TOOLS)]
ITEM = {"type": "object", "properties": {"name": {"type": "string"}, "count": {"type": "integer"}}}
SCHEMA = {"type": "array", "items": {**ITEM, "required": ["name", "count"]}, "minItems": N_STREAM // 4}
"""Of a text that no answer comes to the end of: an item has more than four tokens."""
TURNS = "4 conversations in turn"
_MANY, _TINY = Setup(parallel=32), Setup(parallel=32, is_tiny=True)

ROWS: dict[str, Row] = {
    "1 stream": Row(stream_together(1)),
    "4 streams": Row(stream_together(4)),
    "8 streams": Row(stream_together(8)),
    "32 streams": Row(stream_together(32, 32, N_STREAM // 4), _MANY),
    "prompt of 2,000": Row(read_long_prompt),
    "1,500 of 1,600 shared": Row(share_prefix),
    "2,000 among 3 streams": Row(interrupt_with_long_prompt),
    "4 streams with a schema": Row(stream_together(4, json_schema=SCHEMA)),
    "30 tools, cached": Row(offer_tools, Setup(template="Qwen-Qwen3-0.6B")),
    "a picture": Row(show_picture, Setup(sees=True)),
    TURNS: Row(talk_in_turns),
    f"{TURNS}, llama-server with its cache in main memory": Row(talk_in_turns, Setup(yardstick="--cache-ram 8192")),
    "tiny model, 1 stream": Row(stream_together(1), _TINY),
    "tiny model, 8 streams": Row(stream_together(8, 32), _TINY),
    "tiny model, 32 streams": Row(stream_together(32, 32), _TINY),
}
