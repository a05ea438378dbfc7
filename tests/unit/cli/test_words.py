"""Usage, help and the look of figures."""

import io

import pytest

from llamactl import __version__
from llamactl.cli.main import (
    COMMANDS,
    _add_name,
    _add_names,
    _add_names_or_all,
    format_help,
    main,
    parse_command,
)
from llamactl.cli.output import CleanStream, clean_text, draw, format_known_bytes
from llamactl.cli.progress import describe_progress, describe_unloading
from llamactl.cli.terminal import Look, Style
from llamactl.protocol.control_socket import Progress
from llamactl.protocol.values import Stage
from llamactl.quantities import format_span


@pytest.mark.parametrize(
    ("size", "text"),
    [
        (None, "-"),
        (0, "0 B"),
        (1023, "1023 B"),
        (1024, "1.00 KiB"),
        (312 << 20, "312 MiB"),
        (1023 << 20, "1.00 GiB"),
        (int(5.214 * (1 << 30)), "5.21 GiB"),
        (int(21.44 * (1 << 30)), "21.4 GiB"),
        (139 << 30, "139 GiB"),
        (5000 << 50, "5000 PiB"),
    ],
)
def test_bytes_have_three_digits(size: int | None, text: str) -> None:
    assert format_known_bytes(size) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (-1.0, "0.0s"),
        (0.84, "0.8s"),
        (9.96, "10s"),
        (59.6, "1min"),
        (123.0, "2min 3s"),
        (3600.0, "1h"),
        (3601.0, "1h"),
        (7380.0, "2h 3min"),
        (90061.0, "1d 1h"),
    ],
)
def test_spans_have_two_units(seconds: float, text: str) -> None:
    assert format_span(seconds) == text


@pytest.mark.parametrize(
    ("busy", "going", "text"),
    [
        (("a", "b"), (), "waiting for a, b (busy)"),
        ((), ("a", "b"), "making room: unloading a, b"),
        (("a",), ("b",), "waiting for a (busy); making room: unloading b"),
        ((), (), "waiting for a, b"),
    ],
)
def test_waiting_says_what_for(busy: tuple[str, ...], going: tuple[str, ...], text: str) -> None:
    progress = Progress(id=1, stage=Stage.WAITING, waiting_for=("a", "b"), busy=busy, going=going)
    assert describe_progress(progress) == text


def test_waiting_for_what_is_neither_busy_nor_going_says_why() -> None:
    why = "needs 2 GiB on GPU0, 1 GiB available"
    waiting = Progress(id=1, stage=Stage.WAITING, waiting_for=("a", "b"), busy=("a",), why=why)
    assert describe_progress(waiting) == f"waiting for a (busy); waiting for b ({why})"
    assert describe_progress(Progress(id=1, stage=Stage.WAITING, why=why)) == why
    busy = Progress(id=1, stage=Stage.WAITING, waiting_for=("a",), busy=("a",), why=why)
    assert describe_progress(busy) == "waiting for a (busy)"


@pytest.mark.parametrize(
    ("busy", "going", "text"),
    [(("a",), (), "waiting for its requests to end"), ((), ("a",), "stopping"), ((), (), "unloading")],
)
def test_unload_says_what_it_waits_for(busy: tuple[str, ...], going: tuple[str, ...], text: str) -> None:
    progress = Progress(id=1, stage=Stage.WAITING, waiting_for=("a",), busy=busy, going=going)
    assert describe_unloading(progress) == text


def test_unprintable_characters_are_escaped() -> None:
    assert clean_text("a\x1b[2J\x07\tb\nc") == "a\\x1b[2J\\x07\\tb\nc"


def test_stream_lets_our_colours_pass_and_escapes_all_else() -> None:
    stream = CleanStream(io.StringIO())
    painted = Look(colour=True).paint("ready", Style.GOOD)
    print(f"{painted} \x1b[31mred\x1b]0;title\x07\x9b\u202e\r", file=stream)
    assert stream.getvalue() == f"{painted} \\x1b[31mred\\x1b]0;title\\x07\\x9b\\u202e\\r\n"
    draw(stream, "\r\x1b[2K")
    assert stream.getvalue().endswith("\n\r\x1b[2K")


def test_help_names_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        parse_command(["--help"])
    assert ended.value.code == 0
    out = capsys.readouterr().out
    assert out == format_help() + "\n"
    assert max(map(len, out.splitlines())) <= 80
    assert all(f"\n  {name} " in out for name in COMMANDS)


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parse_command(["--version"])
    assert capsys.readouterr().out == f"llamactl {__version__}\n"


@pytest.mark.parametrize("name", sorted(COMMANDS))
def test_every_command_explains_itself(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        parse_command([name, "--help"])
    assert ended.value.code == 0
    assert f"llamactl {name}" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "usage: llamactl COMMAND"),
        (["lod"], "llamactl: unknown command 'lod'; did you mean 'load'?"),
        (["zzz"], "llamactl: unknown command 'zzz'; see: llamactl --help"),
        (["load"], "llamactl load: the following arguments are required: NAME; see: llamactl load --help"),
        (["help", "lod"], "llamactl: unknown command 'lod'; did you mean 'load'?"),
        (["unload"], "llamactl unload: give at least one NAME, or --all; see: llamactl unload --help"),
        (["stop", "--all", "m"], "llamactl stop: --all goes without NAME; see: llamactl stop --help"),
        (["ps", "x"], "llamactl ps: unrecognized arguments: x; see: llamactl ps --help"),
    ],
)
def test_wrong_usage_is_2(words: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(words)
    assert ended.value.code == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith(message)


@pytest.mark.parametrize("name", [name for name, command in COMMANDS.items() if command.run])
def test_every_command_leads_to_a_function(name: str) -> None:
    takes_names = {_add_name, _add_names, _add_names_or_all} & set(COMMANDS[name].arguments)
    run, _ = parse_command([name, "m"] if takes_names else [name])
    assert callable(run)


@pytest.mark.parametrize(
    ("words", "names"),
    [
        (["load", "a", "--no-wait", "b"], ["a", "b"]),
        (["load", "--no-wait", "--", "-a", "b"], ["-a", "b"]),
        (["start", "a", "--no-wait"], ["a"]),
    ],
)
def test_options_stand_before_behind_and_between_names(words: list[str], names: list[str]) -> None:
    _, args = parse_command(words)
    assert (args.names, args.no_wait) == (names, True)


@pytest.mark.parametrize("words", [["help", "unload"], ["unload", "--help"]])
def test_help_of_a_command(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        parse_command(words)
    assert ended.value.code == 0
    assert capsys.readouterr().out.startswith("usage: llamactl unload ")


@pytest.mark.parametrize("name", ["install", "uninstall"])
def test_installation_is_hooked_in(name: str) -> None:
    run, args = parse_command([name, "--root", "/nowhere"])
    assert callable(run)
    assert args.remove is (name == "uninstall")
