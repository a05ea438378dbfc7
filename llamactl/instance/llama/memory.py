"""How much memory does a context of llama.cpp take, on which device?

llama_get_memory_breakdown answers exactly, by buffer type, with or without allocation. Buffer types of GPUs become
device rows; whatever the CPU can address (CPU buffers, pinned host memory, the mapped model file) is the one Host
row; the rest (AMX, CPU_REPACK) are rows of their own. A mapped file counts as Host's `model` although the kernel can
take its pages back: without them the model does not run, and a measurement, which cannot map, says the same. What is
mapped is one range from the first to the last tensor on the CPU: where other buffers hold tensors too, that range
covers theirs as well, and the caller puts the measured figure in its place (`replace_host_model`).

Devices are named as llama.cpp names them, except those behind RPC: it counts them per process, so that RPC0 of two
models can be two devices. They go by the name of their buffer type, which has the address: `RPC0[127.0.0.1:50052]`.
"""

import ctypes
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from llamactl.instance.llama.bindings import BreakdownNode, DeviceProps, load_extra
from llamactl.protocol.values import Breakdown, Row, RowKind

HOST = "Host"
_TYPE_CPU, _TYPE_GPU, _TYPE_IGPU = 0, 1, 2


@dataclass(frozen=True)
class Device:
    """A device of llama.cpp other than the CPU."""

    pointer: int
    name: str
    description: str
    total_bytes: int
    free_bytes: int


@dataclass(frozen=True)
class Extent:
    """What something beside the model takes: its weights, and what computing with it takes at the most."""

    device: str
    """Empty: it lies in main memory."""
    weights_bytes: int
    compute_bytes: int

    @property
    def used_bytes(self) -> int:
        return self.weights_bytes + self.compute_bytes


def acquire_devices(names: tuple[str, ...]) -> list[Device]:
    """The GPUs that a model with these `devices` settings may use, with their memory at this moment."""
    ggml = load_extra().ggml
    found = []
    for index in range(ggml.ggml_backend_dev_count()):
        pointer = ggml.ggml_backend_dev_get(index)
        if names and not names_device(names, pointer):
            continue
        device = _describe_device(pointer)
        if device is not None:
            found.append(device)
    return found


def read_device_name(pointer: int) -> str:
    """The device's name on this machine."""
    ggml = load_extra().ggml
    registry = ggml.ggml_backend_dev_backend_reg(pointer)
    if registry and ggml.ggml_backend_reg_name(registry) == b"RPC":
        return str(ggml.ggml_backend_buft_name(ggml.ggml_backend_dev_buffer_type(pointer)).decode(errors="replace"))
    return str(ggml.ggml_backend_dev_name(pointer).decode(errors="replace"))


def names_device(names: tuple[str, ...], pointer: int) -> bool:
    """Whether a list of names has this device, by its name on this machine or by llama.cpp's own."""
    own: str = load_extra().ggml.ggml_backend_dev_name(pointer).decode(errors="replace")
    return own in names or read_device_name(pointer) in names


def read_device_id(device: Device) -> str:
    """The bus address of a device, as in "0000:01:00.0"; empty where llama.cpp does not know it."""
    props = DeviceProps()
    load_extra().ggml.ggml_backend_dev_get_props(device.pointer, ctypes.byref(props))
    return (props.device_id or b"").decode(errors="replace")


def make_row(device: Device) -> Row:
    """A device of which nothing is taken."""
    return Row(
        kind=RowKind.DEVICE,
        name=device.name,
        description=device.description,
        total=device.total_bytes,
        free=device.free_bytes,
    )


def read_breakdown(context: Any, n_ctx: int, devices: list[Device]) -> Breakdown:
    """Of a context with room for `n_ctx` tokens, allocated or not. Raises RuntimeError where this build of llama.cpp
    cannot tell.
    """
    extra = load_extra()
    rows: dict[tuple[RowKind, str], Row] = {(RowKind.DEVICE, device.name): make_row(device) for device in devices}
    rows[RowKind.HOST, HOST] = Row(kind=RowKind.HOST, name=HOST)
    for node in _walk_breakdown(context):
        kind, name, description = _classify_buffer_type(extra.ggml, node.buffer_type)
        row = rows.get((kind, name)) or Row(kind=kind, name=name, description=description)
        rows[kind, name] = msgspec.structs.replace(
            row,
            model=row.model + int(node.model),
            context=row.context + int(node.context),
            compute=row.compute + int(node.compute),
        )
    return Breakdown(n_ctx=n_ctx, devices=tuple(rows.values()))


