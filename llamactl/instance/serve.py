"""How does an instance live? It listens, loads, says ready, serves, and ends when it is told to, all beside a
supervisor that may come and go.

The socket is bound before the model loads, so that importing the server overlaps with loading. Ending: an order to
stop is refused while requests run (`if_idle`); after an accepted one, and on SIGTERM, no new request is taken,
running streams end with an error event, and the process exits 0. Asleep, it holds neither model nor context and refuses
requests; only an order wakes it, and then it loads as at its start. The watchdog is fed while what computes is idle or
its running step is not older than such a step may be.
"""

import asyncio
import contextlib
import gc
import os
import signal
import time
from dataclasses import replace
from typing import TYPE_CHECKING

import msgspec

from llamactl.child.orders import ChildEnvironment
from llamactl.errors import LlamactlError
from llamactl.instance.engine.activity import Activity
from llamactl.instance.http_server import import_server, serve_http
from llamactl.instance.llama.background_load import BackgroundLoad
from llamactl.instance.report import ReportLink, make_hello
from llamactl.journal_events import JournalEvent
from llamactl.protocol.report_socket import AnswerResult, ChildState, Order, OrderKind
from llamactl.sockets import bind_unix_socket
from llamactl.systemd.journal import get_logger
from llamactl.systemd.notify import Notifier
from llamactl.tasks import TaskSet

if TYPE_CHECKING:
    from llamactl.instance.engine.stats import Stats
    from llamactl.instance.http.api import Api
    from llamactl.instance.llama.loading import Loaded
    from llamactl.instance.llama.model import LoadedModel
    from llamactl.instance.readers import Readers
    from llamactl.instance.serving import Serving

log = get_logger()

EXIT_DONE, EXIT_FAILED, EXIT_BROKEN = 0, 1, 3
ACK_TIMEOUT_S = 5.0
"""How long a last report, and the one before the warm-up, wait for the supervisor."""
NO_SUPERVISOR_S = 1.0
"""The same where none is connected: it may be about to come back."""
ENGINE_CLOSE_S = 5.0
BACKLOG = 2048
"""Connections that the kernel keeps until they are accepted. A full queue refuses at once, on Unix sockets."""


