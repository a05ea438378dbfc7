"""How long does a supervisor that cannot start, or breaks at once, hold back before systemd starts the next one?

systemd restarts it for ever (StartLimitIntervalSec=0): a cause that lasts, a full file system or a broken D-Bus, may
not leave it dead when it is gone. What fails at once and again waits longer each time, up to a few seconds, so that a
cause that stays costs little. systemd's own RestartSteps= (254) would do that too, but counts every restart since
the last start by hand, so that one that was killed now and then for months would be slow to come back; and 252 knows
it not, and warns of it at each daemon-reload.
"""

import asyncio

FIRST_S = 0.2
LONGEST_S = 5.0
SHORT_LIFE_S = 60.0
"""Who has lived longer than this starts again at once."""
TIMEOUT_S = 2.0
UNIT = "llamactl.service"
UNKNOWN = 3
"""Restarts that are assumed where systemd does not say."""


def choose_delay_s(restarts: int) -> float:
    """After so many restarts by systemd: 0, 0.2, 0.4 ... 5 s."""
    return min(LONGEST_S, FIRST_S * 2.0 ** min(restarts - 1, 10)) if restarts > 0 else 0.0


async def acquire_restarts() -> int:
    """How often systemd has restarted us since the last start by hand; UNKNOWN where it does not say."""
    try:
        process = await asyncio.create_subprocess_exec(
            *("systemctl", "show", "--property=NRestarts", "--value", UNIT),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
        )
        output, _ = await asyncio.wait_for(process.communicate(), TIMEOUT_S)
    except OSError:  # TimeoutError is one
        return UNKNOWN
    text = output.decode(errors="replace").strip()
    return int(text) if text.isdecimal() else UNKNOWN
