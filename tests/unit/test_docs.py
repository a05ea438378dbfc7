"""Does the documentation describe what the code has? Every message with every field, the states, the errors."""

import re
from pathlib import Path
from typing import Any, get_args

import msgspec
import pytest

from llamactl import endpoints
from llamactl.errors import ERROR_TABLE
from llamactl.front.http import connection_state
from llamactl.front.routes import ROUTES
from llamactl.journal_events import Teller, format_table
from llamactl.protocol import control_socket, descriptions, lines, report_socket, values
from llamactl.sched.states import TRANSITIONS

CHECKOUT = Path(__file__).resolve().parents[2]
DOCS = CHECKOUT / "docs"

DIRECTIONS = {
    "report.sock: from a child": report_socket.ChildMessage,
    "report.sock: to a child": report_socket.OrderMessage,
    "control.sock: from a client": control_socket.ClientMessage,
    "control.sock: to a client": control_socket.ServerMessage,
}


def read_sections(path: Path) -> dict[str, dict[str, str]]:
    """Text below each `###` heading, by `##` heading."""
    found: dict[str, dict[str, str]] = {}
    chapter = section = ""
    for line in path.read_text().splitlines():
        if line.startswith("## "):
            chapter, section = line[3:], ""
        elif line.startswith("### "):
            section = line[4:]
        else:
            texts = found.setdefault(chapter, {})
            texts[section] = texts.get(section, "") + line + "\n"
    return found


def list_messages() -> list[tuple[str, type[msgspec.Struct]]]:
    return [(direction, message) for direction, union in DIRECTIONS.items() for message in get_args(union)]


def format_id(value: Any) -> str:
    return value if isinstance(value, str) else str(value.__name__)


@pytest.mark.parametrize(("direction", "message"), list_messages(), ids=format_id)
def test_message_is_described_with_its_fields(direction: str, message: type[msgspec.Struct]) -> None:
    text = read_sections(DOCS / "protocol.md")[direction][message.__struct_config__.tag]
    missing = [name for name in message.__struct_encode_fields__ if f"`{name}`" not in text]
    assert not missing, f"docs/protocol.md does not describe {missing}"


@pytest.mark.parametrize("direction", DIRECTIONS)
def test_no_message_is_described_that_does_not_exist(direction: str) -> None:
    described = {section for section in read_sections(DOCS / "protocol.md")[direction] if section}
    assert described == {message.__struct_config__.tag for message in get_args(DIRECTIONS[direction])}


@pytest.mark.parametrize(
    "value",
    [
        values.Row,
        values.Breakdown,
        values.ModelMemory,
        values.Facts,
        values.Note,
        control_socket.HeldLease,
        values.LoadFailure,
        descriptions.ModelStatus,
        descriptions.DeviceStatus,
        descriptions.LoadPlan,
        descriptions.PlanDevice,
        descriptions.PlanInstance,
    ],
)
def test_value_is_described_with_its_fields(value: type[msgspec.Struct]) -> None:
    text = (DOCS / "protocol.md").read_text()
    missing = [name for name in value.__struct_encode_fields__ if f"`{name}`" not in text]
    assert not missing


def test_version_and_size_are_the_ones_in_the_code() -> None:
    text = (DOCS / "protocol.md").read_text()
    assert f"**{lines.VERSION}**" in text
    assert f"{lines.MAX_MESSAGE_BYTES:,} bytes" in text


def test_diagram_of_states_is_the_table() -> None:
    text = read_sections(DOCS / "architecture.md")["States of a model"][""]
    drawn = set(re.findall(r"^    (\w+) --> (\w+)", text, re.MULTILINE))
    assert drawn == {(before.value, after.value) for before, many in TRANSITIONS.items() for after in many}


def test_diagram_of_phases_is_the_table() -> None:
    text = read_sections(DOCS / "architecture.md")["Phases of a client's connection"][""]
    drawn = re.findall(r"^    (\w+) --> (\w+): (.*)$", text, re.MULTILINE)
    table = connection_state.TRANSITIONS
    arrows = [(before, event, after) for before, many in table.items() for event, after in many.items()]
    told = {(str(before), str(after), event.replace("_", " ")) for before, event, after in arrows}
    assert set(drawn) == {arrow for arrow in told if arrow[1] != "closed"}
    assert {before for before, after, _ in told if after == "closed"} == set(map(str, table))


@pytest.mark.parametrize(
    ("heading", "teller"),
    [
        ("The supervisor", Teller.SUPERVISOR),
        ("The front", Teller.FRONT),
        ("Instances and measure children", Teller.CHILD),
    ],
)
def test_every_event_of_the_journal_is_listed_with_what_it_means(heading: str, teller: Teller) -> None:
    rows = read_sections(DOCS / "journal.md")[heading][""].split("|---|---|\n")[1].strip().splitlines()
    assert rows == format_table(teller)


def test_every_error_is_listed_with_its_numbers() -> None:
    rows = re.findall(r"^\| `(\w+)` \| (\d+) \| (\d+) \| `(\w+)` \|", (DOCS / "http.md").read_text(), re.MULTILINE)
    table = {(code.value, str(k.http_status), str(k.exit_status), k.type) for code, k in ERROR_TABLE.items()}
    assert set(rows) == table


