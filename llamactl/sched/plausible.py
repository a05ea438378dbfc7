"""What may a child say of devices?

Instances and measure children read model files, and a file may have made one its own. Which devices there are, and how
large, is said by the child that lists them and reads no model: once that is known, a report of another device, or of
another size, changes nothing and has devices listed again. What a report says is free there cannot be more than there
is, nor can what it takes; and where it moves what others are thought to use by much, that is read again before it
decides about anybody's load. Devices behind RPC servers, which serve one client at a time, only their client sees.
"""

import msgspec

from llamactl.protocol.values import Breakdown, Row
from llamactl.sched.breakdowns import get_rpc_server, list_device_rows
from llamactl.sched.core import Core
from llamactl.sched.effects import ReadDevices

LISTING_S = 60.0
"""Devices are not listed sooner again because of what a child said."""
NOTABLE_SHARE = 16
"""A change of `external` by less than this part of a device is nothing that needs a look."""


def list_known_rows(core: Core, breakdown: Breakdown, now: float) -> list[Row]:
    """The rows of devices that there are, with figures that they can have; devices are listed again where it says
    otherwise.
    """
    rows = []
    for row in list_device_rows(breakdown):
        account = core.ledger.accounts.get(row.name)
        if not core.readings.is_listed or get_rpc_server(row.name):
            rows.append(row)
        elif account is None or not account.total or (row.total is not None and row.total != account.total):
            ask_listing(core, now)
        else:
            free = min(row.free, account.total) if row.free is not None else None
            rows.append(msgspec.structs.replace(row, free=free))
    return rows


def limit_charge(core: Core, sizes: dict[str, int]) -> dict[str, int]:
    """A charge of no more than each device has."""
    limits = {name: core.ledger.accounts[name].total for name in sizes if name in core.ledger.accounts}
    return {name: min(size, limits.get(name) or size) for name, size in sizes.items()}


def contradicts_listing(core: Core, rows: tuple[Row, ...], complete: bool) -> bool:
    """Whether a listing by a child that reads a model tells of other devices of this machine than are known."""
    named = {row.name: row for row in rows if not get_rpc_server(row.name)}
    known = {
        name: account for name, account in core.ledger.accounts.items() if account.total and not get_rpc_server(name)
    }
    there = {name for name, account in known.items() if account.present and not account.is_host}
    sizes_differ = any(
        row.total is not None and (name not in known or known[name].total != row.total or not known[name].present)
        for name, row in named.items()
    )
    return sizes_differ or (complete and not there <= named.keys())


def ask_listing(core: Core, now: float) -> None:
    """Have devices listed by a child that reads no model, unless that was just done."""
    readings = core.readings
    if readings.running or (readings.listed_s is not None and now - readings.listed_s < LISTING_S):
        return
    readings.running = True
    core.emit(ReadDevices(()))


def is_notable(core: Core, name: str, before: int) -> bool:
    """Whether `external` of a device has moved so far that it must be looked at before it decides anything."""
    account = core.ledger.accounts[name]
    return abs(account.external - before) * NOTABLE_SHARE > account.total
