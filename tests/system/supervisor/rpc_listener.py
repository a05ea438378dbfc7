"""A device for any number of clients on a machine without one: `python rpc_listener.py HOST:PORT`.

llama.cpp's RPC server serves one client at a time. So this listens in its place, and gives each connection a server
process of its own: one that is idle, or a new one. A connection that sends nothing (whoever looks whether somebody
listens) costs no server. Says one line when it listens.
"""

import queue
import socket
import subprocess
import sys
import threading
from pathlib import Path

SERVER = Path(__file__).resolve().parents[2] / "socket" / "instance" / "rpc_server.py"


def start_server(host: str) -> tuple[str, int]:
    """A server process on a port of its own, when it accepts."""
    with socket.socket() as probe:
        probe.bind((host, 0))
        port = probe.getsockname()[1]
    endpoint = f"{host}:{port}"
    process = subprocess.Popen(
        [sys.executable, "-u", str(SERVER), endpoint], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    assert process.stdout is not None
    for line in process.stdout:
        if endpoint in line:  # it says where it listens right before it does
            break
    threading.Thread(target=process.stdout.read, daemon=True).start()  # it goes on talking
    while True:
        try:
            socket.create_connection((host, port)).close()
            return host, port
        except ConnectionRefusedError:
            assert process.poll() is None, "the RPC server has ended"


def relay(source: socket.socket, sink: socket.socket) -> None:
    try:
        while data := source.recv(1 << 18):
            sink.sendall(data)
        sink.shutdown(socket.SHUT_WR)
    except OSError:
        for end in (source, sink):
            end.close()


def serve(client: socket.socket, host: str, idle: "queue.SimpleQueue[tuple[str, int]]") -> None:
    if not client.recv(1, socket.MSG_PEEK):
        client.close()
        return
    try:
        address = idle.get_nowait()
    except queue.Empty:
        address = start_server(host)
    server = socket.create_connection(address)
    for end in (client, server):
        end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    answers = threading.Thread(target=relay, args=(server, client))
    answers.start()
    relay(client, server)
    answers.join()
    client.close()
    server.close()
    idle.put(address)


def main(endpoint: str) -> None:
    host, _, port = endpoint.rpartition(":")
    idle: queue.SimpleQueue[tuple[str, int]] = queue.SimpleQueue()
    with socket.create_server((host, int(port))) as listener:
        idle.put(start_server(host))
        print("listening", flush=True)
        while True:
            client, _ = listener.accept()
            threading.Thread(target=serve, args=(client, host, idle), daemon=True).start()


if __name__ == "__main__":
    main(sys.argv[1])
