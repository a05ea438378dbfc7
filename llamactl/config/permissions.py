"""Would an instance be able to read its files, and are they models at all?

Instances run as users that exist only while they run, so "others" (or the instances' group) must be able to enter
each directory on the way and to read the file; root, who runs this, never notices. Permissions are therefore computed
from modes and ACLs, not tried. A unit sees homes and temporary directories empty, with the model's directory bound
into them: systemd makes the way, and modes above what is bound do not matter there. Symlinks were resolved before: an
instance gets real paths only, so the way to a link does not matter but the way to its target does.
"""

import errno
import grp
import os
import re
import shlex
import stat
import struct
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from llamactl.child.properties import MODEL_GROUP, choose_read_only
from llamactl.config.companions import PROJECTOR_ARCHITECTURE, Fit, Kind, describe_need, judge
from llamactl.config.gguf import BEGINNING_BYTES, find_fault, judge_beginning, open_regular
from llamactl.config.heads import acquire_heads
from llamactl.config.read import describe_os_error
from llamactl.config.toml_tables import Place, format_key, place_model
from llamactl.paths import Paths
from llamactl.settings import Config, ModelSettings, Problem, list_named_files
from llamactl.share import HOMES
from llamactl.systemd.host import acquire_gpu_groups

REPLACED = (*HOMES, Path("/tmp"), Path("/var/tmp"))
"""What a unit sees empty: ProtectHome=tmpfs, PrivateTmp=."""

_ACL = "system.posix_acl_access"
_ACL_GROUP_OBJ, _ACL_GROUP, _ACL_MASK, _ACL_OTHER = 0x04, 0x08, 0x10, 0x20
_SECRET = re.compile(r"TOKEN|SECRET|PASSWO?R?D|API_?KEY|CREDENTIAL", re.IGNORECASE)
_READ, _ENTER = 4, 1
_AS_ROOT = "check as root"


@dataclass(frozen=True)
class Reader:
    """Who has to read the files. `uid` None: a dynamic user, which owns nothing."""

    uid: int | None = None
    gids: frozenset[int] = frozenset()

    def may(self, want: int, status: os.stat_result, acl: bytes = b"") -> bool:
        """Whether the mode bits, or the ACL that stands behind them, grant `want` (4 read, 1 enter)."""
        if self.uid == 0:
            return True
        if self.uid is not None and self.uid == status.st_uid:
            return bool(status.st_mode >> 6 & want)
        entries = parse_acl(acl)
        if not entries:
            return bool(status.st_mode >> (3 if status.st_gid in self.gids else 0) & want)
        mask = next((perm for tag, perm, _ in entries if tag == _ACL_MASK), 7)
        groups = [
            perm
            for tag, perm, gid in entries
            if (tag == _ACL_GROUP_OBJ and status.st_gid in self.gids) or (tag == _ACL_GROUP and gid in self.gids)
        ]
        if groups:
            return any(perm & mask & want for perm in groups)
        return any(perm & want for tag, perm, _ in entries if tag == _ACL_OTHER)


def parse_acl(data: bytes) -> list[tuple[int, int, int]]:
    """Entries (tag, permissions, id) of a `system.posix_acl_access` attribute: acl(5), linux/posix_acl_xattr.h."""
    if len(data) < 4 or (len(data) - 4) % 8:
        return []
    return list(struct.iter_unpack("<HHI", data[4:]))


def acquire_acl(path: str) -> bytes:
    """The ACL attribute of a file; empty where there is none or file systems have none."""
    try:
        return os.getxattr(path, _ACL)
    except OSError:
        return b""


def acquire_reader(paths: Paths) -> Reader:
    """The user that instances of this llamactl run as: ourselves in user mode, else a dynamic user in the instances'
    group.
    """
    if paths.runtime_dir.is_relative_to("/run/user"):
        return Reader(os.geteuid(), frozenset({os.getegid(), *os.getgroups()}))
    gids = set()
    for name in (MODEL_GROUP, *acquire_gpu_groups()):
        with suppress(KeyError):
            gids.add(grp.getgrnam(name).gr_gid)
    return Reader(None, frozenset(gids))


@dataclass
class _Blocks:
    """What stands in the way, told once although it may concern many models."""

    hint: str
    message: str
    models: list[tuple[ModelSettings, str]] = field(default_factory=list)


def check_config(
    paths: Paths,
    config: Config,
    *,
    reader: Reader | None = None,
    top: Path = Path("/"),
    replaced: tuple[Path, ...] = REPLACED,
    acl: Callable[[str], bytes] = acquire_acl,
) -> list[Problem]:
    """What is wrong outside of the configuration files. Directories above `top` are taken to be passable."""
    who = reader or acquire_reader(paths)
    hidden = replaced if who.uid is None else ()
    blocks: dict[str, _Blocks] = {}
    problems: list[Problem] = []
    heads: dict[str, str] = {}
    for model in config.models.values():
        bound = [Path(path) for path in choose_read_only(model, ())]
        for key, path in list_named_files(model):
            way = list_directories(Path(path), top, hidden, bound)
            for blocked, message, hint in find_blocks(path, way, who, acl):
                blocks.setdefault(blocked, _Blocks(hint, message)).models.append((model, key))
            if path not in heads:
                heads[path] = inspect_file(path)
            if heads[path]:
                problems.append(place_model(model).report(f"cannot use {path!r}: {heads[path]}", key))
        if not any(heads[path] for _, path in list_named_files(model)):
            problems += _find_misfits(model)
        problems += _find_secrets(model)
    return [_report_block(block) for block in blocks.values()] + problems