def add_extent(breakdown: Breakdown, extent: Extent | None) -> Breakdown:
    """With what lies beside the model, in the row of its device or in Host's."""
    if extent is None:
        return breakdown
    kind, name = (RowKind.DEVICE, extent.device) if extent.device else (RowKind.HOST, HOST)
    rows = tuple(
        msgspec.structs.replace(row, model=row.model + extent.weights_bytes, compute=row.compute + extent.compute_bytes)
        if (row.kind, row.name) == (kind, name)
        else row
        for row in breakdown.devices
    )
    return msgspec.structs.replace(breakdown, devices=rows)


def mapped_range_is_exact(breakdown: Breakdown) -> bool:
    """Whether all of the model lies in Host, so that a mapped range covers nothing else."""
    return all(row.model == 0 for row in breakdown.devices if row.kind is not RowKind.HOST)


def places_alike(breakdown: Breakdown, measured: Breakdown) -> bool:
    """Whether all but Host has the same parts of the model in both; then Host has too, mapped or not."""

    def list_model(rows: tuple[Row, ...]) -> set[tuple[RowKind, str, int]]:
        return {(row.kind, row.name, row.model) for row in rows if row.kind is not RowKind.HOST and row.model}

    return list_model(breakdown.devices) == list_model(measured.devices)


def replace_host_model(breakdown: Breakdown, measured: Breakdown) -> Breakdown:
    """`breakdown` with Host's `model` as it was measured."""
    model = next(row.model for row in measured.devices if row.kind is RowKind.HOST)
    rows = tuple(
        msgspec.structs.replace(row, model=model) if row.kind is RowKind.HOST else row for row in breakdown.devices
    )
    return msgspec.structs.replace(breakdown, devices=rows)


def sum_host_bytes(breakdown: Breakdown) -> int:
    """Main memory in use: Host, and buffer types that belong to no device."""
    return sum(row.used for row in breakdown.devices if row.kind is not RowKind.DEVICE)


def acquire_host_total_bytes(meminfo: Path = Path("/proc/meminfo"), cgroup: Path | None = None) -> int:
    """Main memory that this process may come to use: the machine's, or less where a cgroup above it has a limit."""
    total = 0
    for line in meminfo.read_text().splitlines():
        key, _, value = line.partition(":")
        if key == "MemTotal":
            total = int(value.split()[0]) * 1024
    return min([total, *_read_cgroup_limits(cgroup or _find_own_cgroup())])


def _find_own_cgroup() -> Path:
    root = Path("/sys/fs/cgroup")
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        if line.startswith("0::"):
            return root / line.removeprefix("0::").lstrip("/")
    return root


def _read_cgroup_limits(cgroup: Path) -> Iterator[int]:
    for directory in (cgroup, *cgroup.parents):
        try:
            text = (directory / "memory.max").read_text().strip()
        except OSError:
            continue
        if text.isdecimal():
            yield int(text)


def _walk_breakdown(context: Any) -> Iterator[BreakdownNode]:
    get_breakdown = load_extra().get_memory_breakdown
    if get_breakdown is None:
        raise RuntimeError("this llama.cpp does not export llama_get_memory_breakdown")
    tree = get_breakdown(context)
    nodes = list(_walk_tree(tree.root))
    # The layout is libstdc++'s, not an interface: a count that differs means that all else read here is garbage.
    if len(nodes) != tree.count:
        raise RuntimeError(f"memory breakdown is unreadable: {len(nodes)} of {tree.count} entries found")
    yield from nodes


def _walk_tree(node: Any) -> Iterator[Any]:
    if node:
        yield from _walk_tree(node.contents.left)
        yield node.contents
        yield from _walk_tree(node.contents.right)


def _classify_buffer_type(ggml: Any, buffer_type: int) -> tuple[RowKind, str, str]:
    if ggml.ggml_backend_buft_is_host(buffer_type):
        return RowKind.HOST, HOST, ""
    pointer = ggml.ggml_backend_buft_get_device(buffer_type)
    device = _describe_device(pointer) if pointer else None
    if device is not None:
        return RowKind.DEVICE, device.name, device.description
    return RowKind.BUFFER_TYPE, ggml.ggml_backend_buft_name(buffer_type).decode(errors="replace"), ""


def _describe_device(pointer: int) -> Device | None:
    """None for CPUs and for accelerators that work on main memory."""
    ggml = load_extra().ggml
    if ggml.ggml_backend_dev_type(pointer) not in (_TYPE_GPU, _TYPE_IGPU):
        return None
    free, total = ctypes.c_size_t(), ctypes.c_size_t()
    ggml.ggml_backend_dev_memory(pointer, ctypes.byref(free), ctypes.byref(total))
    return Device(
        pointer=pointer,
        name=read_device_name(pointer),
        description=ggml.ggml_backend_dev_description(pointer).decode(errors="replace"),
        total_bytes=total.value,
        free_bytes=free.value,
    )
