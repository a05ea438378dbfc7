"""What does a process see from within a model's unit? Stands in for the instance; standard library only.

Writes what it found to `facts.json` beside its socket, says READY, then answers commands on the socket, one a
connection: `report` connects to the report socket and passes on what came from there.
"""

import json
import os
import socket
import sys


def attempt(action):
    """The outcome of an action: ok, or the error's name."""
    try:
        action()
    except OSError as error:
        return type(error).__name__ + f" {error.errno}"
    return "ok"


def write(path):
    with open(path, "w") as file:
        file.write("x")


def ask_report():
    with socket.socket(socket.AF_UNIX) as sock:
        sock.settimeout(10)
        sock.connect(os.environ["LLAMACTL_REPORT"])
        sock.sendall(b"from the unit\n")
        return sock.recv(100)


def find_facts(model_file):
    runtime_dir = os.path.dirname(os.path.dirname(os.environ["LLAMACTL_REPORT"]))
    with open("/proc/self/status") as file:
        status = dict(line.rstrip("\n").split(":\t", 1) for line in file)
    with open("/proc/net/dev") as file:
        interfaces = [line.split(":")[0].strip() for line in file.readlines()[2:]]
    return {
        "argv": sys.argv[1:],
        "environ": dict(os.environ),
        "uid": os.getuid(),
        "gid": os.getgid(),
        "groups": os.getgroups(),
        "capabilities": int(status["CapEff"], 16) | int(status["CapBnd"], 16),
        "no_new_privileges": status["NoNewPrivs"],
        "umask": status["Umask"],
        "interfaces": interfaces,
        "tcp": attempt(lambda: socket.socket(socket.AF_INET)),
        "model": attempt(lambda: open(model_file).close()),
        "write_model": attempt(lambda: write(model_file)),
        "write_etc": attempt(lambda: write("/etc/probe")),
        "write_runtime": attempt(lambda: write(os.path.join(runtime_dir, "probe"))),
        "write_report_dir": attempt(lambda: write(os.path.join(runtime_dir, "report", "probe"))),
        "write_tmp": attempt(lambda: write("/tmp/probe")),
        "runtime": sorted(os.listdir(runtime_dir)),
        "models": sorted(os.listdir(os.path.join(runtime_dir, "models"))),
        "home": os.listdir("/home"),
        "root": os.listdir("/root"),
        "bus": attempt(lambda: socket.socket(socket.AF_UNIX).connect("/run/dbus/system_bus_socket")),
        "transient": attempt(lambda: os.listdir("/run/systemd/transient")),
        "pid_1": os.path.exists("/proc/1"),
        "unshare": attempt(lambda: os.stat("/proc/self/ns/user") and unshare()),
        "null": attempt(lambda: write("/dev/null")),
        "fuse": attempt(lambda: open("/dev/fuse", "rb").close()),
        "oom_score_adjust": int(open("/proc/self/oom_score_adj").read()),
        "modules": sorted(name for name in ("llamactl", "msgspec", "llama_cpp") if can_find(name)),
    }


def unshare():
    import ctypes

    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(0x10000000) != 0:  # CLONE_NEWUSER
        raise OSError(ctypes.get_errno(), "unshare")


def can_find(module):
    import importlib.util

    return importlib.util.find_spec(module) is not None


def main():
    path = os.environ["LLAMACTL_SOCKET"]
    with open(os.path.join(os.path.dirname(path), "facts.json"), "w") as file:
        json.dump(find_facts(os.environ["PROBE_MODEL"]), file)
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(path)
    listener.listen()
    print("probe is ready", flush=True)
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as notify:
        notify.sendto(b"READY=1", os.environ["NOTIFY_SOCKET"])
    while True:
        connection, _ = listener.accept()
        with connection:
            command = connection.recv(100)
            connection.sendall(ask_report() if command == b"report" else b"hello")


main()
