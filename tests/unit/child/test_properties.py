"""Does a model's unit get what its settings say, and a sandbox whatever they say?"""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from llamactl.child.orders import ChildEnvironment
from llamactl.child.properties import (
    Surroundings,
    choose_measure_properties,
    choose_model_properties,
    choose_read_only,
    format_user,
)
from llamactl.errors import ErrorCode, LlamactlError
from llamactl.names import DEVICES_SLUG, Role, format_slug, format_unit, parse_unit
from llamactl.paths import Paths
from llamactl.protocol.report_socket import ChildRole
from llamactl.settings import ModelSettings, decode_spec
from llamactl.systemd.signatures import pack_properties

SETTINGS = ModelSettings(name="a", path="/srv/models/a.gguf", files=("/srv/models/a.gguf",))


def make_orders(
    role: ChildRole = ChildRole.SERVE, settings: ModelSettings = SETTINGS, **orders: Any
) -> ChildEnvironment:
    return ChildEnvironment(
        role=role,
        model=settings.name,
        settings=settings,
        generation="g",
        report=Paths().report_socket,
        **{"socket": None, **orders},
    )


def choose(
    settings: ModelSettings = SETTINGS,
    paths: Paths = Paths(),  # noqa: B008
    python: str = "/opt/venv/bin/python",
    gpu_groups: tuple[str, ...] = (),
    **orders: Any,
) -> dict[str, Any]:
    python_paths = ("/opt/venv", "/root/.pyenv/versions/3.11")
    return choose_model_properties(
        make_orders(ChildRole.SERVE, settings, margins_bytes={"": 5}, **orders),
        Surroundings(paths, python, python_paths, gpu_groups),
        stop_timeout_s=30,
    )


def choose_measure(settings: ModelSettings = SETTINGS, timeout_s: float = 300, **orders: Any) -> dict[str, Any]:
    return choose_measure_properties(
        make_orders(ChildRole.MEASURE, settings, **orders),
        Surroundings(Paths(), "/opt/venv/bin/python", ()),
        timeout_s=timeout_s,
    )


def read_environment(properties: dict[str, Any]) -> dict[str, str]:
    return dict(entry.split("=", 1) for entry in properties["Environment"])


def test_model_unit_depends_on_nothing_but_its_slice() -> None:
    properties = choose()
    assert properties["Slice"] == "llamactl-models.slice"
    assert not {"PartOf", "BindsTo", "Requires", "Wants", "After", "Restart"} & properties.keys() - {"Restart"}
    assert properties["Restart"] == "no"


def test_both_units_are_json_and_fit_their_signatures() -> None:
    for properties in (choose(gpu_groups=("video",)), choose_measure()):
        assert json.loads(json.dumps(properties)) == properties
        pack_properties(json.loads(json.dumps(properties)))


def test_failed_model_stays_and_measurement_is_held_by_reference() -> None:
    assert choose()["CollectMode"] == "inactive"
    measure = choose_measure()
    assert (measure["CollectMode"], measure["AddRef"]) == ("inactive-or-failed", True)
    assert measure["RuntimeMaxUSec"] == 300_000_000


def test_fractions_of_seconds_are_no_zero() -> None:
    assert choose(load_stall_s=0.25)["TimeoutStartUSec"] == 250_000
    assert choose(load_stall_s=0)["TimeoutStartUSec"] == (1 << 64) - 1


def test_instance_is_told_by_how_much_progress_extends_its_start() -> None:
    assert "LLAMACTL_LOAD_STALL=0.25" in choose(load_stall_s=0.25)["Environment"]
    assert not any("LOAD_STALL" in entry for entry in choose(load_stall_s=0)["Environment"])


def test_dollars_in_arguments_are_kept() -> None:
    properties = choose(python="/opt/$HOME/python")
    ((path, argv, _),) = properties["ExecStart"]
    assert (path, argv[0]) == ("/opt/$HOME/python", "/opt/$$HOME/python")


def test_environment_says_all_that_the_child_and_a_new_supervisor_need() -> None:
    settings = ModelSettings(
        name="Ünïcode %n $HOME", path="/srv/m.gguf", env={"GGML_X": "1"}, chat_template="{{ 'a\n' }}"
    )
    properties = choose(settings, socket=Paths().instance_socket(format_slug(settings.name)))
    environment = read_environment(properties)
    assert decode_spec(environment["LLAMACTL_SPEC"]) == settings
    assert environment["LLAMACTL_MODEL"] == settings.name
    assert environment["LLAMACTL_GENERATION"] == "g"
    assert json.loads(environment["LLAMACTL_MARGINS"]) == {"": 5}
    assert environment["LLAMACTL_EXTRA_BUFTS"] == "1"
    assert environment["LLAMACTL_SOCKET"] == f"/run/llamactl/models/{format_slug(settings.name)}/http.sock"
    assert environment["LLAMACTL_REPORT"] == "/run/llamactl/report/report.sock"
    assert environment["GGML_X"] == "1"
    assert read_environment(choose_measure(extra_bufts=False))["LLAMACTL_EXTRA_BUFTS"] == "0"


