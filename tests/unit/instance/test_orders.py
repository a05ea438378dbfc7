"""Does an instance end when it is told to, whatever else it has been told?"""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from llamactl.child.orders import ChildEnvironment
from llamactl.instance.serve import Instance
from llamactl.protocol.report_socket import ChildRole, Order, OrderKind
from llamactl.settings import ModelSettings


class NoLoad:
    def cancel(self) -> None:
        """There is none."""


def test_instance_that_is_stopped_while_it_falls_asleep_does_not_load_again(monkeypatch: pytest.MonkeyPatch) -> None:
    async def run() -> None:
        settings = ModelSettings(name="m", path="/m.gguf")
        environment = ChildEnvironment(ChildRole.SERVE, "m", settings, "1", Path("/m.sock"), Path("/report.sock"))
        instance: Any = Instance(environment, NoLoad())  # type: ignore[arg-type]
        instance._engine = object()

        async def fall_asleep() -> None:
            instance._engine = None
            for kind in (OrderKind.WAKE, OrderKind.STOP):
                instance._handle_order(Order(id=1, order=kind))

        async def wake_up() -> bool:
            raise AssertionError("it loads")

        monkeypatch.setattr(instance, "_fall_asleep", fall_asleep)
        monkeypatch.setattr(instance, "_wake_up", wake_up)
        instance._handle_order(Order(id=1, order=OrderKind.SLEEP))
        assert await instance._live()

    asyncio.run(run())
