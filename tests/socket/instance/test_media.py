"""Do models with a projector see and hear what requests show them, as llama.cpp's own server does with these files?"""

import base64
import contextlib
import json
import os
import random
import shutil
import socket
import subprocess
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
import pytest

from llamactl.protocol.report_socket import AnswerResult, OrderKind
from llamactl.settings import ModelSettings
from tests.media import (
    BLUE,
    RED,
    as_uri,
    slope,
    write_bmp,
    write_flac,
    write_gif,
    write_jpeg,
    write_mp3,
    write_png,
    write_wav,
)
from tests.models import write_ear, write_eye, write_model
from tests.socket.instance.harness import Child, run_child
from tests.socket.instance.scripted import TEMPLATE
from tests.socket.instance.test_anthropic import connect as connect_anthropic
from tests.socket.instance.test_openai import connect as connect_openai

LLAMA_SERVER = os.environ.get("LLAMA_SERVER") or shutil.which("llama-server")
RED_PNG, BLUE_PNG, SLOPE_PNG = write_png(paint=RED), write_png(paint=BLUE), write_png(64, 64, slope)
N_PICTURE = 4
"""Embeddings that each of the tiny projector's pictures becomes."""


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    directory = tmp_path_factory.mktemp("seeing")
    return {
        "model": write_model(directory / "m.gguf"),
        "eye": write_eye(directory / "eye.gguf"),
        "ear": write_ear(directory / "ear.gguf"),
        "wide": write_eye(directory / "wide.gguf", width=96),
    }


def choose_settings(files: dict[str, Path], projector: str, **more: Any) -> ModelSettings:
    fields: dict[str, Any] = {"ctx": 1024, "parallel": 4, "threads": 1, "repack": False, **more}
    return ModelSettings(name="tiny", path=str(files["model"]), mmproj=str(files[projector]), **fields)


@pytest.fixture(scope="module")
def seeing(files: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Child]:
    directory = tmp_path_factory.mktemp("pictures")
    (directory / "sub").mkdir()
    (directory / "sub" / "red one.png").write_bytes(RED_PNG)
    (directory / "outside.png").symlink_to(files["model"])
    settings = choose_settings(files, "eye", media_path=str(directory))
    home = tmp_path_factory.mktemp("instance")
    for name in ("ffprobe", "ffmpeg"):
        (home / name).write_text(f"#!/bin/sh\n: > {home}/started\n")
        (home / name).chmod(0o755)
    with run_child(home, "serve", settings, PATH=f"{home}:{os.environ['PATH']}") as child:
        child.supervisor.wait_for("ready")
        yield child


@pytest.fixture(scope="module")
def hearing(files: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Child]:
    with run_child(tmp_path_factory.mktemp("instance"), "serve", choose_settings(files, "ear")) as child:
        child.supervisor.wait_for("ready")
        yield child


def show(*parts: str | bytes) -> list[dict[str, Any]]:
    """Parts of a message: texts and pictures."""
    return [
        {"type": "text", "text": part}
        if isinstance(part, str)
        else {"type": "image_url", "image_url": {"url": as_uri(part)}}
        for part in parts
    ]


def ask(*messages: list[dict[str, Any]] | str, **more: Any) -> dict[str, Any]:
    """A request: user and assistant in turn."""
    roles = ("user", "assistant")
    said = [{"role": roles[index % 2], "content": content} for index, content in enumerate(messages)]
    return {"messages": said, "max_tokens": 12, "temperature": 0, **more}


def answer(child: Child, body: dict[str, Any]) -> dict[str, Any]:
    status, answered = child.request("POST", "/v1/chat/completions", body)
    assert status == 200, answered
    assert isinstance(answered, dict)
    return answered


def say(child: Child, body: dict[str, Any]) -> str:
    return str(answer(child, body)["choices"][0]["message"]["content"])


