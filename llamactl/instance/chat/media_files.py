"""Is this a picture or a sound that may be decoded? Looked at before any decoder sees it.

The decoders (stb_image, miniaudio) believe what a file says of itself and allocate that; and where memory is short in
C++, the process ends. So the sizes that they will believe are read here, by the same rules, and bounded: pixels,
seconds, and for PNG the bytes that really come out of its stream. What has none of the magic numbers never gets
further.
"""

import struct
import zlib
from dataclasses import dataclass
from enum import StrEnum

MAX_BYTES = 64 << 20
MAX_PIXELS = 50_000_000
MAX_RATIO = 200
"""Of the longer side to the shorter one; more is beyond what projectors can cut up."""
MAX_SECONDS = 1800
MAX_MP3_BYTES = 8 << 20
"""An MP3 of 8 kbit/s says a second in 1,000 bytes: what length it has is only known when it is decoded."""
MAX_SCANS = 100
_PIECE = 1 << 20

PICTURES = "JPEG, PNG, GIF and BMP"
SOUNDS = "WAV, MP3 and FLAC"
_KNOWN_OTHERS = (
    (b"RIFF????WEBP", "WebP"),
    (b"????ftypavi", "AVIF"),
    (b"????ftyphei", "HEIC"),
    (b"????ftypmif", "HEIC"),
    (b"????ftypM4A", "M4A"),
    (b"????ftyp", "MP4"),
    (b"II*\0", "TIFF"),
    (b"MM\0*", "TIFF"),
    (b"%PDF", "PDF"),
    (b"<svg", "SVG"),
    (b"<?xml", "SVG or XML"),
    (b"OggS", "Ogg"),
    (b"\x1aE\xdf\xa3", "WebM"),
    (b"<!DOCTYPE", "HTML"),
    (b"<html", "HTML"),
)


class Kind(StrEnum):
    PICTURE = "picture"
    SOUND = "sound"


class FileRefused(ValueError):
    """The text says why, as in "it ..."."""


@dataclass(frozen=True)
class Picture:
    width: int
    height: int

    @property
    def n_pixels(self) -> int:
        return self.width * self.height


def check_file(data: bytes, kind: Kind | None) -> int:
    """How many pixels it has; of a sound 0. Raises FileRefused. `kind`: what it must be; None: either."""
    if not data:
        raise FileRefused("it is empty")
    if len(data) > MAX_BYTES:
        raise FileRefused(f"it has {len(data)} bytes, at most {MAX_BYTES} are taken")
    if kind is Kind.SOUND or (kind is None and _begins_as_sound(data)):
        check_sound(data)
        return 0
    picture = read_picture(data)
    if not picture.width or not picture.height:
        raise FileRefused(f"it is {picture.width} x {picture.height} pixels large")
    if picture.n_pixels > MAX_PIXELS:
        raise FileRefused(
            f"it is {picture.width} x {picture.height} pixels large, at most {MAX_PIXELS} pixels are taken"
        )
    if max(picture.width, picture.height) > MAX_RATIO * min(picture.width, picture.height):
        raise FileRefused(f"it is {picture.width} x {picture.height} pixels large: too long for its width")
    if data.startswith(_PNG):
        _check_png_stream(data, picture)
    return picture.n_pixels


# --- pictures ---------------------------------------------------------------------------------------------------------

_PNG = b"\x89PNG\r\n\x1a\n"
_CUT_OFF = "it is cut off"


def read_picture(data: bytes) -> Picture:
    """The size that its head tells. Raises FileRefused."""
    if data.startswith(b"\xff\xd8\xff"):
        return _read_jpeg(data)
    if data.startswith(_PNG):
        return _read_png(data)
    if data.startswith((b"GIF87a", b"GIF89a")):
        return Picture(*_unpack("<HH", data, 6))
    if data.startswith(b"BM"):
        return _read_bmp(data)
    raise FileRefused(f"it is {_name_other(data)}; {PICTURES} are taken")


def _name_other(data: bytes) -> str:
    for magic, name in _KNOWN_OTHERS:
        start = data[: len(magic)]
        if len(start) == len(magic) and all(want in (have, ord("?")) for want, have in zip(magic, start, strict=True)):
            return name
    return "of no known kind"


def _unpack(form: str, data: bytes, offset: int) -> tuple[int, ...]:
    try:
        return struct.unpack_from(form, data, offset)
    except struct.error:
        raise FileRefused(_CUT_OFF) from None


