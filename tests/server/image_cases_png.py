"""Image cases: PNG of every colour type and depth, whole and damaged. Peers' reports 1 to 3, 6, 7 and 9 are among them.

Wanted pixels are arithmetic done here: value * 255 / largest, rounded half up; then colour * alpha / 255, the same.
"""

import struct
import zlib

import numpy as np

from tests.server.image_case import Array, Case, gives, gray, half_up, refused
from tests.server.image_files import (
    END,
    GRAY,
    GRAY_ALPHA,
    PALETTE,
    PNG_SIGNATURE,
    RGB,
    RGBA,
    animated_png,
    bomb_png,
    chunk,
    exif,
    filtered_png,
    header,
    png,
    png_file,
)

RANDOM = np.random.default_rng(7)
CHANNELS = {GRAY: 1, RGB: 3, GRAY_ALPHA: 2, RGBA: 4}
NAMES = {GRAY: "gray", RGB: "RGB", GRAY_ALPHA: "gray and alpha", RGBA: "RGBA"}
KINDS = [(GRAY, depth) for depth in (1, 2, 4, 8, 16)]
KINDS += [(colour, depth) for colour in (RGB, GRAY_ALPHA, RGBA) for depth in (8, 16)]


def random_samples(height: int, width: int, depth: int, colour: int) -> Array:
    """[H, W, C]. With alpha at 16 bits only 257 times a byte: between those it is not said what is rounded first."""
    if depth == 16 and colour in (GRAY_ALPHA, RGBA):
        return 257 * RANDOM.integers(0, 256, (height, width, CHANNELS[colour]))
    return RANDOM.integers(0, 1 << depth, (height, width, CHANNELS[colour]))


def rgb_of(samples: Array, depth: int) -> list[list[list[int]]]:
    """The policy, pixel by pixel in whole numbers."""

    def pixel(stored: Array) -> list[int]:
        channels = [half_up(int(sample) * 255, (1 << depth) - 1) for sample in stored]
        if len(channels) in (2, 4):
            channels = [half_up(channel * channels[-1], 255) for channel in channels[:-1]]
        return channels * 3 if len(channels) == 1 else channels

    return [[pixel(stored) for stored in row] for row in samples]


def of_every_kind() -> list[Case]:
    cases = []
    for colour, depth in KINDS:
        for interlace, how in ((0, ""), (1, ", interlaced")):
            samples = random_samples(9, 7, depth, colour)
            file = png(samples, depth, colour, interlace=interlace)
            cases.append(gives(f"PNG {NAMES[colour]} of {depth} bits{how}", file, pixels=rgb_of(samples, depth)))
    return cases


def with_palette(depth: int, interlace: int) -> Case:
    indices = RANDOM.integers(0, 1 << depth, (9, 7, 1))
    colours = RANDOM.integers(0, 256, (1 << depth, 3))
    file = png(indices, depth, PALETTE, interlace=interlace, extra=palette(colours))
    how = ", interlaced" if interlace else ""
    return gives(f"PNG palette of {depth} bits{how}", file, pixels=colours[indices[:, :, 0]])


def palette(colours: Array | list[list[int]]) -> bytes:
    return chunk(b"PLTE", np.asarray(colours, np.uint8).tobytes())


def alpha(*values: int) -> bytes:
    return chunk(b"tRNS", bytes(values))


def key(*values: int) -> bytes:
    return chunk(b"tRNS", struct.pack(f">{len(values)}H", *values))


THREE = [[200, 100, 50], [1, 2, 3], [9, 9, 9]]
NOISE = RANDOM.integers(0, 256, (10, 6, 3))
NOISE_FILE = png(NOISE)
ALL_VALUES = np.arange(65536).reshape(256, 256, 1)

