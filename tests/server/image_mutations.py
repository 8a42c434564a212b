"""Broken pictures and broken text out of good ones, for the fuzz run: each wholly determined by its generator.

Knows what breaks parsers (lengths, signs, checksums, nesting, cuts); knows nothing of the parsers that are tested.
"""

import base64
import json
import random
import struct
import zlib
from collections.abc import Callable, Sequence

from tests.server.image_files import PNG_SIGNATURE, chunk

MAX_BYTES = 200_000
TOKENS = (
    *(b"[", b"]", b"{", b"}", b",", b":", b'"', b"\\", b"\\u0000", b"\\ud800", b"null", b"true", b"NaN", b"-Infinity"),
    *(b"1e400", b"1e-400", b"-0", b"0.5", b"256", b"-1", b"1" * 40, b"0." + b"3" * 60, b"[]", b"{}", b"[[", b"]]"),
    *(
        b"=",
        b"====",
        b"+",
        b"/",
        b"-",
        b"_",
        b" ",
        b"\r\n",
        b"\0",
        b"\xff",
        b"\xc3\xa9",
        b"\xed\xa0\x80",
        b"\xef\xbb\xbf",
    ),
    *(b"data:image/png;base64,", b'"b64_json":', b'{"base64":"', b'{"a":', b"https://", b"iVBORw0KGgo", b"/9j/"),
    *(
        b"\xff\xd8",
        b"\xff\xd9",
        b"\xff\xda",
        b"\xff\xc0",
        b"\xff\xc2",
        b"\xff\xd0",
        b"\xff\xdd\x00\x04\x00\x01",
        b"IEND",
    ),
    *(b"IDAT", b"PLTE", b"tRNS", b"RIFF", b"WEBP", b"VP8X", b"VP8L", b"ALPH", b"ANIM", b"EXIF"),
)
NUMBERS = (
    0,
    1,
    2,
    3,
    7,
    8,
    127,
    128,
    255,
    256,
    4095,
    4096,
    32767,
    32768,
    65535,
    2**24 - 1,
    2**31 - 1,
    2**31,
    2**32 - 1,
)

Mutation = Callable[[bytes, random.Random], bytes]


def mutate(element: bytes, others: Sequence[bytes], generator: random.Random) -> bytes:
    """Break an element in one to four ways; half of the PNGs get right checksums again, to be read further."""
    for _ in range(generator.randint(1, 4)):
        if generator.random() < 0.1:
            element = splice(element, generator.choice(others), generator)
        element = generator.choice(MUTATIONS)(element, generator)[:MAX_BYTES]
    if element.startswith(PNG_SIGNATURE) and generator.random() < 0.5:
        element = with_right_checksums(element)
    return generator.choice(WRAPPINGS)(element) if generator.random() < 0.4 else element


def flip_bit(data: bytes, generator: random.Random) -> bytes:
    position = generator.randrange(len(data) or 1)
    return (
        data[:position]
        + bytes([byte ^ 1 << generator.randrange(8) for byte in data[position : position + 1]])
        + data[position + 1 :]
    )


def insert_token(data: bytes, generator: random.Random) -> bytes:
    position = generator.randint(0, len(data))
    return data[:position] + generator.choice(TOKENS) + data[position + generator.choice((0, 0, 1, 4)) :]


def insert_noise(data: bytes, generator: random.Random) -> bytes:
    position = generator.randint(0, len(data))
    return data[:position] + generator.randbytes(generator.randint(1, 20)) + data[position:]


def overwrite_number(data: bytes, generator: random.Random) -> bytes:
    """A length, a size or an offset becomes one that is at a border."""
    position = generator.randint(0, max(0, min(len(data), generator.choice((64, 1024, len(data))))))
    kind = generator.choice((">B", ">H", "<H", ">I", "<I"))
    number = struct.pack(kind, generator.choice(NUMBERS) % 256 ** struct.calcsize(kind))
    return data[:position] + number + data[position + len(number) :]


def cut(data: bytes, generator: random.Random) -> bytes:
    return data[: generator.randint(0, len(data))]


def cut_and_end(data: bytes, generator: random.Random) -> bytes:
    return cut(data, generator) + generator.choice((b"\xff\xd9", chunk(b"IEND", b""), b"]]]", b'"}', b"=="))


def remove_part(data: bytes, generator: random.Random) -> bytes:
    start, end = sorted(generator.randint(0, len(data)) for _ in range(2))
    return data[:start] + data[min(end, start + generator.choice((1, 4, 64, len(data)))) :]


def repeat_part(data: bytes, generator: random.Random) -> bytes:
    start = generator.randint(0, len(data))
    end = start + generator.choice((1, 4, 13, 64, 400))
    return data[:start] + data[start:end] * generator.choice((2, 3, 50)) + data[end:]


def swap_parts(data: bytes, generator: random.Random) -> bytes:
    first, second, third = sorted(generator.randint(0, len(data)) for _ in range(3))
    return data[:first] + data[second:third] + data[first:second] + data[third:]


def recompress(data: bytes, generator: random.Random) -> bytes:
    """Of a PNG that is still whole, break the lines inside the compressed data; of others, flip a bit."""
    start, end = data.find(b"IDAT"), data.rfind(b"IEND")
    try:
        lines = zlib.decompress(data[start + 4 : end - 8])
    except zlib.error:
        return flip_bit(data, generator)
    broken = generator.choice((flip_bit, cut, remove_part, repeat_part))(lines, generator)
    return data[: start - 4] + chunk(b"IDAT", zlib.compress(broken)) + data[end - 4 :]


def splice(data: bytes, other: bytes, generator: random.Random) -> bytes:
    return cut(data, generator) + other[generator.randint(0, len(other)) :]


def with_right_checksums(data: bytes) -> bytes:
    """A PNG's chunks, as far as their lengths lead, each with the checksum of what it holds now."""
    mended, position = [PNG_SIGNATURE], len(PNG_SIGNATURE)
    while position + 12 <= len(data):
        length = int.from_bytes(data[position : position + 4], "big")
        if position + 12 + length > len(data):
            break
        mended.append(chunk(data[position + 4 : position + 8], data[position + 8 : position + 8 + length]))
        position += 12 + length
    return b"".join(mended) + data[position:]


def as_text(data: bytes) -> str:
    return base64.b64encode(data).decode()


MUTATIONS: tuple[Mutation, ...] = (
    flip_bit,
    insert_token,
    insert_noise,
    overwrite_number,
    cut,
    cut_and_end,
    remove_part,
    repeat_part,
    swap_parts,
    recompress,
)
WRAPPINGS: tuple[Callable[[bytes], bytes], ...] = (
    base64.b64encode,
    lambda data: base64.urlsafe_b64encode(data).rstrip(b"="),
    lambda data: b"data:image/png;base64," + base64.encodebytes(data),
    lambda data: json.dumps({"b64_json": as_text(data)}).encode(),
    lambda data: json.dumps({"a": as_text(data), "b": [[[1, 2, 3]]]}).encode(),
    lambda data: b'{"a": ' + data + b', "b": {"base64": "' + data + b'"}}',
    lambda data: b"[" + data + b"]",
)
