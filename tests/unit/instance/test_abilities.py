"""Which words say what a model can be asked for?"""

import pytest

from llamactl.instance.chat.abilities import list_abilities
from llamactl.instance.chat.layer import TemplateInfo


def make_info(*, thinks: bool = False, **capabilities: bool) -> TemplateInfo:
    return TemplateInfo(capabilities, thinks, True, "", "")


def test_model_without_a_known_template_completes_texts() -> None:
    assert list_abilities(None) == ("completion",)
    assert list_abilities(None, fills_gaps=True) == ("completion", "insert")


def test_template_has_tools_where_it_tells_of_them_and_writes_calls() -> None:
    assert list_abilities(make_info(supports_tools=True, supports_tool_calls=True)) == ("completion", "tools")
    assert list_abilities(make_info(supports_tools=True, supports_tool_calls=False)) == ("completion",)
    assert list_abilities(make_info(supports_tools=False, supports_tool_calls=True)) == ("completion",)
    assert list_abilities(make_info(thinks=True)) == ("completion", "thinking")


def test_senses_are_named_as_ollama_names_them() -> None:
    assert list_abilities(make_info(), ("text", "image", "audio")) == ("completion", "vision", "audio")


@pytest.mark.parametrize(("pooling", "word"), [("mean", "embedding"), ("none", "embedding"), ("rank", "rerank")])
def test_model_of_vectors_does_nothing_else(pooling: str, word: str) -> None:
    assert list_abilities(make_info(thinks=True), ("text", "image"), pooling=pooling, fills_gaps=True) == (word,)
