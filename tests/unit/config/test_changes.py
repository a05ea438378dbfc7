"""What a reload says of the machine's settings."""

from llamactl.config.changes import describe_changes
from llamactl.settings import GIB, AccessLog, GlobalSettings


def test_nothing_is_said_of_what_is_the_same() -> None:
    assert describe_changes(GlobalSettings(host_budget_bytes=5), GlobalSettings(host_budget_bytes=5)) == ()


def test_changes_are_told_in_the_words_of_the_file() -> None:
    before = GlobalSettings(host_budget_bytes=24 * GIB, margins_bytes={"CUDA0": GIB, "CUDA1": GIB})
    after = GlobalSettings(
        host_budget_bytes=300 << 20,
        host_margin_bytes=2 * GIB,
        margins_bytes={"CUDA0": 2 * GIB},
        max_wait_s=0.0,
        strict=True,
        cors_origins=("*",),
        access_log=AccessLog.OFF,
        default_model="qwen",
    )
    assert describe_changes(before, after) == (
        "margins.CUDA0: 1 GiB -> 2 GiB",
        "margins.CUDA1: 1 GiB -> unset",
        "host_margin: unset -> 2 GiB",
        "host_budget: 24 GiB -> 300 MiB",
        "strict: false -> true",
        "max_wait: 1min -> 0",
        "default_model: unset -> qwen",
        "cors_origins: unset -> *",
        "access_log: info -> off",
    )
