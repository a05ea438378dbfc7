"""Does Manager tell each run of a unit once and rightly, whatever happens to the unit, the bus or its own worker?"""

import asyncio
import os
import signal
import subprocess
import time

import pytest

from llamactl.systemd import manager as manager_module
from llamactl.systemd.manager import (
    ManagerError,
    UnitEnded,
    UnitGone,
    UnitStarted,
)
from llamactl.systemd.unit_state import CLD_EXITED, CLD_KILLED
from tests.system.systemd_follow import READY, TIMEOUT_S, follow, run, shell

MODEL = "llamactl-model@managed.service"
MEASURE = "llamactl-measure@managed.service"


def systemctl(*arguments: str) -> None:
    subprocess.run(["systemctl", *arguments], check=True, timeout=TIMEOUT_S)


def test_unit_that_is_started_and_stopped_tells_each_step_once() -> None:
    async def test() -> None:
        async with follow(MODEL) as follower:
            await follower.manager.start_transient(MODEL, shell(READY))
            started = await follower.wait(UnitStarted, MODEL)
            os.kill(started.main_pid, 0)
            await follower.manager.stop_unit(MODEL)
            await follower.wait(UnitGone, MODEL)
            ended = await follower.wait(UnitEnded, MODEL)
            assert (ended.result, ended.started) == ("success", True)
            with pytest.raises(ProcessLookupError):
                os.kill(started.main_pid, 0)
            await follower.settle()
            assert follower.steps(MODEL) == ["UnitStarted", "UnitEnded", "UnitGone"]

    run(test)


def test_failed_start_keeps_its_name_until_it_is_freed() -> None:
    async def test() -> None:
        async with follow(MODEL) as follower:
            await follower.manager.start_transient(
                MODEL, shell("systemd-notify --status='no such file'; exit 3", Environment=["LLAMACTL_MODEL=a b"])
            )
            ended = await follower.wait(UnitEnded, MODEL)
            assert (ended.result, ended.exit_code, ended.exit_kind) == ("exit-code", 3, CLD_EXITED)
            assert not ended.started
            assert ended.status_text == "no such file"
            (found,) = [unit for unit in await follower.manager.list_units() if unit.unit == MODEL]
            assert (found.active_state, found.result, found.exit_code) == ("failed", "exit-code", 3)
            assert found.environment == {"LLAMACTL_MODEL": "a b"}
            with pytest.raises(ManagerError) as refused:
                await follower.manager.start_transient(MODEL, shell(READY))
            assert refused.value.exists
            assert MODEL in str(refused.value)
            assert follower.steps(MODEL) == ["UnitEnded"]
            await follower.manager.free_name(MODEL)
            assert follower.steps(MODEL) == ["UnitEnded", "UnitGone"]
            await follower.manager.start_transient(MODEL, shell(READY))
            await follower.wait(UnitStarted, MODEL)

    run(test)


@pytest.mark.parametrize(
    ("properties", "result", "code", "kind", "started"),
    [
        (shell("", ExecStart=[["/no/such/file", ["x"], False]]), "exit-code", 203, CLD_EXITED, False),
        (shell("systemd-notify --ready; kill -9 $$"), "signal", 9, CLD_KILLED, True),
        (shell("systemd-notify --ready; kill -SEGV $$", LimitCORE=0), "signal", 11, CLD_KILLED, True),
        (shell("systemd-notify --ready; sleep 0.2; exit 7"), "exit-code", 7, CLD_EXITED, True),
        (shell("exit 0"), "protocol", 0, CLD_EXITED, False),
        (shell("exec sleep infinity", TimeoutStartUSec=200000), "timeout", 15, CLD_KILLED, False),
        (shell(READY, WatchdogUSec=200000, WatchdogSignal=9), "watchdog", 9, CLD_KILLED, True),
    ],
    ids=["missing-binary", "kill", "segfault", "exit-code", "silent", "start-timeout", "watchdog"],
)
def test_end_is_told_with_its_cause(
    properties: dict[str, object], result: str, code: int, kind: int, started: bool
) -> None:
    async def test() -> None:
        async with follow(MODEL) as follower:
            await follower.manager.start_transient(MODEL, properties)
            ended = await follower.wait(UnitEnded, MODEL)
            assert (ended.result, ended.exit_code, ended.exit_kind, ended.started) == (result, code, kind, started)
            await follower.settle()
            assert follower.steps(MODEL).count("UnitEnded") == 1
            assert "UnitGone" not in follower.steps(MODEL)

    run(test)


