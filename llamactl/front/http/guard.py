"""Which Host headers are answered on TCP, and which web pages may read the answers?

A page on any site can make a browser send requests to 127.0.0.1, and by a name of its own that it lets point there
(DNS rebinding) it could read the answers too: the browser takes both for one origin. Such a request bears the page's
own name in Host, so on TCP only localhost, addresses and configured names are taken. A proxy on the Unix socket has
checked the name itself. CORS opens answers to pages of other origins; nothing is said of it unless it is configured.
A page of an origin that is named may send its user's credentials along (a proxy may ask for them); `*` is everybody,
and everybody must not read with somebody's password.
"""

import ipaddress
import re

from llamactl.front.http.wire import RequestHead
from llamactl.settings import FrontSettings

PREFLIGHT_MAX_AGE_S = 600
MAX_REMEMBERED = 64

LOCALHOST = "localhost"
"""Instead of an origin: each one of this machine, whatever its port and scheme."""

_LOOPBACK_ORIGIN = re.compile(
    rb"[a-z][a-z0-9+.-]*://(?:(?:[a-z0-9-]+\.)*localhost|127\.[0-9]{1,3}\.[0-9]{1,3}\.[0-9]{1,3}|\[::1\])(?::[0-9]{1,5})?"
)
"""Names below localhost never leave the machine (RFC 6761, 6.3); programs with pages of their own have own schemes."""

_PORT = re.compile(r":[0-9]{0,5}\Z")


class Guard:
    """The rules of one set of settings."""

    def __init__(self, settings: FrontSettings) -> None:
        self._hosts = frozenset(host for host in settings.allowed_hosts if not host.startswith("*"))
        self._suffixes = tuple(host[1:] for host in settings.allowed_hosts if host.startswith("*."))
        self._any_host = "*" in settings.allowed_hosts
        self._origins = frozenset(origin.encode() for origin in settings.cors_origins)
        self._any_origin = b"*" in self._origins
        self._loopback_origins = LOCALHOST.encode() in self._origins
        self._good_hosts: set[bytes] = set()
        self.has_cors = bool(settings.cors_origins)

    def accepts_host(self, host: bytes | None) -> bool:
        """Whether a request on TCP may bear this Host; HTTP/1.0 has none, and no browser speaks that."""
        if host is None or host in self._good_hosts:
            return True
        if not (self._any_host or self._accepts_name(host)):
            return False
        if len(self._good_hosts) < MAX_REMEMBERED:
            self._good_hosts.add(host)
        return True

    def _accepts_name(self, host: bytes) -> bool:
        name = _PORT.sub("", host.decode("latin-1")).lower().rstrip(".")
        if name == "localhost" or name.endswith(".localhost") or is_address(name.strip("[]")):
            return True
        return name in self._hosts or name.endswith(self._suffixes)

    def accepts_upgrade(self, head: RequestHead) -> bool:
        """Whether a page may change protocols on TCP: browsers let every page do that, CORS or not."""
        origin = head.find(b"origin")
        if origin is None or self._any_origin or self._names_origin(origin):
            return True
        return origin.partition(b"://")[2].lower() == (head.find(b"host") or b"").lower()

    def format_cors(self, head: RequestHead) -> bytes:
        """The header lines that let the asking page read the answer; none for a page that may not."""
        origin = head.find(b"origin")
        if origin is not None and self._names_origin(origin):
            return (
                b"Vary: Origin\r\nAccess-Control-Allow-Origin: %b\r\nAccess-Control-Allow-Credentials: true\r\n"
                b"Access-Control-Expose-Headers: X-Request-Id\r\n" % origin
            )
        if not self._any_origin:
            return b"Vary: Origin\r\n"
        if origin is None:
            return b""
        return b"Access-Control-Allow-Origin: *\r\nAccess-Control-Expose-Headers: X-Request-Id\r\n"

    def _names_origin(self, origin: bytes) -> bool:
        if origin in self._origins:
            return origin not in (b"*", LOCALHOST.encode())
        return self._loopback_origins and _LOOPBACK_ORIGIN.fullmatch(origin) is not None

    def format_preflight(self, head: RequestHead) -> tuple[tuple[str, str], ...]:
        """What a preflight's answer says besides `format_cors`; nothing for a page that may not ask."""
        origin = head.find(b"origin")
        if origin is None or not (self._any_origin or self._names_origin(origin)):
            return ()
        # By name: `*` is not taken for Authorization (Fetch, "CORS non-wildcard request-header name").
        wanted = head.find(b"access-control-request-headers")
        return (
            ("Access-Control-Allow-Methods", "GET, POST, DELETE, OPTIONS"),
            ("Access-Control-Allow-Headers", wanted.decode("latin-1") if wanted else "*"),
            ("Access-Control-Max-Age", str(PREFLIGHT_MAX_AGE_S)),
        )

    def is_preflight(self, head: RequestHead) -> bool:
        """Whether a browser asks what a page may request, and pages of other origins may anything at all."""
        return self.has_cors and head.method == b"OPTIONS" and head.find(b"access-control-request-method") is not None


def is_address(name: str) -> bool:
    """Whether this is an IP address: nobody can let one point elsewhere."""
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True
