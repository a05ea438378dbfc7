"""Who may change by HTTP what runs? A chat loads models and drives others out, so to load and unload is open to whoever
may chat, unless the machine keeps it to those who may use the control socket (`http_control`). To read the
configuration again is theirs in any case: no chat does that.
"""

from llamactl.errors import ErrorCode, LlamactlError
from llamactl.front.http.peer import acquire_peer
from llamactl.front.http.ports import Answering
from llamactl.groups import ADMIN, acquire_group
from llamactl.settings import FrontSettings, HttpControl


def require_control(client: Answering, settings: FrontSettings, what: str, command: str) -> None:
    """Raises LlamactlError for a client that may not load and unload. `command` does what it wants, too."""
    if settings.http_control == HttpControl.ADMIN:
        require_admin(client, what, command)


def require_admin(client: Answering, what: str, command: str) -> None:
    """Raises LlamactlError for a client that could not use the control socket either."""
    hint = f"by HTTP members of {ADMIN} may, on the Unix socket; or use {command}"
    if client.peer:
        raise LlamactlError(ErrorCode.PERMISSION, f"cannot {what} over TCP: anybody could ask for it", hint=hint)
    try:
        is_admin = acquire_peer(client.transport).is_member(acquire_group(ADMIN))
    except OSError as error:
        raise LlamactlError(
            ErrorCode.PERMISSION, f"cannot {what}: your groups are unknown: {error}", hint=hint
        ) from None
    if not is_admin:
        raise LlamactlError(ErrorCode.PERMISSION, f"cannot {what}: you are no member of {ADMIN}", hint=hint)
