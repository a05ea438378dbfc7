"""Limits that a machine takes and cannot apply are said."""

from llamactl.config.limits import find_unenforced
from llamactl.controllers import LIMITS, describe_missing
from llamactl.settings import Config, ModelSettings


def test_each_controller_that_is_missing_is_said_with_what_is_not_applied() -> None:
    assert describe_missing(LIMITS) == ""
    assert describe_missing(["memory", "cpu", "cpuset", "pids"]).startswith("no io controller here; IOWeight")
    text = describe_missing([])
    assert all(name in text for name in (*LIMITS, *LIMITS.values()))


def test_a_model_whose_limits_are_not_applied_has_a_note() -> None:
    extra = {"MemoryMax": "1G", "CPUQuota": "50%", "IOWeight": 10}
    models = {name: ModelSettings(name=name, path="", source="x.toml", extra=extra) for name in "a"}
    models["b"] = ModelSettings(name="b", path="")
    (problem,) = find_unenforced(Config(models=models), ["memory", "pids"])
    assert (problem.model, problem.fatal) == ("a", False)
    assert "CPUQuota, IOWeight NOT APPLIED" in problem.message
    assert "cpu, io controller" in problem.message