def test_process_killed_from_outside_is_told() -> None:
    async def test() -> None:
        async with follow(MODEL) as follower:
            await follower.manager.start_transient(MODEL, shell(READY))
            started = await follower.wait(UnitStarted, MODEL)
            os.kill(started.main_pid, signal.SIGKILL)
            ended = await follower.wait(UnitEnded, MODEL)
            assert (ended.result, ended.exit_code, ended.exit_kind) == ("signal", 9, CLD_KILLED)

    run(test)


def test_measure_unit_tells_its_result_and_frees_its_name_by_itself() -> None:
    async def test() -> None:
        async with follow(MEASURE) as follower:
            for count, (script, result) in enumerate([("exit 0", "success"), ("exit 5", "exit-code")], start=1):
                held = shell(script, Type="exec", CollectMode="inactive-or-failed", AddRef=True)
                await follower.manager.start_transient(MEASURE, held)
                assert (await follower.wait(UnitEnded, MEASURE, count)).result == result
                await follower.wait(UnitGone, MEASURE, count)
            limited = shell(READY, Type="exec", CollectMode="inactive-or-failed", AddRef=True, RuntimeMaxUSec=200000)
            await follower.manager.start_transient(MEASURE, limited)
            assert (await follower.wait(UnitEnded, MEASURE, 3)).result == "timeout"
            await follower.wait(UnitGone, MEASURE, 3)
            assert follower.steps(MEASURE).count("UnitEnded") == 3

    run(test)


@pytest.mark.parametrize("command", ["daemon-reload", "daemon-reexec"])
def test_reload_of_systemd_is_no_news_about_running_and_failed_units(command: str) -> None:
    failing = "llamactl-model@failing.service"

    async def test() -> None:
        async with follow(MODEL, failing) as follower:
            spec = 'LLAMACTL_SPEC={"name":"ä \\"%n\\" $HOME","chat_template":"a\\\\nb\'"}'
            await follower.manager.start_transient(MODEL, shell(READY, Environment=[spec]))
            started = await follower.wait(UnitStarted, MODEL)
            await follower.manager.start_transient(failing, shell("exit 1"))
            await follower.wait(UnitEnded, failing)
            before = len(follower.events)
            await asyncio.to_thread(systemctl, command)
            await follower.settle()
            assert follower.events[before:] == []
            (found,) = [unit for unit in await follower.manager.list_units() if unit.unit == MODEL]
            assert found.main_pid == started.main_pid
            assert found.environment == {"LLAMACTL_SPEC": spec.partition("=")[2]}
            await follower.manager.stop_unit(MODEL)
            await follower.wait(UnitGone, MODEL)
            assert follower.steps(MODEL) == ["UnitStarted", "UnitEnded", "UnitGone"]

    run(test)


def test_absent_unit_can_be_stopped_reset_and_freed() -> None:
    async def test() -> None:
        async with follow() as follower:
            absent = "llamactl-model@absent.service"
            await follower.manager.stop_unit(absent)
            await follower.manager.reset_failed(absent)
            await follower.manager.free_name(absent)
            assert follower.events == []

    run(test)


def test_name_of_a_running_unit_cannot_be_freed() -> None:
    async def test() -> None:
        async with follow(MODEL) as follower:
            await follower.manager.start_transient(MODEL, shell(READY))
            await follower.wait(UnitStarted, MODEL)
            with pytest.raises(ManagerError, match="it is active"):
                await follower.manager.free_name(MODEL)

    run(test)


