"""What does a reload tell of the models, before and after?"""

from llamactl.settings import Config, InvalidModel, ModelSettings
from llamactl.supervisor.configuration import describe_reload


def make_config(*models: str, invalid: tuple[str, ...] = (), ctx: int = 0) -> Config:
    return Config(
        models={name: ModelSettings(name=name, path=f"/m/{name}.gguf", ctx=ctx) for name in models},
        invalid={name: InvalidModel(name=name, reason="wrong") for name in invalid},
    )


def test_model_that_becomes_invalid_is_not_removed_and_one_that_is_mended_not_added() -> None:
    good, bad = make_config("a", "b", "c"), make_config("c", invalid=("a", "b"))
    worse = describe_reload(good, bad, {}, {}, {"b", "c"})
    assert (worse.added, worse.removed, worse.changed) == ((), (), ())
    assert (worse.invalid, worse.kept, worse.mended) == (("a", "b"), ("b",), ())
    better = describe_reload(bad, good, {}, {}, {"b", "c"})
    assert (better.added, better.removed, better.changed) == ((), (), ())
    assert (better.invalid, better.kept, better.mended) == ((), (), ("a", "b"))


def test_invalid_model_that_is_taken_out_is_removed_and_a_new_one_with_a_mistake_is_only_invalid() -> None:
    result = describe_reload(make_config(invalid=("a",)), make_config(invalid=("b",)), {}, {}, {"b"})
    assert (result.added, result.removed, result.invalid, result.mended) == ((), ("a",), ("b",), ())


def test_models_that_come_go_and_change_are_told() -> None:
    result = describe_reload(make_config("a", "b"), make_config("b", "c", ctx=5), {}, {}, ())
    assert (result.added, result.removed, result.changed) == (("c",), ("a",), ("b",))
