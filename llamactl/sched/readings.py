"""How old may what we know of a device's free memory be when a load is decided?

Other programs come and go without telling. Reports of children tell what is free, but only when a child has something
to say; so a load that would be decided by an old figure first has the figure read, once for all loads that wait. Where
reading is cheap (no GPU context is needed) a second is old. A reading that fails leaves what is known, and counts as
one: nobody waits twice for it.
"""

from collections.abc import Mapping

from llamactl.sched.core import Core
from llamactl.sched.events import ReadDevices
from llamactl.sched.memory import HOST

CHEAP_REFRESH_S = 1.0


def ask_devices(core: Core, needs: Mapping[str, int] | None, now: float) -> bool:
    """Whether a load must wait until its devices have been read; has them read if nobody does so."""
    stale = tuple(name for name in needs or () if _is_stale(core, name, now))
    if not stale:
        return False
    if not core.readings.running:
        core.readings.running = True
        core.emit(ReadDevices(stale))
    return True


def _is_stale(core: Core, name: str, now: float) -> bool:
    account = core.ledger.accounts.get(name)
    limit_s = core.settings.refresh_s
    if name == HOST or account is None or not account.present or not account.total or limit_s <= 0:
        return False
    if name in core.readings.cheap:
        limit_s = min(limit_s, CHEAP_REFRESH_S)
    seen_s = core.readings.seen_s.get(name)
    return seen_s is None or now - seen_s > limit_s