def _read_png(data: bytes) -> Picture:
    length, name, width, height = struct.unpack_from(">I4sII", data, 8) if len(data) >= 24 else (0, b"", 0, 0)
    if name != b"IHDR" or length != 13:
        raise FileRefused("its first chunk is no head of a PNG")
    return Picture(width, height)


def _check_png_stream(data: bytes, picture: Picture) -> None:
    """That what comes out of its stream is what the head says, no less and no more: decoders believe the stream."""
    depth, color, _, _, interlace = _unpack(">BBBBB", data, 24)
    channels = {0: 1, 2: 3, 3: 1, 4: 2, 6: 4}.get(color)
    if channels is None or depth not in (1, 2, 4, 8, 16) or interlace not in (0, 1):
        raise FileRefused("its head makes no sense")
    n_expected = _count_png_bytes(picture, depth * channels, interlaced=bool(interlace))
    inflater, n_bytes, offset = zlib.decompressobj(), 0, 33
    try:
        while offset + 8 <= len(data):
            length, name = struct.unpack_from(">I4s", data, offset)
            piece = memoryview(data)[offset + 8 : offset + 8 + length]
            if name == b"IEND":
                break
            if name == b"IDAT":
                if len(piece) < length:
                    raise FileRefused(_CUT_OFF)
                rest: bytes | memoryview = piece
                while rest and n_bytes <= n_expected:
                    n_bytes += len(inflater.decompress(rest, _PIECE))
                    rest = inflater.unconsumed_tail
            offset += 12 + length
        while n_bytes <= n_expected and (more := inflater.decompress(b"", _PIECE)):
            n_bytes += len(more)
    except zlib.error as error:
        raise FileRefused(f"its stream is damaged: {error}") from None
    if n_bytes < n_expected:
        raise FileRefused(_CUT_OFF)
    if n_bytes > n_expected:
        raise FileRefused("there is more in its stream than its head says")


