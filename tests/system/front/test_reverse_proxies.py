"""Do docs/operations.md's reverse proxies do what it says: TLS, a key or 401, streams at once, keys that stop there?

The examples are run as they stand on the page, but for the places of files and the port. The certificate is our own.
"""

import contextlib
import http.client
import json
import re
import shutil
import ssl
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import openai
import pytest

from tests.system import client, journal
from tests.system.client import TIMEOUT_S, Response, Stream, UnixConnection
from tests.system.harness import PATHS, Llamactl, run

PAGE = Path(__file__).resolve().parents[3] / "docs/operations.md"
PORT = 8443
KEY, OTHER_KEY = "7f3c" * 12, "7f3d" * 12
CERTIFICATE = "/etc/ssl/llm.example.org"
CHAT = "/v1/chat/completions"


def read_example(language: str, replacements: dict[str, str]) -> str:
    """The page's only example in a language, with each of the texts replaced, all of which it must have."""
    [text] = re.findall(rf"^```{language}\n(.*?)^```", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    for old, new in replacements.items():
        assert old in text, f"the example has no {old!r}"
        text = text.replace(old, new)
    return str(text)


@contextlib.contextmanager
def run_nginx(directory: Path) -> Iterator[None]:
    """With nginx.conf's own user, which is in the group, and nothing else that is not a default."""
    run("usermod", "-aG", "llamactl", "www-data")
    (directory / "keys").write_text(f"{KEY} alice;\n{OTHER_KEY} bob;\n")
    example = read_example(
        "nginx", {"/etc/nginx/llamactl.keys": f"{directory}/keys", "443": str(PORT), CERTIFICATE: str(directory)}
    )
    temporary = "".join(
        f"{kind}_temp_path {directory}/{kind};\n" for kind in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    )
    config = directory / "nginx.conf"
    config.write_text(
        f"user www-data;\npid {directory}/nginx.pid;\nevents {{}}\nhttp {{\naccess_log off;\n{temporary}{example}}}\n"
    )
    command = ["nginx", "-e", str(directory / "error.log"), "-c", str(config)]
    subprocess.run(command, check=True)
    try:
        yield
    finally:
        subprocess.run([*command, "-s", "stop"], check=True)


@contextlib.contextmanager
def run_haproxy(directory: Path) -> Iterator[None]:
    """In a unit of its own with the page's drop-in, chrooted and as the user and the group that the page says."""
    (directory / "keys").write_text(f"{KEY} alice\n{OTHER_KEY} bob\n")
    chroot = directory / "chroot"
    chroot.mkdir()
    certificate = f"{directory}/haproxy.pem"
    example = read_example(
        "haproxy",
        {
            "/etc/haproxy/llamactl.keys": f"{directory}/keys",
            ":443": f"127.0.0.1:{PORT}",
            f"{CERTIFICATE}/haproxy.pem": certificate,
            "/var/lib/haproxy": str(chroot),
        },
    )
    with open(certificate, "w") as file:
        file.writelines((directory / name).read_text() for name in ("fullchain.pem", "privkey.pem"))
    (directory / "haproxy.cfg").write_text(example)
    [bind] = re.findall(r"^BindPaths=.*", PAGE.read_text(), re.MULTILINE)
    bind = bind.replace("/var/lib/haproxy", str(chroot))
    unit = ["systemd-run", "--quiet", "--unit=test-haproxy", "--service-type=forking", f"--property={bind}"]
    program = shutil.which("haproxy")
    assert program is not None
    run(*unit, program, "-D", "-f", str(directory / "haproxy.cfg"), "-p", str(directory / "haproxy.pid"))
    try:
        yield
    finally:
        run("systemctl", "stop", "test-haproxy.service")


@dataclass(frozen=True)
class Proxy:
    """One of them, as its clients see it."""

    trust: ssl.SSLContext

    def connect(self) -> http.client.HTTPSConnection:
        return http.client.HTTPSConnection("127.0.0.1", PORT, timeout=TIMEOUT_S, context=self.trust)

    def ask(self, method: str, path: str, body: Any = None, **headers: str) -> Response:
        connection = self.connect()
        with contextlib.closing(connection):
            client.open_request(connection, method, path, body, {k.replace("_", "-"): v for k, v in headers.items()})
            response = connection.getresponse()
            return Response(response.status, {k.lower(): v for k, v in response.getheaders()}, response.read())


@pytest.fixture(params=["nginx", "haproxy"])
def proxy(request: pytest.FixtureRequest, llamactl: Llamactl, tmp_models: Path) -> Iterator[Proxy]:
    certificate, key = tmp_models / "fullchain.pem", tmp_models / "privkey.pem"
    kind = "-x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 -subj /CN=llm.example.org"
    names = ["-addext", "subjectAltName=DNS:llm.example.org,IP:127.0.0.1"]
    run("openssl", "req", *kind.split(), *names, "-keyout", str(key), "-out", str(certificate))
    llamactl.start()
    proxies = {"nginx": run_nginx, "haproxy": run_haproxy}
    with proxies[request.param](tmp_models):
        yield Proxy(ssl.create_default_context(cafile=str(certificate)))


def test_without_a_key_that_is_known_nothing_is_answered(
    llamactl: Llamactl, tiny: dict[str, Path], proxy: Proxy
) -> None:
    llamactl.write_models(a={"path": str(tiny["a"])})
    llamactl.cli("reload")
    strangers: list[dict[str, str]] = [
        {},
        {"Authorization": "Bearer wrong"},
        {"Authorization": f"Bearer {KEY[:-1]}"},
        {"Authorization": f"Bearer {KEY} {OTHER_KEY}"},
        {"Authorization": f"Basic {KEY}"},
        {"Authorization": "Bearer "},
        {"X_Api_Key": "alice"},
        {"X_Api_Key": ""},
    ]
    for headers in strangers:
        for method, path in (("POST", CHAT), ("GET", "/v1/models"), ("POST", "/models/load")):
            body = client.format_chat("a") if method == "POST" else None
            refused = proxy.ask(method, path, body, **headers)
            assert refused.status == 401, (headers, path)
            assert refused.headers["content-type"] == "application/json"
            assert refused.headers["www-authenticate"] == "Bearer"
            assert refused.error["code"] == "invalid_api_key"
    assert not llamactl.list_loaded()


def test_client_with_its_key_is_answered_over_tls(llamactl: Llamactl, tiny: dict[str, Path], proxy: Proxy) -> None:
    llamactl.write_models(a={"path": str(tiny["a"]), "ctx": 4096})
    llamactl.cli("reload")
    body = client.format_chat("a", max_tokens=5, temperature=0)
    expected = llamactl.post(CHAT, body).json()["choices"][0]["message"]["content"]
    for headers in ({"Authorization": f"Bearer {KEY}"}, {"X_Api_Key": OTHER_KEY}):
        answer = proxy.ask("POST", CHAT, body, **headers)
        assert answer.status == 200
        assert answer.json()["choices"][0]["message"]["content"] == expected
    refused = proxy.ask("POST", CHAT, client.format_chat("nobody"), Authorization=f"Bearer {KEY}")
    assert (refused.status, refused.error["type"]) == (404, "not_found_error"), "what the front says passes as it is"
    with openai.DefaultHttpxClient(verify=proxy.trust) as transport:
        for key, works in ((KEY, True), ("wrong", False)):
            user = openai.OpenAI(
                base_url=f"https://127.0.0.1:{PORT}/v1", api_key=key, http_client=transport, max_retries=0
            )
            if works:
                assert [model.id for model in user.models.list()] == ["a"]
                long = "word " * 400_000  # 2 MB: more than nginx' own bound for bodies
                with pytest.raises(openai.BadRequestError):
                    user.chat.completions.create(model="a", messages=[{"role": "user", "content": long}])
            else:
                with pytest.raises(openai.AuthenticationError, match="Incorrect API key provided"):
                    user.models.list()


def test_preflight_needs_no_key_and_comes_from_the_front(llamactl: Llamactl, proxy: Proxy) -> None:
    llamactl.write_settings(cors_origins=["https://app.example.org"])
    llamactl.cli("reload")
    preflight = proxy.ask("OPTIONS", CHAT, Origin="https://app.example.org", Access_Control_Request_Method="POST")
    assert preflight.status in (200, 204)
    assert preflight.headers["access-control-allow-origin"] == "https://app.example.org"


def test_first_event_comes_while_the_answer_goes_on(llamactl: Llamactl, tiny: dict[str, Path], proxy: Proxy) -> None:
    llamactl.use_script("gated")
    llamactl.write_models(gated={"path": str(tiny["a"])})
    llamactl.cli("reload")
    connection = proxy.connect()
    body = client.format_chat("gated", stream=True)
    client.open_request(connection, "POST", CHAT, body, {"Authorization": f"Bearer {KEY}"})
    with Stream(connection) as stream:
        assert stream.status == 200
        assert "first" in stream.read_event(), "the instance sends the rest only after it is told to"
        instance = UnixConnection(str(PATHS.instance_socket("gated")))
        assert client.request(instance, "POST", "/release").status == 200
        assert stream.read_rest()[-1] == "[DONE]"


def test_client_that_hangs_up_ends_its_answer(llamactl: Llamactl, tiny: dict[str, Path], proxy: Proxy) -> None:
    llamactl.write_models(a={"path": str(tiny["a"]), "ctx": 8192})
    llamactl.cli("reload")
    cursor = journal.acquire_cursor()
    connection = proxy.connect()
    body = client.format_chat("a", max_tokens=7000, ignore_eos=True, stream=True)
    client.open_request(connection, "POST", CHAT, body, {"Authorization": f"Bearer {KEY}"})
    with Stream(connection) as stream:
        assert stream.read_event()
    journal.wait_entry(cursor, LLAMACTL_EVENT="request_broken_off")


def test_key_goes_no_further_than_the_proxy(
    llamactl: Llamactl, tiny: dict[str, Path], proxy: Proxy, tmp_models: Path
) -> None:
    llamactl.use_script("headers")
    llamactl.write_models(headers={"path": str(tiny["a"])})
    llamactl.cli("reload")
    for header in ({"Authorization": f"Bearer {KEY}"}, {"X_Api_Key": KEY}):
        answer = proxy.ask("POST", CHAT, client.format_chat("headers"), **header)
        assert answer.status == 200
        assert "content-type: application/json" in answer.json()["headers"]
        assert KEY not in json.dumps(answer.json())
