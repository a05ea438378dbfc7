"""Does a line read like a sentence, and carry its facts in fields that machines can match?"""

import io
import logging
import os
import re
import socket
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import structlog
from hypothesis import given
from hypothesis import strategies as st

from llamactl.quantities import format_bytes
from llamactl.systemd import journal
from llamactl.systemd.journal import (
    JournalSink,
    configure,
    encode_fields,
    format_entry,
    format_name,
    get_logger,
    is_journal,
)


@pytest.fixture(autouse=True)
def restored() -> Iterator[None]:
    """Logging is the process's, not a test's."""
    handlers, level = logging.root.handlers[:], logging.root.level
    yield
    structlog.reset_defaults()
    logging.root.handlers[:], logging.root.level = handlers, level
    logging.captureWarnings(False)


@pytest.fixture
def journald(tmp_path: Path) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
        sock.bind(str(tmp_path / "socket"))
        sock.settimeout(10)
        yield sock


def decode_fields(data: bytes) -> dict[str, str]:
    """journald's side of the native protocol."""
    fields = {}
    while data:
        name, separator, rest = data.partition(b"\n")
        if b"=" in name:
            key, _, value = name.partition(b"=")
            data = rest
        else:
            assert separator
            key, size = name, struct.unpack("<Q", rest[:8])[0]
            value, data = rest[8 : 8 + size], rest[8 + size :].removeprefix(b"\n")
        fields[key.decode()] = value.decode()
    return fields


def test_line_is_a_sentence_and_its_facts_are_fields() -> None:
    entry = format_entry(
        {
            "event": "load decided",
            "level": "info",
            "model": "a",
            "needs_bytes": 1288490189,
            "device": "Host",
            "took_s": 0.5,
        }
    )
    assert entry["MESSAGE"] == "load decided: model=a needs=1.20 GiB device=Host took=0.5 s"
    assert entry["PRIORITY"] == "6"
    assert entry["LLAMACTL_EVENT"] == "load_decided"
    assert entry["LLAMACTL_MODEL"] == "a"
    assert entry["LLAMACTL_DEVICE"] == "Host"
    assert entry["LLAMACTL_NEEDS_BYTES"] == "1288490189"


def test_reason_ends_the_sentence() -> None:
    entry = format_entry({"event": "victim chosen", "level": "warning", "model": "a", "reason": "it is idle"})
    assert entry["MESSAGE"] == "victim chosen: model=a: it is idle"
    assert entry["PRIORITY"] == "4"
    assert entry["LLAMACTL_REASON"] == "it is idle"


@pytest.mark.parametrize(
    ("value", "shown", "field"),
    [
        (True, "yes", "true"),
        (["a", "b"], "a,b", '["a", "b"]'),
        ({"CUDA0": 3}, "{CUDA0: 3}", '{"CUDA0": 3}'),
        ("two words", '"two words"', "two words"),
        (1.23456789, "1.23457", "1.23456789"),
        (Path("/x"), "/x", '"/x"'),
    ],
)
def test_values_are_shown_for_people_and_kept_for_machines(value: Any, shown: str, field: str) -> None:
    entry = format_entry({"event": "e", "key": value})
    assert entry["MESSAGE"] == f"e: key={shown}"
    assert entry["LLAMACTL_KEY"] == field


def test_sizes_by_device_are_shown_as_sizes() -> None:
    assert format_entry({"event": "e", "free_bytes": {"CUDA0": 1 << 30}})["MESSAGE"] == "e: free={CUDA0: 1.00 GiB}"


def test_nothing_is_said_of_what_is_not_known() -> None:
    entry = format_entry({"event": "e", "a": None, "b": "", "c": [], "d": 0})
    assert entry["MESSAGE"] == "e: d=0"
    assert "LLAMACTL_A" not in entry


@pytest.mark.parametrize(
    ("size", "text"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (1024, "1.00 KiB"),
        (1 << 30, "1.00 GiB"),
        (1023 << 20, "1.00 GiB"),
        (int(21.4 * (1 << 30)), "21.4 GiB"),
        (512 << 20, "512 MiB"),
        (-(1 << 20), "-1.00 MiB"),
        (5 << 60, "5120 PiB"),
    ],
)
def test_sizes_have_three_figures(size: int, text: str) -> None:
    assert format_bytes(size) == text


@given(st.text(min_size=1))
def test_names_are_valid_for_journald(key: str) -> None:
    assert re.fullmatch(r"[A-Z][A-Z0-9_]{0,63}", format_name(key))


@given(st.dictionaries(st.from_regex(r"[A-Z]{1,9}", fullmatch=True), st.text(alphabet=st.characters(codec="utf-8"))))
def test_fields_survive_the_protocol(fields: dict[str, str]) -> None:
    assert decode_fields(encode_fields(fields.items())) == fields


