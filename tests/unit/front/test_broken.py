"""Does a front end that nobody could get a lease from any longer?"""

import asyncio

import pytest

from llamactl.front.__main__ import serve
from llamactl.front.control import Control


def test_front_that_loses_its_link_to_the_supervisor_by_a_bug_ends_with_an_error(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    async def fail(self: Control) -> None:
        raise ValueError("spoilt")

    monkeypatch.setattr(Control, "run", fail)
    assert asyncio.run(asyncio.wait_for(serve([]), 30)) == 1
