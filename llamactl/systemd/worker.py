"""How does one talk to systemd over D-Bus without ever blocking the supervisor?

By doing it in this process: each pystemd call holds the interpreter's lock while it waits (up to SYSTEMD_BUS_TIMEOUT,
which a busy PID 1 does use), so a thread would not help. The parent holds the other end of a stream socket: one JSON
object a line, requests one way, replies and signals the other. The order on that socket is the rule: a reply to a
start comes before every signal about that run, a list carries the time at which it was taken. The connection is never
repaired: when D-Bus or the parent goes, this process ends, and the parent starts a fresh one.

Traps of pystemd: signals that arrive during a call wait in a queue of sd-bus, so the queue is drained after each call
although the descriptor is silent; process() answers "empty" also for messages that it handled itself; a type error's
text holds all properties, secrets too.
"""

import contextlib
import json
import os
import select
import signal
import socket
import sys
import time
from typing import Any, NoReturn

from pystemd.dbusexc import DBusBaseError
from pystemd.dbuslib import DBus, apply_signature, path_decode, path_encode
from pystemd.systemd1 import unit_signatures  # noqa: F401 (before the first call, not within it)

from llamactl.systemd.signatures import pack_properties
from llamactl.systemd.tracker import SERVICE_INTERFACE, TRACKED_PROPERTIES, UNIT_INTERFACE

SYSTEMD = b"org.freedesktop.systemd1"
MANAGER_PATH = b"/org/freedesktop/systemd1"
MANAGER_INTERFACE = b"org.freedesktop.systemd1.Manager"
UNIT_PATH = b"/org/freedesktop/systemd1/unit"
PROPERTIES_INTERFACE = b"org.freedesktop.DBus.Properties"

# "llamactl-model@" and "llamactl-measure@" as D-Bus paths spell them: a cheap filter before a message is decoded.
OUR_PATHS = (UNIT_PATH + b"/llamactl_2dmodel_40", UNIT_PATH + b"/llamactl_2dmeasure_40")
OUR_PATTERNS = ["llamactl-model@*.service", "llamactl-measure@*.service"]

# The peer of the bus connection is gone: nothing but a new connection helps.
LOST_ERRNOS = (-32, -103, -104, -107, -108)  # EPIPE ECONNABORTED ECONNRESET ENOTCONN ESHUTDOWN

# NoSuchUnit, NoSuchProcess: pystemd gives no names where it has classes of its own.
ABSENT_ERRNOS = (-2, -3)

SLICES = ("llamactl.slice", "llamactl-models.slice")

MATCHES = (
    *(
        "type='signal',sender='org.freedesktop.systemd1',path='/org/freedesktop/systemd1',"
        f"interface='org.freedesktop.systemd1.Manager',member='JobRemoved',arg2='{name}'"
        for name in SLICES
    ),
    "type='signal',sender='org.freedesktop.systemd1',path='/org/freedesktop/systemd1',"
    "interface='org.freedesktop.systemd1.Manager',member='UnitRemoved'",
    "type='signal',sender='org.freedesktop.systemd1',path='/org/freedesktop/systemd1',"
    "interface='org.freedesktop.systemd1.Manager',member='Reloading'",
    "type='signal',sender='org.freedesktop.systemd1',interface='org.freedesktop.DBus.Properties',"
    "member='PropertiesChanged',path_namespace='/org/freedesktop/systemd1/unit'",
    "type='signal',sender='org.freedesktop.DBus',member='NameOwnerChanged',arg0='org.freedesktop.systemd1'",
)


class Lost(Exception):
    """The bus, or the parent, is gone."""


def decode_text(value: Any) -> Any:
    """D-Bus values as JSON has them: bytes become text."""
    if isinstance(value, bytes):
        return value.decode("utf-8", "surrogateescape")
    if isinstance(value, list | tuple):
        return [decode_text(item) for item in value]
    if isinstance(value, dict):
        return {decode_text(key): decode_text(item) for key, item in value.items()}
    return value


def decode_properties(properties: Any) -> dict[str, Any]:
    """The properties that the tracker wants; a job is its id. pystemd gives an empty dictionary as a list."""
    if not isinstance(properties, dict):
        return {}
    wanted = {decode_text(name): value for name, value in properties.items()}
    found = {name: decode_text(wanted[name]) for name in TRACKED_PROPERTIES & wanted.keys()}
    if "Job" in found:
        found["Job"] = found["Job"][0]
    return found


