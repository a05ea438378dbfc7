"""A command in a message can be pasted into a shell, whatever the model is called."""

import shlex

import pytest

from llamactl.cli.main import parse_command
from llamactl.names import format_command, quote_name


@pytest.mark.parametrize("verb", ["load", "logs", "status"])
@pytest.mark.parametrize(
    "name", ["plain", "Smol LM ü", "it's", "$(reboot)", "a;b", "-x", "--help", "~", "org/model:Q4"]
)
def test_command_of_a_message_means_the_model_that_it_names(verb: str, name: str) -> None:
    words = shlex.split(format_command(verb, name))
    assert words[0] == "llamactl"
    _, args = parse_command(words[1:])
    assert (args.names if verb == "load" else [args.name]) == [name]
    assert not getattr(args, "options", None)


def test_plain_name_stands_there_plainly() -> None:
    assert format_command("logs", "qwen3-8b") == "llamactl logs qwen3-8b"


@pytest.mark.parametrize(
    ("name", "shown"),
    [("qwen", "'qwen'"), ("it's", '"it\'s"'), ("a\nb", r"'a\nb'"), (r"a\nb", r"'a\nb'"), ("\x1b[2J", r"'\x1b[2J'")],
)
def test_name_in_a_sentence_is_escaped_once(name: str, shown: str) -> None:
    assert quote_name(name) == shown