@pytest.mark.parametrize(
    ("env", "words"),
    [
        ({"LLAMACTL_SPEC": "{}"}, "llamactl sets it"),
        ({"1A": "x"}, "a name is letters"),
        ({"A B": "x"}, "a name is letters"),
        ({"A": "x\x00y"}, "control characters"),
        ({"A": "x" * (128 << 10)}, "131072"),
    ],
)
def test_environment_that_cannot_be_passed_is_refused(env: dict[str, str], words: str) -> None:
    with pytest.raises(LlamactlError, match=words) as refused:
        choose(msgspec.structs.replace(SETTINGS, env=env))
    assert refused.value.code is ErrorCode.INVALID_CONFIG
    assert "'a'" in str(refused.value)


def test_template_that_is_too_long_for_a_variable_is_refused() -> None:
    with pytest.raises(LlamactlError, match="long chat template"):
        choose(msgspec.structs.replace(SETTINGS, chat_template="x" * (128 << 10)))


def test_model_name_goes_into_log_fields_only_where_it_survives_a_daemon_reload() -> None:
    assert "LLAMACTL_MODEL=org/a-1:q4" in choose(msgspec.structs.replace(SETTINGS, name="org/a-1:q4"))["LogExtraFields"]
    for name in ("two words", 'a"b', "100%", "back\\slash"):
        fields = choose(msgspec.structs.replace(SETTINGS, name=name))["LogExtraFields"]
        assert fields == ["LLAMACTL_ROLE=model", "LLAMACTL_GENERATION=g"], name


def test_moved_runtime_directory_is_used_throughout() -> None:
    properties = choose(paths=replace(Paths(), runtime_dir=Path("/run/other")))
    assert properties["RuntimeDirectory"] == ["other/models/a"]
    assert properties["TemporaryFileSystem"] == [["/run/other", "ro"]]
    assert properties["BindPaths"][0][0] == "/run/other/models/a"
    assert "/run/other/report" in [bind[0] for bind in properties["BindReadOnlyPaths"]]
    with pytest.raises(LlamactlError, match="below /run"):
        choose(paths=replace(Paths(), runtime_dir=Path("/tmp/other")))


# --- what is bound ------------------------------------------------------------------------------


def test_directories_of_all_files_are_bound_once_and_outermost() -> None:
    settings = ModelSettings(
        name="a",
        path="/root/m/a-00001-of-00002.gguf",
        files=("/root/m/a-00001-of-00002.gguf", "/data/b/a-00002-of-00002.gguf"),
        mmproj="/root/m/sub/mmproj.gguf",
    )
    assert choose_read_only(settings, ["/root/m/venv", "/opt/python"]) == ["/root/m", "/data/b", "/opt/python"]


def test_directory_of_pictures_that_requests_may_name_is_bound() -> None:
    settings = ModelSettings(name="a", path="/srv/models/a.gguf", media_path="/srv/pictures")
    assert choose_read_only(settings, []) == ["/srv/models", "/srv/pictures"]


@pytest.mark.parametrize("path", ["/root/a.gguf", "/home/bob/a.gguf", "/a.gguf", "/tmp/a.gguf"])
def test_file_right_in_a_home_is_bound_alone(path: str) -> None:
    assert choose_read_only(ModelSettings(name="a", path=path), []) == [path]


def test_required_directories_are_required_and_models_are_not() -> None:
    binds = {bind[0]: bind for bind in choose()["BindReadOnlyPaths"]}
    assert binds["/run/llamactl/report"][2] is False
    assert binds["/srv/models"][2] is True


# --- users --------------------------------------------------------------------------------------


@given(st.text(min_size=1, max_size=128).filter(str.strip))
def test_user_name_is_valid_for_every_slug(name: str) -> None:
    user = format_user(format_slug(name))
    assert len(user) <= 31
    assert set(user) <= set("abcdefghijklmnopqrstuvwxyz0123456789_-")
    assert user.startswith("llm-")


def test_user_names_differ_where_slugs_do() -> None:
    slugs = ["a.b", "a-b", "a_b", "x" * 40, "x" * 41, "q.5" + "x" * 30, "q-5" + "x" * 30]
    assert len({format_user(slug) for slug in slugs}) == len(slugs)


