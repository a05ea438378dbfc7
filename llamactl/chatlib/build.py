"""How is the chat layer's library built? From the sources of llama.cpp that the sdist of the installed llama-cpp-python
holds, whose headers are those of the libllama that is here.

It takes what it needs of them into itself (recipe.py): one way for wheels that were compiled here and for ready-made
ones, which ship neither these headers nor, once repaired, libraries under their own names. What was built is kept, and
is put in place only after it has worked in a process of its own: C++ against wrong headers fails by crashing.
"""

import fcntl
import hashlib
import os
import platform
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from llamactl.chatlib import recipe
from llamactl.chatlib.place import DISTRIBUTION, LIBRARY, SOURCES, compute_source_id, find_llama_cpp, place_library

CHECK_MODULE = "llamactl.instance.chat.check"
CHECK_TIMEOUT_S = 120
_TAIL_LINES = 12
_WANTED = ("common/", "include/", "ggml/include/", "vendor/nlohmann/", "vendor/sheredom/", "CMakeLists.txt")
_VERSION_PART = re.compile(r"set\(LLAMA_VERSION_(MAJOR|MINOR|PATCH)\s+(\d+)\)")
_IS_RELEASE = re.compile(r"option\(LLAMA_BUILD_IS_DEV\s+\"[^\"]*\"\s+OFF\)")

Say = Callable[[str], None]
"""Takes one line for each thing that is done."""
Show = Callable[[int, int], None]
"""Takes how many files of how many are compiled."""


class BuildError(Exception):
    """Ends the command with its message: what is missing, and what to do."""


@dataclass(frozen=True)
class Wanted:
    """Which library, and where."""

    version: str
    """Of llama-cpp-python."""
    target: Path
    cache: Path

    @property
    def sdist(self) -> Path:
        """The sources, where somebody wants to keep them."""
        return self.cache / "sdists" / f"llama_cpp_python-{self.version}.tar.gz"

    @property
    def downloaded(self) -> Path:
        """The sources, until the library is there."""
        return self.cache / "chat" / self.sdist.name

    @property
    def kept(self) -> Path:
        """What was built before."""
        key = f"{self.version} {compute_source_id()} {platform.machine()} {platform.libc_ver()}"
        return self.cache / "chat" / hashlib.sha256(key.encode()).hexdigest()[:12] / LIBRARY


