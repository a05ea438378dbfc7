"""`llamactl install`: how do the units and the default configuration get from the package to where systemd looks?

Units, sysusers.d and tmpfiles.d go below /usr/local/lib, systemd's place for software that no package manager owns:
/etc stays the administrator's, whose `systemctl edit` then survives each new install. Only the configuration goes to
/etc, and only where there is none. A manifest with checksums remembers what was written, so that `uninstall` removes
exactly that, and keeps a configuration that was edited.
"""

import argparse
import hashlib
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from llamactl.share import HIDDEN, find_share_dir, python_paths

MANIFEST = "lib/llamactl/manifest"
UNITS = (
    "llamactl.service",
    "llamactl-front.service",
    "llamactl-front.socket",
    "llamactl-front-tcp.socket",
    "llamactl-models.slice",
    "llamactl.slice",
)


PREFIXES = (Path("/usr/local"), Path("/usr"))
"""Below their lib/ systemd looks for units, and nowhere else (systemd.unit(5))."""
GROUPS = ("llamactl", "llamactl-admin", "llamactl-model")
STATE = (Path("/run/llamactl"), Path("/var/cache/llamactl"))
"""What running leaves behind: sockets, and measurements."""
DIRECTORY = "directory"
"""Instead of a checksum in the manifest: made by an install, and removed when it is empty."""


class InstallError(Exception):
    """Ends the command with its message."""


@dataclass(frozen=True)
class PlannedFile:
    """One file to write, or (with `link`) one symbolic link to make."""

    path: Path
    text: str = ""
    link: Path | None = None
    keep: bool = False
    """Whether a file that is there already stays as it is: the administrator's."""

    @property
    def checksum(self) -> str:
        return compute_checksum(str(self.link).encode() if self.link else self.text.encode())


def compute_checksum(content: bytes) -> str:
    """Compute the SHA-256 of a file's content, in hexadecimal."""
    return hashlib.sha256(content).hexdigest()


def quote_unit_value(value: str) -> str:
    """One word of a setting in a unit file: systemd's specifiers escaped, quoted where it holds anything special."""
    escaped = value.replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%")
    return escaped if re.fullmatch(r"[\w./+=@-]+", escaped, re.ASCII) else f'"{escaped}"'


def render_unit(template: str, python: Path, bind: Iterable[Path]) -> str:
    """Fill in what only the installation knows: the interpreter, and what of it hidden homes have to show."""
    program = quote_unit_value(str(python).replace("$", "$$"))  # ExecStart= alone expands variables
    binds = " ".join(quote_unit_value(str(path)) for path in bind)
    setting = f"BindReadOnlyPaths={binds}" if binds else "# (none: Python lies in no home)"
    return template.replace("@PYTHON@", program).replace("@BIND_PYTHON@", setting)


def plan_install(prefix: Path, python: Path, bind: list[Path]) -> list[PlannedFile]:
    """What an installation consists of, with final paths (without `--root`)."""
    units, etc = find_share_dir("units"), find_share_dir("etc")
    library = prefix / "lib"
    planned = []
    for kind, target in (("system", "systemd/system"), ("sysusers.d", "sysusers.d"), ("tmpfiles.d", "tmpfiles.d")):
        for source in sorted((units / kind).iterdir()):
            planned.append(PlannedFile(library / target / source.name, render_unit(source.read_text(), python, bind)))
    for source in sorted(path for path in etc.rglob("*") if path.is_file()):
        path = Path("/etc/llamactl") / source.relative_to(etc)
        planned.append(PlannedFile(path, source.read_text(), keep=True))
    command = python.parent / "llamactl"
    if command.parent not in (Path("/usr/bin"), prefix / "bin"):
        planned.append(PlannedFile(prefix / "bin" / "llamactl", link=command))
    return planned


def place(root: Path, path: Path) -> Path:
    """Name the place of an absolute `path` below another root directory."""
    return root / path.relative_to("/")