def test_name_of_a_stopping_unit_is_free_when_it_has_ended() -> None:
    async def test() -> None:
        async with follow(MODEL) as follower:
            # Killed in the end, so it fails after the stop, and must be reset once more.
            slow = shell("trap '' TERM; systemd-notify --ready; while :; do sleep 1; done", TimeoutStopUSec=300000)
            await follower.manager.start_transient(MODEL, slow)
            await follower.wait(UnitStarted, MODEL)
            await follower.manager.stop_unit(MODEL)
            await follower.manager.free_name(MODEL)
            assert follower.steps(MODEL) == ["UnitStarted", "UnitEnded", "UnitGone"]
            await follower.manager.start_transient(MODEL, shell(READY))
            await follower.wait(UnitStarted, MODEL, 2)

    run(test)


def test_failed_unit_that_an_administrator_starts_again_is_a_new_run() -> None:
    async def test() -> None:
        async with follow(MODEL) as follower:
            once = "[ -e /run/managed-again ] || { touch /run/managed-again; exit 1; }; rm /run/managed-again; "
            await follower.manager.start_transient(MODEL, shell(once + READY))
            await follower.wait(UnitEnded, MODEL)
            await asyncio.to_thread(systemctl, "start", MODEL)
            await follower.wait(UnitStarted, MODEL)
            await asyncio.to_thread(systemctl, "stop", MODEL)
            await follower.wait(UnitGone, MODEL)
            assert follower.steps(MODEL) == ["UnitEnded", "UnitStarted", "UnitEnded", "UnitGone"]

    run(test)


@pytest.mark.parametrize(
    ("properties", "name"),
    [
        ({"Restart": "sometimes"}, "DBusInvalidArgsError"),
        ({"ExecStart": []}, "BadUnitSetting"),
        ({"MemoryMax": 1.5}, "InvalidProperty"),
        ({"NoSuchThing": "x"}, "InvalidProperty"),
    ],
    ids=["bad-value", "no-command", "float", "unknown"],
)
def test_refused_start_says_why_and_keeps_secrets(properties: dict[str, object], name: str) -> None:
    async def test() -> None:
        async with follow(MODEL) as follower:
            with pytest.raises(ManagerError) as refused:
                await follower.manager.start_transient(MODEL, shell(READY, Environment=["TOKEN=hunter2"], **properties))
            assert name in refused.value.name
            assert MODEL in str(refused.value)
            assert "hunter2" not in str(refused.value)
            assert follower.events == []

    run(test)


def test_death_of_the_worker_loses_no_event() -> None:
    lives, dies, fails = (f"llamactl-model@managed-{name}.service" for name in ("lives", "dies", "fails"))

    async def test() -> None:
        async with follow(lives, dies, fails) as follower:
            for unit in (lives, dies, fails):
                await follower.manager.start_transient(unit, shell(READY))
                await follower.wait(UnitStarted, unit)
            os.kill(follower.manager.worker_pid, signal.SIGKILL)
            # The manager notices when this coroutine waits for the first time: both ends happen unseen.
            systemctl("stop", dies)
            systemctl("kill", "--signal=KILL", fails)
            subprocess.run(["systemctl", "is-active", "--wait", fails], timeout=TIMEOUT_S, stdout=subprocess.DEVNULL)
            ended = await follower.wait(UnitEnded, dies)
            assert (ended.result, ended.started) == ("unknown", True)
            failed = await follower.wait(UnitEnded, fails)
            assert (failed.result, failed.exit_code) == ("signal", 9)
            assert len(follower.lost) == 1
            assert follower.steps(dies) == ["UnitStarted", "UnitEnded", "UnitGone"]
            assert follower.steps(fails) == ["UnitStarted", "UnitEnded"]
            assert follower.steps(lives) == ["UnitStarted"]
            await follower.manager.stop_unit(lives)  # waits for the new worker
            await follower.wait(UnitGone, lives)

    run(test)


