"""Does a reverse proxy in front of the Unix socket work, and do streams pass it unbuffered?"""

import http.client
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.system import client
from tests.system.client import Stream, UnixConnection, join_text
from tests.system.harness import PATHS, Llamactl

PORT = 8089
CONFIG = """\
daemon on;
pid {directory}/nginx.pid;
error_log {directory}/error.log;
user www-data llamactl;
events {{}}
http {{
    access_log off;
    client_body_temp_path {directory}/body;
    proxy_temp_path {directory}/proxy;
    fastcgi_temp_path {directory}/fastcgi;
    uwsgi_temp_path {directory}/uwsgi;
    scgi_temp_path {directory}/scgi;
    server {{
        listen 127.0.0.1:{port};
        location / {{
            proxy_pass http://unix:{socket}:;
            proxy_http_version 1.1;
            proxy_set_header Connection "";
            proxy_read_timeout 1h;
        }}
    }}
}}
"""


@pytest.fixture
def nginx(llamactl: Llamactl, tmp_models: Path) -> Iterator[None]:
    """nginx with its defaults, so buffering, on a port of its own. `nginx` returns when it listens."""
    llamactl.start()
    config = tmp_models / "nginx.conf"
    config.write_text(CONFIG.format(directory=tmp_models, port=PORT, socket=PATHS.http_socket))
    subprocess.run(["nginx", "-e", str(tmp_models / "error.log"), "-c", str(config)], check=True)
    try:
        yield
    finally:
        subprocess.run(["nginx", "-e", str(tmp_models / "error.log"), "-c", str(config), "-s", "stop"], check=True)


def connect() -> http.client.HTTPConnection:
    return http.client.HTTPConnection("127.0.0.1", PORT, timeout=client.TIMEOUT_S)


def test_chat_and_stream_pass_nginx(llamactl: Llamactl, tiny: dict[str, Path], nginx: None) -> None:
    llamactl.write_models(a={"path": str(tiny["a"]), "ctx": 2048})
    llamactl.cli("reload")
    # Few tokens: of a model of random weights the likeliest ones are nearly alike, and sums are not the same each time.
    body = client.format_chat("a", max_tokens=40, temperature=0, ignore_eos=True)
    whole = client.request(connect(), "POST", "/v1/chat/completions", body)
    assert whole.status == 200
    connection = connect()
    client.open_request(connection, "POST", "/v1/chat/completions", {**body, "stream": True})
    with Stream(connection) as stream:
        assert stream.status == 200
        text = join_text(stream.read_rest())
    assert text == whole.json()["choices"][0]["message"]["content"]


def test_first_event_arrives_while_the_answer_goes_on(llamactl: Llamactl, tiny: dict[str, Path], nginx: None) -> None:
    llamactl.use_script("gated")
    llamactl.write_models(gated={"path": str(tiny["a"])})
    llamactl.cli("reload")
    connection = connect()
    client.open_request(connection, "POST", "/v1/chat/completions", client.format_chat("gated", stream=True))
    with Stream(connection) as stream:
        assert "first" in stream.read_event(), "the instance sends the rest only after it is told to"
        instance = UnixConnection(str(PATHS.instance_socket("gated")))
        assert client.request(instance, "POST", "/release").status == 200
        rest = stream.read_rest()
    assert "second" in rest[0]
    assert rest[-1] == "[DONE]"
