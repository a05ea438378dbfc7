"""Does a model see in its own unit, with the projector that was found beside it, and nothing else of the machine?"""

from pathlib import Path
from typing import Any

import pytest

from tests.media import BLUE, RED, as_uri, write_png
from tests.models import write_eye, write_model
from tests.system.harness import Llamactl, sum_bytes


@pytest.fixture
def pictures(tmp_models: Path) -> Path:
    directory = tmp_models / "pictures"
    directory.mkdir()
    (directory / "red.png").write_bytes(write_png(paint=RED))
    (tmp_models / "private.png").write_bytes(write_png(paint=BLUE))
    return directory


def ask(url: str) -> list[dict[str, Any]]:
    parts = [
        {"type": "text", "text": "look"},
        {"type": "image_url", "image_url": {"url": url}},
        {"type": "text", "text": "?"},
    ]
    return [{"role": "user", "content": parts}]


def test_model_sees_in_its_unit(llamactl: Llamactl, tmp_models: Path, pictures: Path) -> None:
    models = tmp_models / "models"
    models.mkdir()
    write_model(models / "vision-F32.gguf", name="vision").chmod(0o644)
    write_model(models / "plain-F32.gguf", name="plain").chmod(0o644)
    write_eye(models / "mmproj-vision.gguf").chmod(0o644)
    llamactl.write_settings()
    config = Path("/etc/llamactl/models.d/seeing.toml")
    config.parent.mkdir(parents=True, exist_ok=True)
    config.write_text(f'[directories.d]\npath = "{models}"\nctx = 1024\nmedia_path = "{pictures}"\n')
    llamactl.start()
    for name in ("vision-F32", "plain-F32"):
        llamactl.wait_event("model_measured", LLAMACTL_MODEL=name)

    listed = llamactl.list_models()
    needs = {name: sum_bytes(model["memory"]["min"]) for name, model in listed.items()}
    assert needs["vision-F32"] > needs["plain-F32"] + (models / "mmproj-vision.gguf").stat().st_size // 2
    architecture = llamactl.get("/v1/models/vision-F32").json()["architecture"]
    assert architecture["input_modalities"] == ["text", "image"], "known before it was ever loaded"
    assert "Takes: text, image" in llamactl.cli("status", "vision-F32", status=3).stdout

    def say(url: str, model: str = "vision-F32") -> Any:
        body = {"model": model, "messages": ask(url), "max_tokens": 12, "temperature": 0}
        answered = llamactl.post("/v1/chat/completions", body)
        return (
            answered.json()["choices"][0]["message"]["content"] if answered.status == 200 else answered.error["message"]
        )

    red = say(as_uri(write_png(paint=RED)))
    assert red == say("file://red.png") == say(f"file://{pictures}/red.png")
    assert red != say(as_uri(write_png(paint=BLUE)))
    assert "does not exist below `media_path`" in say("file://../private.png")
    assert "models have no network" in say("http://127.0.0.1:8080/red.png")
    assert say("file://red.png", "plain-F32").startswith("image input is not supported")
    effective = llamactl.list_models()["vision-F32"]["memory"]["effective"]
    assert sum_bytes(effective) == needs["vision-F32"]


def test_projector_of_another_model_fails_the_load_and_says_why(llamactl: Llamactl, tmp_models: Path) -> None:
    model = write_model(tmp_models / "m.gguf")
    eye = write_eye(tmp_models / "eye.gguf", width=96)
    for file in (model, eye):
        file.chmod(0o644)
    llamactl.write_models(m={"path": str(model), "mmproj": str(eye), "ctx": 512})
    llamactl.start()
    failed = llamactl.cli("load", "m", status=1)
    assert (
        f"cannot load projector {eye}: mismatch between text model (n_embd = 64) and mmproj (n_embd = 96)"
        in failed.stderr
    )
    assert "mismatch between text model" in llamactl.cli("status", "m", status=3).stdout
