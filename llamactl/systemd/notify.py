"""How does a process tell systemd that it is ready, alive, slow or ending?

The one trap that matters is sdnotify's encoding: it is Latin-1, and what does not fit raises, is swallowed, and takes
the rest of the datagram along. So READY=1 is always sent alone, and status texts are made ASCII first. Nothing here
raises where there is no NOTIFY_SOCKET. Repeated messages (status, watchdog) never wait for a busy PID 1; the single
ones do, for a moment.
"""

import contextlib
import os
import socket
import struct
import time
import unicodedata
from collections.abc import Mapping

import sdnotify

SEND_TIMEOUT_S = 5
MAX_STATUS_LENGTH = 512


class Notifier:
    """sd_notify(3) for the main process of a unit. May be used from several threads."""

    def __init__(self) -> None:
        self._notifier = sdnotify.SystemdNotifier()
        if self._notifier.socket is not None:
            limit = struct.pack("@ll", SEND_TIMEOUT_S, 0)
            self._notifier.socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, limit)

    def ready(self) -> None:
        """Tell systemd that the service is up, or that a reload has ended."""
        self._send("READY=1")

    def reloading(self) -> None:
        """Followed by ready(). Both fields, since notify-reload units (systemd >= 253) need the time."""
        self._send(f"RELOADING=1\nMONOTONIC_USEC={time.monotonic_ns() // 1000}")

    def hand_over(self, pid: int) -> None:
        """Another process of the unit is its main process from now on, and it is ready. One message: the next one
        from here may not be heard. The watchdog starts again with it.
        """
        self._send(f"MAINPID={pid}\nREADY=1\nWATCHDOG=1")

    def stopping(self) -> None:
        """Tell systemd that the service begins to end."""
        self._send("STOPPING=1")

    def extend_timeout(self, seconds: float) -> None:
        """From now, systemd waits so long for ready(), or for the end of the process after a stop."""
        self._send(f"EXTEND_TIMEOUT_USEC={round(seconds * 1e6)}")

    def status(self, text: str) -> None:
        """One line for `systemctl status`."""
        self._send_or_drop(f"STATUS={format_status(text)}")

    def watchdog(self) -> None:
        """Tell systemd that the service lives; dropped where systemd takes nothing at the moment."""
        self._send_or_drop("WATCHDOG=1")

    @staticmethod
    def watchdog_interval_s(environ: Mapping[str, str] = os.environ) -> float | None:
        """Within how many seconds systemd wants to hear watchdog(); None when it does not watch this process."""
        if environ.get("WATCHDOG_PID", str(os.getpid())) != str(os.getpid()):
            return None
        try:
            interval_us = int(environ.get("WATCHDOG_USEC", "0"))
        except ValueError:
            return None
        return interval_us / 1e6 if interval_us > 0 else None

    def _send(self, message: str) -> None:
        self._notifier.notify(message)

    def _send_or_drop(self, message: str) -> None:
        if self._notifier.socket is not None:
            with contextlib.suppress(OSError):
                self._notifier.socket.send(message.encode("ascii"), socket.MSG_DONTWAIT)


def format_status(text: str) -> str:
    """ASCII in one line: accents go, what has no likeness becomes a question mark."""
    plain = unicodedata.normalize("NFKD", text)
    plain = "".join(character for character in plain if not unicodedata.combining(character))
    return " ".join(plain.encode("ascii", "replace").decode().split())[:MAX_STATUS_LENGTH]
