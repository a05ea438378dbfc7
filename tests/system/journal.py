"""What did llamactl say in the journal, and how does a test wait for the next line?

Reading starts at a cursor, so that lines of earlier tests are not seen. Waiting follows the journal; nothing is polled.
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


def read_text(cursor: str, *matches: str, lines: int = 100) -> str:
    """The last lines since `cursor`, for people."""
    subprocess.run(["journalctl", "--sync"], check=True)
    command = ["journalctl", "--quiet", "--no-pager", "-o", "short-precise", f"--after-cursor={cursor}", *matches]
    return "\n".join(subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()[-lines:])


def read_entries(cursor: str, **fields: str) -> list[Entry]:
    """All entries since `cursor` with these fields, oldest first."""
    subprocess.run(["journalctl", "--sync"], check=True)
    command = ["journalctl", "--quiet", "--all", "-o", "json", f"--after-cursor={cursor}", *format_matches(fields)]
    shown = subprocess.run(command, check=True, capture_output=True, text=True)
    return [json.loads(line) for line in shown.stdout.splitlines()]


def wait_entry(cursor: str, timeout_s: float = 60.0, **fields: str) -> Entry:
    """The first entry since `cursor` with these fields, or the next one to come."""
    command = ["journalctl", "--quiet", "--all", "--follow", "--no-tail", "-o", "json", f"--after-cursor={cursor}"]
    with subprocess.Popen([*command, *format_matches(fields)], stdout=subprocess.PIPE) as follower:
        assert follower.stdout is not None
        deadline_s = time.monotonic() + timeout_s
        received = b""
        try:
            with selectors.DefaultSelector() as selector:
                selector.register(follower.stdout, selectors.EVENT_READ)
                while b"\n" not in received:
                    left_s = deadline_s - time.monotonic()
                    assert selector.select(max(left_s, 0)), f"no journal entry with {fields} within {timeout_s} s"
                    chunk = follower.stdout.read1(1 << 20)  # type: ignore[attr-defined]
                    assert chunk, "journalctl ended"
                    received += chunk
        finally:
            follower.terminate()
    entry: Entry = json.loads(received.partition(b"\n")[0])
    return entry


def format_matches(fields: dict[str, str]) -> list[str]:
    return [f"{name}={value}" for name, value in fields.items()]
