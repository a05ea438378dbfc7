"""The bench's own client: a request counts from when it was due, and a round in which the client was late is void."""

import socket
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[3] / "scripts"))

from benchlib import flows, proxy

ANSWER = b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"


class Server:
    """Answers one connection, request by request, each once `gate` is open."""

    def __init__(self) -> None:
        self.gate = threading.Event()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        connection, _ = self._listener.accept()
        with connection, self._listener:
            while connection.recv(4096):
                self.gate.wait()
                connection.sendall(ANSWER)


@pytest.fixture
def server() -> Iterator[Server]:
    made = Server()
    yield made
    made.gate.set()


def test_every_request_has_its_time_and_its_lateness(server: Server) -> None:
    server.gate.set()
    paced = flows.measure_latencies(server.port, rate=500, seconds=0.1, connections=1)
    assert (len(paced.latencies), len(paced.lateness)) == (50, 50)
    assert min(paced.latencies) > 0
    assert min(paced.lateness) >= 0


def test_late_answer_makes_later_requests_late_and_not_the_client(server: Server) -> None:
    threading.Timer(0.2, server.gate.set).start()
    paced = flows.measure_latencies(server.port, rate=1000, seconds=0.05, connections=1)
    assert paced.latencies[0] > 0.19
    assert paced.latencies[-1] > 0.14  # it was due 50 ms later, and waited for the first
    assert paced.lateness[1] < 0.1


def measure(lateness_s: float, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    paced = flows.Paced([0.001] * 100, [lateness_s] * 100)
    monkeypatch.setattr(flows, "measure_latencies", lambda *_: paced)
    ways = proxy.Ways(Path(), {"direct": 1, "nginx": 2, "front": 3}, {})
    return [result.name for result in proxy.measure_added_latency(ways, 100.0)]


def test_rounds_in_which_the_client_was_late_are_no_figures(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    lateness, *rest = measure(2 * proxy.MAX_LATENESS_S, monkeypatch)
    assert lateness.startswith("client's own lateness p99")
    assert rest == []
    assert "void: 15 rounds" in capsys.readouterr().err


def test_rounds_in_which_the_client_was_in_time_are_figures(monkeypatch: pytest.MonkeyPatch) -> None:
    names = measure(proxy.MAX_LATENESS_S / 2, monkeypatch)
    assert [name.partition(",")[0] for name in names[1:]] == ["front", "nginx"]
