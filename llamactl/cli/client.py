"""How does a command ask the supervisor something and wait for the answer?

One blocking connection to `control.sock` for one command. Only connecting and the greeting have a time-out: a load
may rightly take an hour, and a supervisor that ends closes the connection, which is noticed at once. One that is being
started again is waited for (`arrival`). Whoever leaves the connection leaves a load by command running.
"""

import os
import socket
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any

from llamactl import __version__
from llamactl.cli.output import complain
from llamactl.errors import ErrorCode, LlamactlError
from llamactl.protocol.control_socket import ClientHello, ClientRole, Failure, Progress, ServerMessage, Welcome
from llamactl.protocol.failures import parse_failure
from llamactl.protocol.lines import VERSION, ErrorNotice, LineReader, ProtocolError, encode_message

GREETING_TIMEOUT_S = 10.0
MAX_ANSWER_BYTES = 64 << 20
"""Who asks trusts the supervisor: a list of thousands of models is longer than a message of a client may be."""

_START = "start it: systemctl start llamactl"
_RESTART = "it runs, but its socket is gone: systemctl restart llamactl"


class _NobodyThereError(LlamactlError):
    """There is no supervisor now; perhaps there is one in a moment."""


class _LostError(LlamactlError):
    """The supervisor has ended the connection."""


class Client:
    """A greeted connection. Raises LlamactlError for everything that goes wrong."""

    def __init__(self, path: Path, timeout_s: float = GREETING_TIMEOUT_S) -> None:
        self._path = path
        self._timeout_s = timeout_s
        try:
            self._open()
        except _NobodyThereError as error:
            from llamactl.cli.arrival import Arrival, acquire_state, is_installed, wait_for_supervisor

            arrival = wait_for_supervisor(path, self._try_to_open, complain)
            if arrival is Arrival.LATE and acquire_state() == "active":
                raise LlamactlError(error.code, error.message, hint=_RESTART) from None
            if arrival is Arrival.NOBODY and not is_installed():
                raise LlamactlError(error.code, error.message, hint=_hint_install()) from None
            if arrival is not Arrival.HERE:
                raise

    def _open(self) -> None:
        self._reader = LineReader(ServerMessage, MAX_ANSWER_BYTES)
        self._waiting: list[Any] = []
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
        try:
            self._socket.settimeout(self._timeout_s)
            self._connect()
            self.welcome = self._greet()
            self._socket.settimeout(None)
        except BaseException:
            self._socket.close()
            raise

    def _try_to_open(self) -> bool:
        try:
            self._open()
        except _NobodyThereError:
            return False
        return True

    def __enter__(self) -> "Client":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._socket.close()

    def ask(self, request: Any, on_progress: Callable[[Progress], None] | None = None) -> Any:
        """The final answer to a request; Progress on the way goes to `on_progress`. A Failure is raised."""
        tell = None if on_progress is None else lambda _, progress: on_progress(progress)
        [(_, answer)] = self.ask_all([request], tell)
        if isinstance(answer, LlamactlError):
            raise answer
        return answer

    def ask_all(
        self, requests: Sequence[Any], on_progress: Callable[[Any, Progress], None] | None = None
    ) -> Iterator[tuple[Any, Any]]:
        """Each request with its final answer, a Failure as the LlamactlError that it carries, as they come. All are
        sent at once, in order. Raises LlamactlError where no answer can come any more.
        """
        waiting = {request.id: request for request in requests}
        for request in requests:
            self._send(request)
        while waiting:
            message = self._receive()
            request = waiting.get(getattr(message, "id", None))
            if request is None:
                continue  # notices, which are for fronts
            if isinstance(message, Progress):
                if on_progress is not None:
                    on_progress(request, message)
                continue
            del waiting[request.id]
            yield request, parse_failure(message) if isinstance(message, Failure) else message

    def _connect(self) -> None:
        try:
            self._socket.connect(str(self._path))
        except (FileNotFoundError, ConnectionRefusedError):
            raise _NobodyThereError(
                ErrorCode.NO_SUPERVISOR, f"cannot reach the supervisor: nobody listens at {self._path}", hint=_START
            ) from None
        except PermissionError:
            from llamactl.cli.user import suggest_group

            raise LlamactlError(
                ErrorCode.PERMISSION,
                f"cannot reach the supervisor: permission denied at {self._path}",
                hint=f"{suggest_group('llamactl-admin')}; or use sudo",
            ) from None
        except TimeoutError:
            raise self._make_silent() from None
        except OSError as error:
            raise LlamactlError(
                ErrorCode.NO_SUPERVISOR, f"cannot reach the supervisor at {self._path}: {error.strerror or error}"
            ) from None

    def _greet(self) -> Welcome:
        try:
            self._send(ClientHello(version=VERSION, role=ClientRole.CLI))
            message = self._receive()
        except TimeoutError:
            raise self._make_silent() from None
        except _LostError as error:  # it died with our connection in its queue
            raise _NobodyThereError(error.code, error.message, hint=error.hint) from None
        if not isinstance(message, Welcome):
            raise self._make_misunderstood("it does not greet")
        if message.version != VERSION:
            reason = f"it speaks version {message.version} (llamactl {message.llamactl})"
            raise self._make_misunderstood(f"{reason}, this command {VERSION} (llamactl {__version__})")
        return message

    def _send(self, message: Any) -> None:
        # A peer that closed may have said why: that is still to be read.
        with suppress(BrokenPipeError, ConnectionResetError):
            self._socket.sendall(encode_message(message))

    def _receive(self) -> Any:
        while not self._waiting:
            try:
                data = self._socket.recv(1 << 16)
            except ConnectionResetError:
                data = b""
            if not data:
                raise _LostError(
                    ErrorCode.NO_SUPERVISOR,
                    "lost the supervisor: it ended the connection without an answer",
                    hint="see: journalctl -u llamactl",
                )
            try:
                self._waiting = self._reader.feed(data)
            except ProtocolError as error:
                raise self._make_misunderstood(str(error)) from None
        message = self._waiting.pop(0)
        if isinstance(message, ErrorNotice):
            raise self._make_misunderstood(message.message)
        return message

    def _make_silent(self) -> LlamactlError:
        return LlamactlError(
            ErrorCode.NO_SUPERVISOR,
            f"cannot reach the supervisor: no answer from {self._path} for {self._socket.gettimeout():g} s",
            hint="see: systemctl status llamactl",
        )

    def _make_misunderstood(self, reason: str) -> LlamactlError:
        return LlamactlError(
            ErrorCode.PROTOCOL,
            f"cannot talk to the supervisor: {reason}",
            hint="if llamactl was updated: systemctl restart llamactl",
        )


def _hint_install() -> str:
    """Before it is installed, root's path does not have the command."""
    import shlex

    program = os.path.abspath(sys.argv[0])
    found = os.path.dirname(program) in ("/usr/bin", "/usr/local/bin") or os.path.basename(program) != "llamactl"
    command = "llamactl" if found else shlex.quote(program)
    sudo = "sudo " if os.geteuid() else ""
    return f"install it first: {sudo}{command} install; then: {sudo}systemctl enable --now llamactl"
