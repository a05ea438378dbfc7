"""From the entry of a key follow its documentation, what waits for the next load, and what is measured again."""

from typing import Any

import msgspec
import pytest

from llamactl.config.keys import Applies, MachineKey, Measured, ModelKey
from llamactl.config.kinds import BOOLEAN, SIZE
from llamactl.config.model_keys import DEFAULT_KEYS, MODEL_KEYS
from llamactl.config.reference import format_applies
from llamactl.sched.breakdowns import strip_harmless, strip_unmeasured
from llamactl.sched.instances import Instance, Model
from llamactl.sched.status import list_waiting_settings
from llamactl.settings import ModelSettings

BEFORE = ModelSettings(name="a", path="/srv/a.gguf", devices=("G0",))


def change(field: str) -> ModelSettings:
    """The settings with another value of one field."""
    before: Any = getattr(BEFORE, field)
    match before:
        case bool():
            after: Any = not before
        case int() | float():
            after = before + 1
        case tuple():
            after = (*before, "x")
        case dict():
            after = {**before, "x": 1}
        case _:
            after = f"{before}x"
    return msgspec.structs.replace(BEFORE, **{field: after})


def test_key_that_does_not_say_from_when_on_it_counts_cannot_be_made() -> None:
    with pytest.raises(TypeError, match="applies"):
        MachineKey("colour", BOOLEAN, "Whether logs are coloured.")  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="measured"):
        ModelKey("colour", BOOLEAN, "Whether logs are coloured.", applies=Applies.AT_ONCE)  # type: ignore[call-arg]


@pytest.mark.parametrize("key", MODEL_KEYS, ids=lambda key: key.name)
def test_changed_key_waits_for_the_next_load_or_counts_at_once(key: ModelKey) -> None:
    model = Model("a", change(key.field))
    model.instance = Instance("a", "1", BEFORE, 0.0)
    named = "chat_template" if key.field == "chat_template" else key.name
    assert list_waiting_settings(model) == ((named,) if key.applies is Applies.NEXT_LOAD else ())


@pytest.mark.parametrize("key", MODEL_KEYS, ids=lambda key: key.name)
def test_changed_key_voids_the_measurement_or_keeps_it(key: ModelKey) -> None:
    after = change(key.field)
    assert (strip_unmeasured(after) != strip_unmeasured(BEFORE)) is (key.measured is Measured.AGAIN)
    assert (strip_harmless(after) != strip_harmless(BEFORE)) is (key.measured is not Measured.KEPT)


def test_keys_that_change_no_memory_or_wait_for_nothing_say_so() -> None:
    at_once = {key.name for key in MODEL_KEYS if key.applies is Applies.AT_ONCE}
    assert at_once >= {"aliases", "pin", "priority", "idle_timeout", "sleep_after", "unlisted", "tags"}
    kept = {key.name for key in MODEL_KEYS if key.measured is Measured.KEPT and key.applies is Applies.NEXT_LOAD}
    template = {"chat_template", "chat_template_file", "chat_template_kwargs", "reasoning", "reasoning_budget", "tools"}
    assert kept >= {*template, "sampling", "seed", "n_predict", "show_prompts"}
    assert {key.name for key in MODEL_KEYS if key.measured is Measured.IF_FAILED} == {"extra"}
    assert {key.name for key in MODEL_KEYS} - {key.name for key in DEFAULT_KEYS} == {
        "path",
        "aliases",
        "mmproj",
        "draft",
    }


def test_keys_of_one_field_have_one_answer() -> None:
    for key in MODEL_KEYS:
        same = [other for other in MODEL_KEYS if other.field == key.field]
        assert {(other.applies, other.measured) for other in same} == {(key.applies, key.measured)}


def test_unit_of_a_field_follows_from_the_kind() -> None:
    assert MachineKey("reserve", SIZE, "Kept.", applies=Applies.AT_ONCE).field == "reserve_bytes"
    assert MachineKey("colour", BOOLEAN, "Colours.", applies=Applies.AT_ONCE).field == "colour"


def test_documentation_says_from_when_on_a_key_counts() -> None:
    shown = {key.name: format_applies(key) for key in MODEL_KEYS}
    assert (shown["tags"], shown["seed"]) == ("at once", "next load")
    assert (shown["swa_full"], shown["load_on_start"]) == ("next load, measured again", "next start")
