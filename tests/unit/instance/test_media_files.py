"""Are files looked at as their decoders will, and is what would take too much refused before that?"""

import random
import struct
import zlib
from contextlib import suppress

import pytest

from llamactl.instance.chat import media_files
from llamactl.instance.chat.media_files import MAX_SECONDS, FileRefused, Kind, Picture, check_file, read_picture
from tests.media import write_bmp, write_flac, write_gif, write_jpeg, write_mp3, write_png, write_wav

PICTURES = {
    "png": write_png(7, 5),
    "bmp": write_bmp(7, 5),
    "gif": write_gif(7, 5),
    "jpeg": write_jpeg(7, 5),
}
SOUNDS = {"wav": write_wav(800), "mp3": write_mp3(4), "flac": write_flac(8000)}


def refuse(data: bytes, kind: Kind = Kind.PICTURE) -> str:
    with pytest.raises(FileRefused) as caught:
        check_file(data, kind)
    return str(caught.value)


@pytest.mark.parametrize("name", PICTURES)
def test_size_of_a_picture_is_read_from_its_head(name: str) -> None:
    assert read_picture(PICTURES[name]) == Picture(7, 5)
    assert check_file(PICTURES[name], Kind.PICTURE) == 35


@pytest.mark.parametrize("name", SOUNDS)
def test_sound_is_taken(name: str) -> None:
    assert check_file(SOUNDS[name], Kind.SOUND) == 0


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "it is empty"),
        (b"\0", "it is of no known kind; JPEG, PNG, GIF and BMP are taken"),
        (b"RIFF\0\0\0\0WEBPVP8 ", "it is WebP; JPEG, PNG, GIF and BMP are taken"),
        (b"\0\0\0\x1cftypavif", "it is AVIF; JPEG, PNG, GIF and BMP are taken"),
        (b"\0\0\0\x18ftypmp42", "it is MP4; JPEG, PNG, GIF and BMP are taken"),
        (b"%PDF-1.7", "it is PDF; JPEG, PNG, GIF and BMP are taken"),
        (b"<svg xmlns=", "it is SVG; JPEG, PNG, GIF and BMP are taken"),
        (b"8BPS\0\1", "it is of no known kind; JPEG, PNG, GIF and BMP are taken"),
        (write_wav(100), "it is of no known kind; JPEG, PNG, GIF and BMP are taken"),
    ],
)
def test_what_has_no_magic_number_of_a_picture_gets_no_further(data: bytes, reason: str) -> None:
    assert refuse(data) == reason


@pytest.mark.parametrize("data", [write_png(), b"OggS", b"\0\0\0\x20ftypM4A ", b"\xff\xe0\0\0"])
def test_what_has_no_magic_number_of_a_sound_gets_no_further(data: bytes) -> None:
    assert refuse(data, Kind.SOUND).endswith("WAV, MP3 and FLAC are taken")


@pytest.mark.parametrize("name", PICTURES)
def test_no_cut_picture_is_more_than_refused(name: str) -> None:
    """A GIF and a JPEG that are cut behind their heads are the decoder's matter, which reads no further than that."""
    data = PICTURES[name]
    for length in range(len(data)):
        try:
            assert check_file(data[:length], Kind.PICTURE) == 35
        except FileRefused:
            continue
        assert name in ("gif", "jpeg") or length >= len(data) - 16, f"{name} cut to {length} bytes"


@pytest.mark.parametrize("data", [*PICTURES.values(), *SOUNDS.values()], ids=[*PICTURES, *SOUNDS])
def test_garbage_is_refused_or_bounded(data: bytes) -> None:
    """Whatever the bytes: an answer, and no other exception."""
    randomness = random.Random(7)
    kind = Kind.PICTURE if data in PICTURES.values() else Kind.SOUND
    for _ in range(3000):
        bent = bytearray(data[: randomness.choice((len(data), 40, 60))])
        for _ in range(randomness.randint(1, 6)):
            bent[randomness.randrange(min(len(bent), 64))] = randomness.choice(
                (0, 1, 0x7F, 0x80, 0xFF, randomness.randrange(256))
            )
        with suppress(FileRefused):
            assert check_file(bytes(bent), kind) <= media_files.MAX_PIXELS


def set_size(data: bytes, name: str, width: int, height: int) -> bytes:
    """The same file with another size in its head."""
    form, offset = {"png": (">II", 16), "gif": ("<HH", 6), "bmp": ("<ii", 18)}.get(
        name, (">HH", data.find(b"\xff\xc0") + 5)
    )
    sizes = (height, width) if name == "jpeg" else (width, height)
    return data[:offset] + struct.pack(form, *sizes) + data[offset + struct.calcsize(form) :]