def write_file(root: Path, planned: PlannedFile) -> str:
    """Write one file and say so. The directories above are made; modes do not depend on the umask."""
    target = place(root, planned.path)
    if planned.keep and os.path.lexists(target):
        return f"kept      {planned.path}"
    for directory in reversed([parent for parent in target.parents if not parent.exists()]):
        directory.mkdir(mode=0o755)
        directory.chmod(0o755)
    if planned.link:
        if os.path.lexists(target) and not target.is_symlink():
            return f"left      {planned.path}: a file of someone else; llamactl is {planned.link}"
        target.unlink(missing_ok=True)
        target.symlink_to(planned.link)
        return f"linked    {planned.path} to {planned.link}"
    same = target.is_file() and target.read_text() == planned.text
    if not same:
        target.unlink(missing_ok=True)
        target.write_text(planned.text)
    target.chmod(0o644)
    return f"{'unchanged' if same else 'wrote    '} {planned.path}"


def is_live(root: Path) -> bool:
    """Whether we install into the running system, and systemd is its PID 1."""
    return root == Path("/") and Path("/run/systemd/system").is_dir()


def run_tool(*command: str) -> str:
    """Run a program of the system and describe that in a line. Raises InstallError where it fails."""
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        reason = done.stderr.strip() or f"exit status {done.returncode}"
        raise InstallError(f"cannot run '{' '.join(command)}': {reason}")
    return f"ran       {' '.join(command)}"


def install(root: Path = Path("/"), prefix: Path = Path("/usr/local"), python: Path | None = None) -> list[str]:
    """Install below `root`; one line for each thing done. Raises InstallError, OSError.

    With another root than / only files are written: groups, directories and daemon-reload are the target's own matter.
    """
    if root == Path("/") and prefix not in PREFIXES:
        raise InstallError(
            f"cannot install below {prefix}: systemd looks for units below {' and '.join(map(str, PREFIXES))} only; "
            "the program itself may lie anywhere, units name it by its path"
        )
    python = python or Path(sys.executable)
    planned = plan_install(prefix, python, python_paths())
    targets = [place(root, file.path) for file in planned] + [place(root, prefix / MANIFEST)]
    made = {parent for target in targets for parent in target.parents if not parent.exists()}
    lines = [write_file(root, file) for file in planned]
    ours = [file for file, line in zip(planned, lines, strict=True) if not line.startswith(("kept", "left"))]
    entries = {str(file.path): file.checksum for file in ours}
    manifest = prefix / MANIFEST
    entries |= {f"/{path.relative_to(root)}": DIRECTORY for path in made if path.is_relative_to(root) and path != root}
    # What an earlier install wrote and this one kept (a configuration) is still ours to remove while it is unedited.
    entries = {**read_manifest(place(root, manifest)), **entries}
    text = "".join(f"{checksum}  {path}\n" for path, checksum in sorted(entries.items()))
    lines.append(write_file(root, PlannedFile(manifest, text)))
    if root == Path("/"):
        for tool, kind in (("systemd-sysusers", "sysusers.d"), ("systemd-tmpfiles --create", "tmpfiles.d")):
            lines.append(run_tool(*tool.split(), str(prefix / "lib" / kind / "llamactl.conf")))
    if is_live(root):
        lines.append(run_tool("systemctl", "daemon-reload"))
    return [*lines, *describe_closed(python)]


def describe_closed(python: Path) -> list[str]:
    """What it means that others cannot enter where Python lies: the virtual environment, or, as pyenv and uv make them,
    the interpreter that it links to.
    """
    interpreter = python.resolve()
    own, others = find_closed_directory(python), find_closed_directory(interpreter)
    closed = own or others
    if closed is None:
        return []
    hidden = any(closed.is_relative_to(home) for home in HIDDEN)
    means = "units run all the same, but only root can run `llamactl`" if hidden else "no model can run"
    if own is not None:
        cure = "put the virtual environment where everyone can enter, as in /opt/llamactl"
        which = ""
    else:
        cure = "make the virtual environment with a Python that everyone can run, as /usr/bin/python3"
        which = f" (the virtual environment's Python is {interpreter})"
    return [f"note      {closed} is closed to other users{which}: {means}. For others, {cure}"]


def find_closed_directory(path: Path) -> Path | None:
    """The first directory on the way to a file that other users cannot enter."""
    for directory in reversed(path.parents):
        try:
            if not directory.stat().st_mode & 0o001:
                return directory
        except OSError:
            return None
    return None


