"""Do imports point one way? Read from the source text, so that nothing heavy is imported to find out.

A process that must never touch a GPU must not be able to import llama_cpp by accident, through however many modules.
"""

import ast
from functools import cache
from pathlib import Path

import pytest

CHECKOUT = Path(__file__).resolve().parents[2]
PACKAGE = CHECKOUT / "llamactl"
PURE = {"bodies", "dialects", "endpoints", "errors", "escape", "names", "paths", "settings", "protocol"}
PROCESSES = {"supervisor", "front", "instance", "cli"}
MODULES = sorted(PACKAGE.rglob("*.py"))


def find_part(path: Path) -> str:
    """The part of the project that a file belongs to: a folder below llamactl/, or a module there."""
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


@cache
def read_imports(path: Path) -> frozenset[str]:
    """Every dotted name that a file imports, also inside functions and TYPE_CHECKING blocks."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative imports hide who imports whom"
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
    return frozenset(found)


def read_parts(path: Path) -> set[str]:
    """The other parts of the project that a file imports."""
    names = [name.split(".") for name in read_imports(path) if name.startswith("llamactl.")]
    return {name[1] for name in names} - {find_part(path), "__version__"}


def list_importers(package: str) -> set[str]:
    return {find_part(path) for path in MODULES if any(name.split(".")[0] == package for name in read_imports(path))}


def test_every_part_is_there() -> None:
    assert {find_part(path) for path in MODULES} >= PURE | PROCESSES | {"sched", "systemd", "config"}


@pytest.mark.parametrize("path", [path for path in MODULES if find_part(path) in PURE], ids=lambda path: path.name)
def test_pure_parts_import_only_pure_parts(path: Path) -> None:
    assert read_parts(path) <= PURE


def test_what_is_known_of_children_imports_only_pure_parts() -> None:
    for path in PACKAGE.glob("child/*.py"):
        assert read_parts(path) <= PURE, path


def test_scheduler_imports_only_pure_parts_and_the_table_of_keys() -> None:
    for path in PACKAGE.glob("sched/*.py"):
        assert read_parts(path) <= PURE | {"config"}, path
        of_config = {name for name in read_imports(path) if name.startswith("llamactl.config")}
        assert all(name.startswith("llamactl.config.model_keys.") for name in of_config), path
        for module in ("asyncio", "socket", "time", "logging", "structlog", "subprocess"):
            assert module not in {name.split(".")[0] for name in read_imports(path)}, (
                f"{path} does I/O or reads a clock"
            )


def test_table_of_keys_reads_nothing() -> None:
    """The scheduler imports it."""
    seen: set[str] = set()
    waiting = ["model_keys"]
    while waiting:
        name = waiting.pop()
        if name in seen:
            continue
        seen.add(name)
        imports = read_imports(PACKAGE / f"config/{name}.py")
        assert not {name.split(".")[0] for name in imports} & {
            "asyncio",
            "socket",
            "time",
            "subprocess",
            "os",
            "pathlib",
        }
        waiting += [name.split(".")[2] for name in imports if name.startswith("llamactl.config.")]
        assert read_parts(PACKAGE / f"config/{name}.py") <= PURE | {"child"}
    assert seen >= {"model_keys", "keys", "kinds"}


def test_templates_import_only_pure_parts() -> None:
    for path in PACKAGE.glob("template/*.py"):
        assert read_parts(path) <= PURE, path


def test_processes_do_not_import_each_other() -> None:
    for path in MODULES:
        part = find_part(path)
        if part in PROCESSES:
            assert not read_parts(path) & (PROCESSES - {part}), path


def test_shared_parts_do_not_import_processes() -> None:
    for path in MODULES:
        if find_part(path) not in PROCESSES:
            assert not read_parts(path) & PROCESSES, path


@pytest.mark.parametrize(
    ("package", "parts"),
    [
        ("llama_cpp", {"instance"}),
        ("pystemd", {"systemd"}),
        ("jinja2", {"instance", "template"}),
        ("httptools", {"front"}),
    ],
)
def test_heavy_package_has_one_home(package: str, parts: set[str]) -> None:
    assert list_importers(package) <= parts


@pytest.mark.parametrize("process", ["supervisor", "front"])
@pytest.mark.parametrize("package", ["llama_cpp", "jinja2"])
def test_process_that_serves_all_models_cannot_reach_what_runs_their_files(process: str, package: str) -> None:
    """By any chain of imports."""
    seen: set[str] = set()
    waiting = [process]
    while waiting:
        part = waiting.pop()
        if part not in seen:
            seen.add(part)
            for path in MODULES:
                if find_part(path) == part:
                    waiting += read_parts(path)
    assert "instance" not in seen
    assert not seen & list_importers(package)


def test_command_line_imports_jinja_only_when_it_needs_it() -> None:
    """Every command would pay for it else."""
    for path in PACKAGE.glob("cli/*.py"):
        top = [node for node in ast.parse(path.read_text()).body if isinstance(node, ast.ImportFrom)]
        assert not any((node.module or "").startswith("llamactl.template") for node in top), path


WINGS = {
    "llama": set(),
    "grammar": set(),
    "engine": {"llama", "grammar"},
    "chat": {"llama"},
    "http": {"llama", "grammar", "engine", "chat"},
}
"""Of the instance, with the other wings that each may import."""


@pytest.mark.parametrize("wing", WINGS)
def test_wing_of_the_instance_imports_only_wings_below_it(wing: str) -> None:
    for path in PACKAGE.glob(f"instance/{wing}/*.py"):
        names = [name.split(".") for name in read_imports(path) if name.startswith("llamactl.instance.")]
        assert {name[2] for name in names} - {wing} <= WINGS[wing], path


def test_one_wing_imports_llama_cpp() -> None:
    importers = [path for path in MODULES if any(name.split(".")[0] == "llama_cpp" for name in read_imports(path))]
    assert {path.parent.relative_to(PACKAGE).as_posix() for path in importers} <= {"instance/llama"}


def test_every_folder_of_the_instance_is_a_wing() -> None:
    assert {path.parent.name for path in PACKAGE.glob("instance/*/*.py")} == set(WINGS)
