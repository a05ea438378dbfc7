"""What if somebody connects, and connects, and says nothing to the end?"""

import asyncio
import resource

from llamactl.names import Role, format_unit
from llamactl.protocol.control_socket import StatusRequest
from llamactl.protocol.lines import ErrorNotice
from llamactl.protocol.report_socket import Ack, ChildState
from llamactl.supervisor.connection_limits import ConnectionLimits
from tests.socket.supervisor.stage import Stage
from tests.socket.supervisor.test_contradictions import load


def test_a_flood_of_connections_shuts_out_nobody_but_its_unit(stage: Stage) -> None:
    async def play() -> None:
        stage.write_models("a")
        supervisor = await stage.start()
        client = await stage.connect_client()
        child = await load(stage, client)
        stage.peer_unit = format_unit(Role.MEASURE, "a")
        taken = resource.getrlimit(resource.RLIMIT_NOFILE)[0] // 3
        for path in (stage.paths.report_socket, stage.paths.control_socket):
            flood = [await asyncio.open_unix_connection(str(path)) for _ in range(min(taken, 1000))]
            ended = [asyncio.ensure_future(reader.read()) for reader, _ in flood]
            await asyncio.wait(ended, timeout=10, return_when=asyncio.FIRST_COMPLETED)
            child.send(stage.make_report(ChildState.READY))
            await child.receive_kind(Ack)
            client.send(StatusRequest(id=1))
            assert (await client.receive()).id == 1
            refused = [task for task in ended if task.done()]
            assert refused
            assert all(b"too many connections" in task.result() for task in refused)
            for task in ended:
                task.cancel()
            for _, writer in flood:
                writer.close()
        stage.peer_unit = "session-1.scope"
        await stage.connect_client()
        await supervisor.stop()

    asyncio.run(play())


def test_half_lines_of_one_go_before_those_of_others(stage: Stage) -> None:
    async def play() -> None:
        stage.write_models("a")
        supervisor = await stage.start()
        client = await stage.connect_client()
        floods = [await stage.connect_client() for _ in range(20)]
        client.writer.write(b'{"type":"status","id":')
        for flood in floods:
            flood.writer.write(b"x" * 1_000_000)
        refused = [asyncio.ensure_future(flood.receive_kind(ErrorNotice)) for flood in floods]
        done, _ = await asyncio.wait(refused, timeout=10, return_when=asyncio.FIRST_COMPLETED)
        assert "unfinished lines" in done.pop().result().message
        client.writer.write(b"1}\n")
        assert (await client.receive()).id == 1
        await supervisor.stop()

    asyncio.run(play())


def test_each_unit_has_its_own_room_and_all_have_one_together() -> None:
    limits: ConnectionLimits[int] = ConnectionLimits(per_unit=2, at_all=3, max_unfinished_bytes=10)
    assert [limits.admit(number, "a") != "" for number in range(3)] == [False, False, True]
    limits.forget(2)
    assert limits.admit(3, "b") == ""
    assert "there may be 3" in limits.admit(4, "c")
    limits.forget(4)
    limits.forget(0)
    assert limits.admit(5, "a") == ""


def test_the_connection_with_most_of_the_unfinished_bytes_goes() -> None:
    limits: ConnectionLimits[int] = ConnectionLimits(per_unit=9, max_unfinished_bytes=10)
    assert limits.note_unfinished(1, 7) is None
    assert limits.note_unfinished(2, 3) is None
    assert limits.note_unfinished(2, 4) == 1
    limits.forget(1)
    assert limits.note_unfinished(2, 10) is None
    assert limits.note_unfinished(2, 0) is None