def _count_png_bytes(picture: Picture, bits: int, *, interlaced: bool) -> int:
    """Each row has a byte for its filter. Interlaced, the picture is seven smaller ones."""

    def count(width: int, height: int) -> int:
        return height * (1 + (width * bits + 7) // 8) if width and height else 0

    if not interlaced:
        return count(picture.width, picture.height)
    passes = ((0, 0, 8, 8), (4, 0, 8, 8), (0, 4, 4, 8), (2, 0, 4, 4), (0, 2, 2, 4), (1, 0, 2, 2), (0, 1, 1, 2))
    return sum(
        count((picture.width - x + dx - 1) // dx, (picture.height - y + dy - 1) // dy) for x, y, dx, dy in passes
    )


def _read_jpeg(data: bytes) -> Picture:
    offset = 2
    while True:
        while data[offset : offset + 2] == b"\xff\xff":
            offset += 1
        lead, marker = _unpack(">BB", data, offset)
        if lead != 0xFF:
            raise FileRefused("its markers are damaged")
        if marker in (0x01, *range(0xD0, 0xD8)):
            offset += 2
            continue
        (length,) = _unpack(">H", data, offset + 2)
        if 0xC0 <= marker <= 0xCF and marker not in (0xC4, 0xC8, 0xCC):
            break
        if marker in (0xD9, 0xDA) or length < 2:
            raise FileRefused("it has no size")
        offset += 2 + length
    if marker > 0xC2:
        raise FileRefused("it is a JPEG of a kind that is not taken (neither baseline nor progressive)")
    if marker == 0xC2 and data.count(b"\xff\xda") > MAX_SCANS:
        raise FileRefused(f"it has more than {MAX_SCANS} scans")
    height, width = _unpack(">HH", data, offset + 5)
    return Picture(width, height)


def _read_bmp(data: bytes) -> Picture:
    start, head_size = _unpack("<II", data, 10)
    if head_size == 12:
        width, height, _, bits = _unpack("<HHHH", data, 18)
    elif head_size in (40, 56, 108, 124):
        width, height, _, bits = _unpack("<iiHH", data, 18)
    else:
        raise FileRefused("its head makes no sense")
    if width < 0 or bits not in (1, 4, 8, 16, 24, 32):
        raise FileRefused("its head makes no sense")
    picture = Picture(width, abs(height))
    if picture.n_pixels <= MAX_PIXELS and start + (width * bits + 31) // 32 * 4 * picture.height > len(data):
        raise FileRefused(_CUT_OFF)
    return picture


# --- sounds -----------------------------------------------------------------------------------------------------------


def check_sound(data: bytes) -> None:
    """Raises FileRefused."""
    if not _begins_as_sound(data):
        raise FileRefused(f"it is {_name_other(data)}; {SOUNDS} are taken")
    if data.startswith(b"RIFF"):
        _check_seconds(*_read_wav(data))
    elif data.startswith(b"fLaC"):
        _check_seconds(*_read_flac(data))
    else:
        _check_mp3(data)


def _begins_as_sound(data: bytes) -> bool:
    is_wav = data[:4] == b"RIFF" and data[8:12] == b"WAVE"
    return is_wav or data.startswith((b"fLaC", b"ID3")) or _is_mp3_head(data, 0)


def _check_seconds(n_frames: int, rate: int) -> None:
    if not n_frames or not rate:
        raise FileRefused("there is no sound in it")
    if n_frames > MAX_SECONDS * rate:
        raise FileRefused(f"it takes {n_frames // rate} s, at most {MAX_SECONDS} s are taken")


_WAV_FORMATS = (1, 3, 6, 7)
"""PCM, floats, A-law, mu-law. Of the others a file may claim to have any length."""
_WAV_EXTENSIBLE = 0xFFFE


def _read_wav(data: bytes) -> tuple[int, int]:
    """Samples of each channel, and how many of them are a second."""
    offset, head = 12, None
    while offset + 8 <= len(data):
        name, length = struct.unpack_from("<4sI", data, offset)
        body = offset + 8
        if name == b"fmt ":
            if length < 16 or body + length > len(data):
                raise FileRefused(_CUT_OFF)
            head = struct.unpack_from("<HHIIHH", data, body)
            if head[0] == _WAV_EXTENSIBLE:
                if length < 40:
                    raise FileRefused("its head makes no sense")
                head = (struct.unpack_from("<H", data, body + 24)[0], *head[1:])
        if name == b"data":
            break
        offset = body + length + (length & 1)
    else:
        raise FileRefused(_CUT_OFF)
    if head is None:
        raise FileRefused("its head makes no sense")
    form, channels, rate, _, block, bits = head
    if form not in _WAV_FORMATS:
        raise FileRefused(f"it is a WAV of format {form}; PCM, floats, A-law and mu-law are taken")
    n_frame_bytes = channels * bits // 8 if bits % 8 == 0 else block
    if not 1 <= channels <= 32 or not 1000 <= rate <= 384_000 or not 8 <= bits <= 64 or not block or not n_frame_bytes:
        raise FileRefused("its head makes no sense")
    return min(length, len(data) - body) // n_frame_bytes, rate


def _read_flac(data: bytes) -> tuple[int, int]:
    kind_and_length, _, _, packed = _unpack(">IHH6xQ", data, 4)
    if kind_and_length & 0x7FFFFFFF != 34:
        raise FileRefused("its head makes no sense")
    rate, n_frames = packed >> 44, packed & ((1 << 36) - 1)
    if not n_frames:
        raise FileRefused("it does not say how long it is")
    if rate < 1000:
        raise FileRefused("its head makes no sense")
    return n_frames, rate


def _is_mp3_head(data: bytes, offset: int) -> bool:
    head = data[offset : offset + 4]
    return (
        len(head) == 4
        and head[0] == 0xFF
        and head[1] & 0xE0 == 0xE0
        and head[1] & 0x18 != 0x08
        and head[1] & 0x06 != 0
        and head[2] & 0xF0 not in (0, 0xF0)
        and head[2] & 0x0C != 0x0C
    )


def _check_mp3(data: bytes) -> None:
    if len(data) > MAX_MP3_BYTES:
        raise FileRefused(f"it has {len(data)} bytes, of an MP3 at most {MAX_MP3_BYTES} are taken")
    offset = 0
    while data[offset : offset + 3] == b"ID3":
        size = 0
        for byte in _unpack(">4B", data, offset + 6):
            size = size << 7 | byte & 0x7F
        offset += 10 + size
    if not _is_mp3_head(data, offset):
        raise FileRefused("there is no sound where an MP3 must have it")
    # The decoder believes how many frames the first one says there are, wherever it finds that.
    for mark in (b"Xing", b"Info"):
        found = data.find(mark, offset)
        while found >= 0:
            flags, n_frames = (*_unpack(">II", data, found + 4),) if found + 12 <= len(data) else (0, 0)
            # 24 ms are the least of a frame, and 24 bytes the fewest that it takes.
            if flags & 1 and n_frames > len(data) // 24:
                raise FileRefused(f"it says that it has {n_frames} frames, in {len(data)} bytes")
            found = data.find(mark, found + 1)
