"""What is told of a model's memory and state, on both sockets?"""

from enum import StrEnum
from typing import Annotated, Any

import msgspec

MAX_TEXT = 1 << 16
MAX_ENTRIES = 256
MAX_SECONDS = 1e12

# What peers may say. The supervisor computes with these, formats them and keeps them: whatever is beyond is refused
# when the message is read.
Whole = Annotated[int, msgspec.Meta(ge=0, le=(1 << 63) - 1)]
"""A count, or bytes."""
Text = Annotated[str, msgspec.Meta(max_length=MAX_TEXT)]
Seconds = Annotated[float, msgspec.Meta(ge=0, le=MAX_SECONDS)]
"""On a clock, or of time."""
Keep = Annotated[float, msgspec.Meta(ge=-MAX_SECONDS, le=MAX_SECONDS)]
"""Seconds to keep a model; negative: for ever."""
Fraction = Annotated[float, msgspec.Meta(ge=0, le=1)]


class State(StrEnum):
    """Of a model, in the words of llama-server's router where it has them (it says `loaded` for `ready`)."""

    UNLOADED = "unloaded"
    LOADING = "loading"
    READY = "ready"
    SLEEPING = "sleeping"
    STOPPING = "stopping"
    FAILED = "failed"


class MemoryStatus(StrEnum):
    """Of what is known about a model's memory."""

    UNMEASURED = "unmeasured"
    MEASURING = "measuring"
    MEASURED = "measured"
    FAILED = "failed"


class RowKind(StrEnum):
    """Where the bytes of a row lie."""

    DEVICE = "device"
    HOST = "host"
    BUFFER_TYPE = "buffer_type"


class Value(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=False):
    """A part of messages."""


class Row(Value, frozen=True, kw_only=True):
    """Bytes on one device, on the host, or in one other buffer type. `total` and `free` are known for devices only."""

    kind: RowKind
    name: Text
    description: Text = ""
    model: Whole = 0
    context: Whole = 0
    compute: Whole = 0
    total: Whole | None = None
    free: Whole | None = None

    @property
    def used(self) -> int:
        """Bytes that the model takes there."""
        return self.model + self.context + self.compute


class Breakdown(Value, frozen=True, kw_only=True):
    """What a model takes at one context size, in bytes per row. llama.cpp's llama_get_memory_breakdown is the
    source.
    """

    n_ctx: Whole
    devices: Annotated[tuple[Row, ...], msgspec.Meta(max_length=MAX_ENTRIES)] = ()


class DeviceList(Value, frozen=True, kw_only=True):
    """The devices that a child can see, whether its model uses them or not. Rows have no bytes of a model."""

    rows: Annotated[tuple[Row, ...], msgspec.Meta(max_length=MAX_ENTRIES)] = ()
    ids: Annotated[dict[Text, Text], msgspec.Meta(max_length=MAX_ENTRIES)] = {}
    """Bus addresses by name, where known: "0000:01:00.0"."""
    busy: Annotated[tuple[Text, ...], msgspec.Meta(max_length=MAX_ENTRIES)] = ()
    """RPC servers that have another client now: their devices are not among the rows, and not gone either."""
    cheap: bool = False
    """Asked without a GPU context: only `free` is known then, and only of the devices asked for."""


class ModelMemory(Value, frozen=True, kw_only=True):
    """All that is known of a model's memory; None where there is no figure."""

    status: MemoryStatus = MemoryStatus.UNMEASURED
    error: str = ""
    """Why it was not measured."""
    min: Breakdown | None = None
    max: Breakdown | None = None
    effective: Breakdown | None = None


def format_memory(memory: ModelMemory) -> dict[str, Any]:
    """As JSON shows it to people and programs: without `error` where there is none, without `total` and `free` in rows
    that have none.
    """
    plain: dict[str, Any] = msgspec.to_builtins(memory)
    if not memory.error:
        del plain["error"]
    for breakdown in (plain["min"], plain["max"], plain["effective"]):
        if breakdown is not None:
            breakdown["devices"] = [
                {key: value for key, value in row.items() if value is not None} for row in breakdown["devices"]
            ]
    return plain


class Facts(Value, frozen=True, kw_only=True):
    """What a child read from the model file."""

    architecture: Text = ""
    description: Text = ""
    n_ctx: Whole = 0
    n_ctx_train: Whole = 0
    n_embd: Whole = 0
    n_vocab: Whole = 0
    n_params: Whole = 0
    size_bytes: Whole = 0
    ftype: Text = ""
    """How the weights are quantized, in llama.cpp's words (`Q4_K - Medium`)."""
    vocab_type: Whole = 0
    """Number of llama.cpp's kind of vocabulary (llama.h: llama_vocab_type)."""
    build: Text = ""
    """llama.cpp's build, as it says it itself: `b` and a number, `-` and a commit."""
    extra_bufts: bool = True
    """False: this instance runs without llama.cpp's extra buffer types."""
    input_modalities: Annotated[tuple[Text, ...], msgspec.Meta(max_length=MAX_ENTRIES)] = ("text",)
    """What requests may carry: `text`, `image`, `audio`."""
    capabilities: Annotated[tuple[Text, ...], msgspec.Meta(max_length=MAX_ENTRIES)] = ()
    """What it can be asked for: `completion`, `insert`, `tools`, `thinking`, `vision`, `audio`; `embedding`; `rerank`.
    """
    no_tools: Text = ""
    """What is missing on this machine for tools, and which command brings it; empty: nothing."""


def format_meta(facts: Facts, n_ctx: int) -> dict[str, Any]:
    """As llama-server's `/v1/models` has it: `meta` of a model that runs with room for `n_ctx` tokens."""
    return {
        "vocab_type": facts.vocab_type,
        "n_ctx": n_ctx,
        "n_ctx_train": facts.n_ctx_train,
        "n_embd": facts.n_embd,
        "n_vocab": facts.n_vocab,
        "n_params": facts.n_params,
        "size": facts.size_bytes,
        "ftype": facts.ftype,
    }


class Note(Value, frozen=True, kw_only=True):
    """What the supervisor alone knows of an instance. The instance keeps it and returns it with every report."""

    last_used_s: Seconds = 0.0
    ready_since_s: Seconds = 0.0
    pinned: bool | None = None
    keep_alive_s: Keep | None = None
    files: Text = ""
    """Which files the instance was loaded from."""


class Stage(StrEnum):
    """Where a load is."""

    QUEUED = "queued"
    MEASURING = "measuring"
    WAITING = "waiting"
    STARTING = "starting"
    LOADING = "loading"
    READY = "ready"


BY_SIGNAL = ("signal", "core-dump")
"""systemd's words for an end by a signal; the exit code is its number then."""


UNREACHABLE = "systemd-unreachable"
"""Result of a start that systemd has not taken: no fault of the model's."""
INSTALLING = "installing"
"""Result of a start while llamactl's own files were being replaced: tried again."""


class LoadFailure(Value, frozen=True, kw_only=True):
    """How a model's last unit ended when it did not end well. `result` is systemd's word (`exit-code`, `signal`,
    `oom-kill`, `timeout`, `watchdog` ...).
    """

    result: str
    exit_code: int
    message: str
    """The last lines that it logged, or what is known else."""