# --- extra properties ---------------------------------------------------------------------------


def test_extra_properties_replace_ours_and_lists_are_added() -> None:
    properties = choose(
        msgspec.structs.replace(
            SETTINGS,
            extra={
                "PrivateNetwork": False,
                "OOMScoreAdjust": -100,
                "DeviceAllow": ["/dev/fuse rw"],
                "SupplementaryGroups": "audio",
                "WatchdogSec": "5min",
                "BindReadOnlyPaths": ["/data"],
            },
        ),
        gpu_groups=("video",),
    )
    assert properties["PrivateNetwork"] is False
    assert properties["OOMScoreAdjust"] == -100
    assert properties["SupplementaryGroups"] == ["video", "audio"]
    assert properties["WatchdogUSec"] == 300_000_000
    assert ["char-nvidia*", "rw"] in properties["DeviceAllow"]
    assert ["/dev/fuse", "rw"] in properties["DeviceAllow"]
    assert {"/srv/models", "/data"} <= {bind[0] for bind in properties["BindReadOnlyPaths"]}


def test_watchdog_is_for_instances_only() -> None:
    assert "WatchdogUSec" not in choose_measure(msgspec.structs.replace(SETTINGS, extra={"WatchdogSec": 5}))


def test_memory_limit_is_not_hidden_by_swap_unless_swap_is_allowed() -> None:
    assert "MemorySwapMax" not in choose()
    assert choose(msgspec.structs.replace(SETTINGS, extra={"MemoryMax": "8G"}))["MemorySwapMax"] == 0
    both = {"MemoryMax": "8G", "MemorySwapMax": "1G"}
    assert choose(msgspec.structs.replace(SETTINGS, extra=both))["MemorySwapMax"] == 1 << 30


@pytest.mark.parametrize(("room", "text"), [(None, ""), (0, "0"), (5 << 30, str(5 << 30))])
def test_host_room_reaches_the_child(room: int | None, text: str) -> None:
    assert read_environment(choose(host_room_bytes=room))["LLAMACTL_HOST_ROOM"] == text


def test_without_rpc_servers_there_is_no_network() -> None:
    properties = choose()
    assert properties["PrivateNetwork"] is True
    assert properties["RestrictAddressFamilies"] == [True, ["AF_UNIX"]]
    assert "IPAddressAllow" not in properties


@pytest.mark.parametrize("choose_properties", [choose, choose_measure])
def test_rpc_servers_open_the_network_to_their_addresses_alone(choose_properties: Any) -> None:
    rpc = ("127.77.0.1:50052", "127.77.0.2:50052", "127.77.0.1:50053")
    properties = choose_properties(msgspec.structs.replace(SETTINGS, rpc=rpc))
    assert properties["PrivateNetwork"] is False
    assert properties["RestrictAddressFamilies"] == [True, ["AF_UNIX", "AF_INET"]]
    assert properties["IPAddressDeny"] == [[2, [0] * 4, 0], [10, [0] * 16, 0]]
    assert properties["IPAddressAllow"] == [[2, [127, 77, 0, 1], 32], [2, [127, 77, 0, 2], 32]]
    assert decode_spec(read_environment(properties)["LLAMACTL_SPEC"]).rpc == rpc
    pack_properties(properties)


def test_listing_of_devices_is_a_measure_child_that_no_model_can_be_taken_for() -> None:
    unit = format_unit(Role.MEASURE, DEVICES_SLUG)
    assert parse_unit(unit) == (Role.MEASURE, DEVICES_SLUG)
    for name in ("_devices", "devices", "-devices", "._devices"):
        assert format_slug(name) != DEVICES_SLUG
    properties = choose_measure(
        ModelSettings(name="devices", path="", rpc=("127.77.0.1:1",)),
        timeout_s=30,
        devices_only=True,
        device_ids={"CUDA0": "0000:01:00.0"},
    )
    environment = read_environment(properties)
    assert environment["LLAMACTL_DEVICES_ONLY"] == "1"
    assert json.loads(environment["LLAMACTL_DEVICE_IDS"]) == {"CUDA0": "0000:01:00.0"}
    assert decode_spec(environment["LLAMACTL_SPEC"]).rpc == ("127.77.0.1:1",)
    assert properties["IPAddressAllow"] == [[2, [127, 77, 0, 1], 32]]
    assert properties["RuntimeMaxUSec"] == 30_000_000
    assert not [field for field in properties["LogExtraFields"] if "LLAMACTL_MODEL" in field]
    pack_properties(properties)
