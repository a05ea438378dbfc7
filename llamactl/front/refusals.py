"""In which words is a request refused that gets no lease, or loses its instance?"""

from llamactl.errors import RETRY_AFTER_S, ErrorCode, LlamactlError
from llamactl.names import format_command


def make_queue_full(name: str, waiting: int, limit: str) -> LlamactlError:
    """`limit`: the setting that is reached."""
    return LlamactlError(
        ErrorCode.QUEUE_FULL,
        f"cannot queue another request for '{name}': {waiting} are waiting already, `{limit}` is the limit",
        hint="try again later",
        model=name,
        details={"retry_after_s": RETRY_AFTER_S},
    )


def make_queue_timeout(name: str, limit_s: float) -> LlamactlError:
    """Make the error of a request that has waited for `limit_s`, as long as `queue_timeout` lets it."""
    return LlamactlError(
        ErrorCode.QUEUE_TIMEOUT,
        f"cannot serve request to '{name}': it has waited for {limit_s:g} s",
        hint="queue_timeout in llamactl.toml is the limit",
        model=name,
    )


def make_no_supervisor(name: str, waited_s: float) -> LlamactlError:
    """Make the error of a request for a lease while no supervisor answers."""
    return LlamactlError(
        ErrorCode.NO_SUPERVISOR,
        f"cannot reach the supervisor for '{name}': it has not answered for {waited_s:.0f} s",
        hint="`systemctl status llamactl` says more",
        model=name,
    )


def make_instance_died(model: str, reason: str) -> LlamactlError:
    """Make the error of a request whose instance was lost before it answered."""
    return LlamactlError(
        ErrorCode.INSTANCE_DIED,
        f"cannot finish request to '{model}': {reason}",
        hint=f"`{format_command('logs', model)}` may show why",
        model=model,
    )
