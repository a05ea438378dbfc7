"""What does a running instance answer to the front itself?

A passive GET: it is no use of the model, is never the cause of a load, and is given up after LIMIT_S or
LIMIT_BYTES, because an instance that hangs must not hang a scrape of all of them.
"""

from collections.abc import Callable

from llamactl.errors import LlamactlError
from llamactl.front.http.upstream import Upstream
from llamactl.front.http.wire import ResponseHead
from llamactl.front.lease import Asked, Lease
from llamactl.front.ports import RelayHost

LIMIT_S = 5.0
LIMIT_BYTES = 1 << 20


class Probe:
    """One GET. `then` is called once, with the body of a 200 or None; never after `cancel`."""

    def __init__(self, host: RelayHost, model: str, path: bytes, then: Callable[[str, bytes | None], None]) -> None:
        self._host = host
        self._model = model
        self._path = path
        self._then = then
        self._lease: Lease | None = None
        self._upstream: Upstream | None = None
        self._status = 0
        self._body = b""
        self._done = False
        self._timer = host.loop.call_later(LIMIT_S, self._finish, None)

    def start(self) -> None:
        lease = self._host.leasing.acquire(self, Asked(self._model, autoload=False, passive=True))
        if lease is not None:
            self.on_lease(lease)

    def on_lease(self, lease: Lease) -> None:
        self._lease = lease
        upstream = self._host.pool.pop_idle(lease.key)
        if upstream is None:
            self._host.pool.connect(lease.socket, lease.key, self._on_connection)
        else:
            self._send(upstream)

    def on_refusal(self, error: LlamactlError) -> None:
        self._finish(None)

    def _on_connection(self, result: Upstream | OSError) -> None:
        if isinstance(result, OSError):
            self._finish(None)
        elif self._done:
            self._host.pool.keep(result)
        else:
            self._send(result)

    def _send(self, upstream: Upstream) -> None:
        self._upstream = upstream
        upstream.send(self, b"GET %b HTTP/1.1\r\nHost: llamactl\r\n\r\n" % self._path, b"", False)

    def on_whole_response(self, head: ResponseHead, body: bytes) -> None:
        self.on_response(head, body, True)

    def on_response(self, head: ResponseHead | None, body: bytes, ended: bool) -> None:
        if head is not None:
            self._status = head.status
        self._body += body
        if ended:
            self._upstream = None
            self._finish(self._body if self._status == 200 else None)
        elif len(self._body) > LIMIT_BYTES:
            self._finish(None)

    def on_room(self) -> None:
        """Its request is one small write."""

    def on_loss(self, unread: bool, reason: str) -> None:
        self._upstream = None
        self._finish(None)

    def cancel(self) -> None:
        """Nobody wants the answer any more."""
        if self._done:
            return
        self._done = True
        self._timer.cancel()
        upstream, self._upstream = self._upstream, None
        if upstream is not None:
            upstream.abandon()
        if self._lease is None:
            self._host.leasing.leave(self)
        else:
            self._host.leasing.release(self._lease, passive=True)

    def _finish(self, body: bytes | None) -> None:
        if not self._done:
            self.cancel()
            self._then(self._model, body)
