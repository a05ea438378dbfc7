"""Who is answered on TCP, and which pages may read the answers."""

import pytest

from llamactl.front.http.guard import MAX_REMEMBERED, Guard
from llamactl.front.http.wire import RequestHead, parse_request_head
from llamactl.settings import FrontSettings


def request(*fields: str, first: str = "GET / HTTP/1.1") -> RequestHead:
    return parse_request_head("\r\n".join((first, "Host: x", *fields, "", "")).encode())


@pytest.mark.parametrize(
    "host",
    [
        "localhost",
        "LocalHost:8080",
        "localhost.",
        "app.localhost:1",
        "127.0.0.1",
        "127.0.0.1:8080",
        "192.168.1.5:8080",
        "[::1]",
        "[::1]:8080",
        "[fe80::1]",
    ],
)
def test_nobody_can_let_these_point_elsewhere(host: str) -> None:
    assert Guard(FrontSettings()).accepts_host(host.encode())


@pytest.mark.parametrize(
    "host",
    ["evil.example", "localhost.evil.example", "127.0.0.1.evil.example", "evillocalhost", "", ":80", "a b", "\xff"],
)
def test_name_that_anybody_may_own_is_refused(host: str) -> None:
    guard = Guard(FrontSettings())
    for _ in range(2):
        assert not guard.accepts_host(host.encode("latin-1"))


def test_no_host_comes_from_no_browser() -> None:
    assert Guard(FrontSettings()).accepts_host(None)


def test_configured_names_are_taken() -> None:
    guard = Guard(FrontSettings(allowed_hosts=("llm.example", "*.home.arpa")))
    for host in (b"llm.example", b"LLM.example:443", b"box.home.arpa", b"a.b.home.arpa:80", b"localhost"):
        assert guard.accepts_host(host)
    for host in (b"x.llm.example", b"home.arpa", b"evilhome.arpa"):
        assert not guard.accepts_host(host)
    assert Guard(FrontSettings(allowed_hosts=("*",))).accepts_host(b"anything.example")


def test_names_of_many_clients_do_not_fill_the_memory() -> None:
    guard = Guard(FrontSettings(allowed_hosts=("*",)))
    for number in range(1000):
        assert guard.accepts_host(b"h%d.example" % number)
    assert len(guard._good_hosts) == MAX_REMEMBERED


def test_cors_is_off_unless_configured() -> None:
    guard = Guard(FrontSettings())
    preflight = request("Origin: https://a.example", "Access-Control-Request-Method: POST", first="OPTIONS / HTTP/1.1")
    assert not guard.has_cors
    assert not guard.is_preflight(preflight)


def test_configured_origin_may_read_and_no_other() -> None:
    guard = Guard(FrontSettings(cors_origins=("https://a.example",)))
    mine = guard.format_cors(request("Origin: https://a.example"))
    assert b"Access-Control-Allow-Origin: https://a.example\r\n" in mine
    assert b"Vary: Origin\r\n" in mine
    assert guard.format_cors(request("Origin: https://a.example.evil")) == b"Vary: Origin\r\n"
    assert guard.format_cors(request()) == b"Vary: Origin\r\n"


def test_every_origin_may_read_where_that_is_configured() -> None:
    guard = Guard(FrontSettings(cors_origins=("*",)))
    assert b"Access-Control-Allow-Origin: *\r\n" in guard.format_cors(request("Origin: https://a.example"))
    assert guard.format_cors(request()) == b""


def test_preflight_of_a_page_that_may_ask_is_granted_what_it_asks() -> None:
    guard = Guard(FrontSettings(cors_origins=("https://a.example",)))
    asking = ("Access-Control-Request-Method: POST", "Access-Control-Request-Headers: authorization,x-a")
    mine = request("Origin: https://a.example", *asking, first="OPTIONS /v1/x HTTP/1.1")
    assert guard.is_preflight(mine)
    granted = dict(guard.format_preflight(mine))
    assert granted["Access-Control-Allow-Headers"] == "authorization,x-a"
    assert "POST" in granted["Access-Control-Allow-Methods"]
    other = request("Origin: https://b.example", *asking, first="OPTIONS /v1/x HTTP/1.1")
    assert guard.format_preflight(other) == ()
    assert not guard.is_preflight(request("Origin: https://a.example", first="OPTIONS /v1/x HTTP/1.1"))


LOOPBACK = [
    "http://localhost",
    "https://localhost:8080",
    "http://app.localhost:3000",
    "http://127.0.0.1",
    "http://127.8.9.10:3000",
    "http://[::1]",
    "http://[::1]:3000",
    "tauri://localhost",
]


@pytest.mark.parametrize("origin", LOOPBACK)
def test_every_origin_of_this_machine_may_read_where_localhost_is_configured(origin: str) -> None:
    guard = Guard(FrontSettings(cors_origins=("localhost",)))
    asking = request(f"Origin: {origin}", "Access-Control-Request-Method: POST", first="OPTIONS /v1/x HTTP/1.1")
    said = guard.format_cors(asking)
    assert f"\r\nAccess-Control-Allow-Origin: {origin}\r\n".encode() in said
    assert b"\r\nAccess-Control-Allow-Credentials: true\r\n" in said
    assert guard.format_preflight(asking)
    assert guard.accepts_upgrade(asking)


@pytest.mark.parametrize(
    "origin",
    [
        "http://web.example",
        "http://notlocalhost",
        "http://localhost.evil.example",
        "http://127.0.0.1.evil.example",
        "http://evil.example#localhost",
        "http://localhost@evil.example",
        "http://localhost:80.evil.example",
        "http://[::1].evil.example",
        "http://[::2]",
        "localhost",
        "*",
        "null",
    ],
)
def test_no_other_origin_is_taken_for_one_of_this_machine(origin: str) -> None:
    guard = Guard(FrontSettings(cors_origins=("localhost",)))
    asking = request(f"Origin: {origin}", "Access-Control-Request-Method: POST", first="OPTIONS /v1/x HTTP/1.1")
    assert guard.format_cors(asking) == b"Vary: Origin\r\n"
    assert guard.format_preflight(asking) == ()
    assert not guard.accepts_upgrade(asking)


def test_origin_that_is_named_may_send_credentials_and_not_everybody() -> None:
    guard = Guard(FrontSettings(cors_origins=("*", "https://a.example")))
    assert b"Access-Control-Allow-Credentials: true\r\n" in guard.format_cors(request("Origin: https://a.example"))
    everybody = guard.format_cors(request("Origin: https://b.example"))
    assert b"Access-Control-Allow-Origin: *\r\n" in everybody
    assert b"Credentials" not in everybody


def test_pages_may_change_protocols_on_their_own_origin_and_configured_ones() -> None:
    guard = Guard(FrontSettings(cors_origins=("https://a.example",)))
    for origin in ("http://x", "HTTP://X", "https://a.example"):
        assert guard.accepts_upgrade(request(f"Origin: {origin}"))
    for origin in ("https://evil.example", "null", "http://x.evil", "http://x:81"):
        assert not guard.accepts_upgrade(request(f"Origin: {origin}"))
    assert guard.accepts_upgrade(request())
    assert Guard(FrontSettings(cors_origins=("*",))).accepts_upgrade(request("Origin: https://evil.example"))