def find_cache() -> Path:
    """Name the directory in which the chat layer is built: in the user's cache, which need not exist yet."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "llamactl"


def find_wanted(cache: Path) -> Wanted:
    """Raises BuildError."""
    from importlib import metadata

    package = find_llama_cpp()
    if package is None:
        raise BuildError(
            f"cannot build llama.cpp's chat layer: {sys.executable} has no llama_cpp; install {DISTRIBUTION}"
        )
    try:
        version = metadata.version(DISTRIBUTION)
    except metadata.PackageNotFoundError:
        raise BuildError(
            f"cannot build llama.cpp's chat layer: {package} says no version; install {DISTRIBUTION} with pip"
        ) from None
    return Wanted(version, place_library(package), cache)


def set_up(wanted: Wanted, say: Say, show: Show, sdist: Path | None = None) -> None:
    """The library is in place, and works. `sdist`: a file that is used instead of a download. Raises BuildError,
    OSError.
    """
    there = f"llama.cpp's chat layer for {DISTRIBUTION} {wanted.version} is there: {wanted.target}"
    if _is_there(wanted):  # asked first: the cache may be one that can only be read
        say(there)
        return
    with _lock(wanted.cache):
        if _is_there(wanted):
            say(there)
            return
        _check_writable(wanted.target)
        if not wanted.kept.exists() or _find_fault(wanted.kept):
            _build(wanted, say, show, sdist)
        _copy(wanted.kept, wanted.target)
        say(f"installed {wanted.target}")


def _is_there(wanted: Wanted) -> bool:
    return wanted.target.exists() and not _find_fault(wanted.target)


def acquire_sdist(wanted: Wanted, say: Say) -> Path:
    """Downloaded by pip, once. Raises BuildError."""
    for found in (wanted.sdist, wanted.downloaded):
        if found.exists():
            return found
    target = wanted.downloaded
    target.parent.mkdir(parents=True, exist_ok=True)
    say(f"downloading the sources of {DISTRIBUTION} {wanted.version} (75 MB)")
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", "download", "--quiet", "--no-deps"]
    with tempfile.TemporaryDirectory(dir=target.parent) as directory:
        command += ["--no-binary", DISTRIBUTION, "--dest", directory, f"{DISTRIBUTION}=={wanted.version}"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        archives = list(Path(directory).glob("*.tar.gz"))
        if done.returncode != 0 or not archives:
            raise BuildError(
                f"cannot download the sources of {DISTRIBUTION} {wanted.version}: {_cut_tail(done.stderr, 3)}; "
                f"without a network: give llama_cpp_python-{wanted.version}.tar.gz of PyPI with --sdist FILE"
            )
        archives[0].replace(target)
    return target


def keep_sdist(wanted: Wanted, say: Say) -> None:
    """For good. Raises BuildError."""
    found = acquire_sdist(wanted, say)
    if found != wanted.sdist:
        wanted.sdist.parent.mkdir(parents=True, exist_ok=True)
        found.replace(wanted.sdist)


def find_compiler() -> list[str]:
    """Raises BuildError."""
    asked = os.environ.get("CXX", "").split()
    for command in [asked] if asked else [["g++"], ["c++"], ["clang++"]]:
        if shutil.which(command[0]):
            return command
    what = f"CXX={asked[0]} is not there" if asked else "there is no C++ compiler; install g++ (apt-get install g++)"
    raise BuildError(f"cannot build llama.cpp's chat layer: {what}")


def extract_sources(sdist: Path, into: Path) -> Path:
    """What is needed of llama.cpp's; its root. Raises BuildError."""
    try:
        with tarfile.open(sdist) as archive:
            for member in archive:
                _, found, name = member.name.partition("/vendor/llama.cpp/")
                if (
                    not found
                    or not member.isfile()
                    or not name.startswith(_WANTED)
                    or ".." in PurePosixPath(name).parts
                ):
                    continue
                target = into / name
                target.parent.mkdir(parents=True, exist_ok=True)
                content = archive.extractfile(member)
                assert content is not None
                with content, target.open("wb") as file:
                    shutil.copyfileobj(content, file)
    except (tarfile.TarError, EOFError) as error:
        raise BuildError(f"cannot read {sdist}: {error}; remove it and run the command again") from None
    if not (into / "common" / "chat.h").is_file():
        raise BuildError(f"cannot use {sdist}: it has no llama.cpp with a chat layer")
    return into


def read_llama_version(root: Path) -> str:
    """As the function llama_version() of a library built from these sources says it."""
    text = (root / "CMakeLists.txt").read_text(errors="replace")
    parts = dict(_VERSION_PART.findall(text))
    version = ".".join(parts.get(name, "0") for name in ("MAJOR", "MINOR", "PATCH"))
    return version if _IS_RELEASE.search(text) else f"{version}-dev"


# --- steps ------------------------------------------------------------------------------------------------------------


def _build(wanted: Wanted, say: Say, show: Show, sdist: Path | None) -> None:
    compiler = find_compiler()
    archive = sdist or acquire_sdist(wanted, say)
    if not archive.is_file():
        raise BuildError(f"cannot build llama.cpp's chat layer: {archive} is no file")
    wanted.kept.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="llamactl-chat-") as directory:
        root = extract_sources(archive, Path(directory) / "llama.cpp")
        try:
            sources = [*recipe.list_sources(root), *(SOURCES / name for name in recipe.OURS)]
        except FileNotFoundError as error:
            raise BuildError(
                f"cannot build llama.cpp's chat layer: {archive} has no {error}: {DISTRIBUTION} {wanted.version} is "
                "none that this llamactl knows"
            ) from None
        library = Path(directory) / LIBRARY
        say(f"compiling llama.cpp's chat layer ({len(sources)} files, 2 minutes of one CPU)")
        defines = _format_defines(wanted.version, read_llama_version(root))
        _compile(compiler, root, sources, library, defines, show)
        fault = _find_fault(library)
        if fault:
            raise BuildError(f"cannot use llama.cpp's chat layer as it was built: {fault}")
        _copy(library, wanted.kept)