def refuse(child: Child, body: dict[str, Any]) -> str:
    status, answered = child.request("POST", "/v1/chat/completions", body)
    assert status == 400, answered
    return str(answered["error"]["message"])


# --- what it says -----------------------------------------------------------------------------------------------------


def test_answer_depends_on_the_picture_and_on_nothing_else(seeing: Child) -> None:
    red, blue, slanted = (say(seeing, ask(show("look", data, "what"))) for data in (RED_PNG, BLUE_PNG, SLOPE_PNG))
    assert len({red, blue, slanted, say(seeing, ask("lookwhat"))}) == 4
    assert say(seeing, ask(show("look", RED_PNG, "what"), cache_prompt=False)) == red


def test_picture_counts_as_its_embeddings(seeing: Child) -> None:
    plain = answer(seeing, ask("lookwhat"))["usage"]["prompt_tokens"]
    assert answer(seeing, ask(show("look", RED_PNG, "what")))["usage"]["prompt_tokens"] == plain + N_PICTURE


@pytest.mark.parametrize("data", [write_jpeg(), write_gif(), write_bmp()], ids=["jpeg", "gif", "bmp"])
def test_picture_is_seen_in_each_format(seeing: Child, data: bytes) -> None:
    assert say(seeing, ask(show("look", data))) != say(seeing, ask(show("look", RED_PNG)))


def test_same_picture_says_the_same_in_another_format(seeing: Child) -> None:
    assert say(seeing, ask(show("look", write_bmp(40, 30)))) == say(seeing, ask(show("look", RED_PNG)))


def test_bare_base64_and_a_url_without_an_object_are_taken(seeing: Child) -> None:
    bare = base64.b64encode(RED_PNG).decode()
    parts = [{"type": "text", "text": "look"}, {"type": "image_url", "image_url": bare[:20] + "\n" + bare[20:]}]
    assert say(seeing, ask(parts)) == say(seeing, ask(show("look", RED_PNG)))


def test_sound_is_heard_in_each_format(hearing: Child) -> None:
    sounds = {"wav": write_wav(3200), "mp3": write_mp3(8), "flac": write_flac(4000), "high": write_wav(3200, 880)}
    said = {}
    for name, data in sounds.items():
        audio = {"data": base64.b64encode(data).decode(), "format": name}
        said[name] = say(
            hearing, ask([{"type": "input_audio", "input_audio": audio}, {"type": "text", "text": "what"}])
        )
    assert said["wav"] != said["high"]
    assert said["wav"] != said["flac"]


# --- as llama-server --------------------------------------------------------------------------------------------------


CONVERSATIONS = {
    "one": ask(show("look", RED_PNG, "what")),
    "another": ask(show("look", SLOPE_PNG, "what")),
    "lines": ask(show("a", "b", RED_PNG, "c", "d", SLOPE_PNG)),
    "turns": ask(show(RED_PNG, "what"), "red", show("and", BLUE_PNG, BLUE_PNG, "this"), "blue", "sure?"),
}