class Worker:
    """One connection to systemd, one to the parent."""

    def __init__(self, parent: socket.socket, user: bool) -> None:
        self._parent = parent
        self._bus = DBus(user_mode=user)
        self._input = b""
        self._relist = False

    def run(self) -> NoReturn:
        """Subscribe first, then list, then serve until one side is gone: Lost, or DBusBaseError from the set-up."""
        self._bus.open()
        for match in MATCHES:
            self._bus.call_method(
                b"org.freedesktop.DBus",
                b"/org/freedesktop/DBus",
                b"org.freedesktop.DBus",
                b"AddMatch",
                apply_signature(b"s", [match.encode()]),
            )
        self._call(b"Subscribe")
        self._send({"event": "hello", **self._list()})
        self._drain()
        poll = select.poll()
        poll.register(self._parent, select.POLLIN)
        poll.register(self._bus.get_fd(), select.POLLIN)
        while True:
            for descriptor, _ in poll.poll():
                if descriptor == self._parent.fileno():
                    self._read_requests()
            self._drain()

    # --- the parent's side ------------------------------------------------------------------------

    def _send(self, message: dict[str, Any]) -> None:
        try:
            self._parent.sendall(json.dumps(message).encode() + b"\n")
        except OSError as error:
            raise Lost("parent is gone") from error

    def _read_requests(self) -> None:
        data = self._parent.recv(1 << 20)
        if not data:
            raise Lost("parent is gone")
        *lines, self._input = (self._input + data).split(b"\n")
        for line in lines:
            self._answer(json.loads(line))
            self._drain()

    def _answer(self, request: dict[str, Any]) -> None:
        reply: dict[str, Any] = {"id": request["id"]}
        timed_out = False
        try:
            reply["ok"] = getattr(self, "_do_" + request["op"])(**request["args"])
        except DBusBaseError as error:
            if error.errno in LOST_ERRNOS:
                raise Lost(f"D-Bus: {error.err_message or os.strerror(-error.errno)}") from None
            timed_out = error.errno == -110
            name = decode_text(error.err_name) or type(error).__name__
            message = decode_text(error.err_message) or os.strerror(abs(error.errno))
            reply["error"] = {"errno": error.errno, "name": name, "message": message}
        except ValueError as error:
            reply["error"] = {"errno": -22, "name": "InvalidProperty", "message": str(error)}
        except (TypeError, OverflowError, KeyError) as error:
            # The text of pystemd's own errors holds the whole property list: only the kind is told.
            reply["error"] = {"errno": -22, "name": type(error).__name__, "message": "a value cannot go over D-Bus"}
        self._send(reply)
        if timed_out and request["op"] == "start":
            # systemd may still read the request and start what nobody waits for any more; requests are served in order.
            self._ignore(["_do_stop"], request["args"]["unit"])

    # --- systemd's side ---------------------------------------------------------------------------

    def _call(self, method: bytes, signature: bytes = b"", arguments: Any = ()) -> Any:
        packed = apply_signature(signature, list(arguments)) if signature else []
        return self._bus.call_method(SYSTEMD, MANAGER_PATH, MANAGER_INTERFACE, method, packed).body

    def _get_all(self, unit: bytes, interface: str) -> dict[bytes, Any]:
        path = path_encode(UNIT_PATH, unit)
        packed = apply_signature(b"s", [interface.encode()])
        body = self._bus.call_method(SYSTEMD, path, PROPERTIES_INTERFACE, b"GetAll", packed).body
        return body if isinstance(body, dict) else {}

    def _rows(self, patterns: list[str]) -> list[Any]:
        """Units that are loaded, without loading any: reading the properties of an absent unit would."""
        encoded = [pattern.encode() for pattern in patterns]
        return list(self._call(b"ListUnitsByPatterns", b"asas", [[], encoded]) or [])

    def _list(self) -> dict[str, Any]:
        taken_us = time.monotonic_ns() // 1000
        units = []
        for row in self._rows(OUR_PATTERNS):
            unit = self._get_all(row[0], UNIT_INTERFACE)
            if unit.get(b"LoadState", b"not-found") == b"not-found":
                continue  # collected since; a running unit whose file went bad (a drop-in) is a running unit
            service = self._get_all(row[0], SERVICE_INTERFACE)
            units.append(
                {
                    "unit": decode_text(row[0]),
                    "load_state": decode_text(unit[b"LoadState"]),
                    "properties": decode_properties(unit) | decode_properties(service),
                    "invocation_id": bytes(unit[b"InvocationID"]).hex(),
                    "environment": decode_text(list(service[b"Environment"])),
                    "control_group": decode_text(service[b"ControlGroup"]),
                }
            )
        return {"units": units, "taken_us": taken_us}

    def _do_list(self) -> dict[str, Any]:
        return self._list()

    def _do_states(self) -> dict[str, Any]:
        states = {}
        for name, _, load_state, active_state, _, _, _, job, *_ in self._rows(OUR_PATTERNS):
            over = active_state in (b"inactive", b"failed") and not job
            if load_state != b"not-found" and not over:
                states[decode_text(name)] = active_state in (b"active", b"activating", b"reloading")
        return {"states": states}

    def _do_start(self, unit: str, properties: dict[str, Any]) -> None:
        arguments = apply_signature(b"ss", [unit.encode(), b"fail"])
        arguments += pack_properties(properties)
        arguments += [(ord("a"), b"(sa(sv))"), (-1, None)]  # no auxiliary units
        self._bus.call_method(SYSTEMD, MANAGER_PATH, MANAGER_INTERFACE, b"StartTransientUnit", arguments)

    def _do_stop(self, unit: str) -> None:
        self._call_unit(b"StopUnit", b"ss", [unit.encode(), b"replace"])

    def _do_reset(self, unit: str) -> None:
        self._call_unit(b"ResetFailedUnit", b"s", [unit.encode()])

    def _do_unref(self, unit: str) -> None:
        self._call_unit(b"UnrefUnit", b"s", [unit.encode()])

    def _do_free(self, unit: str) -> dict[str, Any]:
        """Let go of what holds an ended unit; says whether it is still loaded, and its state."""
        self._ignore(["_do_unref", "_do_reset"], unit)
        rows = self._rows([unit])
        return {"loaded": bool(rows), "active_state": decode_text(rows[0][3]) if rows else "inactive"}

    def _call_unit(self, method: bytes, signature: bytes, arguments: list[Any]) -> None:
        """A call about a unit that may be gone, which is then as well."""
        try:
            self._call(method, signature, arguments)
        except DBusBaseError as error:
            if error.errno not in ABSENT_ERRNOS:
                raise

    def _ignore(self, operations: list[str], unit: str) -> None:
        for operation in operations:
            try:
                getattr(self, operation)(unit)
            except DBusBaseError as error:
                if error.errno in LOST_ERRNOS:
                    raise Lost("D-Bus connection is gone") from None

    def _drain(self) -> None:
        """Pass on all signals that have arrived."""
        empty = 0
        while empty < 2:
            try:
                message = self._bus.process()
            except DBusBaseError as error:
                raise Lost(f"D-Bus: {error.err_message or os.strerror(abs(error.errno))}") from None
            if message.is_empty():
                empty += 1
                continue
            empty = 0
            self._handle(message, message.get_path(), message.get_member())
            if self._relist:
                self._relist = False
                self._send({"event": "list", **self._list()})

    def _handle(self, message: Any, path: bytes, member: bytes) -> None:
        if member == b"PropertiesChanged":
            if not path.startswith(OUR_PATHS):
                return
            message.process_reply(False)
            interface, changed = message.body[0], message.body[1]
            self._send(
                {
                    "event": "properties",
                    "unit": decode_text(path_decode(path, UNIT_PATH)),
                    "interface": decode_text(interface),
                    "properties": decode_properties(changed),
                }
            )
        elif member == b"UnitRemoved":
            message.process_reply(False)
            name, unit_path = message.body
            if unit_path.startswith(OUR_PATHS):
                # Sent for running units too, by a daemon-reload: ask. The answer waits until the reload is over.
                unit = decode_text(name)
                self._send({"event": "removed", "unit": unit, "loaded": bool(self._rows([unit]))})
        elif member == b"JobRemoved":
            self._send({"event": "slice"})
        elif member == b"Reloading":
            message.process_reply(False)
            self._relist = self._relist or not message.body  # False: the reload is over
        elif member == b"NameOwnerChanged":
            message.process_reply(False)
            if message.body[2]:  # systemd has executed itself again; the subscription of old may be forgotten
                self._ignore(["_subscribe"], "")
                self._relist = True

    def _subscribe(self, _: str) -> None:
        self._call(b"Subscribe")


def main() -> int:
    """`python -m llamactl.systemd.worker DESCRIPTOR system|user`, started by Manager alone."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a Ctrl-C is the parent's business
    parent = socket.socket(fileno=int(sys.argv[1]))
    parent.setblocking(True)
    reason = "unknown"
    try:
        Worker(parent, user=sys.argv[2] == "user").run()
    except Lost as error:
        reason = str(error)
    except DBusBaseError as error:
        reason = f"D-Bus: {decode_text(error.err_message) or os.strerror(abs(error.errno))}"
    with contextlib.suppress(OSError):  # the parent may be gone itself
        parent.sendall(json.dumps({"event": "lost", "reason": reason}).encode() + b"\n")
    return 0


if __name__ == "__main__":
    # Ends without closing the bus object: pystemd aborts the process when a connection is closed twice.
    status = main()
    sys.stdout.flush()
    os._exit(status)