TRANSPARENT = [
    # 200 * 128 / 255 = 100.4, 100 * 128 / 255 = 50.2, 50 * 128 / 255 = 25.1
    gives(
        "PNG palette with alpha for some",
        png([[0, 1, 2]], 2, PALETTE, extra=palette(THREE) + alpha(128, 0)),
        pixels=[[[100, 50, 25], [0, 0, 0], [9, 9, 9]]],
    ),
    gives(
        "PNG palette of one bit, one entry transparent",
        png([[0, 1]], 1, PALETTE, extra=palette([[255, 0, 0], [0, 255, 0]]) + alpha(0)),
        pixels=[[[0, 0, 0], [0, 255, 0]]],
    ),
    gives("PNG gray key of 8 bits", png([[77, 78]], 8, GRAY, extra=key(77)), pixels=gray([[0, 78]])),
    gives("PNG gray key of 1 bit", png([[1, 0]], 1, GRAY, extra=key(0)), pixels=gray([[255, 0]])),
    gives("PNG gray key of 2 bits", png([[1, 2, 3]], 2, GRAY, extra=key(2)), pixels=gray([[85, 0, 255]])),
    # 65281 / 257 = 254.01, and 65280 has the same high byte
    gives("PNG gray key of 16 bits", png([[65280, 65281]], 16, GRAY, extra=key(65280)), pixels=gray([[0, 254]])),
    gives(
        "PNG RGB key of 8 bits",
        png([[[5, 6, 7], [5, 6, 8]]], extra=key(5, 6, 7)),
        pixels=[[[0, 0, 0], [5, 6, 8]]],
    ),
    gives(
        "PNG RGB key of 16 bits",
        png([[[65280, 0, 257], [65281, 0, 257]]], 16, RGB, extra=key(65280, 0, 257)),
        pixels=[[[0, 0, 0], [254, 0, 1]]],
    ),
    # What is hidden by alpha 0 must not show; 255 * 1 / 255 = 1; 1 * 127 / 255 = 0.498, 1 * 128 / 255 = 0.502
    gives(
        "PNG RGBA at its ends",
        png([[[255, 255, 255, 0], [255, 0, 0, 1], [1, 1, 1, 127], [1, 1, 1, 128]]], 8, RGBA),
        pixels=[[[0, 0, 0], [1, 0, 0], [0, 0, 0], [1, 1, 1]]],
    ),
]

WHOLE = [
    gives("PNG 16-bit ramp", png([[0, 4096, 32768, 65535]], 16, GRAY), pixels=gray([[0, 16, 128, 255]])),
    # value / 257: 128 / 257 = 0.498, 129 / 257 = 0.502
    gives("PNG 16-bit rounding", png([[128, 129, 65406, 65407]], 16, GRAY), pixels=gray([[0, 1, 254, 255]])),
    gives("PNG with each 16-bit value", png(ALL_VALUES, 16, GRAY), pixels=rgb_of(ALL_VALUES, 16)),
    gives("PNG 9 x 7 interlaced as not", png(NOISE, interlace=1), pixels=NOISE),
    gives("PNG 1 x 1 interlaced", png([[[1, 2, 3]]], interlace=1), pixels=[[[1, 2, 3]]]),
    gives("PNG 2 x 3 interlaced, with empty passes", png(NOISE[:2, :3], interlace=1), pixels=NOISE[:2, :3]),
    gives("PNG with each line filter", filtered_png(NOISE, [1, 2, 3, 4, 0, 4, 3, 2, 1, 4]), pixels=NOISE),
    gives("PNG in many chunks", png(NOISE, num_idats=9), pixels=NOISE),
    gives(
        "PNG with text, gamma and time",
        png(NOISE, extra=chunk(b"tEXt", b"a\0b") + chunk(b"gAMA", b"\0\1\x86\xa0")),
        pixels=NOISE,
    ),
    gives(
        "PNG with an orientation",
        png([[1, 2, 3]], 8, GRAY, extra=chunk(b"eXIf", exif(6))),
        pixels=gray([[1], [2], [3]]),
    ),
    gives("PNG that is animated", animated_png((255, 0, 0), (0, 255, 0), 3, 2), pixels=[[[255, 0, 0]] * 3] * 2),
    gives("PNG with bytes behind its end", NOISE_FILE + b"behind", pixels=NOISE),
]

