"""Which devices are there, and what follows when one comes or goes?

A complete listing names every device of this machine and of the RPC servers that were asked. What it does not name is
gone (a GPU that fell off the bus, an RPC host that is down): nothing is promised there any more, what instances hold
there stays charged until they end, and figures of models that counted on it are measured again. So are those of models
that would use a device which was not there before. Rows of a listing calibrate like a measure child's: whoever lists
devices uses none of their memory.

The view of one model is no complete listing unless nothing hides devices from it: its environment
(CUDA_VISIBLE_DEVICES), or its unit (DeviceAllow).
"""

import msgspec

from llamactl.journal_events import JournalEvent
from llamactl.protocol.values import Row
from llamactl.sched.breakdowns import HOST, get_rpc_server, hides_devices, list_device_rows, sees_device
from llamactl.sched.core import Core
from llamactl.sched.events import DevicesRead, DevicesReadEnded
from llamactl.sched.instances import Model
from llamactl.sched.measuring import drop_measurement, mark_counted_as_external, queue_unmeasured
from llamactl.sched.plausible import ask_listing, contradicts_listing
from llamactl.sched.recheck import Scope


def handle_devices_read(core: Core, event: DevicesRead, now: float) -> None:
    """Correct the accounts of devices by what is free there; after a complete listing, those not named are gone."""
    if event.by_model and core.readings.is_listed and contradicts_listing(core, event.rows, event.complete):
        ask_listing(core, now)
        return
    if event.complete:
        core.readings.is_listed = True
        core.readings.listed_s = core.readings.listed_s if event.by_model else now
    names = {row.name for row in event.rows}
    core.readings.cheap = core.readings.cheap | names if event.cheap else core.readings.cheap - names
    for row in event.rows:
        _handle_row(core, row, now)
    if event.complete:
        for name, account in list(core.ledger.accounts.items()):
            if name == HOST or name in names or get_rpc_server(name) not in ("", *event.rpc):
                continue
            if account.present:
                _lose(core, name)
        core.ledger.drop_unused()
    core.recheck(Scope.ALL)


def handle_devices_read_ended(core: Core, event: DevicesReadEnded, now: float) -> None:
    """Go on with loads that waited for the reading, whether it came or not."""
    if event.error:
        core.record(JournalEvent.DEVICES_NOT_READ, "", "warning", reason=event.error)
    if core.readings.running:
        core.readings.running = False
        core.readings.seen_s |= dict.fromkeys((name for name in core.ledger.accounts if name != HOST), now)
    core.recheck(Scope.ALL)


def _handle_row(core: Core, row: Row, now: float) -> None:
    account = core.ledger.accounts.get(row.name)
    if row.total is None and account is not None:
        row = msgspec.structs.replace(row, total=account.total)
    if not row.total:
        return
    before = account.total if account is not None and account.present else 0
    unsettled = any(core.is_unsettled(other, row.name) for other, _ in core.list_running())
    if core.ledger.calibrate(row, 0, "", only_raise=unsettled):
        mark_counted_as_external(core, row.name)
    core.readings.seen_s[row.name] = now
    account = core.ledger.accounts[row.name]
    account.present, account.description = True, row.description or account.description
    if before != row.total:
        event = JournalEvent.DEVICE_FOUND if not before else JournalEvent.DEVICE_CHANGED
        core.record(
            event, "", device=row.name, description=account.description, total_bytes=row.total, free_bytes=row.free
        )
        for model in list(core.models.values()):
            if _misses(model, row.name):
                _measure_again(core, model)


def _lose(core: Core, name: str) -> None:
    account = core.ledger.accounts[name]
    account.present, account.external = False, 0
    holders = [model for model, sizes in core.ledger.holds.items() if sizes.get(name)]
    core.record(
        JournalEvent.DEVICE_GONE, "", "warning", device=name, held_bytes=core.ledger.held.get(name, 0), holders=holders
    )
    for model in list(core.models.values()):
        if _counts_on(model, name):
            _measure_again(core, model)


def _counts_on(model: Model, name: str) -> bool:
    return model.min is not None and any(row.name == name for row in list_device_rows(model.min))


def _misses(model: Model, name: str) -> bool:
    """Whether the model's figures were made without a device that it would use now."""
    settings = model.settings
    if settings is None or model.min is None or settings.devices or hides_devices(settings):
        return False
    return sees_device(settings, name) and not _counts_on(model, name)


def _measure_again(core: Core, model: Model) -> None:
    drop_measurement(core, model)
    queue_unmeasured(core, model)
