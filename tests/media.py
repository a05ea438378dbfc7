"""Where do tests get pictures and sounds from? They write them, in every format that is taken: small, and by the letter
of the formats, so that a test can bend what it wants bent.
"""

import base64
import math
import struct
import zlib
from collections.abc import Callable, Iterator

Paint = Callable[[int, int], tuple[int, int, int]]
"""The colour at (x, y)."""


def plain(red: int, green: int, blue: int) -> Paint:
    return lambda x, y: (red, green, blue)


def slope(x: int, y: int) -> tuple[int, int, int]:
    return (x * 4 % 256, y * 4 % 256, 128)


RED, BLUE = plain(255, 0, 0), plain(0, 0, 255)


def as_uri(data: bytes, kind: str = "image/png") -> str:
    return f"data:{kind};base64,{base64.b64encode(data).decode()}"


def write_png(
    width: int = 40, height: int = 30, paint: Paint = RED, *, head: bytes | None = None, stream: bytes | None = None
) -> bytes:
    """`head` and `stream`: instead of its own."""
    rows = b"".join(b"\0" + bytes(v for x in range(width) for v in paint(x, y)) for y in range(height))
    if head is None:
        head = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    chunks = ((b"IHDR", head), (b"IDAT", zlib.compress(rows) if stream is None else stream), (b"IEND", b""))
    packed = (
        struct.pack(">I", len(body)) + name + body + struct.pack(">I", zlib.crc32(name + body)) for name, body in chunks
    )
    return b"\x89PNG\r\n\x1a\n" + b"".join(packed)


def write_bmp(width: int = 8, height: int = 8, paint: Paint = RED) -> bytes:
    padding = bytes(-width * 3 % 4)
    rows = b"".join(
        b"".join(bytes(reversed(paint(x, y))) for x in range(width)) + padding for y in reversed(range(height))
    )
    head = struct.pack("<IiiHHIIiiII", 40, width, height, 1, 24, 0, len(rows), 2835, 2835, 0, 0)
    return b"BM" + struct.pack("<IHHI", 54 + len(rows), 0, 0, 54) + head + rows


def write_gif(width: int = 8, height: int = 8, paint: Paint = RED) -> bytes:
    """Of two colours, without compression: each code is a pixel, and the table is cleared before codes grow."""
    dark = paint(0, 0)
    bits: list[int] = []

    def put(code: int) -> None:
        bits.extend(code >> bit & 1 for bit in range(3))

    for index in range(width * height):
        if index % 2 == 0:
            put(4)
        put(0 if paint(index % width, index // width) == dark else 1)
    put(5)
    bits += [0] * (-len(bits) % 8)
    data = bytes(
        sum(bit << place for place, bit in enumerate(bits[start : start + 8])) for start in range(0, len(bits), 8)
    )
    blocks = b"".join(bytes([len(data[at : at + 255])]) + data[at : at + 255] for at in range(0, len(data), 255))
    head = b"GIF89a" + struct.pack("<HHBBB", width, height, 0x81, 0, 0) + bytes(dark) + bytes(9)
    return head + b"," + struct.pack("<HHHHB", 0, 0, width, height, 0) + b"\x02" + blocks + b"\0;"


def write_jpeg(width: int = 16, height: int = 16, shade: int = 200) -> bytes:
    """Grey, baseline: one flat block of eight times eight pixels after the other."""

    def segment(marker: int, body: bytes) -> bytes:
        return struct.pack(">BBH", 0xFF, marker, len(body) + 2) + body

    level = (shade - 128) * 8
    n_bits = abs(level).bit_length()
    # Huffman codes: of the DC differences, 0 for none and 10 for the first one's size; of the AC values, 0 for no more.
    dc, ac = b"\x00" + bytes([1, 1, *[0] * 14]) + bytes([0, n_bits]), b"\x10" + bytes([1, *[0] * 15]) + b"\x00"
    tables = segment(0xC4, dc) + segment(0xC4, ac)
    n_blocks = ((width + 7) // 8) * ((height + 7) // 8)
    first = f"{level if level >= 0 else level + (1 << n_bits) - 1:0{n_bits}b}" if n_bits else ""
    bits = ("10" + first if n_bits else "0") + "0" + "00" * (n_blocks - 1)
    bits += "1" * (-len(bits) % 8)
    scan = bytes(int(bits[start : start + 8], 2) for start in range(0, len(bits), 8)).replace(b"\xff", b"\xff\0")
    return (
        b"\xff\xd8"
        + segment(0xE0, b"JFIF\0\1\1\0\0\1\0\1\0\0")
        + segment(0xDB, b"\0" + b"\1" * 64)
        + segment(0xC0, struct.pack(">BHHB3B", 8, height, width, 1, 1, 0x11, 0))
        + tables
        + segment(0xDA, b"\1\1\0\0\x3f\0")
        + scan
        + b"\xff\xd9"
    )


def list_samples(n_samples: int, pitch: float = 440.0, rate: int = 16000) -> Iterator[int]:
    return (round(12000 * math.sin(2 * math.pi * pitch * index / rate)) for index in range(n_samples))


def write_wav(n_samples: int = 16000, pitch: float = 440.0, rate: int = 16000, *, form: int = 1) -> bytes:
    data = struct.pack(f"<{n_samples}h", *list_samples(n_samples, pitch, rate))
    head = struct.pack("<HHIIHH", form, 1, rate, 2 * rate, 2, 16)
    body = b"fmt " + struct.pack("<I", 16) + head + b"data" + struct.pack("<I", len(data)) + data
    return b"RIFF" + struct.pack("<I", 4 + len(body)) + b"WAVE" + body


def write_mp3(n_frames: int = 40) -> bytes:
    """Silence: 26 ms in each frame."""
    return (b"\xff\xfb\x90\xc4" + bytes(413)) * n_frames


def write_flac(n_samples: int = 16000, *, claimed: int | None = None, rate: int = 16000) -> bytes:
    """Silence, in blocks of 4,000 samples that each say nothing but 0."""
    total = n_samples if claimed is None else claimed
    packed = rate << 44 | 0 << 41 | 15 << 36 | total
    head = b"fLaC" + struct.pack(">I", 0x80000000 | 34) + struct.pack(">HH", 4000, 4000) + bytes(6)
    frames = b"".join(_write_flac_frame(number) for number in range(n_samples // 4000))
    return head + struct.pack(">Q", packed) + bytes(16) + frames


def _write_flac_frame(number: int) -> bytes:
    assert number < 128
    head = b"\xff\xf8" + bytes([0x70, 0x08, number]) + struct.pack(">H", 3999)
    head += bytes([_check(head, 0x07, 8)])
    frame = head + b"\0\0\0"
    return frame + struct.pack(">H", _check(frame, 0x8005, 16))


def _check(data: bytes, polynomial: int, n_bits: int) -> int:
    value, top = 0, 1 << (n_bits - 1)
    for byte in data:
        value ^= byte << (n_bits - 8)
        for _ in range(8):
            value = (value << 1 ^ polynomial if value & top else value << 1) & ((1 << n_bits) - 1)
    return value