@pytest.mark.parametrize("name", PICTURES)
def test_picture_that_claims_too_many_pixels_is_refused(name: str) -> None:
    assert refuse(set_size(PICTURES[name], name, 30000, 30000)) == (
        "it is 30000 x 30000 pixels large, at most 50000000 pixels are taken"
    )
    assert refuse(set_size(PICTURES[name], name, 0, 5)).startswith("it is 0 x 5 pixels") or name == "bmp"
    assert "too long for its width" in refuse(set_size(PICTURES[name], name, 3000, 2)) or name == "bmp"


def test_picture_whose_stream_is_a_bomb_is_refused_unread() -> None:
    bomb = zlib.compress(bytes(64 << 20), 9)
    assert len(bomb) < 80_000
    assert refuse(write_png(7, 5, stream=bomb)) == "there is more in its stream than its head says"
    assert refuse(write_png(7, 5, stream=zlib.compress(bytes(20)))) == "it is cut off"
    assert refuse(write_png(7, 5, stream=b"no stream")).startswith("its stream is damaged")


@pytest.mark.parametrize(
    ("color", "channels", "depth"), [(0, 1, 1), (0, 1, 16), (2, 3, 8), (3, 1, 4), (4, 2, 8), (6, 4, 16)]
)
@pytest.mark.parametrize("interlace", [0, 1])
def test_stream_of_each_kind_of_png_is_measured(color: int, channels: int, depth: int, interlace: int) -> None:
    head = struct.pack(">IIBBBBB", 9, 10, depth, color, 0, 0, interlace)
    sizes = [(9, 10)] if not interlace else [(2, 2), (1, 2), (3, 1), (2, 3), (5, 2), (4, 5), (9, 5)]
    size = sum(height * (1 + (width * depth * channels + 7) // 8) for width, height in sizes)
    assert check_file(write_png(head=head, stream=zlib.compress(bytes(size))), Kind.PICTURE) == 90
    assert refuse(write_png(head=head, stream=zlib.compress(bytes(size - 1)))) == "it is cut off"


def test_jpeg_of_many_scans_or_a_kind_without_decoder_is_refused() -> None:
    progressive = PICTURES["jpeg"].replace(b"\xff\xc0", b"\xff\xc2")
    assert check_file(progressive, Kind.PICTURE) == 35
    assert refuse(progressive + b"\xff\xda\0\2" * 200) == "it has more than 100 scans"
    assert "neither baseline nor progressive" in refuse(PICTURES["jpeg"].replace(b"\xff\xc0", b"\xff\xc9"))


def test_sound_that_claims_to_take_hours_is_refused() -> None:
    assert refuse(write_wav(16000, rate=1000)[:24] + struct.pack("<I", 1) + write_wav(16000)[28:], Kind.SOUND) == (
        "its head makes no sense"
    )
    assert refuse(write_flac(4000, claimed=(1 << 36) - 1), Kind.SOUND).startswith("it takes 4294967 s")
    assert refuse(write_flac(4000, claimed=0), Kind.SOUND) == "it does not say how long it is"
    assert refuse(write_flac(4000, rate=1), Kind.SOUND) == "its head makes no sense"
    silence = write_wav(0)[:40] + struct.pack("<I", 2_000_000 * 2) + bytes(4_000_000)
    slow = silence[:24] + struct.pack("<II", 1000, 2000) + silence[32:]
    assert refuse(slow, Kind.SOUND) == f"it takes 2000 s, at most {MAX_SECONDS} s are taken"


def test_mp3_that_claims_more_frames_than_it_has_room_for_is_refused() -> None:
    claim = b"\xff\xfb\x90\xc4" + bytes(17) + b"Xing" + struct.pack(">II", 1, 0xFFFFFF00) + bytes(384)
    assert refuse(claim + write_mp3(3), Kind.SOUND).startswith("it says that it has 4294967040 frames")
    honest = claim.replace(struct.pack(">I", 0xFFFFFF00), struct.pack(">I", 3))
    assert check_file(honest + write_mp3(3), Kind.SOUND) == 0
    tag = b"ID3\3\0\0" + bytes([0, 0, 1, 0])
    assert check_file(tag + b"Info: a song" + bytes(116) + write_mp3(3), Kind.SOUND) == 0
    assert refuse(b"ID3\3\0\0\x7f\x7f\x7f\x7f" + write_mp3(3), Kind.SOUND).startswith("there is no sound where")
    assert "of an MP3 at most" in refuse(write_mp3(1) * 30000, Kind.SOUND)


@pytest.mark.parametrize("form", [0, 2, 0x11, 0x55])
def test_wav_whose_length_is_only_claimed_is_refused(form: int) -> None:
    assert refuse(write_wav(100, form=form), Kind.SOUND).startswith(f"it is a WAV of format {form};")