@pytest.mark.parametrize(
    "path",
    [CHECKOUT / "README.md", CHECKOUT / "CONTRIBUTING.md", *sorted(DOCS.glob("*.md"))],
    ids=lambda path: path.name,
)
def test_links_lead_somewhere(path: Path) -> None:
    for target in re.findall(r"\]\(([^)]+)\)", path.read_text()):
        if "://" not in target:
            name, _, anchor = target.partition("#")
            file = path.parent / name if name else path
            assert file.exists(), f"{path.name} links to {target}"
            if anchor:
                headings = [line.lstrip("# ").lower() for line in file.read_text().splitlines() if line.startswith("#")]
                slugs = {re.sub(r"[^\w -]", "", heading).replace(" ", "-") for heading in headings}
                assert anchor in slugs, f"{path.name} links to {target}"


def test_every_route_has_an_example() -> None:
    sections = {}
    for part in re.split(r"^### ", (DOCS / "http.md").read_text(), flags=re.MULTILINE)[1:]:
        heading, _, text = part.partition("\n")
        for route in re.split(r", (?=GET |POST )", heading):
            sections[route.split(" ")[1]] = "```sh\n" in text
    routes = {path.decode() for path in ROUTES}
    assert routes <= {*endpoints.INTROSPECTION, *endpoints.ROUTER, endpoints.ROOT}
    routes |= {path.decode() for path in endpoints.INSTANCE}
    short_names = {"/chat/completions", "/chat/completions/input_tokens"}
    assert routes - short_names <= {route.partition("?")[0] for route in sections}
    assert all(sections.values())


def test_map_of_the_source_has_every_module() -> None:
    text = (DOCS / "architecture.md").read_text()
    sections = re.split(r"^### `(llamactl[\w/]*)/`$", text[text.index("<!-- modules -->") :], flags=re.MULTILINE)[1:]
    mapped = {
        f"{folder}/{name}"
        for folder, lines in zip(sections[::2], sections[1::2], strict=True)
        for name in re.findall(r"^- `(\w+\.py)`:", lines, flags=re.MULTILINE)
    }
    modules = {path.relative_to(CHECKOUT).as_posix() for path in (CHECKOUT / "llamactl").rglob("*.py")}
    there = {name for name in modules if not name.endswith("__init__.py")}
    assert mapped == there, (
        f"run scripts/source-map docs/architecture.md: missing {there - mapped}, gone {mapped - there}"
    )


def list_recipes() -> list[tuple[str, ...]]:
    """The rows of CONTRIBUTING's table: what is added, by which example, in which files, tested where."""
    text = (CHECKOUT / "CONTRIBUTING.md").read_text()
    rows = re.findall(r"^\| (an? [^|]+?) \| ([^|]+?) \| ([^|]+?) \| ([^|]+?) \|$", text, flags=re.MULTILINE)
    assert len(rows) >= 6
    return rows


@pytest.mark.parametrize("recipe", list_recipes(), ids=lambda recipe: recipe[0])
def test_recipe_for_contributors_names_at_most_three_files_that_exist(recipe: tuple[str, ...]) -> None:
    _, example, files, tests = recipe
    by_hand = re.findall(r"`([^`]+)`", re.sub(r"\(.*?\)", "", files))
    assert 1 <= len(by_hand) <= 3
    for path in (*by_hand, *re.findall(r"`([^`]+)`", tests)):
        assert (CHECKOUT / path).exists(), path
    word = example.strip("`").removesuffix("_total").rpartition("/")[2]
    missing = [path for path in by_hand if word not in (CHECKOUT / path).read_text()]
    assert len(missing) <= 2, f"{example} is not in {missing}"


MAX_COLUMNS = 100


def list_long_lines(text: str) -> list[str]:
    """Lines of prose that are wider than a page; tables, code and what has no place to break stay as they are."""
    long = []
    in_code = False
    for line in text.splitlines():
        if line.lstrip().startswith("```"):
            in_code = not in_code
        is_table = line.lstrip().startswith("|")
        breaks = re.sub(r"(`+).+?\1", "", line.strip()).strip("-* ").count(" ")
        if len(line) > MAX_COLUMNS and not in_code and not is_table and not line.startswith("    ") and breaks:
            long.append(line)
    return long


@pytest.mark.parametrize(
    "path", [*sorted(CHECKOUT.glob("*.md")), *sorted(DOCS.glob("*.md"))], ids=lambda path: path.name
)
def test_prose_is_no_wider_than_a_page(path: Path) -> None:
    assert list_long_lines(path.read_text()) == []


def test_wide_prose_is_found_and_wide_code_is_not() -> None:
    wide = "word " * 30
    assert list_long_lines(f"{wide}\n- {wide}\n") == [wide, f"- {wide}"]
    assert list_long_lines(f"```\n{wide}\n```\n| {wide} |\n    {wide}\nhttps://{'x' * 120}\n") == []


def test_contributors_are_sent_to_functions_that_exist() -> None:
    named = re.findall(r"`((?:test|describe|format)_\w+[a-z])`", (CHECKOUT / "CONTRIBUTING.md").read_text())
    sources = "".join(path.read_text() for top in ("llamactl", "tests") for path in (CHECKOUT / top).rglob("*.py"))
    assert len(named) >= 6
    assert [name for name in named if f"def {name}(" not in sources] == []
