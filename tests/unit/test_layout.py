"""Do imports point one way, and can each file be read? Found out from the source text, without importing anything.

A process that must never touch a GPU must not be able to import llama_cpp by accident, through however many modules.
"""

import ast
from functools import cache
from pathlib import Path

import pytest

CHECKOUT = Path(__file__).resolve().parents[2]
PACKAGE = CHECKOUT / "llamactl"
PURE = {
    "bodies",
    "dialects",
    "endpoints",
    "errors",
    "escape",
    "event_stream",
    "journal_events",
    "names",
    "paths",
    "quantities",
    "settings",
    "protocol",
}
EVERYBODYS = {"sockets", "tasks"}
"""I/O that every process does alike."""
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


@pytest.mark.parametrize("name", sorted(EVERYBODYS))
def test_what_every_process_does_alike_imports_nothing_of_ours(name: str) -> None:
    assert not read_parts(PACKAGE / f"{name}.py")


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


def test_wing_of_the_front_that_knows_no_model_imports_nothing_else_of_it() -> None:
    for path in PACKAGE.glob("front/http/*.py"):
        names = [name for name in read_imports(path) if name.startswith("llamactl.front.")]
        assert all(name.startswith("llamactl.front.http.") for name in names), path
        assert read_parts(path) <= {"endpoints", "errors", "journal_events", "settings", "tasks"}, path


def name_module(path: Path) -> str:
    """As importers write it: a package for its __init__.py."""
    return ".".join(path.relative_to(CHECKOUT).with_suffix("").parts).removesuffix(".__init__")


def read_modules() -> dict[str, set[str]]:
    """The modules of ours that each module names in an import, also inside functions and TYPE_CHECKING blocks."""
    names = {name_module(path): path for path in MODULES}
    found: dict[str, set[str]] = {}
    for name, path in names.items():
        imported = read_imports(path)
        # `from package import module` names the module, `from module import thing` a thing in it.
        found[name] = {other if other in names else other.rpartition(".")[0] for other in imported} & (
            names.keys() - {name}
        )
    return found


def find_circles(arrows: dict[str, set[str]]) -> list[set[str]]:
    """Groups of more than one that all reach each other (Tarjan's strongly connected components)."""
    numbers: dict[str, int] = {}
    lowest: dict[str, int] = {}
    stack: list[str] = []
    circles: list[set[str]] = []

    def visit(name: str) -> None:
        numbers[name] = lowest[name] = len(numbers)
        stack.append(name)
        for other in arrows[name]:
            if other not in numbers:
                visit(other)
                lowest[name] = min(lowest[name], lowest[other])
            elif other in stack:
                lowest[name] = min(lowest[name], numbers[other])
        if lowest[name] == numbers[name]:
            at = stack.index(name)
            if len(stack) - at > 1:
                circles.append(set(stack[at:]))
            del stack[at:]

    for name in arrows:
        if name not in numbers:
            visit(name)
    return circles


def test_circles_are_found() -> None:
    arrows = {"a": {"b"}, "b": {"c"}, "c": {"b", "d"}, "d": {"e"}, "e": {"d"}, "f": {"a", "e"}}
    assert sorted(map(sorted, find_circles(arrows))) == [["b", "c"], ["d", "e"]]


def test_no_modules_import_each_other_in_a_circle() -> None:
    """Not even for their types: who knows each other through one name cannot be told apart."""
    assert find_circles(read_modules()) == []


MAX_CLASS_LINES = 350


def list_classes() -> dict[str, int]:
    """Every class of the package, with its lines."""
    return {
        f"{path.relative_to(PACKAGE)}: {node.name}": (node.end_lineno or 0) - node.lineno + 1
        for path in MODULES
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.ClassDef)
    }


def test_no_class_is_longer_than_one_can_read() -> None:
    long = {name: lines for name, lines in list_classes().items() if lines > MAX_CLASS_LINES}
    assert not long, "split it by its ideas"


def list_silent_functions(tree: ast.Module) -> list[str]:
    """Public functions of a module, and methods of its protocols, without a docstring. What implements a protocol is
    described there, and a property by its name.
    """
    silent = []
    for node in tree.body:
        if isinstance(node, ast.ClassDef):
            is_protocol = any(ast.unparse(base).split("[")[0] == "Protocol" for base in node.bases)
            functions = node.body if is_protocol else []
        else:
            functions = [node]
        for function in functions:
            if not isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef) or function.name.startswith("_"):
                continue
            is_property = any(ast.unparse(decorator) == "property" for decorator in function.decorator_list)
            if not is_property and ast.get_docstring(function) is None:
                silent.append(function.name)
    return silent


def test_silent_functions_are_found() -> None:
    source = """
class Host(Protocol):
    @property
    def limit(self) -> int: ...
    def ask(self) -> int: ...
    def tell(self) -> None:
        "Tell it."

class Front:
    def ask(self) -> int: ...

def public() -> None: ...
def _private() -> None: ...
async def told() -> None:
    "Wait."
"""
    assert list_silent_functions(ast.parse(source)) == ["ask", "public"]


def test_public_functions_and_protocols_say_what_they_do() -> None:
    silent = {name_module(path): list_silent_functions(ast.parse(path.read_text())) for path in MODULES}
    assert {module: names for module, names in silent.items() if names} == {}
