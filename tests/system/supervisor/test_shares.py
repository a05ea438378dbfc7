"""Do models that answer at the same time share the processors, and does one have them all again when it is alone?"""

from pathlib import Path

from tests.system.harness import Llamactl

LONG = 30_000
"""Tokens that nobody waits for: both answers are broken off."""
SPEC = {"ctx": 32_768, "parallel": 1}


def test_models_that_answer_at_once_share_the_processors(llamactl: Llamactl, tiny: dict[str, Path]) -> None:
    llamactl.write_models(**{name: {"path": str(tiny[name]), **SPEC} for name in ("a", "b")})
    llamactl.write_settings(log_level="debug")
    llamactl.start()
    for name in ("a", "b"):
        llamactl.cli("load", name)
    with llamactl.stream("a", max_tokens=LONG) as first:
        first.read_event()
        with llamactl.stream("b", max_tokens=LONG) as second:
            second.read_event()
            for name in ("a", "b"):
                llamactl.wait_event("processors_shared", LLAMACTL_MODEL=name, LLAMACTL_MODELS="2")
        llamactl.wait_event("processors_shared", LLAMACTL_MODEL="a", LLAMACTL_MODELS="1")


def test_model_with_threads_of_its_own_keeps_them(llamactl: Llamactl, tiny: dict[str, Path]) -> None:
    llamactl.write_models(a={"path": str(tiny["a"]), **SPEC, "threads": 1}, b={"path": str(tiny["b"]), **SPEC})
    llamactl.write_settings(log_level="debug")
    llamactl.start()
    for name in ("a", "b"):
        llamactl.cli("load", name)
    with llamactl.stream("a", max_tokens=LONG) as first, llamactl.stream("b", max_tokens=LONG) as second:
        first.read_event()
        second.read_event()
        llamactl.wait_event("processors_shared", LLAMACTL_MODEL="b", LLAMACTL_MODELS="2")
    assert llamactl.read_events("processors_shared", LLAMACTL_MODEL="a") == []
