"""Events of the journal have one name each, and whoever logs uses it."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from llamactl.journal_events import JournalEvent
from llamactl.systemd.journal import format_entry

PACKAGE = Path(__file__).resolve().parents[2] / "llamactl"
LEVELS = {"debug", "info", "warning", "error", "exception", "critical"}


def list_calls(path: Path) -> Iterator[ast.Call]:
    """Calls that write a line: `log.info(...)`, `self._log.info(...)`, `core.record(...)`."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            owner = node.func.value
            name = owner.attr if isinstance(owner, ast.Attribute) else getattr(owner, "id", "")
            verb = node.func.attr
            if (verb in LEVELS and name in ("log", "_log")) or (verb == "record" and name == "core"):
                yield node


def list_names(path: Path) -> Iterator[tuple[str, ast.expr]]:
    """What each of these calls names its event, where it does so itself."""
    for call in list_calls(path):
        if call.args and not isinstance(call.args[0], ast.Name):
            yield f"{path.relative_to(PACKAGE)}:{call.lineno}", call.args[0]


def test_whoever_logs_takes_the_name_from_the_enum() -> None:
    named = [name for path in PACKAGE.rglob("*.py") for name in list_names(path)]
    assert len(named) > 60
    literal = [
        f"{where}: {part.value!r}"
        for where, event in named
        for part in ast.walk(event)
        if isinstance(part, ast.Constant) and isinstance(part.value, str)
    ]
    assert not literal


def test_no_event_is_listed_that_nobody_tells() -> None:
    text = "".join(path.read_text() for path in PACKAGE.rglob("*.py") if path.name != "journal_events.py")
    assert [event.name for event in JournalEvent if f"JournalEvent.{event.name}" not in text] == []


@pytest.mark.parametrize("event", JournalEvent)
def test_event_is_in_the_journal_under_its_name(event: JournalEvent) -> None:
    fields = format_entry({"event": event, "level": "info"})
    assert fields["LLAMACTL_EVENT"] == event.slug
    assert fields["MESSAGE"].startswith(event.value)


def test_events_have_different_names() -> None:
    assert len({event.slug for event in JournalEvent}) == len(JournalEvent)
