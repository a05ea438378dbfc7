"""Who holds how many bytes where, and how much may still be promised?

One account per device: what it has in all, what each instance is charged, and `external`, which is what others use.
Nobody tells us `external`; it follows from each report as max(0, total - free - self - held by the others). `self` is
what the reporter itself uses, and 0 for a measure child: it allocates nothing, so `free` does not contain it, and
subtracting its figures would hide other programs' memory. While another instance on the device loads or stops, its
charge and its allocation differ, so that a report may only raise `external`. The host has an account too, with up to
two limits: the kernel's figure less a margin, and a budget for all instances together.
"""

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass

from llamactl.protocol.descriptions import DeviceStatus
from llamactl.protocol.values import Row
from llamactl.sched.breakdowns import HOST
from llamactl.settings import GlobalSettings


@dataclass
class Account:
    """One device, or the host as the kernel sees it. `total` 0: not known, and so no limit."""

    name: str
    description: str = ""
    total: int = 0
    external: int = 0
    present: bool = True
    """False: the device is gone, and nothing can be promised on it."""

    @property
    def is_host(self) -> bool:
        """It is no device."""
        return self.name == HOST


class Ledger:
    """The accounts. Everything in bytes. `on_change` is called when what may be promised has changed."""

    def __init__(self, on_change: Callable[[], None] = lambda: None) -> None:
        self._on_change = on_change
        self.settings = GlobalSettings()
        self.accounts: dict[str, Account] = {}
        self.holds: dict[str, dict[str, int]] = {}
        """Model -> account -> bytes that its instance is charged."""
        self.held: dict[str, int] = {}
        """Account -> sum over the models."""

    # --- charges ---

    def charge(self, model: str, sizes: Mapping[str, int]) -> None:
        """What the model's instance is charged from now on, in place of what it was charged before."""
        self.release(model)
        self.holds[model] = dict(sizes)
        for name, size in sizes.items():
            self.held[name] = self.held.get(name, 0) + size
        self._on_change()

    def release(self, model: str) -> None:
        """The model's instance is charged nothing any more."""
        for name, size in self.holds.pop(model, {}).items():
            self.held[name] -= size
            if not self.held[name]:
                del self.held[name]
        self._on_change()

    def get_hold(self, model: str, name: str) -> int:
        """Bytes that the model is charged on this account; 0 where it is not."""
        return self.holds.get(model, {}).get(name, 0)

    def drop_unused(self) -> None:
        """Close the accounts of devices that are gone and that nobody is charged for."""
        for name, account in list(self.accounts.items()):
            if not account.present and not self.held.get(name):
                del self.accounts[name]

    # --- what there is ---

    def learn_devices(self, rows: Iterable[Row]) -> None:
        """Open an account for each device that was never seen. Changes nothing of those that have a total."""
        for row in rows:
            account = self.accounts.setdefault(row.name, Account(row.name, row.description))
            account.description = row.description or account.description
            if not account.total and row.total:
                account.total = row.total

    def calibrate(self, row: Row, self_bytes: int, reporter: str, only_raise: bool) -> bool:
        """Learn a device's `total` and `external` from one row of a report. `reporter` names the instance that reports;
        for a measure child it is empty and `self_bytes` is 0. False: the row has no figures to learn from.
        """
        if row.total is None or row.free is None or row.total <= 0:
            return False
        account = self.accounts.setdefault(row.name, Account(row.name, row.description))
        account.total = row.total
        others = self.held.get(row.name, 0) - (self.get_hold(reporter, row.name) if reporter else 0)
        external = max(0, row.total - row.free - self_bytes - others)
        account.external = max(external, account.external) if only_raise else external
        self._on_change()
        return True

    def read_host(self, total: int, available: int, only_raise: bool) -> None:
        """The kernel's figures for the host: like the report of a child that uses nothing itself."""
        account = self.accounts.setdefault(HOST, Account(HOST, "host memory"))
        before = self.get_capacity(HOST)
        account.total = total
        external = max(0, total - available - self.held.get(HOST, 0))
        account.external = max(external, account.external) if only_raise else external
        if self.get_capacity(HOST) != before:
            self._on_change()

    def discount(self, name: str, size: int) -> None:
        """`size` bytes that were taken for `external` turned out to be an instance's own."""
        account = self.accounts.get(name)
        if account is not None:
            account.external = max(0, account.external - size)

    # --- what may be promised ---

    def get_margin(self, name: str) -> int:
        """Bytes that must stay free on a device."""
        if name == HOST:
            return self.settings.host_margin_bytes or 0
        return self.settings.margins_bytes.get(name, self.settings.margin_bytes)

    def get_capacity(self, name: str) -> int | None:
        """What our instances together may hold here: total less external and margin, or the host's budget. None: no
        limit is known.
        """
        account = self.accounts.get(name)
        if account is not None and not account.present:
            return 0
        limits: list[int] = []
        if account is not None and account.total and (name != HOST or self.settings.host_margin_bytes is not None):
            limits.append(account.total - account.external - self.get_margin(name))
        if name == HOST and self.settings.host_budget_bytes is not None:
            limits.append(self.settings.host_budget_bytes)
        return min(limits) if limits else None

    def list_capacities(self, names: Collection[str]) -> dict[str, int]:
        """Capacities of those accounts that have a limit."""
        capacities = {name: self.get_capacity(name) for name in names}
        return {name: capacity for name, capacity in capacities.items() if capacity is not None}

    def format_status(self) -> tuple[DeviceStatus, ...]:
        """All accounts, devices first, as `llamactl status` shows them."""
        names = sorted(name for name in self.accounts if name != HOST)
        if HOST in self.accounts or HOST in self.held or self.settings.host_budget_bytes is not None:
            names.append(HOST)
        return tuple(self._format_account(name) for name in names)

    def _format_account(self, name: str) -> DeviceStatus:
        account = self.accounts.get(name, Account(name, "host memory"))
        total, external, margin = account.total, account.external, self.get_margin(name)
        capacity, budget = self.get_capacity(name), self.settings.host_budget_bytes
        if name == HOST and budget is not None and capacity == budget:
            # The budget is what binds: it is exact, and nobody else's memory counts against it.
            total, external, margin = budget, 0, 0
        held = self.held.get(name, 0)
        return DeviceStatus(
            name=name,
            description=account.description if account.present else f"{account.description} (gone)".lstrip(),
            total=total,
            external=external,
            held=held,
            available=max(0, total - external - held) if account.present else 0,
            margin=margin,
            holders={model: sizes[name] for model, sizes in sorted(self.holds.items()) if sizes.get(name)},
        )
