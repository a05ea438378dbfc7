"""How is one scrape of `GET /metrics` gathered? Counters from here, figures from the supervisor, the rest on demand.

The supervisor is asked only while it is connected, so that a scrape never waits for an absent one. With
`?instances=1` every model that is ready is asked for its own metrics; models that sleep or do not run are left alone.
"""

from typing import Protocol

from llamactl.errors import LlamactlError
from llamactl.front.control import Reply
from llamactl.front.http.ports import Answering
from llamactl.front.http.wire import RequestHead
from llamactl.front.leases import LeaseTable
from llamactl.front.metrics import Snapshot, render
from llamactl.front.ports import Questions, RelayHost
from llamactl.front.probe import Probe
from llamactl.front.tally import Tally
from llamactl.protocol.control_socket import ListRequest, MachineStatus, ModelList, StatusRequest
from llamactl.protocol.values import State


class ScrapeHost(RelayHost, Protocol):
    """What there is to count."""

    @property
    def control(self) -> Questions: ...
    @property
    def leases(self) -> LeaseTable: ...
    @property
    def tally(self) -> Tally: ...

    def count_connections(self) -> int:
        """Count the clients that are connected now."""


class Scrape:
    """One request for metrics."""

    def __init__(self, host: ScrapeHost, client: Answering, head: RequestHead, instances: bool) -> None:
        self._host = host
        self._client = client
        self._head = head
        self._instances = instances
        self._questions: set[int] = set()
        self._machine: MachineStatus | None = None
        self._models: ModelList | None = None
        self._probes: dict[str, Probe] = {}
        self._told: dict[str, bytes | None] = {}

    def start(self) -> None:
        self._client.begin(self)
        control = self._host.control
        if not control.connected:
            self._answer()
            return
        for make in (lambda number: StatusRequest(id=number), lambda number: ListRequest(id=number)):
            self._questions.add(control.ask(make, self._on_reply))

    def _on_reply(self, reply: Reply | LlamactlError) -> None:
        match reply:
            case MachineStatus():
                self._machine = reply
                self._questions.discard(reply.id)
            case ModelList():
                self._models = reply
                self._questions.discard(reply.id)
            case _:  # the supervisor went away: all questions end like this one
                self.cancel()
                self._machine = self._models = None
                self._answer()
                return
        if self._questions:
            return
        models = self._models.models if self._models is not None and self._instances else ()
        names = [model.name for model in models if model.state is State.READY]
        self._probes = {name: Probe(self._host, name, b"/metrics", self._on_instance) for name in names}
        for probe in list(self._probes.values()):
            probe.start()
        if not names:
            self._answer()

    def _on_instance(self, model: str, body: bytes | None) -> None:
        self._told[model] = body
        del self._probes[model]
        if not self._probes:
            self._answer()

    def _answer(self) -> None:
        snapshot = Snapshot(
            tally=self._host.tally,
            connections=self._host.count_connections(),
            in_flight={lease.model: lease.in_flight for lease in self._host.leases.leases()},
            queued=self._host.leases.queue.count_by_name(),
            machine=self._machine,
            models=self._models.models if self._models is not None else (),
            instances=self._told,
        )
        accept = self._head.find(b"accept") or b""
        body, content_type = render(snapshot, accept.decode("latin-1"))
        self._client.answer(self._head, 200, body, content_type=content_type)

    # --- for the client's connection ---

    def cancel(self) -> None:
        for number in self._questions:
            self._host.control.forget(number)
        self._questions.clear()
        for probe in self._probes.values():
            probe.cancel()
        self._probes.clear()

    def pause(self) -> None:
        """Its answer is one write."""

    def resume(self) -> None:
        """See pause."""