DATA = zlib.compress(b"\0\1\2\3")
PIXEL = chunk(b"IDAT", DATA)
ONE = header(1, 1)


def with_flipped_bit(file: bytes, position: int) -> bytes:
    return file[:position] + bytes([file[position] ^ 1]) + file[position + 1 :]


BROKEN = {
    "at 60 % of its length": (NOISE_FILE[: len(NOISE_FILE) * 6 // 10], "truncated"),
    "without IEND": (NOISE_FILE[:-12], "truncated"),
    "without its last byte": (NOISE_FILE[:-1], "truncated"),
    "of its signature alone": (PNG_SIGNATURE, "truncated"),
    "with a wrong checksum on the header": (with_flipped_bit(NOISE_FILE, 29), "checksum"),
    "with a wrong checksum on the data": (with_flipped_bit(NOISE_FILE, NOISE_FILE.index(b"IEND") - 8), "checksum"),
    "with a flipped bit in its data": (with_flipped_bit(NOISE_FILE, 60), "checksum"),
    "with a palette index out of range": (png([[0, 1, 3]], 8, PALETTE, extra=palette(THREE)), "palette"),
    "with a 2-bit palette index out of range": (png([[0, 1, 3]], 2, PALETTE, extra=palette(THREE)), "palette"),
    "without its palette": (png([[0]], 8, PALETTE), "palette"),
    "with more data than its size": (png_file(ONE, chunk(b"IDAT", zlib.compress(b"\0\1\2\3\4"))), "more data"),
    "with less data than its size": (png_file(header(1, 2), PIXEL), "less data"),
    "with a cut stream in whole chunks": (png_file(ONE, chunk(b"IDAT", DATA[:-2])), "less data"),
    "with no data": (png_file(ONE), "less data"),
    "with data that is no zlib": (png_file(ONE, chunk(b"IDAT", b"abcdefgh")), "decompressed"),
    "with a wrong Adler-32": (png_file(ONE, chunk(b"IDAT", with_flipped_bit(DATA, len(DATA) - 1))), "decompressed"),
    "with an unknown line filter": (png_file(ONE, chunk(b"IDAT", zlib.compress(b"\x05\1\2\3"))), "decoded"),
    "of zero width": (png_file(header(0, 1), PIXEL), "0"),
    "of zero height": (png_file(header(1, 0), PIXEL), "0"),
    "of an impossible depth": (png_file(header(1, 1, 3, GRAY), PIXEL), "colour type"),
    "of an impossible colour type": (png_file(header(1, 1, 8, 5), PIXEL), "colour type"),
    "of an unknown interlace": (png_file(header(1, 1, 8, RGB, 2), PIXEL), "unknown method"),
    "with two headers": (png_file(ONE, ONE, PIXEL), "two IHDR"),
    "with data before its header": (png_file(PIXEL, ONE), "header"),
    "with an unknown critical chunk": (png_file(ONE, chunk(b"CRIT", b""), PIXEL), "critical"),
}

CASES: list[Case] = [
    *of_every_kind(),
    *(with_palette(depth, interlace) for depth in (1, 2, 4, 8) for interlace in (0, 1)),
    *TRANSPARENT,
    *WHOLE,
    *(refused(f"PNG {what}", file, words=["image[0]", word]) for what, (file, word) in BROKEN.items()),
    refused("PNG bomb", bomb_png(20_000), words=["image[0]", "20000 x 20000"], code="TOO_LARGE"),
    refused(
        "PNG bomb of a header alone",
        PNG_SIGNATURE + header(2**31 - 1, 2**31 - 1) + PIXEL + END,
        words=["image[0]", "2147483647 x 2147483647"],
        code="TOO_LARGE",
    ),
]
