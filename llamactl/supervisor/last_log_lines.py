"""What did a unit say last, that a person can use?

The journal's lines of one run alone: a unit's name is used again and again, so the generation that the unit puts into
each of its lines (LogExtraFields=) chooses them. Frames of tracebacks and of Python's fault handler tell a developer
where it happened and nobody why: they are left out, the line that names the error stays.
"""

import asyncio
import contextlib
import re
from collections.abc import Iterable

LINES = 5
READ_LINES = 200
"""Of which frames may be many: the fault handler shows each thread."""
MAX_CHARS = 2000
TIMEOUT_S = 3.0

_FRAMES = re.compile(r'Traceback \(most recent call last\):|(?:Current thread|Thread) 0x|File ".*", line \d')
"""What begins frames; all that belongs to them is indented."""
_BETWEEN_FRAMES = re.compile(
    r"Extension modules: |During handling of the above exception|The above exception was the direct cause|<truncated "
)


def drop_frames(lines: Iterable[str]) -> list[str]:
    """The lines without those of tracebacks and of Python's fault handler, stripped."""
    kept: list[str] = []
    in_frames = False
    for line in lines:
        text = line.strip()
        if _FRAMES.match(text):
            in_frames = True
        elif text and not _BETWEEN_FRAMES.match(text):
            in_frames = in_frames and line[:1].isspace()
            if not in_frames:
                kept.append(text)
    return kept


async def acquire_last_log_lines(unit: str, generation: str) -> str:
    """The last lines that a run of a unit logged, joined by " | "; empty where the journal cannot say."""
    if not generation:
        return ""
    # What it wrote just before its end may still be on its way.
    await _read("--sync")
    output = await _read(
        *("--no-pager", "--quiet", "--output=cat", f"--lines={READ_LINES}"),
        *(f"_SYSTEMD_UNIT={unit}", f"LLAMACTL_GENERATION={generation}"),
    )
    return " | ".join(drop_frames(output.splitlines())[-LINES:])[-MAX_CHARS:]


async def _read(*arguments: str) -> str:
    """What journalctl prints; empty where it cannot, or takes too long."""
    try:
        process = await asyncio.create_subprocess_exec(
            *("journalctl", *arguments),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
        )
    except OSError:
        return ""
    try:
        output, _ = await asyncio.wait_for(process.communicate(), TIMEOUT_S)
    except TimeoutError:
        await end_process(process)
        return ""
    return output.decode(errors="replace")


async def end_process(process: asyncio.subprocess.Process) -> None:
    """Kill it, and wait until it is gone; it may have ended in this moment."""
    with contextlib.suppress(ProcessLookupError):
        process.kill()
    await process.wait()
