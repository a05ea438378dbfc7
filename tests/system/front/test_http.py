"""Does the front answer as llama-server's router does, and refuse what it must?"""

from pathlib import Path

import pytest

from tests.http_errors import check_error
from tests.system.harness import PATHS, Llamactl, run


@pytest.fixture
def front(llamactl: Llamactl, tiny: dict[str, Path]) -> Llamactl:
    llamactl.write_settings(max_body="1 MiB")
    llamactl.write_models(a={"path": str(tiny["a"]), "ctx": 1024, "aliases": ["first"]})
    llamactl.start()
    return llamactl


def test_health_needs_no_model(front: Llamactl) -> None:
    assert front.get("/health").json() == {"status": "ok"}
    assert front.list_loaded() == {}


@pytest.mark.parametrize("path", ["/models", "/v1/models"])
def test_listing_models_loads_none(front: Llamactl, path: str) -> None:
    listed = front.get(path).json()
    assert listed["object"] == "list"
    assert listed["data"][0]["id"] == "a"
    assert listed["data"][0]["status"]["value"] == "unloaded"
    front.cli("load", "a")
    assert front.get(path).json()["data"][0]["status"]["value"] == "loaded"


def test_models_are_loaded_and_unloaded_by_request(front: Llamactl) -> None:
    assert front.post("/models/load", {"model": "a"}).json() == {"success": True}
    front.wait_event("instance_ready", LLAMACTL_MODEL="a")
    assert front.post("/models/unload", {"model": "a"}).json() == {"success": True}
    front.wait_event("model_unloaded", LLAMACTL_MODEL="a")
    assert front.post("/models/unload", {"model": "a"}).status == 400
    assert front.post("/models/load", {"model": "nobody"}).status == 404


def ask_as_stranger(path: str, groups: str) -> tuple[int, str]:
    """A request of user `nobody` on the Unix socket: the answer's status, and the answer."""
    data = () if "?" in path else ("-d", '{"model": "a"}')
    command = ("curl", "-s", *data, "-w", "\n%{http_code}", "--unix-socket", str(PATHS.http_socket))
    stranger = ("--quiet", "--pipe", "--wait", "--collect", "--property=User=nobody")
    done = run("systemd-run", *stranger, f"--property=SupplementaryGroups={groups}", *command, f"http://x{path}")
    text, _, status = done.stdout.rpartition("\n")
    return int(status), text


def test_control_by_http_is_kept_to_its_group(front: Llamactl) -> None:
    assert ask_as_stranger("/models/load", "llamactl")[0] == 200
    front.wait_event("instance_ready", LLAMACTL_MODEL="a")
    refused, why = ask_as_stranger("/models?reload=1", "llamactl")
    assert (refused, "no member of llamactl-admin" in why) == (403, True)
    assert ask_as_stranger("/models?reload=1", "llamactl llamactl-admin")[0] == 200
    front.write_settings(max_body="1 MiB", http_control="admin")
    front.cli("reload")
    assert ask_as_stranger("/models/unload", "llamactl")[0] == 403
    assert list(front.list_loaded()) == ["a"]
    assert ask_as_stranger("/models/unload", "llamactl llamactl-admin")[0] == 200
    front.wait_event("model_unloaded", LLAMACTL_MODEL="a")


@pytest.mark.parametrize(
    ("body", "status", "kind"),
    [
        ({"model": "nobody", "messages": []}, 404, "not_found_error"),
        ({"messages": []}, 400, "invalid_request_error"),
        (b"{", 400, "invalid_request_error"),
        (b"\xff\xfe", 400, "invalid_request_error"),
        (b'{"model": "a", "x": "' + b"y" * (2 << 20) + b'"}', 413, "invalid_request_error"),
    ],
    ids=["unknown model", "no model", "bad JSON", "bad UTF-8", "too large"],
)
def test_refusals_have_the_routers_form(front: Llamactl, body: object, status: int, kind: str) -> None:
    refused = front.post("/v1/chat/completions", body)
    assert refused.status == status
    check_error(refused.error, "/v1/chat/completions", status, "model_not_found" if status == 404 else None)
    assert refused.error["type"] == kind
    assert refused.error["message"]
    assert front.list_loaded() == {}


def test_unknown_path_is_not_found(front: Llamactl) -> None:
    assert front.get("/nowhere").status == 404


def test_query_names_the_model_of_a_get(front: Llamactl) -> None:
    assert front.get("/props?model=first").status == 503, "looking loads nothing"
    front.cli("load", "a")
    assert front.get("/props?model=first").status == 200


def test_one_connection_serves_many_requests(front: Llamactl) -> None:
    connection = front.connect()
    body = b'{"model": "a", "prompt": "x", "max_tokens": 1}'
    for _ in range(3):
        connection.request("POST", "/v1/completions", body=body, headers={"Content-Type": "application/json"})
        response = connection.getresponse()
        assert response.status == 200
        response.read()
    connection.close()
