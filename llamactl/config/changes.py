"""Which settings of the machine are different after a reload, in the words of the file?

Only what differs, key by key, as `host_budget: 24 GiB -> 300 MiB`. A key that is not set shows as `unset`; margins of
single devices are told one by one.
"""

from llamactl.config.keys import Key
from llamactl.config.kinds import MARGINS
from llamactl.config.machine_keys import GLOBAL_KEYS
from llamactl.quantities import format_size
from llamactl.settings import GlobalSettings


def describe_changes(before: GlobalSettings, after: GlobalSettings) -> tuple[str, ...]:
    """One text for each key of `llamactl.toml` whose value is another one now."""
    changes: list[str] = []
    for key in GLOBAL_KEYS:
        old, new = getattr(before, key.field), getattr(after, key.field)
        if old == new:
            continue
        if isinstance(old, dict) and isinstance(new, dict):
            for name in sorted(old.keys() | new.keys()):
                if old.get(name) != new.get(name):
                    changes.append(f"{key.name}.{name}: {_show_size(old.get(name))} -> {_show_size(new.get(name))}")
        else:
            changes.append(f"{key.name}: {show_setting(key, old)} -> {show_setting(key, new)}")
    return tuple(changes)


def show_setting(key: Key, value: object) -> str:
    """As the documentation shows defaults, without its marks."""
    if key.kind is MARGINS and isinstance(value, dict):
        return ", ".join(f"{name} {_show_size(size)}" for name, size in sorted(value.items())) or "unset"
    return key.kind.format(value).strip("`").strip('"') or "unset"


def _show_size(size_bytes: int | None) -> str:
    return "unset" if size_bytes is None else format_size(size_bytes)
