"""What does a conversation show? Pictures and sounds are taken out of its messages, and marks left in their places.

All dialects bring them here in one form: parts `image_url` and `input_audio` of messages, as chat completions have
them. A mark is a text that nobody can guess before the process began, so what a message quotes is not taken for one;
where templates write it, the picture stands. Sources are data URIs and bare base64, and files below the directory that
the configuration names. Nothing is fetched: instances have no network.
"""

import base64
import binascii
import os
import secrets
import stat
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import PurePath
from urllib.parse import unquote

import msgspec

from llamactl.bodies import MEDIA_MARKER, ChatMessage, ContentPart, refuse
from llamactl.errors import LlamactlError
from llamactl.instance.chat.media_files import MAX_BYTES, FileRefused, Kind, check_file

MARKER = f"<__media_{secrets.token_hex(16)}__>"
MAX_ITEMS = 256
_UNSUPPORTED = "input is not supported - hint: if this is unexpected, you may need to provide the mmproj"
"""In llama-server's words: clients look for them."""
MAX_REQUEST_PIXELS = 400_000_000
_WHITESPACE = str.maketrans("", "", " \t\r\n")


@dataclass(frozen=True)
class Item:
    """A picture or a sound, and where in the request it stood."""

    data: bytes
    place: str


@dataclass(frozen=True)
class MediaSources:
    """What a model takes, and from where."""

    sees: bool = False
    hears: bool = False
    directory: str = ""
    """Below which files may be named; empty: none may."""


def shows_media(messages: Sequence[ChatMessage]) -> bool:
    """Whether there is anything but text in them."""
    return any(
        part.type != "text" for message in messages if isinstance(message.content, list) for part in message.content
    )


def extract_media(messages: Sequence[ChatMessage], sources: MediaSources) -> tuple[list[ChatMessage], list[Item]]:
    """The messages with marks for what they show, and that in order. Reads files. Raises LlamactlError that names the
    part.
    """
    taken, items, n_pixels = [], [], 0
    for number, message in enumerate(messages):
        if isinstance(message.content, list):
            parts = []
            for index, part in enumerate(message.content):
                place = f"messages[{number}].content[{index}]"
                if part.type == "text":
                    parts.append(part)
                    continue
                kind, source = _find_source(part, place, sources)
                try:
                    data = _read_source(source, sources.directory)
                    n_pixels += check_file(data, kind)
                except FileRefused as error:
                    raise refuse_item(place, str(error)) from None
                if n_pixels > MAX_REQUEST_PIXELS:
                    raise refuse_item(
                        place, f"with it the request has more than {MAX_REQUEST_PIXELS} pixels, which are taken at most"
                    )
                items.append(Item(data, place))
                if len(items) > MAX_ITEMS:
                    raise refuse_item(place, f"at most {MAX_ITEMS} pictures and sounds are taken")
                parts.append(ContentPart(type=MEDIA_MARKER, text=MARKER))
            message = msgspec.structs.replace(message, content=parts)
        taken.append(message)
    return taken, items


def decode_media(sources: Sequence[str], place: str) -> list[Item]:
    """What stands beside a text that is no conversation, as base64 or data URIs, each of either kind. Raises
    LlamactlError that names it.
    """
    items, n_pixels = [], 0
    for number, source in enumerate(sources):
        item = f"{place}[{number}]"
        try:
            data = _read_source(source, "")
            n_pixels += check_file(data, None)
        except FileRefused as error:
            raise refuse_item(item, str(error)) from None
        if number >= MAX_ITEMS or n_pixels > MAX_REQUEST_PIXELS:
            raise refuse_item(item, f"at most {MAX_ITEMS} are taken, and {MAX_REQUEST_PIXELS} pixels in all")
        items.append(Item(data, item))
    return items


def refuse_item(place: str, reason: str) -> LlamactlError:
    """Make the error that answers a request whose picture or sound at `place` cannot be used: HTTP 400."""
    return refuse(f"cannot use `{place}`: {reason}")


