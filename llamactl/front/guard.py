"""Which Host headers are answered on TCP, and which web pages may read the answers?

A page on any site can make a browser send requests to 127.0.0.1, and by a name of its own that it lets point there
(DNS rebinding) it could read the answers too: the browser takes both for one origin. Such a request bears the page's
own name in Host, so on TCP only localhost, addresses and configured names are taken. A proxy on the Unix socket has
checked the name itself. CORS opens answers to pages of other origins; nothing is said of it unless it is configured.
"""

import ipaddress
import re

from llamactl.front.wire import RequestHead
from llamactl.protocol import FrontSettings

PREFLIGHT_MAX_AGE_S = 600
MAX_REMEMBERED = 64

_PORT = re.compile(r":[0-9]{0,5}\Z")


class Guard:
    """The rules of one set of settings."""

    def __init__(self, settings: FrontSettings) -> None:
        self._hosts = frozenset(host for host in settings.allowed_hosts if not host.startswith("*"))
        self._suffixes = tuple(host[1:] for host in settings.allowed_hosts if host.startswith("*."))
        self._any_host = "*" in settings.allowed_hosts
        self._origins = frozenset(origin.encode() for origin in settings.cors_origins)
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
        if origin is None or b"*" in self._origins or origin in self._origins:
            return True
        return origin.partition(b"://")[2].lower() == (head.find(b"host") or b"").lower()

    def format_cors(self, head: RequestHead) -> bytes:
        """The header lines that let the asking page read the answer; none for a page that may not."""
        origin = head.find(b"origin")
        if origin is None:
            return b"Vary: Origin\r\n" if b"*" not in self._origins else b""
        if b"*" in self._origins:
            return b"Access-Control-Allow-Origin: *\r\nAccess-Control-Expose-Headers: X-Request-Id\r\n"
        if origin not in self._origins:
            return b"Vary: Origin\r\n"
        return (
            b"Vary: Origin\r\nAccess-Control-Allow-Origin: %b\r\nAccess-Control-Expose-Headers: X-Request-Id\r\n"
            % origin
        )

    def format_preflight(self, head: RequestHead) -> tuple[tuple[str, str], ...]:
        """What a preflight's answer says besides `format_cors`; nothing for a page that may not ask."""
        origin = head.find(b"origin")
        if b"*" not in self._origins and origin not in self._origins:
            return ()
        wanted = head.find(b"access-control-request-headers")
        return (
            ("Access-Control-Allow-Methods", "GET, HEAD, POST, PUT, PATCH, DELETE, OPTIONS"),
            ("Access-Control-Allow-Headers", wanted.decode("latin-1") if wanted else "*"),
            ("Access-Control-Max-Age", str(PREFLIGHT_MAX_AGE_S)),
        )

    def is_preflight(self, head: RequestHead) -> bool:
        return self.has_cors and head.method == b"OPTIONS" and head.find(b"access-control-request-method") is not None


def is_address(name: str) -> bool:
    """Whether this is an IP address: nobody can let one point elsewhere."""
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True
