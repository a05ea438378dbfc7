"""Do as many threads compute as there are cores to compute on?"""

import pytest

from llamactl.instance.llama.processors import choose_threads, count_compute_threads, parse_cpu_list, parse_quota

EIGHT = range(8)
PAIRED = {cpu: f"{cpu % 4},{cpu % 4 + 4}" for cpu in EIGHT}
"""Four cores of two threads each."""
HYBRID = {0: "0-1", 1: "0-1", 2: "2-3", 3: "2-3", 4: "4", 5: "5", 6: "6", 7: "7"}
"""Two cores of two threads each, and four small ones."""


@pytest.mark.parametrize(
    ("allowed", "cores", "fast", "quotas", "threads"),
    [
        (EIGHT, {}, (), (), 8),
        (EIGHT, PAIRED, (), (), 4),
        ((0, 4), PAIRED, (), (), 1),
        ((0, 1, 5), PAIRED, (), (), 2),
        (EIGHT, HYBRID, range(4), (), 2),
        ((4, 5, 6), HYBRID, range(4), (), 3),
        ((3, 4, 5), HYBRID, range(4), (), 1),
        (EIGHT, PAIRED, (), (2.0,), 2),
        (EIGHT, PAIRED, (), (64.0, 3.5), 3),
        (EIGHT, PAIRED, (), (0.5,), 1),
        ((), {}, (), (), 1),
    ],
)
def test_threads_are_the_fast_cores_that_may_be_used(
    allowed: range, cores: dict[int, str], fast: range, quotas: tuple[float, ...], threads: int
) -> None:
    assert choose_threads(allowed, cores, fast, quotas) == threads


@pytest.mark.parametrize(
    ("text", "cpus"),
    [("0-3,8\n", {0, 1, 2, 3, 8}), ("5", {5}), ("", set()), ("none", set()), ("1-", set()), ("0,,1", set())],
)
def test_kernels_list_of_cpus_is_read(text: str, cpus: set[int]) -> None:
    assert parse_cpu_list(text) == cpus


@pytest.mark.parametrize(
    ("text", "quota"),
    [("200000 100000\n", 2.0), ("50000 100000", 0.5), ("max 100000", None), ("", None), ("1 0", None)],
)
def test_kernels_quota_is_read_as_cpus(text: str, quota: float | None) -> None:
    assert parse_quota(text) == quota


def test_this_machine_has_a_core() -> None:
    assert 1 <= count_compute_threads() <= 1024