def read_manifest(path: Path) -> dict[str, str]:
    """Read which files were installed: their checksums by name; none where nothing was."""
    if not path.is_file():
        return {}
    return {name: checksum for checksum, _, name in (line.partition("  ") for line in path.read_text().splitlines())}


def uninstall(root: Path = Path("/"), prefix: Path = Path("/usr/local")) -> list[str]:
    """Stop everything and remove what `install` wrote, except configuration that was edited. Raises InstallError."""
    manifest = place(root, prefix / MANIFEST)
    entries = read_manifest(manifest)
    if not entries:
        raise InstallError(f"cannot uninstall: there is no {prefix / MANIFEST}; nothing was installed with this prefix")
    lines = []
    if is_live(root):
        lines.append(run_tool("systemctl", "disable", "--quiet", "llamactl.service"))
        lines.append(run_tool("systemctl", "stop", *UNITS))
    directories = {place(root, Path(name)) for name, checksum in entries.items() if checksum == DIRECTORY}
    ours = directories.copy()
    for name, checksum in entries.items():
        if checksum == DIRECTORY:
            continue
        target = place(root, Path(name))
        if not os.path.lexists(target):
            continue
        content = os.readlink(target).encode() if target.is_symlink() else target.read_bytes()
        if compute_checksum(content) != checksum and name.startswith("/etc/"):
            lines.append(f"kept      {name}: edited since it was installed")
            continue
        target.unlink()
        directories.add(target.parent)
        lines.append(f"removed   {name}")
    manifest.unlink()
    directories.add(manifest.parent)
    for directory in sorted(directories, key=lambda path: len(path.parts), reverse=True):
        named = directory in ours or "llamactl" in str(directory.relative_to(root))
        if named and directory.is_dir() and not any(directory.iterdir()):
            directory.rmdir()
    for path in sorted(place(root, Path("/etc/llamactl/models.d")).glob("*")):
        lines.append(f"left      /{path.relative_to(root)}: not written by install")
    if root == Path("/"):
        for path in STATE:
            if path.is_dir():
                shutil.rmtree(path)
                lines.append(f"removed   {path}")
    if is_live(root):
        lines.append(run_tool("systemctl", "daemon-reload"))
        subprocess.run(("systemctl", "reset-failed", "llamactl*"), capture_output=True, check=False)
    if root == Path("/"):
        lines.append(f"left      groups {', '.join(GROUPS)}; remove them with groupdel")
    return lines


def run_install(args: argparse.Namespace) -> int:
    """The commands `install` and `uninstall`: print each line, return the exit status."""
    verb = "uninstall" if args.remove else "install"
    if args.root == Path("/") and os.geteuid() != 0:
        print(f"cannot {verb}: needs root; try: sudo {shutil.which('llamactl') or 'llamactl'} {verb}", file=sys.stderr)
        return 1
    try:
        lines = uninstall(args.root, args.prefix) if args.remove else install(args.root, args.prefix)
    except (InstallError, OSError) as error:
        print(error if isinstance(error, InstallError) else f"cannot {verb}: {error}", file=sys.stderr)
        return 1
    print("\n".join(lines))
    if not args.remove:
        print("start it with: systemctl start llamactl      at every boot: systemctl enable llamactl")
        print("a person who shall use it without sudo: usermod -aG llamactl-admin,systemd-journal USER")
        print(
            "(llamactl-admin for `llamactl`, systemd-journal for `llamactl logs`, llamactl for the Unix socket alone;"
        )
        print("none of the groups contains another one)")
    return 0


def add_parser(subparsers: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Register the two commands; each sets `run`, a function of the parsed arguments that returns the exit status."""
    for verb, text in (
        ("install", "write units, groups and a default configuration to where systemd looks"),
        ("uninstall", "stop everything and remove what install wrote"),
    ):
        parser = subparsers.add_parser(verb, help=text, description=text)
        parser.add_argument("--root", type=Path, default=Path("/"), help="write below this directory, run nothing")
        parser.add_argument("--prefix", type=Path, default=Path("/usr/local"), help="default: %(default)s")
        parser.set_defaults(run=run_install, remove=verb == "uninstall")
