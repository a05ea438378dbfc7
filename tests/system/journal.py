"""What did llamactl say in the journal, and how does a test wait for the next line?

Reading starts at a cursor, so that lines of earlier tests are not seen. Waiting follows the journal; nothing is polled.
Entries are chosen here: `journalctl --after-cursor` with a match skips the first entry that matches.
"""

import json
import selectors
import subprocess
import time
from typing import Any

Entry = dict[str, Any]


def acquire_cursor() -> str:
    """The place after everything logged so far."""
    subprocess.run(["journalctl", "--sync"], check=True)
    shown = subprocess.run(
        ["journalctl", "-n", "0", "--show-cursor", "--quiet"], check=True, capture_output=True, text=True
    )
    return shown.stdout.rpartition("-- cursor: ")[2].strip()


def read_text(cursor: str, lines: int = 100) -> str:
    """The last lines since `cursor`, for people."""
    subprocess.run(["journalctl", "--sync"], check=True)
    command = ["journalctl", "--quiet", "--no-pager", "-o", "short-precise", f"--after-cursor={cursor}"]
    return "\n".join(subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()[-lines:])


def read_entries(cursor: str, **fields: str) -> list[Entry]:
    """All entries since `cursor` with these fields, oldest first."""
    subprocess.run(["journalctl", "--sync"], check=True)
    command = ["journalctl", "--quiet", "--all", "-o", "json", f"--after-cursor={cursor}"]
    shown = subprocess.run(command, check=True, capture_output=True, text=True)
    entries: list[Entry] = [json.loads(line) for line in shown.stdout.splitlines()]
    return [entry for entry in entries if has_fields(entry, fields)]


def wait_entry(cursor: str, timeout_s: float = 60.0, **fields: str) -> Entry:
    """The first entry since `cursor` with these fields, or the next one to come."""
    command = ["journalctl", "--quiet", "--all", "--follow", "--no-tail", "-o", "json", f"--after-cursor={cursor}"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, bufsize=0) as follower:
        try:
            return _find_entry(follower, fields, time.monotonic() + timeout_s)
        finally:
            follower.terminate()


def _find_entry(follower: "subprocess.Popen[bytes]", fields: dict[str, str], deadline_s: float) -> Entry:
    assert follower.stdout is not None
    received = b""
    with selectors.DefaultSelector() as selector:
        selector.register(follower.stdout, selectors.EVENT_READ)
        while selector.select(max(0.0, deadline_s - time.monotonic())):
            chunk = follower.stdout.read(1 << 16)
            assert chunk, "journalctl ended"
            *lines, received = (received + chunk).split(b"\n")
            for line in lines:
                entry: Entry = json.loads(line)
                if has_fields(entry, fields):
                    return entry
    raise AssertionError(f"no journal entry with {fields} in time")


def has_fields(entry: Entry, fields: dict[str, str]) -> bool:
    return all(entry.get(name) == value for name, value in fields.items())