def _format_defines(version: str, llama_version: str) -> list[str]:
    values = {
        "LLAMACTL_LLAMA_CPP_PYTHON": version,
        "LLAMACTL_LLAMA_CPP": llama_version,
        "LLAMACTL_SOURCE": compute_source_id(),
    }
    return [f'-D{name}="{value}"' for name, value in values.items()]


def _compile(
    compiler: list[str], root: Path, sources: list[Path], library: Path, defines: list[str], show: Show
) -> None:
    options = [*recipe.COMPILE, *(f"-I{root / name}" for name in recipe.INCLUDES), *defines]
    objects = [library.with_name(f"{index}.o") for index in range(len(sources))]

    def compile_one(source: Path, target: Path) -> None:
        _run([*compiler, *options, "-c", str(source), "-o", str(target)], source.name)

    # The longest first, so that no CPU waits for the last one alone.
    order = sorted(zip(sources, objects, strict=True), key=lambda pair: -pair[0].stat().st_size)
    n_jobs = len(os.sched_getaffinity(0))
    with ThreadPoolExecutor(n_jobs) as pool:
        waiting = {pool.submit(compile_one, *pair) for pair in order}
        try:
            while waiting:
                show(len(sources) - len(waiting), len(sources))
                done, waiting = wait(waiting, return_when=FIRST_COMPLETED)
                for future in done:
                    future.result()
        finally:
            pool.shutdown(wait=True, cancel_futures=True)
    show(len(sources), len(sources))
    _run([*compiler, *recipe.LINK, *map(str, objects), "-o", str(library), "-ldl"], LIBRARY)


def _run(command: list[str], what: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        reason = _cut_tail(done.stderr, _TAIL_LINES) or f"{command[0]} ended with {done.returncode}"
        raise BuildError(f"cannot build llama.cpp's chat layer: {what} does not compile:\n{reason}")


def _find_fault(library: Path) -> str:
    """Why a process of its own cannot use the library; empty: it can."""
    command = [sys.executable, "-P", "-m", CHECK_MODULE, str(library)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=CHECK_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        return f"its check takes more than {CHECK_TIMEOUT_S} s"
    if done.returncode < 0:
        return f"its check was ended by signal {-done.returncode}"
    return "" if done.returncode == 0 else _cut_tail(done.stderr, 3) or f"its check ended with {done.returncode}"


def _check_writable(target: Path) -> None:
    directory = target.parent if target.parent.exists() else target.parent.parent
    if not os.access(directory, os.W_OK | os.X_OK):
        raise BuildError(f"cannot write {target}: run this as the owner of {directory}, mostly root")


def _copy(source: Path, target: Path) -> None:
    """Whole or not at all, and readable by the users that models run as, whatever the umask."""
    if not target.parent.exists():
        target.parent.mkdir(parents=True)
        target.parent.chmod(0o755)
    with tempfile.NamedTemporaryFile(dir=target.parent, prefix=".new-", delete=False) as file:
        try:
            file.write(source.read_bytes())
            os.fchmod(file.fileno(), 0o644)
            file.flush()
            os.replace(file.name, target)
        except BaseException:
            os.unlink(file.name)
            raise


@contextmanager
def _lock(cache: Path) -> Iterator[None]:
    """One build at a time."""
    cache.mkdir(parents=True, exist_ok=True)
    with (cache / "chat.lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _cut_tail(text: str, n_lines: int) -> str:
    lines = [line for line in text.splitlines() if line.strip() and not line.startswith(("WARNING", "[notice]"))]
    return "\n".join(lines[-n_lines:]).strip()
