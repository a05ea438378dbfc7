"""Is each rule held by a test? For each one a fault is made in a copy of `sched/`, and the tests must notice.

A fault is a piece of source and what stands there instead; a fault whose source is gone fails, so that the list
follows the code. Each copy runs few examples and a few seeds of the random world, which stop at the first complaint.
"""

import os
import shutil
import subprocess
import sys
from importlib.util import cache_from_source
from pathlib import Path
from typing import NamedTuple

import pytest

CHECKOUT = Path(__file__).resolve().parents[3]


class Fault(NamedTuple):
    rule: str
    file: str
    source: str
    instead: str
    tests: str
    """Files of tests/unit/sched, without test_, that hold the rule."""


FAULTS = (
    Fault("busy is no victim", "evict.py", "if candidate.busy:", "if False:", "evict"),
    Fault("pinned is no victim", "evict.py", "if candidate.pinned:", "if False:", "evict"),
    Fault("silent is no victim", "evict.py", "if candidate.silent:", "if False:", "evict"),
    Fault("wanted is no victim", "evict.py", "if candidate.wanted and", "if False and", "evict"),
    Fault("just loaded is no victim", "evict.py", "if candidate.fresh and", "if False and", "queue"),
    Fault(
        "a victim must help",
        "evict.py",
        "if slots_short or any(c.holds.get(name, 0) > 0 for name in short)}",
        "}",
        "evict",
    ),
    Fault(
        "least recently used goes first", "evict.py", "c.priority, c.last_used_s", "c.priority, -c.last_used_s", "evict"
    ),
    Fault(
        "lower priority goes first", "evict.py", "not c.goes_first, c.priority,", "not c.goes_first, 0,", "evict pins"
    ),
    Fault(
        "who is not needed is spared",
        "evict.py",
        "for candidate in reversed(list(victims)):",
        "for candidate in []:",
        "evict",
    ),
    Fault(
        "nothing is stopped in vain",
        "evict.py",
        "return plan(Outcome.WAIT, (), in_the_way or leaving_names)",
        "return plan(Outcome.EVICT, tuple(c.model for c in victims), in_the_way)",
        "evict",
    ),
    Fault(
        "the oldest request is drained first",
        "evict.py",
        "not c.busy, c.busy_since_s",
        "not c.busy, -c.busy_since_s",
        "evict queue",
    ),
    Fault(
        "a spawned load is charged at once",
        "admission.py",
        "core.ledger.charge(model.name, needs or {})",
        "core.ledger.charge(model.name, {})",
        "loads",
    ),
    Fault("an ended instance is charged nothing", "core.py", "self.ledger.release(model.name)", "pass", "loads"),
    Fault(
        "margins are kept",
        "ledger.py",
        "account.total - account.external - self.get_margin(name)",
        "account.total - account.external",
        "ledger",
    ),
    Fault(
        "a measure child uses nothing itself",
        "measuring.py",
        'core.ledger.calibrate(row, 0, ""',
        'core.ledger.calibrate(row, row.used, ""',
        "plan",
    ),
    Fault(
        "an unsettled device only raises",
        "ledger.py",
        "max(external, account.external) if only_raise else external",
        "external",
        "ledger",
    ),
    Fault(
        "max_loaded holds",
        "evict.py",
        "self._count + 1 - self._demand.max_loaded",
        "self._count - self._demand.max_loaded",
        "evict loads",
    ),
    Fault(
        "pins alone refuse",
        "admission.py",
        "_refuse(core, entry, explain.refuse_pinned(core, model, plan, needs))",
        "_wait(core, entry, (), 'pinned')",
        "loads pins",
    ),
    Fault("strict refuses", "admission.py", "if plan.hopeless and core.settings.strict:", "if False:", "loads"),
    Fault(
        "a request that leaves cancels its load",
        "leaving.py",
        "if entry is not None and not entry.is_wanted:",
        "if False:",
        "loads",
    ),
    Fault(
        "a queue has an end",
        "requests.py",
        "len(entry.leases) >= core.settings.max_queue:",
        "len(entry.leases) > core.settings.max_queue:",
        "loads",
    ),
    Fault(
        "all queues together have one",
        "requests.py",
        "core.queue.waiting >= core.settings.max_queue_total:",
        "core.queue.waiting > core.settings.max_queue_total:",
        "queue",
    ),
    Fault(
        "what fits goes on beside the head",
        "admission.py",
        "may_start = left is not None and",
        "may_start = False and left is not None and",
        "queue",
    ),
    Fault(
        "the head keeps what it needs",
        "admission.py",
        "size - ledger.held.get(name, 0) - needs.get(name, 0) for name, size in capacities.items()",
        "size - ledger.held.get(name, 0) for name, size in capacities.items()",
        "queue loads",
    ),
    Fault("max_wait drains", "admission.py", "if now < core.overdue_s:", "if True:", "queue loads"),
    Fault(
        "a fitting device is preferred",
        "placement.py",
        "return (0, bool(choice.conflicts)",
        "return (8, bool(choice.conflicts)",
        "placement",
    ),
    Fault(
        "the best fit wins",
        "placement.py",
        "not devices, choice.left, devices)",
        "not devices, -choice.left, devices)",
        "placement",
    ),
    Fault("least must go", "placement.py", "return (order, plan.frees,", "return (order, -plan.frees,", "placement"),
    Fault("pinned placement stays", "placement.py", "return not settings.devices and", "return True or", "placement"),
    Fault(
        "a sleeping model is charged its residue",
        "lifecycle.py",
        "core.charge(model.name, sum_per_account(event.effective))\n    instance.sleep_ordered",
        "instance.sleep_ordered",
        "sleep",
    ),
    Fault("waking reserves", "admission.py", "core.ledger.charge(model.name, charged)", "pass", "sleep"),
    Fault("a passive request wakes nobody", "requests.py", "if event.passive:", "if False:", "sleep"),
    Fault(
        "who sleeps has no lease",
        "lifecycle.py",
        "instance.leases.clear()\n    if not woken",
        "if not woken",
        "sleep recovery",
    ),
    Fault("keep_alive is kept", "scheduler.py", "if event.keep_alive_s is not None:", "if False:", "pins"),
    Fault(
        "a failed load backs off",
        "lifecycle.py",
        "model.retry_at_s = now + get_backoff_s(model.failures)",
        "model.retry_at_s = now",
        "failures shortage",
    ),
    Fault("lack of memory raises the need", "shortage.py", "model.learnt[name] = max(", "_ = max(", "shortage"),
    Fault("and is tried again once", "shortage.py", "or model.retried or", "or", "shortage"),
    Fault(
        "nothing is stopped before all is known",
        "admission.py",
        "if core.recovery is not None:\n                _wait",
        "if False:\n                _wait",
        "recovery",
    ),
    Fault(
        "each waiter is answered once",
        "queue.py",
        "self._waiters.pop(waiter, None)\n            self._on_remove()",
        "pass\n            self._on_remove()",
        "loads queue",
    ),
    Fault(
        "accounts that change are a reason to decide",
        "core.py",
        "Ledger(on_change=lambda: self.recheck(Scope.ALL))",
        "Ledger()",
        "sleep loads config devices",
    ),
    Fault(
        "a place in the queue that is given up is one too",
        "core.py",
        "LoadQueue(on_remove=lambda: self.recheck(Scope.ALL))",
        "LoadQueue()",
        "loads queue",
    ),
    Fault(
        "one measure child at a time",
        "measuring.py",
        "if queue.current or not queue.pending",
        "if not queue.pending",
        "config devices",
    ),
)


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The package and its tests, to be spoilt."""
    root = tmp_path_factory.mktemp("faults")
    hidden = shutil.ignore_patterns("__pycache__")
    shutil.copytree(CHECKOUT / "llamactl", root / "llamactl", ignore=hidden)
    shutil.copytree(CHECKOUT / "tests/unit/sched", root / "tests/unit/sched", ignore=hidden)
    (root / "tests/__init__.py").touch()
    return root


def run_tests(root: Path, tests: str) -> subprocess.CompletedProcess[str]:
    paths = [str(root / f"tests/unit/sched/test_{name}.py") for name in tests.split()]
    command = [sys.executable, "-m", "pytest", "-qx", "-p", "no:cacheprovider", "--rootdir", str(root)]
    environment = {**os.environ, "PYTHONPATH": str(root), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)  # what is not spoilt is compiled once
    return subprocess.run([*command, *paths], cwd=root, env=environment, capture_output=True, text=True, timeout=120)


def spoil(path: Path, text: str) -> None:
    """Python knows compiled files by second and size of their sources: two faults may have both in common."""
    path.write_text(text)
    Path(cache_from_source(str(path))).unlink(missing_ok=True)


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.rule)
def test_fault_is_noticed(copy: Path, fault: Fault) -> None:
    path = copy / "llamactl/sched" / fault.file
    sound = path.read_text()
    assert sound.count(fault.source) >= 1, f"{fault.file} has no {fault.source!r} any more"
    spoil(path, sound.replace(fault.source, fault.instead, 1))
    try:
        result = run_tests(copy, fault.tests)
    finally:
        spoil(path, sound)
    assert result.returncode == 1, f"nobody has noticed: {result.stdout[-2000:]}{result.stderr[-2000:]}"
    assert "SyntaxError" not in result.stdout


def test_the_copy_without_a_fault_passes(copy: Path) -> None:
    result = run_tests(copy, "evict placement")
    assert result.returncode == 0, result.stdout[-2000:]
