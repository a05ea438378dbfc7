"""How is a moment of the day shown: as a date, as an age, and to scripts?"""

import time
from typing import Any

import msgspec

from llamactl.protocol.descriptions import Decision, Ending
from llamactl.quantities import format_span


def format_moment(time_s: float, now_s: float) -> str:
    """A moment of CLOCK_REALTIME as systemctl shows it: "Tue 2026-12-01 01:46:51 UTC; 5min ago"."""
    date = time.strftime("%a %Y-%m-%d %H:%M:%S %Z", time.localtime(time_s))
    return f"{date}; {format_span(now_s - time_s)} ago"


def describe_moment(value: Ending | Decision, now_s: float) -> dict[str, Any]:
    """For scripts: its time in ISO 8601, and its age."""
    from datetime import UTC, datetime  # every `ps` would pay for it

    fields: dict[str, Any] = msgspec.to_builtins(value)
    time_s = fields.pop("time_s")
    fields["time"] = datetime.fromtimestamp(time_s, UTC).isoformat(timespec="milliseconds")
    fields["ago_s"] = round(max(0.0, now_s - time_s), 3)
    return fields