class Instance:
    """The `serve` role. `run` returns the exit status."""

    def __init__(self, environment: ChildEnvironment, load: BackgroundLoad) -> None:
        self._environment = environment
        self._load = load
        self._notifier = Notifier()
        self._activity = Activity()
        self._api: Api | None = None
        self._stopping = asyncio.Event()
        self._wanted_asleep = False
        self._ordered = asyncio.Event()
        """Something is wanted that may not be so yet: an end, sleep, or being awake."""
        self._progress_s = time.monotonic()
        self._status = EXIT_DONE
        self._serving: Serving | None = None
        self._stats: Stats | None = None
        """What has been done since the process began, over all times that it slept."""
        self._sharers = 1
        self._load_stage = "model"
        """Whose progress is reported."""
        self._readers: Readers | None = None
        """Of the model that is loading, made while its context is."""
        self._loop = asyncio.get_running_loop()
        self._link = ReportLink(
            environment.report,
            make_hello(environment),
            self._handle_order,
            lambda: self._activity.n_busy,
            self._handle_bug,
        )
        self._tasks = TaskSet(self._handle_bug)
        self._activity.on_idle = self._link.tell_idle

    async def run(self) -> int:
        """Serve until told to end; returns the exit status, as `run_serve`."""
        for number in (signal.SIGTERM, signal.SIGINT):
            self._loop.add_signal_handler(number, self._stop)
        assert self._environment.socket is not None
        listener = bind_unix_socket(self._environment.socket, BACKLOG, 0o660)
        self._link.start()
        self._link.send(ChildState.LOADING, stage="starting")
        self._notifier.extend_timeout(self._environment.load_stall_s)
        self._load.attach(self._report_stage, self._report_progress, self._report_model)
        loading = asyncio.ensure_future(asyncio.to_thread(self._load.wait))
        await asyncio.to_thread(import_server)
        from llamactl.instance.http.api import Api

        self._api = Api(self._environment.settings, self._activity)
        async with serve_http(listener, self._api.build_app(), self._handle_bug):
            if await self._wait_for_load(loading):
                gc.freeze()
                gc.enable()
                self._tasks.spawn(self._feed_watchdog())
                if await self._live():
                    self._tasks.cancel()
                    await self._end()
                self._tasks.cancel()
        self._environment.socket.unlink(missing_ok=True)
        await self._link.close()
        return self._status

    # --- loading ----------------------------------------------------------------------------------

    def _report_stage(self, stage: str) -> None:
        self._load_stage = stage
        self._progress_s = time.monotonic()
        self._notifier.extend_timeout(self._environment.load_stall_s)
        if stage == "warmup":
            asyncio.run_coroutine_threadsafe(self._announce_warm_up(), self._loop).result()
        else:
            self._loop.call_soon_threadsafe(lambda: self._link.send(ChildState.LOADING, stage=stage, progress=0.0))

    def _report_model(self, model: "LoadedModel") -> None:
        self._loop.call_soon_threadsafe(self._prepare, model)

    def _prepare(self, model: "LoadedModel") -> None:
        with contextlib.suppress(LlamactlError, RuntimeError):  # met again when the model is ready, and reported then
            self._readers = self._make_readers(model)

    def _make_readers(self, model: "LoadedModel") -> "Readers":
        from llamactl.instance.readers import make_readers

        return make_readers(self._environment.settings, model)

    async def _announce_warm_up(self) -> None:
        """Waits for the supervisor, unless there is none or the load is called off."""
        timeout_s = ACK_TIMEOUT_S if self._link.is_connected else NO_SUPERVISOR_S
        delivering = asyncio.ensure_future(self._link.deliver(ChildState.LOADING, stage="warmup", timeout_s=timeout_s))
        stopping = asyncio.ensure_future(self._stopping.wait())
        await asyncio.wait((delivering, stopping), return_when=asyncio.FIRST_COMPLETED)
        delivering.cancel()
        stopping.cancel()

    def _report_progress(self, fraction: float) -> None:
        self._progress_s = time.monotonic()
        self._notifier.extend_timeout(self._environment.load_stall_s)
        self._notifier.status(f"loading {fraction:.0%}")
        stage = self._load_stage
        self._loop.call_soon_threadsafe(lambda: self._link.send(ChildState.LOADING, stage=stage, progress=fraction))

    async def _wait_for_load(self, loading: "asyncio.Future[Loaded]") -> bool:
        """Whether the model serves now. Otherwise the status says how the process ends."""
        from llamactl.instance.llama.loading import Cancelled

        try:
            serving = self._serving = self._begin_serving(await loading)
        except Cancelled:
            await self._link.deliver(ChildState.STOPPING, timeout_s=ACK_TIMEOUT_S)
            return False
        except (LlamactlError, OSError, RuntimeError) as error:
            log.error(JournalEvent.LOAD_FAILED, reason=str(error))
            self._notifier.status(f"failed: {error}")
            await self._link.deliver(ChildState.FAILED, error=str(error), timeout_s=ACK_TIMEOUT_S)
            self._status = EXIT_FAILED
            return False
        assert self._api is not None
        service, self._stats = serving.service, serving.stats
        self._apply_share()
        self._api.begin_service(service)
        self._activity.is_refusing, self._activity.is_asleep = self._stopping.is_set(), False
        self._link.send(ChildState.READY, effective=serving.loaded.effective, facts=service.facts)
        self._notifier.ready()
        self._notifier.status(f"{self._environment.model}: {service.n_ctx} tokens of context")
        log.info(JournalEvent.MODEL_LOADED, n_ctx=service.n_ctx, sequences=service.settings.parallel)
        return True

    def _begin_serving(self, loaded: "Loaded") -> "Serving":
        from llamactl.instance.serving import begin_serving

        settings = self._environment.settings
        readers = self._readers or self._make_readers(loaded.model)
        self._readers = None
        return begin_serving(settings, loaded, readers, self._load.thread, self._handle_broken, self._stats)

    # --- sleeping ---------------------------------------------------------------------------------

    async def _live(self) -> bool:
        """Serve, sleep and wake until the end is wanted. False: a load has failed meanwhile, and all is said."""
        while not self._stopping.is_set():
            await self._ordered.wait()
            self._ordered.clear()
            if self._stopping.is_set():
                break
            if self._activity.is_asleep and self._serving is not None:  # also where it is to wake already
                await self._fall_asleep()
            if self._stopping.is_set():  # what has been called off then was the load from before
                break
            if not self._wanted_asleep and self._serving is None and not await self._wake_up():
                return False
        return True

    async def _fall_asleep(self) -> None:
        """Free all that llama.cpp holds. No request runs, and none is taken."""
        serving = self._serving
        assert self._api is not None
        assert serving is not None
        service = self._api.end_service()
        if service is not None:
            settling = asyncio.ensure_future(service.background.settle())
            stopping = asyncio.ensure_future(self._stopping.wait())
            await asyncio.wait((settling, stopping), return_when=asyncio.FIRST_COMPLETED)
            settling.cancel()
            stopping.cancel()
            if self._stopping.is_set():
                return
        await asyncio.to_thread(serving.end)
        self._serving = None
        await asyncio.to_thread(serving.free)
        effective = serving.loaded.effective
        rows = tuple(
            msgspec.structs.replace(row, model=0, context=0, compute=0, total=None, free=None)
            for row in effective.devices
        )
        residue = msgspec.structs.replace(effective, devices=rows)
        self._link.send(ChildState.SLEEPING, effective=residue, facts=serving.service.facts)
        self._notifier.status("asleep")
        log.info(JournalEvent.MODEL_FREED, reason="idle")

    async def _wake_up(self) -> bool:
        """Load again, as at the start of the process."""
        from llamactl.instance.llama.preload import begin_preload

        self._progress_s = time.monotonic()
        self._link.send(ChildState.LOADING, stage="starting")
        self._load = BackgroundLoad(self._environment, begin_preload(os.environ))
        self._load.attach(self._report_stage, self._report_progress, self._report_model)
        return await self._wait_for_load(asyncio.ensure_future(asyncio.to_thread(self._load.wait)))

    # --- serving and ending -----------------------------------------------------------------------

    async def _feed_watchdog(self) -> None:
        interval_s = self._notifier.watchdog_interval_s()
        if not interval_s:
            return
        while True:
            if self._is_alive():
                self._notifier.watchdog()
            await asyncio.sleep(interval_s / 2)

    def _is_alive(self) -> bool:
        """Asleep it always is; while it wakes, as long as the load goes on; else as long as steps end."""
        if self._serving is not None:
            return not self._serving.is_stuck()
        return self._wanted_asleep or time.monotonic() - self._progress_s < self._environment.load_stall_s

    def _handle_order(self, order: Order) -> tuple[AnswerResult, str]:
        if order.order is OrderKind.WAKE:
            return self._handle_wake(order)
        if order.order is OrderKind.SHARE:
            self._sharers = max(1, order.sharers)
            self._apply_share()
            return AnswerResult.OK, ""
        if order.order not in (OrderKind.STOP, OrderKind.SLEEP):
            return AnswerResult.UNSUPPORTED, f"this instance cannot {order.order}"
        if order.if_idle and self._activity.n_busy:
            return AnswerResult.BUSY, f"{self._activity.n_busy} requests are in flight"
        if order.order is OrderKind.STOP:
            self._stop()
        elif self._wanted_asleep or self._stopping.is_set():
            pass  # it is under way already
        elif self._activity.n_busy or self._serving is None:
            return AnswerResult.BUSY, "it is loading, or serves a request"
        else:
            self._activity.is_refusing = self._activity.is_asleep = self._wanted_asleep = True
            self._ordered.set()
        return AnswerResult.OK, ""

    def _handle_wake(self, order: Order) -> tuple[AnswerResult, str]:
        if self._wanted_asleep:
            self._environment = replace(
                self._environment, margins_bytes=order.margins_bytes, host_room_bytes=order.host_room_bytes
            )
            self._wanted_asleep = False
            self._ordered.set()
        return AnswerResult.OK, ""

    def _apply_share(self) -> None:
        """Of the processors, unless the configuration says how many threads there are."""
        if self._serving is not None and not self._environment.settings.threads:
            n_threads = max(1, self._serving.n_threads // self._sharers)
            self._serving.engine.use_threads(n_threads)
            log.debug(JournalEvent.PROCESSORS_SHARED, models=self._sharers, threads=n_threads)

    def _handle_broken(self, reason: str) -> None:
        log.critical(JournalEvent.ENGINE_BROKEN, reason=reason)
        self._give_up(reason)

    def _handle_bug(self, error: BaseException) -> None:
        """What should run as long as the process does has failed: without it nobody can rely on the rest."""
        reason = f"an internal error: {error!r}"
        log.critical(JournalEvent.INSTANCE_BROKEN, reason=reason, exc_info=error)
        self._give_up(reason)

    def _give_up(self, reason: str) -> None:
        self._status = EXIT_BROKEN
        self._link.send(ChildState.FAILED, error=reason)
        self._stop()

    def _stop(self) -> None:
        self._load.cancel()
        self._activity.is_refusing = True
        self._stopping.set()
        self._ordered.set()

    async def _end(self) -> None:
        self._notifier.stopping()
        if self._serving is not None:
            await asyncio.to_thread(self._serving.engine.close, ENGINE_CLOSE_S)
        if self._status == EXIT_DONE:
            await self._link.deliver(ChildState.STOPPING, timeout_s=1.0)


async def run_serve(environment: ChildEnvironment, load: BackgroundLoad) -> int:
    """Serve until told to end; returns the exit status: 0 done, 1 the load has failed, 3 the instance is broken."""
    return await Instance(environment, load).run()
