"""How does an instance take requests from its socket? With uvicorn, which is imported while the model loads."""

import contextlib
import importlib
import socket
from collections.abc import AsyncIterator, Callable, Iterator

from llamactl.tasks import TaskSet

KEEP_ALIVE_S = 3600

_NEEDED_TO_SERVE = (
    "uvicorn",
    "uvicorn.protocols.http.httptools_impl",
    "llamactl.instance.http.api",
    "llamactl.instance.serving",
)


def import_server() -> None:
    """Import what serving needs and loading does not; what of it is needed last comes last."""
    for name in _NEEDED_TO_SERVE:
        importlib.import_module(name)


@contextlib.asynccontextmanager
async def serve_http(
    listener: socket.socket, app: object, on_failure: Callable[[BaseException], None]
) -> AsyncIterator[None]:
    """Serve while the body runs; afterwards let the responses that were under way end. `on_failure` is told the error
    that ends the server before.
    """
    import uvicorn
    from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

    class Protocol(HttpToolsProtocol):
        def _unsupported_upgrade_warning(self) -> None:
            """Whoever asks for WebSocket is told by the answer; the journal would be told to install something."""

    class Server(uvicorn.Server):
        @contextlib.contextmanager
        def capture_signals(self) -> Iterator[None]:
            """Signals are the instance's."""
            yield

    config = uvicorn.Config(
        app,  # type: ignore[arg-type]
        loop="none",
        http=Protocol,
        ws="none",
        lifespan="off",
        interface="asgi3",
        log_config=None,
        access_log=False,
        proxy_headers=False,
        server_header=False,
        date_header=False,
        timeout_keep_alive=KEEP_ALIVE_S,
        timeout_graceful_shutdown=2,
    )
    server = Server(config)
    serving = TaskSet(on_failure)
    serving.spawn(server.serve(sockets=[listener]))
    try:
        yield
    finally:
        server.should_exit = True
        await serving.wait()
