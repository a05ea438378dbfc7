"""Is an end that a unit did not choose told in words that a person can use?"""

import pytest

from llamactl.systemd.unit_state import explain_result


@pytest.mark.parametrize(
    ("result", "exit_code", "told"),
    [
        ("signal", 9, "was killed with SIGKILL"),
        ("signal", 15, "was killed with SIGTERM"),
        ("signal", 11, "crashed with SIGSEGV"),
        ("core-dump", 6, "crashed with SIGABRT"),
        ("signal", 7, "crashed with SIGBUS: its model file was shortened or could not be read"),
        ("signal", 200, "was killed with signal 200"),
        ("watchdog", 6, "gave no sign of life and was killed by the watchdog"),
        ("oom-kill", 9, "was killed because memory ran out"),
        ("timeout", 0, "took too long and was killed"),
        ("exit-code", 1, ""),
        ("success", 0, ""),
    ],
)
def test_result_of_systemd_is_told_in_words(result: str, exit_code: int, told: str) -> None:
    assert explain_result(result, exit_code) == told
