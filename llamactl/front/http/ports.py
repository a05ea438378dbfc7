"""What does a connection need to know of the process around it, and what does whoever answers need of a connection?

The seams of this wing: a test, or another handler, stands in for any of them.
"""

import asyncio
from collections.abc import Callable
from typing import Any, Protocol

from llamactl.errors import LlamactlError
from llamactl.front.http.access import RequestRecord
from llamactl.front.http.body import BodyStream
from llamactl.front.http.hangup import HangupWatch
from llamactl.front.http.upstream import Upstream
from llamactl.front.http.wire import RequestHead
from llamactl.settings import FrontSettings


class Running(Protocol):
    """A request that is being answered."""

    def cancel(self) -> None:
        """The client is gone."""

    def pause(self) -> None:
        """The client does not read as fast as it is sent."""

    def resume(self) -> None:
        """It does again."""


class Answering(Protocol):
    """A connection whose request is being answered, for whoever answers it."""

    @property
    def congested(self) -> bool:
        """The client does not read as fast as we write."""

    @property
    def peer(self) -> str:
        """The address of a client on TCP; empty for one on the Unix socket."""

    @property
    def transport(self) -> asyncio.Transport: ...

    @property
    def record(self) -> RequestRecord:
        """Of the request."""

    def begin(self, running: Running) -> None:
        """`running` will answer the request, and wants to know if the client leaves."""

    def may_keep_alive(self, head: RequestHead) -> bool:
        """Whether another request may follow this one."""

    def is_behind(self) -> bool:
        """Whether something that was sent has not even reached the kernel. From then on the client has to go on."""

    def send(self, data: bytes) -> None:
        """Send bytes of the answer."""

    def end_exchange(self, keep_alive: bool) -> None:
        """The answer is complete."""

    def break_off(self, after_flush: bool) -> None:
        """The answer cannot be completed: end the connection so that the client sees it."""

    def answer(
        self,
        head: RequestHead,
        status: int,
        body: object,
        fields: tuple[tuple[str, str], ...] = (),
        content_type: str = "application/json",
    ) -> None:
        """Send a whole answer of our own, and go on to the next request."""

    def answer_error(self, error: LlamactlError, head: RequestHead, status: int = 0) -> None:
        """Send an error in the form of the route. `status`: other than the error's own."""

    def begin_tunnel(self, upstream: Upstream) -> None:
        """Both sides have changed protocols: bytes go through as they are."""

    def resume_tunnel(self) -> None:
        """The instance takes more of what was changed to."""


Handler = Callable[[Answering, RequestHead, bytes, BodyStream | None], None]
"""Answers a request, begins to, or passes it on. With a stream the body may still be on its way. Raises LlamactlError
for the client, if it has done nothing yet.
"""


class ConnectionHost(Protocol):
    """The process that has the connections."""

    @property
    def loop(self) -> asyncio.AbstractEventLoop: ...
    @property
    def log(self) -> Any: ...
    @property
    def settings(self) -> FrontSettings: ...
    @property
    def hangups(self) -> HangupWatch: ...

    @property
    def max_body_bytes(self) -> int: ...
    @property
    def max_held_bytes(self) -> int: ...

    @property
    def stopping(self) -> bool: ...
    @property
    def draining(self) -> bool:
        """Another process has taken over the listening sockets."""

    @property
    def leaving(self) -> bool:
        """One of both: no connection is kept for another request."""

    def make_record(self, head: RequestHead | None) -> RequestRecord:
        """For a request whose head has been read, or (None) could not be."""

    def on_connection(self, connection: "Connection") -> None:
        """A client has connected."""

    def on_connection_lost(self, connection: "Connection") -> None:
        """A connection has ended and is to be forgotten."""

    def on_client_cut(self, record: RequestRecord, why: str, unsent_bytes: int) -> None:
        """A client is cut in the middle of this request, because it does not take what it is sent."""

    def on_request_end(self, record: RequestRecord) -> None:
        """However it has ended."""


class Connection(Protocol):
    """A connection of a client, for the process that has it."""

    def drain(self) -> None:
        """This process has been replaced: an idle connection has little time left for its next request."""

    def stop(self) -> bool:
        """Close if nothing is being answered or read. False: it ends with its present answer."""

    def abort(self) -> None:
        """Close at once, whatever is lost."""
