"""Of what a dead process wrote, is that kept which tells a person why it died?"""

import asyncio
from pathlib import Path

import pytest

from llamactl.supervisor import last_log_lines
from llamactl.supervisor.last_log_lines import acquire_last_log_lines, drop_frames, end_process

FAULT = """\
ggml.c:123: GGML_ASSERT(x) failed
Fatal Python error: Aborted

Thread 0x00007f2c0b7fe6c0 (most recent call first):
  File "/usr/lib/python3.11/threading.py", line 320 in wait
  <timed out>

Current thread 0x00007f2c4d5d0740 (most recent call first):
  File "/opt/llamactl/llamactl/instance/llama/batch.py", line 40 in decode
  File "/opt/llamactl/llamactl/instance/engine/engine.py", line 102 in _run
  ...

Extension modules: numpy.core._multiarray_umath, msgspec._core (total: 2)
"""
TRACEBACK = """\
loading
Traceback (most recent call last):
  File "/opt/llamactl/llamactl/instance/__main__.py", line 92, in <module>
    sys.exit(main())
             ^^^^^^
  File "/opt/llamactl/llamactl/instance/__main__.py", line 80, in main
    raise ValueError
  [Previous line repeated 3 more times]
KeyError: 'a'

During handling of the above exception, another exception occurred:

Traceback (most recent call last):
  File "x.py", line 1, in <module>
ValueError: no such tensor
done
"""


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        (FAULT, ["ggml.c:123: GGML_ASSERT(x) failed", "Fatal Python error: Aborted"]),
        (TRACEBACK, ["loading", "KeyError: 'a'", "ValueError: no such tensor", "done"]),
        ("  an indented line\n\nanother\n", ["an indented line", "another"]),
        ("", []),
    ],
)
def test_frames_are_dropped_and_what_names_the_error_stays(text: str, kept: list[str]) -> None:
    assert drop_frames(text.splitlines()) == kept


def test_program_that_has_just_ended_can_still_be_ended() -> None:
    async def test() -> None:
        process = await asyncio.create_subprocess_exec("true")
        await process.wait()
        await end_process(process)
        assert process.returncode == 0

    asyncio.run(test())


def test_journal_that_hangs_says_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "journalctl"
    program.write_text("#!/bin/sh\nexec sleep 60\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    monkeypatch.setattr(last_log_lines, "TIMEOUT_S", 0.1)
    assert asyncio.run(acquire_last_log_lines("a.service", "1")) == ""