def test_restart_of_the_bus_loses_no_event() -> None:
    async def test() -> None:
        async with follow(MODEL) as follower:
            await follower.manager.start_transient(MODEL, shell(READY))
            await follower.wait(UnitStarted, MODEL)
            await asyncio.to_thread(systemctl, "stop", "dbus.socket", "dbus.service")
            await asyncio.to_thread(systemctl, "stop", MODEL)
            await asyncio.to_thread(systemctl, "start", "dbus.socket")
            ended = await follower.wait(UnitEnded, MODEL)
            assert ended.result == "unknown"
            await follower.settle()
            assert follower.lost
            await follower.manager.start_transient(MODEL, shell(READY))
            await follower.wait(UnitStarted, MODEL, 2)

    run(test)


def test_call_that_gets_no_answer_fails_while_the_loop_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(manager_module, "CALL_TIMEOUT_S", 0.5)

    async def test() -> None:
        async with follow() as follower:
            os.kill(follower.manager.worker_pid, signal.SIGSTOP)
            try:
                call = asyncio.create_task(follower.manager.list_units())
                longest_s = 0.0
                while not call.done():
                    before_s = time.monotonic()
                    await asyncio.wait([call], timeout=0.01)
                    longest_s = max(longest_s, time.monotonic() - before_s)
                with pytest.raises(ManagerError, match="did not answer"):
                    call.result()
                assert longest_s < 0.3
            finally:
                os.kill(follower.manager.worker_pid, signal.SIGCONT)
            monkeypatch.setattr(manager_module, "CALL_TIMEOUT_S", 30.0)
            await follower.manager.list_units()

    run(test)


def test_worker_ends_with_its_parent() -> None:
    async def test() -> None:
        async with follow() as follower:
            pidfd = os.pidfd_open(follower.manager.worker_pid)
        with pytest.raises(ProcessLookupError):
            signal.pidfd_send_signal(pidfd, 0)
        os.close(pidfd)

    run(test)


def test_many_units_at_once_each_tell_their_own_story() -> None:
    units = [f"llamactl-model@managed-{number}.service" for number in range(24)]

    async def test() -> None:
        async with follow(*units) as follower:
            scripts = [READY, "exit 4", "systemd-notify --ready; exit 0"]
            await asyncio.gather(
                *(follower.manager.start_transient(unit, shell(scripts[n % 3])) for n, unit in enumerate(units))
            )
            for number, unit in enumerate(units):
                if number % 3 == 0:
                    await follower.wait(UnitStarted, unit)
                else:
                    await follower.wait(UnitEnded, unit)
            for unit in units[0::3]:
                await follower.manager.stop_unit(unit)
            for unit in units[0::3] + units[2::3]:
                await follower.wait(UnitGone, unit)
            await follower.settle()
            for number, unit in enumerate(units):
                expected = ["UnitEnded"] if number % 3 == 1 else ["UnitStarted", "UnitEnded", "UnitGone"]
                assert follower.steps(unit) == expected, unit

    run(test)


def test_units_found_at_start_are_listed_and_followed() -> None:
    async def test() -> None:
        async with follow(MODEL) as first:
            await first.manager.start_transient(
                MODEL, shell(READY, Environment=["LLAMACTL_GENERATION=g1"], Slice="llamactl-models.slice")
            )
            started = await first.wait(UnitStarted, MODEL)
            async with follow() as second:
                (found,) = [unit for unit in await second.manager.list_units() if unit.unit == MODEL]
                assert (found.active_state, found.main_pid, found.slug) == ("active", started.main_pid, "managed")
                assert found.environment["LLAMACTL_GENERATION"] == "g1"
                assert found.control_group.endswith(f"/llamactl-models.slice/{MODEL}")
                assert len(found.invocation_id) == 32
                assert second.events == []
                await first.manager.stop_unit(MODEL)
                await second.wait(UnitGone, MODEL)
                assert second.steps(MODEL) == ["UnitEnded", "UnitGone"]

    run(test)
