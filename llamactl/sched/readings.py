"""How old may what we know of devices and files be when a load is decided?

Other programs come and go without telling. Reports of children tell what is free, but only when a child has something
to say; so a load that would be decided by an old figure first has the figure read, once for all loads that wait. Where
reading is cheap (no GPU context is needed) a second is old. A reading that fails leaves what is known, and counts as
one: nobody waits twice for it.

A model's files are looked at for each load, since they may have been replaced since they were measured (`files`). Files
that never stop changing must not keep a load waiting for ever: after two new measurements it goes on by the last.
"""

from collections.abc import Mapping

from llamactl.sched.breakdowns import HOST
from llamactl.sched.core import Core
from llamactl.sched.effects import LookAtFiles, ReadDevices
from llamactl.sched.instances import Model
from llamactl.sched.queue import Entry

CHEAP_REFRESH_S = 1.0
FILES_S = 1.0
"""Files are not looked at again sooner for the same load."""
MAX_REPLACED = 2
"""How often a load waits for new figures because its files have changed since it was wanted."""


def ask_devices(core: Core, needs: Mapping[str, int] | None, now: float) -> bool:
    """Whether a load must wait until its devices have been read; has them read if nobody does so."""
    stale = tuple(name for name in needs or () if _is_stale(core, name, now))
    if not stale:
        return False
    if not core.readings.running:
        core.readings.running = True
        core.emit(ReadDevices(stale))
    return True


def ask_files(core: Core, model: Model, entry: Entry, now: float) -> bool:
    """Whether a load must wait until its files have been looked at; has that done if nobody does it."""
    if model.files is None or entry.replaced >= MAX_REPLACED:
        return False
    if model.files_seen_s >= entry.since_s and now - model.files_seen_s <= FILES_S:
        return False
    if not model.is_looked_at:
        model.is_looked_at = True
        core.emit(LookAtFiles(model.get_settings()))
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
