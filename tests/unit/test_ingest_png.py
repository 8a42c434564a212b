"""PNG: literal small files made with struct and zlib, held against the colour policy in exact fractions."""

import struct
import zlib
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from tests.unit.picture_files import decode, refusal, save, smooth_picture

SIGNATURE = b"\x89PNG\r\n\x1a\n"
GRAY, RGB, PALETTE, GRAY_ALPHA, RGBA = 0, 2, 3, 4, 6
NUM_CHANNELS = {GRAY: 1, RGB: 3, PALETTE: 1, GRAY_ALPHA: 2, RGBA: 4}
ADAM7 = ((0, 0, 8, 8), (0, 4, 8, 8), (4, 0, 8, 4), (0, 2, 4, 4), (2, 0, 4, 2), (0, 1, 2, 2), (1, 0, 2, 1))


def chunk(kind: bytes, body: bytes) -> bytes:
    return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))


def header(width: int, height: int, depth: int, colour: int, interlace: int = 0) -> bytes:
    return chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, depth, colour, 0, 0, interlace))


def pack_line(samples: np.ndarray, depth: int) -> bytes:
    """One line of [W, C] samples, filter 0."""
    bits = "".join(format(int(sample), f"0{depth}b") for sample in samples.reshape(-1))
    bits += "0" * (-len(bits) % 8)
    return b"\0" + int(bits, 2).to_bytes(len(bits) // 8, "big")


def make_png(samples: np.ndarray, depth: int, colour: int, interlace: int = 0, extra: bytes = b"") -> bytes:
    """Write [H, W, C] samples bit by bit."""
    height, width = samples.shape[:2]
    lines = b""
    for row, column, row_step, column_step in ADAM7 if interlace else ((0, 0, 1, 1),):
        part = samples[row::row_step, column::column_step]
        lines += b"".join(pack_line(line, depth) for line in part if line.size)
    body = header(width, height, depth, colour, interlace) + extra + chunk(b"IDAT", zlib.compress(lines))
    return SIGNATURE + body + chunk(b"IEND", b"")


def random_samples(height: int, width: int, depth: int, colour: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 1 << depth, (height, width, NUM_CHANNELS[colour]))


def half_up(value: Fraction) -> int:
    return (value + Fraction(1, 2)).__floor__()


def expected_rgb(samples: np.ndarray, depth: int) -> list:
    """The colour policy pixel by pixel in exact fractions."""
    top = (1 << depth) - 1

    def pixel(stored: np.ndarray) -> list[int]:
        channels = [half_up(Fraction(int(sample) * 255, top)) for sample in stored]
        if len(channels) in (2, 4):
            channels = [half_up(Fraction(channel * channels[-1], 255)) for channel in channels[:-1]]
        return channels * 3 if len(channels) == 1 else channels

    return [[pixel(stored) for stored in row] for row in samples]


DEPTHS = [(GRAY, depth) for depth in (1, 2, 4, 8, 16)]
DEPTHS += [(colour, depth) for colour in (RGB, GRAY_ALPHA, RGBA) for depth in (8, 16)]


@pytest.mark.parametrize("interlace", [0, 1])
@pytest.mark.parametrize(("colour", "depth"), DEPTHS)
def test_png_of_every_kind_is_read_exactly(colour: int, depth: int, interlace: int) -> None:
    samples = random_samples(9, 11, depth, colour)
    assert decode(make_png(samples, depth, colour, interlace)).tolist() == expected_rgb(samples, depth)


@pytest.mark.parametrize("height", range(1, 6))
@pytest.mark.parametrize("width", range(1, 6))
def test_interlaced_png_with_empty_passes_is_read_exactly(height: int, width: int) -> None:
    for colour, depth in ((GRAY, 1), (RGB, 8), (RGB, 16)):
        samples = random_samples(height, width, depth, colour)
        assert decode(make_png(samples, depth, colour, interlace=1)).tolist() == expected_rgb(samples, depth)


def test_16_bit_values_are_scaled_and_not_clipped_or_cut() -> None:
    # 128 / 257 = 0.498 -> 0, 129 / 257 = 0.502 -> 1; the high byte alone would give 0, 0, 128.
    samples = np.array([[[128, 129, 32896], [65535, 65407, 65406]]])
    assert decode(make_png(samples, 16, RGB)).tolist() == [[[0, 1, 128], [255, 255, 254]]]


@pytest.mark.parametrize("filter_type", [1, 2, 3, 4])
def test_png_line_filters_on_16_bit_colour_are_undone(filter_type: int) -> None:
    samples = random_samples(4, 5, 16, RGB)
    lines = samples.astype(">u2").view(np.uint8).reshape(4, 30).astype(int)
    up = np.vstack([np.zeros((1, 30), int), lines[:-1]])
    left = np.hstack([np.zeros((4, 6), int), lines[:, :-6]])
    corner = np.hstack([np.zeros((4, 6), int), up[:, :-6]])
    distances = [abs(up - corner), abs(left - corner), abs(left + up - 2 * corner)]
    nearest = np.where(distances[1] <= distances[2], up, corner)
    paeth = np.where((distances[0] <= distances[1]) & (distances[0] <= distances[2]), left, nearest)
    predicted = {1: left, 2: up, 3: (left + up) // 2, 4: paeth}[filter_type]
    filtered = ((lines - predicted) % 256).astype(np.uint8)
    stream = b"".join(bytes([filter_type]) + line.tobytes() for line in filtered)
    data = SIGNATURE + header(5, 4, 16, RGB) + chunk(b"IDAT", zlib.compress(stream)) + chunk(b"IEND", b"")
    assert decode(data).tolist() == expected_rgb(samples, 16)


@pytest.mark.parametrize("depth", [1, 2, 4, 8])
def test_palette_colours_are_looked_up(depth: int) -> None:
    indices = random_samples(3, 7, depth, PALETTE)
    palette = np.random.default_rng(1).integers(0, 256, (1 << depth, 3))
    data = make_png(indices, depth, PALETTE, extra=chunk(b"PLTE", palette.astype(np.uint8).tobytes()))
    assert decode(data).tolist() == palette[indices[:, :, 0]].tolist()


def test_palette_transparency_is_laid_on_black() -> None:
    extra = chunk(b"PLTE", bytes([200, 100, 50, 1, 2, 3, 9, 9, 9])) + chunk(b"tRNS", bytes([128, 0]))
    data = make_png(np.array([[[0], [1], [2]]]), 2, PALETTE, extra=extra)
    assert decode(data).tolist() == [[[100, 50, 25], [0, 0, 0], [9, 9, 9]]]


@pytest.mark.parametrize("depth", [1, 2, 4, 8, 16])
def test_a_gray_colour_key_is_transparent_at_the_files_own_depth(depth: int) -> None:
    top = (1 << depth) - 1
    data = make_png(np.array([[[top], [0]]]), depth, GRAY, extra=chunk(b"tRNS", struct.pack(">H", top)))
    assert decode(data).tolist() == [[[0, 0, 0], [0, 0, 0]]]
    data = make_png(np.array([[[top], [0]]]), depth, GRAY, extra=chunk(b"tRNS", struct.pack(">H", 0)))
    assert decode(data).tolist() == [[[255, 255, 255], [0, 0, 0]]]


def test_a_16_bit_colour_key_does_not_take_its_neighbours() -> None:
    samples = np.array([[[65280, 0, 0], [65281, 0, 0]]])  # the same high byte
    data = make_png(samples, 16, RGB, extra=chunk(b"tRNS", struct.pack(">3H", 65280, 0, 0)))
    assert decode(data).tolist() == [[[0, 0, 0], [254, 0, 0]]]


def test_png_orientation_is_applied_once() -> None:
    exif = b"MM\0\x2a\0\0\0\x08\0\x01\x01\x12\0\x03\0\0\0\x01\0\x06\0\0\0\0\0\0"
    data = make_png(np.array([[[1], [2], [3]]]), 8, GRAY, extra=chunk(b"eXIf", exif))
    assert decode(data)[:, :, 0].tolist() == [[1], [2], [3]]


def test_an_animated_png_gives_its_first_frame() -> None:
    frames = [Image.new("RGB", (3, 2), colour) for colour in ("red", "lime", "blue")]
    data = save(frames[0], "PNG", save_all=True, append_images=frames[1:])
    assert b"acTL" in data
    assert decode(data).tolist() == [[[255, 0, 0]] * 3] * 2


def test_bytes_after_the_end_of_a_png_are_ignored() -> None:
    samples = random_samples(2, 2, 8, RGB)
    assert decode(make_png(samples, 8, RGB) + b"trailing").tolist() == samples.tolist()


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_a_png_that_is_cut_anywhere_is_refused(data: st.DataObject) -> None:
    whole = save(smooth_picture(), "PNG")
    length = data.draw(st.integers(8, len(whole) - 1))
    assert refusal(whole[:length]).startswith("INVALID_INPUT: image[0]: wanted a whole PNG")


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_a_png_with_any_changed_byte_is_refused(data: st.DataObject) -> None:
    whole = save(smooth_picture(), "PNG")
    index = data.draw(st.integers(8, len(whole) - 1))
    changed = whole[:index] + bytes([whole[index] ^ data.draw(st.integers(1, 255))]) + whole[index + 1 :]
    assert refusal(changed).startswith(("INVALID_INPUT: image[0]: wanted a whole PNG", "TOO_LARGE: image[0]"))


END = chunk(b"IEND", b"")
PIXEL = chunk(b"IDAT", zlib.compress(b"\0\1\2\3"))


@pytest.mark.parametrize(
    ("chunks", "words"),
    [
        (header(1, 1, 8, RGB) + PIXEL, "without its end"),
        (PIXEL + header(1, 1, 8, RGB) + END, "its first chunk is not a header"),
        (header(1, 1, 3, RGB) + PIXEL + END, "impossible colour type"),
        (header(1, 1, 4, RGBA) + PIXEL + END, "impossible colour type"),
        (header(1, 1, 8, 5) + PIXEL + END, "impossible colour type"),
        (header(1, 1, 8, RGB, 2) + PIXEL + END, "unknown method"),
        (header(1, 1, 8, RGB) + header(1, 1, 8, RGB) + PIXEL + END, "two IHDR"),
        (header(1, 1, 8, RGB) + chunk(b"ABCD", b"") + PIXEL + END, "unknown critical chunk"),
        (header(1, 1, 8, RGB) + END, "less data"),
        (header(1, 2, 8, RGB) + PIXEL + END, "less data"),
        (header(1, 1, 8, GRAY) + PIXEL + END, "more data"),
        (header(1, 1, 8, RGB) + chunk(b"IDAT", zlib.compress(b"\0\1\2\3")[:-1]) + END, "less data"),
        (header(1, 1, 8, RGB) + chunk(b"IDAT", b"no zlib") + END, "cannot be decompressed"),
        (header(1, 1, 8, RGB) + chunk(b"IDAT", zlib.compress(b"\x09\1\2\3")) + END, "cannot be decoded"),
        (header(3, 1, 8, PALETTE) + PIXEL + END, "no usable palette"),
        (header(3, 1, 8, PALETTE) + chunk(b"PLTE", b"\0\0\0\1") + PIXEL + END, "no usable palette"),
        (header(3, 1, 8, PALETTE) + chunk(b"PLTE", bytes(9)) + PIXEL + END, "beyond its palette"),
        (header(1, 1, 8, RGB) + chunk(b"tRNS", b"\0\0") + PIXEL + END, "wrong length"),
        (header(0, 1, 8, RGB) + PIXEL + END, "wanted at least 1 pixel"),
    ],
)
def test_each_fault_of_a_png_is_refused(chunks: bytes, words: str) -> None:
    message = refusal(SIGNATURE + chunks)
    assert message.startswith("INVALID_INPUT: image[0]: ")
    assert words in message


def test_a_huge_png_is_refused_by_its_header_alone() -> None:
    message = refusal(SIGNATURE + header(65535, 65535, 16, RGBA) + PIXEL + END)
    assert message == "TOO_LARGE: image[0]: wanted at most 16777216 pixels, came 65535 x 65535 (height x width)"


def test_a_png_of_very_many_chunks_is_refused() -> None:
    data = SIGNATURE + header(1, 1, 8, RGB) + chunk(b"teXt", b"") * 70_000
    assert "over 65536 chunks" in refusal(data)


def paeth(left: int, up: int, corner: int) -> int:
    """The specification's own words, number by number."""
    estimate = left + up - corner
    distances = [abs(estimate - left), abs(estimate - up), abs(estimate - corner)]
    return (left, up, corner)[distances.index(min(distances))]


def filtered_lines(lines: np.ndarray, pixel_bytes: int, filter_types: list[int]) -> bytes:
    """Filter [H, line bytes] by the specification, byte by byte."""
    stream = b""
    for row, filter_type in enumerate(filter_types):
        line = bytes(lines[row])
        above = bytes(lines[row - 1]) if row else bytes(len(line))
        stream += bytes([filter_type])
        for index, byte in enumerate(line):
            left = line[index - pixel_bytes] if index >= pixel_bytes else 0
            corner = above[index - pixel_bytes] if index >= pixel_bytes else 0
            up = above[index]
            stream += bytes([(byte - (0, left, up, (left + up) // 2, paeth(left, up, corner))[filter_type]) % 256])
    return stream


@settings(max_examples=150, deadline=None)
@given(st.sampled_from(DEPTHS), st.integers(1, 9), st.integers(1, 9), st.integers(0, 99), st.data())
def test_every_filter_of_every_kind_is_undone(
    kind: tuple[int, int], height: int, width: int, seed: int, data: st.DataObject
) -> None:
    colour, depth = kind
    samples = random_samples(height, width, depth, colour, seed)
    lines = np.array([list(pack_line(line, depth)[1:]) for line in samples], np.uint8)
    filter_types = data.draw(st.lists(st.integers(0, 4), min_size=height, max_size=height))
    stream = filtered_lines(lines, max(1, depth * NUM_CHANNELS[colour] // 8), filter_types)
    png = SIGNATURE + header(width, height, depth, colour) + chunk(b"IDAT", zlib.compress(stream)) + END
    assert decode(png).tolist() == expected_rgb(samples, depth)


@pytest.mark.parametrize("size", [(640, 360), (21845, 1), (21844, 1), (5461, 4), (5461, 12), (1, 20000)])
def test_png_beyond_one_stored_block_is_decoded_as_pillow_does(size: tuple[int, int]) -> None:
    # Decompressed lines are handed on in blocks of 65535 bytes: some of these end with one.
    pixels = np.random.default_rng(5).integers(0, 256, (size[1], size[0], 3)).astype(np.uint8)
    assert np.array_equal(decode(save(Image.fromarray(pixels), "PNG", compress_level=1)), pixels)


@pytest.mark.parametrize("chunk_bytes", [1, 7, 1000])
def test_png_data_may_be_cut_into_chunks_of_any_size(chunk_bytes: int) -> None:
    samples = random_samples(20, 30, 8, RGB)
    stream = zlib.compress(b"".join(pack_line(line, 8) for line in samples))
    parts = [chunk(b"IDAT", stream[start : start + chunk_bytes]) for start in range(0, len(stream), chunk_bytes)]
    assert decode(SIGNATURE + header(30, 20, 8, RGB) + b"".join(parts) + END).tolist() == samples.tolist()


@pytest.mark.parametrize("level", range(10))
@pytest.mark.parametrize("strategy", [zlib.Z_DEFAULT_STRATEGY, zlib.Z_FIXED, zlib.Z_HUFFMAN_ONLY, zlib.Z_RLE])
def test_png_data_of_every_way_to_compress_is_read(level: int, strategy: int) -> None:
    samples = np.arange(60 * 50 * 3).reshape(60, 50, 3) // 7 % 256
    compressor = zlib.compressobj(level, zlib.DEFLATED, 15, 8, strategy)
    stream = compressor.compress(b"".join(pack_line(line, 8) for line in samples)) + compressor.flush()
    assert decode(SIGNATURE + header(50, 60, 8, RGB) + chunk(b"IDAT", stream) + END).tolist() == samples.tolist()


def test_png_data_with_a_wrong_checksum_of_its_own_is_refused() -> None:
    stream = zlib.compress(b"\0\1\2\3")
    wrong = stream[:-1] + bytes([stream[-1] ^ 1])
    assert "cannot be decompressed" in refusal(SIGNATURE + header(1, 1, 8, RGB) + chunk(b"IDAT", wrong) + END)
