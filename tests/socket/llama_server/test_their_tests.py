"""Does an instance pass llama-server's own API tests? All that llama-server passes with the same small models, but for
those that stand in `reasons.toml`.
"""

import pytest

from tests.socket.llama_server.expected import matches, read_expected
from tests.socket.llama_server.run import Outcome, find_sources, run, unpack

EXPECTED = read_expected()


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Outcome]:
    sources = find_sources()
    if not sources.exists():
        pytest.skip("the sources of llama-cpp-python are not there: scripts/setup --test keeps them")
    found, said = run(unpack(sources, tmp_path_factory.mktemp("llama.cpp")))
    assert len(found) > 500, said[-4000:]
    return {outcome.test: outcome for outcome in found}


def test_instance_passes_what_llama_server_passes(outcomes: dict[str, Outcome]) -> None:
    known = EXPECTED.fails_there | EXPECTED.differs.keys()
    failed = [one for one in outcomes.values() if one.outcome == "failed" and one.test not in known]
    assert not failed, "\n\n".join(f"{one.test}\n{one.why[-3000:]}" for one in failed)


def test_reasons_are_for_tests_that_fail(outcomes: dict[str, Outcome]) -> None:
    assert {test: outcomes[test].outcome for test in EXPECTED.differs} == dict.fromkeys(EXPECTED.differs, "failed")
    assert not EXPECTED.fails_there & EXPECTED.differs.keys()


def test_reasons_and_records_are_for_tests_that_there_are(outcomes: dict[str, Outcome]) -> None:
    assert EXPECTED.fails_there <= outcomes.keys()
    for pattern, reason in EXPECTED.left_out.items():
        assert any(one.why == reason for one in outcomes.values()), pattern
    for pattern in EXPECTED.any_text:
        assert any(matches(test, pattern) for test in outcomes), pattern
