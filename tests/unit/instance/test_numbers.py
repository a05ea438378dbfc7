"""Is it noticed when token numbers may be of another vocabulary?"""

from typing import Any

import pytest

from llamactl.instance.http.numbers import holds_numbers, is_openais


@pytest.mark.parametrize(
    "name", ["text-embedding-ada-002", "openai/text-embedding-3-large", "gpt-4o-mini", "GPT-3.5-turbo", "o3", "o1-mini"]
)
def test_names_of_openais_are_known(name: str) -> None:
    assert is_openais(name)


@pytest.mark.parametrize("name", ["gpt-oss-20b", "openai/gpt-oss-120b", "nomic-embed-text", "olmo-2", "embedder"])
def test_other_names_are_others(name: str) -> None:
    assert not is_openais(name)


@pytest.mark.parametrize(
    ("given", "has"),
    [("12", False), (["1", "2"], False), ([1, 2], True), ([[1, 2]], True), (["a", [1]], True), ([["a"]], False)],
)
def test_numbers_are_found_wherever_they_may_stand(given: Any, has: bool) -> None:
    assert holds_numbers(given) is has
