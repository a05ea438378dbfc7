"""Does an instance end when it is told to, whatever else it has been told, and when a part of it has failed?"""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from llamactl.child.orders import ChildEnvironment
from llamactl.instance.serve import EXIT_BROKEN, Instance
from llamactl.protocol.report_socket import ChildRole, Order, OrderKind
from llamactl.settings import ModelSettings


class NoLoad:
    def cancel(self) -> None:
        """There is none."""


def make_instance() -> Any:
    settings = ModelSettings(name="m", path="/m.gguf")
    environment = ChildEnvironment(ChildRole.SERVE, "m", settings, "1", Path("/m.sock"), Path("/report.sock"))
    return Instance(environment, NoLoad())  # type: ignore[arg-type]


def test_instance_that_is_stopped_while_it_falls_asleep_does_not_load_again(monkeypatch: pytest.MonkeyPatch) -> None:
    async def run() -> None:
        instance = make_instance()
        instance._serving = object()

        async def fall_asleep() -> None:
            instance._serving = None
            for kind in (OrderKind.WAKE, OrderKind.STOP):
                instance._handle_order(Order(id=1, order=kind))

        async def wake_up() -> bool:
            raise AssertionError("it loads")

        monkeypatch.setattr(instance, "_fall_asleep", fall_asleep)
        monkeypatch.setattr(instance, "_wake_up", wake_up)
        instance._handle_order(Order(id=1, order=OrderKind.SLEEP))
        assert await instance._live()

    asyncio.run(run())


def test_instance_that_loses_its_link_by_a_bug_ends_as_broken() -> None:
    async def run() -> None:
        instance = make_instance()

        async def talk() -> bool:
            raise ValueError("spoilt")

        instance._link._talk = talk
        instance._link.start()
        await asyncio.wait_for(instance._stopping.wait(), 30)
        await instance._link.close()
        assert instance._status == EXIT_BROKEN
        assert instance._link._report.error == "an internal error: ValueError('spoilt')"

    asyncio.run(run())