def explain_unreadable(
    paths: Paths,
    model: ModelSettings,
    *,
    reader: Reader | None = None,
    top: Path = Path("/"),
    replaced: tuple[Path, ...] = REPLACED,
    acl: Callable[[str], bytes] = acquire_acl,
) -> str:
    """Why an instance may not read one of its model's files, with the cure; empty when it may, or nobody can say."""
    who = reader or acquire_reader(paths)
    bound = [Path(path) for path in choose_read_only(model, ())]
    for _, path in list_named_files(model):
        way = list_directories(Path(path), top, replaced if who.uid is None else (), bound)
        for _, message, hint in find_blocks(path, way, who, acl):
            if hint != _AS_ROOT:
                return f"{message}; {hint}"
    return ""


def find_blocks(
    path: str, way: Sequence[Path], reader: Reader, acl: Callable[[str], bytes]
) -> Iterator[tuple[str, str, str]]:
    """(path, what is wrong with it, cure) for each directory that cannot be entered on the way to a file, and for the
    file.
    """
    for directory in way:
        try:
            status = os.stat(directory)
        except OSError as error:
            yield str(directory), f"cannot look at {str(directory)!r}: {describe_os_error(error)}", _AS_ROOT
            return
        if not reader.may(_ENTER, status, acl(str(directory))):
            yield str(directory), f"cannot be entered by models: {_describe(directory, status)}", _cure("x", directory)
    try:
        status = os.stat(path)
    except OSError as error:
        yield path, f"cannot look at {path!r}: {describe_os_error(error)}", _AS_ROOT
        return
    if not reader.may(_READ, status, acl(path)):
        yield path, f"cannot be read by models: {_describe(path, status)}", _cure("r", path)


def list_directories(path: Path, top: Path, hidden: Sequence[Path], bound: Sequence[Path]) -> list[Path]:
    """The directories whose modes decide whether a unit reaches a file, from above. `bound`: what is bound into the
    unit.
    """
    parents = [parent for parent in reversed(path.parents) if parent.is_relative_to(top)]
    if any(path.is_relative_to(home) for home in hidden):
        return [parent for parent in parents if any(parent.is_relative_to(start) for start in bound)]
    return parents


def inspect_file(path: str) -> str:
    """Why a file is no GGUF file, or not a whole one; empty when it is one, or when it cannot be opened (which others
    report).
    """
    try:
        with open_regular(path) as file:
            head = file.read(BEGINNING_BYTES)
    except OSError as error:
        return "it is no regular file" if error.errno == errno.EINVAL else ""
    foreign = judge_beginning(head)
    if not foreign:
        with suppress(OSError, ValueError):  # ValueError: there is no way to map it
            return find_fault(Path(path))
    return foreign


def _describe(path: Path | str, status: os.stat_result) -> str:
    return f"{str(path)!r} has mode {stat.S_IMODE(status.st_mode):04o} and they run as other users"


def _cure(bit: str, path: Path | str) -> str:
    where = shlex.quote(str(path))
    return f"run `chmod o+{bit} {where}`, or `setfacl -m g:{MODEL_GROUP}:{bit} {where}`"


def _report_block(block: _Blocks) -> Problem:
    model, key = block.models[0]
    others = list(dict.fromkeys(other.name for other, _ in block.models if other.name != model.name))
    message = block.message
    if others:
        more = f" and {len(others) - 3} more" if len(others) > 3 else ""
        message += f" (also for {', '.join(others[:3])}{more})"
    return place_model(model).report(message, key, block.hint)


def _find_misfits(model: ModelSettings) -> list[Problem]:
    """A model that is a projector, and companions whose heads say that they are not for this model."""
    place = place_model(model)
    own = acquire_heads([model.path])[model.path]
    if own is not None and own.architecture == PROJECTOR_ARCHITECTURE:
        message = f"cannot use {model.path!r}: it is a multimodal projector, not a model"
        return [place.report(message, "path", "set it as mmproj of the model that it is for")]
    found = []
    for kind, path in ((Kind.MMPROJ, model.mmproj), (Kind.DRAFT, model.draft)):
        companion = acquire_heads([path])[path] if path else None
        if judge(kind, companion, own) is Fit.NO and companion is not None:
            message = f"{path!r} does not fit this model: {describe_need(kind, companion)}"
            found.append(place.report(message, str(kind), fatal=False))
    return found


def _find_secrets(model: ModelSettings) -> list[Problem]:
    hint = "give secrets by LoadCredential= in a drop-in of the unit"
    place = Place(model.source, f"models.{format_key(model.name)}.env", model.name)
    return [
        place.report(
            f"{name} looks like a secret, and any local user can read the environment of units", name, hint, fatal=False
        )
        for name in model.env
        if _SECRET.search(name)
    ]