def test_message_goes_to_the_journal(journald: socket.socket) -> None:
    JournalSink(journald.getsockname()).write({"MESSAGE": "two\nlines", "PRIORITY": "6"})
    assert decode_fields(journald.recv(1000)) == {"MESSAGE": "two\nlines", "PRIORITY": "6"}


def test_long_message_goes_as_a_sealed_file(journald: socket.socket) -> None:
    long = "x" * (20 << 20)
    JournalSink(journald.getsockname()).write({"MESSAGE": long})
    data, descriptors, _, _ = socket.recv_fds(journald, 1000, 1)
    assert data == b""
    with open(descriptors[0], "rb") as file:
        file.seek(0)  # it was written through the same open file
        assert decode_fields(file.read()) == {"MESSAGE": long}
        with pytest.raises(PermissionError):
            os.pwrite(file.fileno(), b"x", 0)


def test_absent_journald_leaves_standard_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    JournalSink(str(tmp_path / "none")).write({"MESSAGE": "hello", "PRIORITY": "4", "SYSLOG_IDENTIFIER": "x"})
    assert capsys.readouterr().err == "x: warning: hello\n"


def test_loggers_made_before_follow_the_configuration(capsys: pytest.CaptureFixture[str]) -> None:
    log = get_logger()
    configure("x", "info", {})
    log.debug("unseen")
    log.info("seen", model="a")
    configure("x", "debug", {})
    log.debug("seen now")
    assert capsys.readouterr().err == "x: seen: model=a\nx: debug: seen now\n"


def test_fields_of_the_process_are_in_every_line_and_unseen(
    monkeypatch: pytest.MonkeyPatch, journald: socket.socket
) -> None:
    monkeypatch.setattr(journal, "is_journal", lambda stream: True)
    monkeypatch.setattr(journal, "JournalSink", lambda: JournalSink(journald.getsockname()))
    configure("llamactl-a", "info", {"model": "a"})
    try:
        raise ValueError("broken")
    except ValueError as error:
        get_logger().error("load failed", exc_info=error)
    fields = decode_fields(journald.recv(10000))
    assert fields["MESSAGE"].startswith("load failed\nTraceback")
    assert fields["MESSAGE"].endswith("ValueError: broken")
    assert (fields["LLAMACTL_MODEL"], fields["SYSLOG_IDENTIFIER"], fields["PRIORITY"]) == ("a", "llamactl-a", "3")


def test_libraries_are_heard_from_warnings_on(capsys: pytest.CaptureFixture[str]) -> None:
    configure("x", "info", {})
    logging.getLogger("asyncio").info("unheard")
    logging.getLogger("asyncio").warning("slow %s", "callback")
    logging.getLogger("asyncio").error("bad format %d", "x")
    assert capsys.readouterr().err == "x: warning: library message: logger=asyncio: slow callback\n"


def test_traceback_of_a_library_is_a_field_and_not_the_message(
    monkeypatch: pytest.MonkeyPatch, journald: socket.socket
) -> None:
    monkeypatch.setattr(journal, "is_journal", lambda stream: True)
    monkeypatch.setattr(journal, "JournalSink", lambda: JournalSink(journald.getsockname()))
    configure("x", "info", {})
    try:
        raise ValueError("broken")
    except ValueError:
        logging.getLogger("asyncio").exception("task failed")
    fields = decode_fields(journald.recv(10000))
    assert fields["MESSAGE"] == "library message: logger=asyncio: task failed: ValueError: broken"
    assert fields["LLAMACTL_TRACEBACK"].startswith("Traceback")


def test_journal_is_known_by_its_stream(tmp_path: Path) -> None:
    with open(tmp_path / "f", "w") as file:
        status = os.fstat(file.fileno())
        assert is_journal(file, {"JOURNAL_STREAM": f"{status.st_dev}:{status.st_ino}"})
        assert not is_journal(file, {"JOURNAL_STREAM": f"{status.st_dev}:1"})
        assert not is_journal(file, {})
    assert not is_journal(io.StringIO(), {"JOURNAL_STREAM": "1:1"})
    assert not is_journal(None, {})


def test_message_is_printable_whatever_its_values_are() -> None:
    hostile = "x\x1b[31mred\x07\x9b\u202egnp"
    fields = format_entry({"event": "problem found", "model": hostile, "files": [hostile, "a b\n"], "reason": hostile})
    shown = r"x\x1b[31mred\x07\x9b\u202egnp"
    assert fields["MESSAGE"] == rf'problem found: model={shown} files={shown},"a b\n": {shown}'
    assert fields["LLAMACTL_MODEL"] == hostile


def test_traceback_keeps_its_lines_and_is_printable() -> None:
    assert format_entry({"event": "e", "exception": "Traceback:\n  \x1b[2J"})["MESSAGE"] == "e\nTraceback:\n  \\x1b[2J"
