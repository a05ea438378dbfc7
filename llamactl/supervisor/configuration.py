"""Which configuration is in force, and what was different after each read of it?

It is read in a thread, since a file system may hang, and replaces the one before as a whole. What cannot be read now
stays as it was: a file half written takes no model away.
"""

import asyncio
from collections.abc import Collection, Iterable

import msgspec

from llamactl.config.changes import describe_changes
from llamactl.config.gguf import Head
from llamactl.config.heads import FileCache, ask_faults, ask_heads
from llamactl.config.limits import find_unenforced
from llamactl.config.load import load_config
from llamactl.controllers import acquire_controllers
from llamactl.journal_events import JournalEvent
from llamactl.paths import Paths
from llamactl.protocol.control_socket import ReloadResult
from llamactl.settings import Config, FrontSettings, ModelSettings
from llamactl.systemd.journal import get_logger

_UNUSABLE = "what the file says cannot be used, and there is no value from before; the default holds"

_log = get_logger()


class Configuration:
    """The configuration that is in force."""

    def __init__(self, paths: Paths) -> None:
        self._paths = paths
        self._heads = FileCache[Head | None](ask_heads)
        self._faults = FileCache[str](ask_faults)
        self._controllers = acquire_controllers()
        self._has_read = False
        self.current = Config()

    async def read(self) -> None:
        """Read all of it, for the first time or again, and log what is wrong."""
        before = self.current if self._has_read else None
        self.current = await asyncio.to_thread(load_config, self._paths, before, self._heads, self._faults)
        self._has_read = True
        for problem in self.current.problems:
            _log.warning(
                JournalEvent.CONFIGURATION_PROBLEM,
                file=problem.file,
                where=problem.where,
                model=problem.model,
                reason=problem.message,
            )
        for name in self.current.unusable:
            _log.warning(JournalEvent.SETTING_NOT_IN_FORCE, key=name, reason=_UNUSABLE)
        for problem in find_unenforced(self.current, self._controllers):
            _log.warning(JournalEvent.LIMIT_NOT_ENFORCED, model=problem.model, reason=problem.message)

    def keep_hidden(self, found: Iterable[ModelSettings]) -> None:
        """A model that runs and may stand in a file that cannot be read is configured as it was started."""
        hidden = {settings.name: settings for settings in found if self.current.may_hide(settings)}
        self.current = msgspec.structs.replace(self.current, models=self.current.models | hidden)

    def make_front_settings(self) -> FrontSettings:
        """What a front is told."""
        settings = self.current.settings
        return FrontSettings(**{name: getattr(settings, name) for name in FrontSettings.__struct_fields__})

    def list_problems(self) -> tuple[str, ...]:
        """What is wrong, what it means for the machine first."""
        file = self._paths.config_file
        vain = [f"{file}: {name} is NOT IN FORCE: {_UNUSABLE}" for name in self.current.unusable]
        return (*vain, *(str(problem) for problem in self.current.problems), *self.list_unenforced())

    def list_unenforced(self) -> tuple[str, ...]:
        """Limits that this machine cannot apply."""
        return tuple(str(problem) for problem in find_unenforced(self.current, self._controllers))


def describe_reload(
    before: Config,
    after: Config,
    files_before: dict[str, str],
    files_after: dict[str, str],
    running: Collection[str],
    unenforced: tuple[str, ...] = (),
) -> ReloadResult:
    """What a read changed. The files are those that each model was and is known to have; `running`: which run.

    A model with a mistake is there all the same: it is neither removed nor, without the mistake, added.
    """
    known_before, known_after = before.models | before.invalid, after.models | after.invalid
    invalid = tuple(name for name in after.invalid if name not in before.invalid)
    return ReloadResult(
        id=0,
        added=tuple(name for name in after.models if name not in known_before),
        removed=tuple(name for name in known_before if name not in known_after),
        changed=tuple(
            name for name in after.models if before.models.get(name, after.models[name]) != after.models[name]
        ),
        replaced=tuple(
            name for name in after.models if files_before.get(name) and files_before[name] != files_after.get(name)
        ),
        settings=describe_changes(before.settings, after.settings),
        found={found.path: found.places for found in after.found if found not in before.found},
        invalid=invalid,
        kept=tuple(name for name in invalid if name in running),
        mended=tuple(name for name in after.models if name in before.invalid),
        problems=(*(str(problem) for problem in after.problems), *unenforced),
        fatal=sum(problem.fatal for problem in after.problems),
    )


def log_reload(config: Config, result: ReloadResult) -> None:
    """The journal's line of a reload."""
    _log.info(
        JournalEvent.CONFIGURATION_RELOADED,
        models=len(config.models),
        added=list(result.added),
        removed=list(result.removed),
        changed=list(result.changed),
        replaced=list(result.replaced),
        settings=list(result.settings),
        invalid=list(result.invalid),
        kept=list(result.kept),
        mended=list(result.mended),
        problems=len(result.problems),
    )
