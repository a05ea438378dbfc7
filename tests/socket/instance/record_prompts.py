"""What does llama-server make of the conversations, with each of llama.cpp's templates? Digests of its prompts, written
to the file that test_rendering.py compares with, to be run by hand for a new version of llama.cpp:

    python -m tests.socket.instance.record_prompts LLAMA_SERVER [ARGUMENT ...]

Digests, because prompts are the templates' text. A day that a prompt shows is taken out before.
"""

import hashlib
import http.client
import json
import re
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from tests.models import write_model
from tests.sdist import read_templates
from tests.socket.instance.conversations import CONVERSATIONS

FILE = Path(__file__).with_name("llama_server_prompts.json")
REFUSED = "refused"
_START_S = 30
_MONTH = r"(?:Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec)[a-z]*"
_DAY = re.compile(rf"\d{{1,2}} {_MONTH},? 20\d\d|{_MONTH} \d{{1,2}},? 20\d\d|20\d\d-\d\d-\d\d|\d\d/\d\d/20\d\d")
_WEEKDAY = re.compile(r"\b(?:Mon|Tues|Wednes|Thurs|Fri|Satur|Sun)day\b")


def digest(prompt: str) -> str:
    text = _WEEKDAY.sub("WEEKDAY", _DAY.sub("DAY", prompt))
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:10]


def ask(port: int, body: dict[str, Any]) -> str:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=_START_S)
    try:
        connection.request("POST", "/apply-template", json.dumps(body), {"Content-Type": "application/json"})
        answer = json.loads(connection.getresponse().read())
    finally:
        connection.close()
    return digest(answer["prompt"]) if "prompt" in answer else REFUSED


def is_ready(port: int) -> bool:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=_START_S)
    try:
        connection.request("GET", "/health")
        return connection.getresponse().status == 200
    except OSError:
        return False
    finally:
        connection.close()


def record(server: list[str], model: Path, template: str, directory: Path) -> dict[str, str]:
    """Raises SystemExit where it does not start."""
    file = directory / "template.jinja"
    file.write_text(template)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    options = [
        "-m",
        str(model),
        "--jinja",
        "--chat-template-file",
        str(file),
        "--host",
        "127.0.0.1",
        "--port",
        str(port),
    ]
    options += ["-c", "256", "-np", "1", "-t", "1", "--no-warmup", "--no-repack"]
    with (directory / "log").open("w") as log:
        process = subprocess.Popen([*server, *options], stdout=log, stderr=log)
    try:
        ends_s = time.monotonic() + _START_S
        while not is_ready(port):
            if process.poll() is not None or time.monotonic() > ends_s:
                raise SystemExit((directory / "log").read_text()[-2000:])
            time.sleep(0.05)
        return {name: ask(port, body) for name, body in CONVERSATIONS.items()}
    finally:
        process.terminate()
        process.wait()


def main() -> None:
    recorded = {}
    with tempfile.TemporaryDirectory() as name:
        model = write_model(Path(name) / "tiny.gguf")
        for template, source in sorted(read_templates().items()):
            recorded[template] = record(sys.argv[1:], model, source, Path(name))
            print(template, sum(value == REFUSED for value in recorded[template].values()), "refused")
    FILE.write_text(json.dumps(recorded, indent=1) + "\n")


if __name__ == "__main__":
    main()