def split_prompt(prompt: str, items: Sequence[Item]) -> list[str | int]:
    """Texts of a prompt, and numbers of items between them. Raises LlamactlError where not all items stand in it."""
    texts = prompt.split(MARKER)
    if len(texts) != len(items) + 1:
        raise refuse(f"cannot use the prompt: it has {len(texts) - 1} places for {len(items)} pictures and sounds")
    parts: list[str | int] = []
    for number, text in enumerate(texts):
        if text:
            parts.append(text)
        if number < len(items):
            parts.append(number)
    return parts


def _find_source(part: ContentPart, place: str, sources: MediaSources) -> tuple[Kind, str]:
    """Which kind it must be, and the URL or base64 that has it."""
    if part.type == "image_url":
        if not sources.sees:
            raise refuse(f"image {_UNSUPPORTED}")
        url = part.image_url if isinstance(part.image_url, str | None) else part.image_url.url
        if not url:
            raise refuse_item(place, "`image_url.url` is missing")
        return Kind.PICTURE, url
    if part.type == "input_audio":
        if not sources.hears:
            raise refuse(f"audio {_UNSUPPORTED}")
        audio = part.input_audio
        source = (audio.data or audio.url) if audio is not None else None
        if not source:
            raise refuse_item(place, "`input_audio.data` is missing")
        return Kind.SOUND, source
    if part.type in ("input_video", "video_url"):
        raise refuse(f"video {_UNSUPPORTED}")
    message = place.rpartition("[")[0]
    raise refuse(f"cannot use `{message}`: parts of type {part.type[:40]!r} are not supported")


def _read_source(source: str, directory: str) -> bytes:
    scheme = source[:8].lower()
    if scheme.startswith(("http:", "https:")):
        raise FileRefused("it would have to be fetched, and models have no network; send it as a data URI")
    if scheme.startswith("file://"):
        return _read_file(source[len("file://") :], directory)
    if scheme.startswith("data:"):
        head, comma, source = source.partition(",")
        if not comma or not head.lower().endswith(";base64"):
            raise FileRefused("its data URI is not base64 encoded")
    return decode_base64(source)


def decode_base64(text: str) -> bytes:
    """Raises FileRefused. Line breaks and missing padding are borne."""
    if len(text) > MAX_BYTES * 4 // 3 + MAX_BYTES // 16:
        raise FileRefused(f"it is longer than {MAX_BYTES} bytes, which are taken at most")
    text = text.translate(_WHITESPACE).rstrip("=")
    try:
        return base64.b64decode(text + "=" * (-len(text) % 4), validate=True)
    except (binascii.Error, ValueError):
        raise FileRefused("its base64 is damaged, or it is no URL that is known") from None


def _find_relative(path: str, directory: str) -> str:
    """An absolute path that leads elsewhere is one below `directory`, too, as llama-server has it."""
    named = PurePath(os.path.normpath(path))
    if any(named.is_relative_to(place) for place in (directory, os.path.realpath(directory))):
        return path
    return path.lstrip("/")


def _read_file(name: str, directory: str) -> bytes:
    """A regular file below `directory`, whatever links on the way say."""
    if not directory:
        raise FileRefused("`file://` URLs are not allowed: the model's configuration sets no `media_path`")
    missing = FileRefused(f"{name[:200]!r} does not exist below `media_path`, or cannot be read")
    try:
        path = os.path.join(directory, _find_relative(unquote(name), directory))
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY)
    except (OSError, ValueError):
        raise missing from None
    try:
        status = os.fstat(descriptor)
        found = PurePath(os.readlink(f"/proc/self/fd/{descriptor}"))
        if not found.is_relative_to(os.path.realpath(directory)) or not stat.S_ISREG(status.st_mode):
            raise missing
        if status.st_size > MAX_BYTES:
            raise FileRefused(f"it has {status.st_size} bytes, at most {MAX_BYTES} are taken")
        with os.fdopen(descriptor, "rb", closefd=False) as file:
            return file.read(MAX_BYTES + 1)
    except OSError:
        raise missing from None
    finally:
        os.close(descriptor)
