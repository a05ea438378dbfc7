"""The supervisor's edges that need no systemd: host memory, and what junk does to a connection."""

import asyncio
from pathlib import Path

import msgspec
import pytest

from llamactl.protocol.lines import LineReader, ProtocolError, encode_message
from llamactl.protocol.report_socket import ChildHello, ChildMessage, ChildRole, Report
from llamactl.protocol.values import LoadFailure
from llamactl.sockets import bind_unix_socket
from llamactl.supervisor.host_memory import acquire_host_memory, parse_meminfo
from llamactl.supervisor.line_connection import LineConnection
from llamactl.supervisor.measurements import format_measure_error

MEMINFO = "MemTotal:       1000 kB\nMemFree:         100 kB\nMemAvailable:    600 kB\n"


def test_meminfo_gives_total_and_available_in_bytes() -> None:
    assert parse_meminfo(MEMINFO) == (1000 << 10, 600 << 10)


def test_meminfo_without_available_says_which_line_is_missing() -> None:
    with pytest.raises(ValueError, match="MemAvailable"):
        parse_meminfo("MemTotal: 1000 kB\n")


@pytest.mark.parametrize(
    ("limit", "used", "expected"),
    [
        ("max", "0", (1000 << 10, 600 << 10)),
        (str(500 << 10), str(200 << 10), (500 << 10, 300 << 10)),
        (str(900 << 10), str(100 << 10), (900 << 10, 600 << 10)),
        (str(100 << 10), str(200 << 10), (100 << 10, 0)),
    ],
)
def test_limit_of_the_slice_narrows_host_memory(
    tmp_path: Path, limit: str, used: str, expected: tuple[int, int]
) -> None:
    (tmp_path / "meminfo").write_text(MEMINFO)
    (tmp_path / "memory.max").write_text(limit + "\n")
    (tmp_path / "memory.current").write_text(used + "\n")
    assert acquire_host_memory(tmp_path / "meminfo", tmp_path) == expected


def test_measure_error_tells_a_killed_child_from_a_failed_one() -> None:
    assert "killed" in format_measure_error(LoadFailure(result="timeout", exit_code=15, message="x"))
    assert (
        format_measure_error(LoadFailure(result="exit-code", exit_code=1, message="bad magic"))
        == "bad magic (exit-code 1)"
    )


async def _exchange(path: Path, data: bytes) -> tuple[list[msgspec.Struct], bytes, int]:
    """What a server took, what it answered, and how often it saw the connection close."""
    taken: list[msgspec.Struct] = []
    closed = asyncio.get_running_loop().create_future()
    count = 0

    def handle_closed(_: LineConnection) -> None:
        nonlocal count
        count += 1
        closed.set_result(None)

    server = await asyncio.get_running_loop().create_unix_server(
        lambda: LineConnection(ChildMessage, lambda _: None, lambda _, message: taken.append(message), handle_closed),
        sock=bind_unix_socket(path, 10),
    )
    reader, writer = await asyncio.open_unix_connection(str(path))
    writer.write(data)
    writer.write_eof()
    answer = await asyncio.wait_for(reader.read(), 10)
    writer.close()
    await asyncio.wait_for(closed, 10)
    server.close()
    return taken, answer, count


HELLO = ChildHello(version=1, role=ChildRole.SERVE, model="a", generation="1", pid=1)


@pytest.mark.parametrize(
    "junk",
    [b"nonsense\n", b"{}\n", b'{"type":"ack","seq":1}\n', b"\xff\xfe\n", b"[" * 100_000 + b"\n"],
)
def test_junk_ends_its_connection_with_a_reason_after_what_was_right(tmp_path: Path, junk: bytes) -> None:
    taken, answer, closed = asyncio.run(_exchange(tmp_path / "s", encode_message(HELLO) + junk))
    assert taken == [HELLO]
    assert msgspec.json.decode(answer)["type"] == "error"
    assert closed == 1


def test_messages_in_one_piece_are_taken_in_order(tmp_path: Path) -> None:
    reports = [Report(seq=number, state="ready") for number in range(3)]  # type: ignore[arg-type]
    taken, answer, _ = asyncio.run(_exchange(tmp_path / "s", b"".join(map(encode_message, [HELLO, *reports]))))
    assert [getattr(message, "seq", 0) for message in taken] == [0, 0, 1, 2]
    assert answer == b""


def test_a_socket_replaces_what_a_predecessor_left(tmp_path: Path) -> None:
    first = bind_unix_socket(tmp_path / "s", 10)
    second = bind_unix_socket(tmp_path / "s", 10)
    assert (tmp_path / "s").stat().st_mode & 0o777 == 0o600
    assert [entry.name for entry in tmp_path.iterdir()] == ["s"]
    first.close()
    second.close()


@pytest.mark.parametrize("line", [b"x" * 300, b"x" * 300 + b"\n"])
def test_a_line_that_is_too_long_is_junk_whether_it_ends_or_not(line: bytes) -> None:
    with pytest.raises(ProtocolError, match="bytes") as caught:
        LineReader(ChildMessage, max_bytes=200).feed(encode_message(HELLO) + line)
    assert caught.value.before == [HELLO]


def test_text_that_is_no_unicode_is_sent_with_a_mark_in_its_place() -> None:
    hello = ChildHello(version=1, role=ChildRole.SERVE, model="caf\udce9", generation="é", pid=1)
    (received,) = LineReader(ChildMessage).feed(encode_message(hello))
    assert (received.model, received.generation) == ("caf\ufffd", "é")
