"""Does a real model answer in words through the whole chain?"""

import re
from pathlib import Path

import pytest

from tests.system.client import join_text
from tests.system.harness import Llamactl

ENGLISH = re.compile(r"\b(a|am|and|are|can|for|hello|help|how|i|in|is|it|my|of|on|the|to|today|with|you|your)\b")


@pytest.fixture
def smollm2(llamactl: Llamactl, smollm2_file: Path) -> Llamactl:
    llamactl.write_models(smollm2={"path": str(smollm2_file), "ctx": 2048})
    llamactl.start()
    llamactl.cli("load", "smollm2")
    return llamactl


def count_english(text: str) -> int:
    return len(ENGLISH.findall(text.lower()))


def test_smollm2_says_hello_in_english(smollm2: Llamactl) -> None:
    answer = smollm2.chat("smollm2", "Say hello", max_tokens=40, temperature=0)
    text = answer.json()["choices"][0]["message"]["content"]
    assert count_english(text) >= 3, text


def test_smollm2_streams_what_it_says(smollm2: Llamactl) -> None:
    with smollm2.stream("smollm2", "Tell me about the sea", max_tokens=60, temperature=0, ignore_eos=False) as stream:
        events = stream.read_rest()
    text = join_text(events)
    assert count_english(text) >= 5, text
    assert len(events) > 30, "a streamed answer comes in pieces"