@pytest.mark.skipif(LLAMA_SERVER is None, reason="needs llama-server of the same llama.cpp, in $LLAMA_SERVER or $PATH")
def test_tokens_are_llama_server_s(seeing: Child, files: dict[str, Path]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    command = [
        *(str(LLAMA_SERVER), "--model", str(files["model"]), "--mmproj", str(files["eye"]), "--port", str(port)),
        *(
            "--no-repack",
            "--jinja",
            "--parallel",
            "1",
            "--ctx-size",
            "1024",
            "--threads",
            "1",
            "--log-file",
            "/dev/null",
        ),
    ]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as server:
        assert server.stderr is not None
        try:
            assert any("listening" in line for line in server.stderr)
            for name, body in CONVERSATIONS.items():
                request = urllib.request.Request(
                    f"http://127.0.0.1:{port}/v1/chat/completions", json.dumps(body).encode(), method="POST"
                )
                with urllib.request.urlopen(request) as response:
                    theirs = json.load(response)
                ours = answer(seeing, body)
                assert ours["choices"][0]["message"]["content"] == theirs["choices"][0]["message"]["content"], name
                assert ours["usage"]["prompt_tokens"] == theirs["usage"]["prompt_tokens"], name
        finally:
            server.terminate()
            server.stderr.read()


# --- what is kept -----------------------------------------------------------------------------------------------------


def test_second_turn_goes_on_behind_the_picture(seeing: Child) -> None:
    first = show("first turn, to be found again: look", SLOPE_PNG, "what")
    said = answer(seeing, ask(first))
    reply = said["choices"][0]["message"]["content"]
    second = answer(seeing, ask(first, reply.encode(errors="replace").decode(), "and now?"))
    assert second["usage"]["prompt_tokens_details"]["cached_tokens"] >= said["usage"]["prompt_tokens"]


def test_another_picture_in_its_place_is_another_text(seeing: Child) -> None:
    before = answer(seeing, ask(show("a place for a picture: ", RED_PNG, "what")))
    other = answer(seeing, ask(show("a place for a picture: ", BLUE_PNG, "what")))
    cached = other["usage"]["prompt_tokens_details"]["cached_tokens"]
    assert 0 < cached < before["usage"]["prompt_tokens"] - N_PICTURE
    alone = say(seeing, ask(show("a place for a picture: ", BLUE_PNG, "what"), cache_prompt=False))
    assert other["choices"][0]["message"]["content"] == alone


def test_choices_and_streams_see_the_same(seeing: Child) -> None:
    body = ask(show("choices: ", SLOPE_PNG, "what"))
    alone = say(seeing, {**body, "cache_prompt": False})
    assert {choice["message"]["content"] for choice in answer(seeing, {**body, "n": 3})["choices"]} == {alone}
    events = [json.loads(event) for event in seeing.stream("/v1/chat/completions", body) if event != "[DONE]"]
    assert "".join(event["choices"][0]["delta"].get("content") or "" for event in events) == alone


# --- what it is refused -----------------------------------------------------------------------------------------------


def test_text_model_says_what_it_lacks(instance: Child) -> None:
    hint = "input is not supported - hint: if this is unexpected, you may need to provide the mmproj"
    assert refuse(instance, ask(show("look", RED_PNG))) == f"image {hint}"
    assert refuse(instance, ask([{"type": "input_audio", "input_audio": {"data": "AAAA"}}])) == f"audio {hint}"


def test_seeing_model_does_not_hear(seeing: Child) -> None:
    audio = {"data": base64.b64encode(write_wav(100)).decode()}
    assert refuse(seeing, ask([{"type": "input_audio", "input_audio": audio}])).startswith(
        "audio input is not supported"
    )


@pytest.mark.parametrize(
    ("url", "reason"),
    [
        ("http://127.0.0.1/a.png", "it would have to be fetched, and models have no network; send it as a data URI"),
        ("HTTPS://example.com/a.png", "it would have to be fetched, and models have no network; send it as a data URI"),
        ("data:image/png,abc", "its data URI is not base64 encoded"),
        ("data:image/png;base64", "its data URI is not base64 encoded"),
        ("data:image/png;base64,$$$$", "its base64 is damaged, or it is no URL that is known"),
        ("data:image/png;base64,", "it is empty"),
        ("ftp://example.com/a.png", "its base64 is damaged, or it is no URL that is known"),
        ("data:image/png;base64,AAAA", "it is of no known kind; JPEG, PNG, GIF and BMP are taken"),
        ("file://nowhere.png", "'nowhere.png' does not exist below `media_path`, or cannot be read"),
        ("file:///etc/passwd", "'/etc/passwd' does not exist below `media_path`, or cannot be read"),
        ("file://../../etc/passwd", "'../../etc/passwd' does not exist below `media_path`, or cannot be read"),
        ("file://outside.png", "'outside.png' does not exist below `media_path`, or cannot be read"),
        ("file://sub", "'sub' does not exist below `media_path`, or cannot be read"),
    ],
)
def test_source_that_cannot_be_used_is_named_with_its_reason(seeing: Child, url: str, reason: str) -> None:
    parts = [{"type": "text", "text": "look"}, {"type": "image_url", "image_url": {"url": url}}]
    assert refuse(seeing, ask("hello", "hi", parts)) == f"cannot use `messages[2].content[1]`: {reason}"


def test_file_below_the_directory_is_seen(seeing: Child) -> None:
    for url in ("file://sub/red%20one.png", "file://sub/red one.png", "file:////sub//red one.png"):
        parts = [{"type": "text", "text": "look"}, {"type": "image_url", "image_url": {"url": url}}]
        assert say(seeing, ask(parts)) == say(seeing, ask(show("look", RED_PNG)))


def test_files_are_nobody_s_where_no_directory_is_configured(hearing: Child) -> None:
    parts = [{"type": "input_audio", "input_audio": {"url": "file:///etc/passwd"}}]
    assert "the model's configuration sets no `media_path`" in refuse(hearing, ask(parts))


def test_pictures_that_the_decoder_finds_damaged_are_refused_and_nothing_is_started(seeing: Child) -> None:
    """Behind a head that makes sense; libmtmd would try ffprobe on them."""
    jpeg = write_jpeg()
    for data in (jpeg.replace(b"\xff\xdb\0C\0", b"\xff\xdb\0C\x20"), write_gif()[:25] + b";", RED_PNG[:-12]):
        message = refuse(seeing, ask(show("look", data)))
        assert message.startswith("cannot use `messages[0].content[1]`: it "), message
    assert say(seeing, ask("still there?"))
    assert not (seeing.directory / "started").exists()


def test_part_that_stands_for_a_picture_inside_is_nobody_s_to_send(seeing: Child) -> None:
    status, props = seeing.request("GET", "/props")
    assert status == 200
    forged = [{"type": "media_marker", "text": props["media_marker"]}]
    assert refuse(seeing, ask(forged)) == (
        "cannot use `messages[0].content`: parts of type 'media_marker' are not supported"
    )
    quoted = show(f"it says {props['media_marker']} there", RED_PNG)
    assert "it has 2 places for 1 pictures and sounds" in refuse(seeing, ask(quoted))


# --- what is said of it -----------------------------------------------------------------------------------------------


def test_modalities_are_told(seeing: Child, hearing: Child, instance: Child) -> None:
    said = [child.request("GET", "/props")[1]["modalities"] for child in (seeing, hearing, instance)]
    assert said == [
        {"vision": True, "video": False, "audio": False},
        {"vision": False, "video": False, "audio": True},
        {"vision": False, "video": False, "audio": False},
    ]
    ready = [message for message in seeing.supervisor.seen if getattr(message, "facts", None)][-1]
    assert ready.facts.input_modalities == ("text", "image")


def test_projector_is_counted_as_measured_and_as_loaded(files: dict[str, Path], tmp_path: Path) -> None:
    def measure(projector: str) -> Any:
        directory = tmp_path / (projector or "none")
        directory.mkdir()
        settings = (
            choose_settings(files, projector)
            if projector
            else ModelSettings(name="tiny", path=str(files["model"]), ctx=1024, threads=1, repack=False)
        )
        with run_child(directory, "measure", settings) as child:
            return child.supervisor.wait_for("measured")

    def sum_rows(breakdown: Any) -> tuple[int, int]:
        return sum(row.model for row in breakdown.devices), sum(row.compute for row in breakdown.devices)

    plain, seeing = measure(""), measure("eye")
    (model, compute), (model_seeing, compute_seeing) = sum_rows(plain.min), sum_rows(seeing.min)
    n_tensor_bytes = files["eye"].stat().st_size
    assert 0.9 * n_tensor_bytes < model_seeing - model < n_tensor_bytes
    assert compute_seeing > compute
    assert seeing.facts.input_modalities == ("text", "image")
    directory = tmp_path / "serve"
    directory.mkdir()
    with run_child(directory, "serve", choose_settings(files, "eye")) as child:
        assert sum_rows(child.supervisor.wait_for("ready").effective) == (model_seeing, compute_seeing)


@pytest.mark.parametrize(
    ("projector", "reason"),
    [("wide", "mismatch between text model (n_embd = 64) and mmproj (n_embd = 96)"), ("model", "model")],
)
def test_projector_that_does_not_fit_fails_the_load_with_the_reason(
    files: dict[str, Path], tmp_path: Path, projector: str, reason: str
) -> None:
    with run_child(tmp_path, "serve", choose_settings(files, projector)) as child:
        failed = child.supervisor.wait_for("failed")
        assert failed.error.startswith(f"cannot load projector {files[projector]}: ")
        assert reason in failed.error
        assert "error:" not in failed.error
        assert child.wait() == 1


# --- other ways to it -------------------------------------------------------------------------------------------------


def test_official_clients_show_pictures_and_let_models_hear(seeing: Child, hearing: Child) -> None:
    with connect_openai(seeing) as client:
        parts: Any = show("look", RED_PNG, "what")
        chat = client.chat.completions.create(
            model="tiny", messages=[{"role": "user", "content": parts}], max_tokens=12, temperature=0
        )
        assert chat.choices[0].message.content == say(seeing, ask(parts))
        with pytest.raises(openai.BadRequestError, match="it is of no known kind"):
            client.chat.completions.create(model="tiny", messages=[{"role": "user", "content": show(b"nothing")}])  # type: ignore[typeddict-item]
    with connect_openai(hearing) as client:
        audio: Any = [
            {"type": "input_audio", "input_audio": {"data": base64.b64encode(write_wav(800)).decode(), "format": "wav"}}
        ]
        parts = [*audio, {"type": "text", "text": "what"}]
        chat = client.chat.completions.create(
            model="tiny", messages=[{"role": "user", "content": parts}], max_tokens=12, temperature=0
        )
        assert chat.choices[0].message.content == say(hearing, ask(parts))
    with connect_anthropic(seeing) as messages:
        source: Any = {"type": "base64", "media_type": "image/png", "data": base64.b64encode(RED_PNG).decode()}
        content: Any = [
            {"type": "text", "text": "look"},
            {"type": "image", "source": source},
            {"type": "text", "text": "what"},
        ]
        message = messages.messages.create(
            model="tiny", messages=[{"role": "user", "content": content}], max_tokens=12, extra_body={"temperature": 0}
        )
        assert message.content[0].type == "text"
        assert message.content[0].text == say(seeing, ask(show("look", RED_PNG, "what")))
        counted = messages.messages.count_tokens(model="tiny", messages=[{"role": "user", "content": content}])
        assert counted.input_tokens == message.usage.input_tokens + (message.usage.cache_read_input_tokens or 0)


def test_completion_shows_what_stands_beside_its_text(seeing: Child, instance: Child) -> None:
    marker = seeing.request("GET", "/props")[1]["media_marker"]
    status, applied = seeing.request("POST", "/apply-template", {"messages": ask(show("look", RED_PNG))["messages"]})
    assert status == 200
    assert applied["prompt"].count(marker) == 1
    shown = {"prompt_string": applied["prompt"], "multimodal_data": [base64.b64encode(RED_PNG).decode()]}
    body = {"prompt": [shown, "text", shown], "n_predict": 12, "temperature": 0}
    status, answered = seeing.request("POST", "/v1/completions", body)
    assert status == 200, answered
    texts = [choice["text"] for choice in answered["choices"]]
    assert texts[0] == texts[2] == say(seeing, ask(show("look", RED_PNG)))
    status, refused = seeing.request("POST", "/completion", {"prompt": {**shown, "multimodal_data": ["", "AAAA"]}})
    assert status == 400
    assert refused["error"]["message"] == "cannot use `multimodal_data[0]`: it is empty"
    status, refused = seeing.request("POST", "/completion", {"prompt": {**shown, "multimodal_data": []}})
    assert refused["error"]["message"] == "cannot use the prompt: it has 1 places for 0 pictures and sounds"
    status, refused = instance.request("POST", "/completion", {"prompt": shown})
    assert (status, "it has no `mmproj`" in refused["error"]["message"]) == (400, True)


def test_model_that_slept_sees_again(files: dict[str, Path], tmp_path: Path) -> None:
    with run_child(tmp_path, "serve", choose_settings(files, "eye")) as child:
        child.supervisor.wait_for("ready")
        said = say(child, ask(show("look", RED_PNG)))
        while child.supervisor.order(OrderKind.SLEEP).result is AnswerResult.BUSY:
            pass  # a request ends a moment after its answer
        asleep = child.supervisor.wait_for("sleeping")
        assert all(row.used == 0 for row in asleep.effective.devices)
        assert child.request("GET", "/props")[1]["modalities"]["vision"]
        assert child.supervisor.order(OrderKind.WAKE).result is AnswerResult.OK
        child.supervisor.wait_for("ready")
        assert say(child, ask(show("look", RED_PNG))) == said


@pytest.mark.parametrize("name", ["png", "jpeg", "gif", "bmp", "wav", "mp3", "flac"])
def test_no_garbage_ends_the_instance(seeing: Child, hearing: Child, name: str) -> None:
    """Files bent anywhere, and cut: each is seen or heard, or refused with a reason."""
    pictures = {"png": RED_PNG, "jpeg": write_jpeg(), "gif": write_gif(), "bmp": write_bmp()}
    sounds = {"wav": write_wav(800), "mp3": write_mp3(4), "flac": write_flac(4000)}
    child, data = (seeing, pictures[name]) if name in pictures else (hearing, sounds[name])
    randomness = random.Random(name)
    for _ in range(150):
        bent = bytearray(data[: randomness.choice((len(data), randomness.randrange(len(data))))])
        for _ in range(randomness.randint(0, 4)):
            if bent:
                bent[randomness.randrange(min(len(bent), 200))] = randomness.randrange(256)
        encoded = base64.b64encode(bytes(bent)).decode()
        part = {"type": "image_url", "image_url": {"url": encoded}}
        if child is hearing:
            part = {"type": "input_audio", "input_audio": {"data": encoded}}
        body = ask([{"type": "text", "text": "x"}, part, {"type": "text", "text": "y"}], max_tokens=1)
        status, answered = child.request("POST", "/v1/chat/completions", body)
        assert status in (200, 400), answered
    assert child.process.poll() is None
    assert say(child, ask("still there?"))


def test_responses_show_pictures(seeing: Child) -> None:
    with connect_openai(seeing) as client:
        content: Any = [
            {"type": "input_text", "text": "look"},
            {"type": "input_image", "image_url": as_uri(RED_PNG), "detail": "auto"},
            {"type": "input_text", "text": "what"},
        ]
        answered = client.responses.create(
            model="tiny", input=[{"role": "user", "content": content}], max_output_tokens=12, temperature=0
        )
        assert answered.output_text == say(seeing, ask(show("look", RED_PNG, "what")))
        content[1]["image_url"] = "https://example.com/a.png"
        with pytest.raises(openai.BadRequestError, match="models have no network"):
            client.responses.create(model="tiny", input=[{"role": "user", "content": content}])


def test_pictures_are_seen_beside_functions(files: dict[str, Path], tmp_path: Path) -> None:
    function = {"name": "look", "description": "looks", "parameters": {"type": "object", "properties": {}}}
    more = {"tools": [{"type": "function", "function": function}], "logprobs": True, "max_tokens": 4}
    with run_child(tmp_path, "serve", choose_settings(files, "eye", chat_template=TEMPLATE)) as child:
        child.supervisor.wait_for("ready")
        bodies = [ask(show("look", data, "what"), **more) for data in (RED_PNG, SLOPE_PNG, RED_PNG)]
        plain = answer(child, ask("lookwhat", **more))
        shown = [answer(child, body) for body in bodies]
        assert shown[0]["usage"]["prompt_tokens"] == plain["usage"]["prompt_tokens"] + N_PICTURE
        first, other, again = (entry["choices"][0]["logprobs"]["content"][0]["logprob"] for entry in shown)
        assert first != other
        assert first == pytest.approx(again, abs=1e-3)


# --- transcripts ------------------------------------------------------------------------------------------------------


def test_transcript_is_what_a_chat_says_of_the_sound_whole_and_streamed(hearing: Child) -> None:
    sound = write_wav(3200)
    audio = {"type": "input_audio", "input_audio": {"data": base64.b64encode(sound).decode()}}
    said = say(hearing, ask([{"type": "text", "text": "Transcribe audio to text"}, audio]))
    asked = say(hearing, ask([{"type": "text", "text": "hear (language: de)"}, audio]))
    with connect_openai(hearing) as client:
        more: Any = {"model": "tiny", "file": ("a.wav", sound), "temperature": 0, "extra_body": {"max_tokens": 12}}
        whole = client.audio.transcriptions.create(**more)
        assert whole.text == said
        assert client.audio.transcriptions.create(prompt="hear", language="de", **more).text == asked
        events = list(client.audio.transcriptions.create(stream=True, **more))
        assert "".join(event.delta for event in events if event.type == "transcript.text.delta") == said
        assert (events[-1].type, events[-1].text) == ("transcript.text.done", said)


FORM = b'--x\r\nContent-Disposition: form-data; name="%b"%b\r\n\r\n%b\r\n--x--\r\n'


@pytest.mark.parametrize(
    ("form", "reason"),
    [
        (b"{}", "cannot read the request body: the form is cut off, or has too many fields"),
        (FORM % (b"model", b"", b"tiny"), "cannot use `file`: it is missing, or empty"),
        (
            FORM % (b"file", b"; filename=a.wav", b"nothing"),
            "cannot use `file`: it is of no known kind; WAV, MP3 and FLAC are taken",
        ),
        (
            FORM % (b"file", b"; filename=a.wav", write_wav(9, form=2)),
            "cannot use `file`: it is a WAV of format 2; PCM, floats, A-law and mu-law are taken",
        ),
        (
            (FORM % (b"file", b"", b"abc"))[:-8],
            "cannot read the request body: the form is cut off, or has too many fields",
        ),
        (b"--x\r\n\r\nabc\r\n--x--\r\n", "cannot read the request body: a part of the form has no name"),
        (
            b"--x\r\nContent-Disposition: form-data; name=a\r\n\r\n\r\n" * 100 + b"--x--",
            "cannot read the request body: the form is cut off, or has too many fields",
        ),
    ],
)
def test_form_that_cannot_be_transcribed_is_refused_with_the_reason(hearing: Child, form: bytes, reason: str) -> None:
    with contextlib.closing(hearing.connect()) as connection:
        headers = {"Content-Type": "multipart/form-data; boundary=x"}
        connection.request("POST", "/v1/audio/transcriptions", form, headers)
        response = connection.getresponse()
        assert (response.status, json.loads(response.read())["error"]["message"]) == (400, reason)


def test_only_models_that_hear_transcribe(seeing: Child) -> None:
    with connect_openai(seeing) as client, pytest.raises(openai.BadRequestError, match="audio input is not supported"):
        client.audio.transcriptions.create(model="tiny", file=("a.wav", write_wav(100)))
    with connect_openai(seeing) as client, pytest.raises(openai.BadRequestError, match="'srt' is not json"):
        client.audio.transcriptions.create(model="tiny", file=("a.wav", write_wav(100)), response_format="srt")
