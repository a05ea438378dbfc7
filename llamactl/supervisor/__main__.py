"""How does llamactl.service start, stay watched, reload and end?

SIGHUP reads the configuration again, between RELOADING=1 and READY=1. SIGTERM ends the supervisor and nothing
else: instances run on, and the next supervisor finds them. The watchdog is fed from the event loop, so a loop
that hangs is a daemon that systemd restarts.
"""

import asyncio
import contextlib
import signal
import sys

from llamactl import __version__
from llamactl.errors import LlamactlError
from llamactl.groups import ADMIN, MODEL, acquire_group
from llamactl.journal_events import JournalEvent
from llamactl.paths import Paths, acquire_paths
from llamactl.supervisor.daemon import Supervisor
from llamactl.supervisor.restarts import SHORT_LIFE_S, acquire_restarts, choose_delay_s
from llamactl.systemd.journal import configure, get_logger
from llamactl.systemd.manager import ManagerError
from llamactl.systemd.notify import Notifier
from llamactl.tasks import TaskSet

_log = get_logger()


async def run(paths: Paths) -> int:
    """Run until SIGTERM or SIGINT; the exit status."""
    loop = asyncio.get_running_loop()
    notifier = Notifier()
    supervisor = Supervisor(paths, notifier)
    ended = asyncio.Event()
    reload = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, ended.set)
    loop.add_signal_handler(signal.SIGHUP, reload.set)
    try:
        await supervisor.start(acquire_group(ADMIN), acquire_group(MODEL))
    except (ManagerError, OSError) as error:
        _log.error(JournalEvent.SUPERVISOR_NOT_STARTED, reason=str(error))
        await _hold_back(ended, notifier, f"cannot start: {error}")
        return 1
    since_s = loop.time()
    notifier.ready()
    _log.info(JournalEvent.SUPERVISOR_STARTED, version=__version__, control=str(paths.control_socket))
    _feed_watchdog(loop, notifier)
    reloads = TaskSet(supervisor.fail)
    reloads.spawn(_serve_reloads(reload, supervisor, notifier))
    status = 0
    supervisor.broken.add_done_callback(lambda _: ended.set())
    await ended.wait()
    if supervisor.broken.done():
        _log.critical(
            JournalEvent.SUPERVISOR_BROKEN,
            reason="an internal error; it restarts",
            exc_info=supervisor.broken.exception(),
        )
        status = 1
    notifier.stopping()
    reloads.cancel()
    await supervisor.stop()
    _log.info(JournalEvent.SUPERVISOR_STOPPED)
    if status and loop.time() - since_s < SHORT_LIFE_S:
        ended.clear()
        await _hold_back(ended, notifier, "broken: an internal error")
    return status


async def _hold_back(ended: asyncio.Event, notifier: Notifier, why: str) -> None:
    """What fails at once and again costs less when it waits between; until it is to end anyway."""
    delay_s = choose_delay_s(await acquire_restarts())
    notifier.status(f"{why}; tries again in {delay_s:.1f} s")
    with contextlib.suppress(TimeoutError):
        await asyncio.wait_for(ended.wait(), delay_s)


async def _serve_reloads(requested: asyncio.Event, supervisor: Supervisor, notifier: Notifier) -> None:
    while True:
        await requested.wait()
        requested.clear()
        notifier.reloading()
        with contextlib.suppress(LlamactlError):  # it is in the journal
            await supervisor.reload()
        notifier.ready()


def _feed_watchdog(loop: asyncio.AbstractEventLoop, notifier: Notifier) -> None:
    interval_s = notifier.watchdog_interval_s()
    if interval_s:
        notifier.watchdog()
        loop.call_later(interval_s / 3, _feed_watchdog, loop, notifier)


def main() -> int:
    """Entry of `python -m llamactl.supervisor`."""
    configure("llamactl", "info", {})
    return asyncio.run(run(acquire_paths()))


if __name__ == "__main__":
    sys.exit(main())
