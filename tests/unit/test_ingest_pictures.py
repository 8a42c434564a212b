"""Picture files: literal small files made with struct and zlib, Pillow as the reference where it is right."""

import io
import struct
import zlib
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from ingest.errors import InvalidInputError, TooLargeError
from ingest.limits import Limits
from ingest.pictures import decode_base64_picture, decode_picture
from PIL import Image, ImageOps

LIMITS = Limits()
SIGNATURE = b"\x89PNG\r\n\x1a\n"
GRAY, RGB, PALETTE, GRAY_ALPHA, RGBA = 0, 2, 3, 4, 6
NUM_CHANNELS = {GRAY: 1, RGB: 3, PALETTE: 1, GRAY_ALPHA: 2, RGBA: 4}
ADAM7 = ((0, 0, 8, 8), (0, 4, 8, 8), (4, 0, 8, 4), (0, 2, 4, 4), (2, 0, 4, 2), (0, 1, 2, 2), (1, 0, 2, 1))


def decode(data: bytes, limits: Limits = LIMITS) -> np.ndarray:
    pixels = decode_picture(data, "image[0]", limits)
    assert pixels.dtype == np.uint8
    assert pixels.flags.c_contiguous
    return pixels


def refusal(data: bytes, limits: Limits = LIMITS) -> str:
    with pytest.raises((InvalidInputError, TooLargeError)) as caught:
        decode(data, limits)
    return str(caught.value)


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


def save(image: Image.Image, kind: str, **options: object) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, kind, **options)
    return buffer.getvalue()


def smooth_picture(width: int = 48, height: int = 32) -> Image.Image:
    """A picture that JPEG keeps well, with four different corners."""
    y, x = np.mgrid[0:height, 0:width]
    return Image.fromarray(np.stack([x * 5, y * 7, 255 - x * 3 - y], axis=2).clip(0, 255).astype(np.uint8))


# --- PNG ---

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


# --- JPEG ---


@pytest.mark.parametrize("options", [{}, {"progressive": True}, {"subsampling": 0, "quality": 95}])
def test_jpeg_is_decoded_as_pillow_does(options: dict) -> None:
    data = save(smooth_picture(), "JPEG", **options)
    assert np.array_equal(decode(data), np.asarray(Image.open(io.BytesIO(data)).convert("RGB")))


def test_gray_jpeg_is_widened() -> None:
    pixels = decode(save(Image.new("L", (8, 8), 77), "JPEG"))
    assert pixels.tolist() == [[[77, 77, 77]] * 8] * 8


def test_cmyk_jpeg_is_not_inverted() -> None:
    # Cyan, magenta, yellow, black ink of 0-255: pure cyan is RGB (0, 255, 255).
    data = save(Image.new("CMYK", (16, 16), (255, 0, 0, 0)), "JPEG", quality=100)
    assert np.abs(decode(data).astype(int) - [0, 255, 255]).max() <= 3  # JPEG's own loss


def with_orientation(image: Image.Image, orientation: int, kind: str) -> bytes:
    exif = Image.Exif()
    exif[0x0112] = orientation
    return save(image, kind, exif=exif.tobytes(), quality=95)


@pytest.mark.parametrize("kind", ["JPEG", "WEBP"])
@pytest.mark.parametrize("orientation", range(1, 9))
def test_each_orientation_is_applied_as_pillow_does(orientation: int, kind: str) -> None:
    data = with_orientation(smooth_picture(), orientation, kind)
    wanted = ImageOps.exif_transpose(Image.open(io.BytesIO(data))).convert("RGB")
    assert np.array_equal(decode(data), np.asarray(wanted))


def test_orientation_6_turns_the_top_left_corner_to_the_top_right() -> None:
    upright = decode(with_orientation(smooth_picture(48, 32), 6, "JPEG"))
    assert upright.shape == (48, 32, 3)
    assert np.abs(upright[0, -1].astype(int) - [0, 0, 255]).max() <= 12  # JPEG's own loss


@pytest.mark.parametrize(
    "exif",
    [
        b"",
        b"MM",
        b"XX\0\x2a\0\0\0\x08",
        b"MM\0\x2a\xff\xff\xff\xff",
        b"MM\0\x2a\0\0\0\x08\0\x01\x01\x12\0\x03\0\0",
        b"MM\0\x2a\0\0\0\x08\0\x01\x01\x12\0\x03\0\0\0\x01\0\x09\0\0",
        b"MM\0\x2a\0\0\0\x08\0\x01\x01\x12\0\x02\0\0\0\x01\0\x06\0\0",
        b"MM\0\x2a\0\0\0\x08\xff\xff\x01\x0f\0\x03\0\0\0\x01\0\x06\0\0",
    ],
)
def test_damaged_exif_counts_as_none(exif: bytes) -> None:
    data = save(smooth_picture(), "JPEG")
    body = b"Exif\0\0" + exif
    with_exif = data[:2] + b"\xff\xe1" + struct.pack(">H", len(body) + 2) + body + data[2:]
    assert np.array_equal(decode(with_exif), decode(data))


@pytest.mark.parametrize("order", ["<", ">"])
def test_orientation_is_read_in_both_byte_orders_behind_other_tags(order: str) -> None:
    entries = [(0x010F, 2, 4, 0x4141), (0x0112, 3, 1, 3)]
    exif = {"<": b"II*\0", ">": b"MM\0*"}[order] + struct.pack(f"{order}IH", 8, len(entries))
    exif += b"".join(struct.pack(f"{order}HHIHxx", *entry) for entry in entries)
    data = save(smooth_picture(), "JPEG")
    body = b"Exif\0\0" + exif
    turned = decode(data[:2] + b"\xff\xe1" + struct.pack(">H", len(body) + 2) + body + data[2:])
    assert np.array_equal(turned, decode(data)[::-1, ::-1])


def test_a_jpeg_of_several_pictures_gives_its_first() -> None:
    first = save(smooth_picture(), "JPEG")
    data = save(smooth_picture(), "MPO", save_all=True, append_images=[Image.new("RGB", (48, 32), "red")])
    assert b"MPF\0" in data
    assert np.array_equal(decode(data), decode(first))


@settings(max_examples=80, deadline=None)
@given(st.booleans(), st.data())
def test_a_jpeg_that_is_cut_anywhere_is_refused(is_progressive: bool, data: st.DataObject) -> None:
    whole = save(smooth_picture(), "JPEG", progressive=is_progressive)
    length = data.draw(st.integers(3, len(whole) - 1))
    assert "(truncated)" in refusal(whole[:length])


def test_a_jpeg_that_lacks_only_its_last_byte_is_refused() -> None:
    assert "without its end (truncated)" in refusal(save(smooth_picture(), "JPEG")[:-1])


def test_bytes_after_the_end_of_a_jpeg_are_ignored() -> None:
    data = save(smooth_picture(), "JPEG")
    assert np.array_equal(decode(data + b"\0trailing"), decode(data))


def test_a_thumbnails_end_is_not_taken_for_the_pictures_end() -> None:
    thumbnail = save(smooth_picture(8, 8), "JPEG")
    data = save(smooth_picture(), "JPEG", exif=b"Exif\0\0" + thumbnail)
    assert "(truncated)" in refusal(data[: len(data) // 2])


def test_a_huge_jpeg_is_refused_by_its_header_alone() -> None:
    data = save(smooth_picture(), "JPEG")
    frame = data.index(b"\xff\xc0")
    huge = data[: frame + 5] + b"\xff\xff\xff\xff" + data[frame + 9 :]
    assert "TOO_LARGE: image[0]: wanted at most 16777216 pixels, came 65535 x 65535" in refusal(huge)


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"\xff\xd8\xff\xd9", "a frame"),
        (b"\xff\xd8\xff\xe0\x00\x01", "impossible segment"),
        (b"\xff\xd8\xff\x01\x00\x02", "impossible segment"),
        (b"\xff\xd8\xff\xfe\x00\x02text", "stray bytes"),
        (b"\xff\xd8\xff\xc0\x00\x05\x08\x00\x01\xff\xd9", "short frame header"),
        (b"\xff\xd8\xff\xc0\x00\x0b\x08\x00\x00\x00\x01\x01\x01\x11\x00\xff\xd9", "wanted at least 1 pixel"),
        (b"\xff\xd8\xff\xc0\x00\x0b\x08\x00\x01\x00\x01\x01\x01\x11\x00\xff\xd9", "cannot be decoded"),
    ],
)
def test_each_fault_of_a_jpeg_is_refused(data: bytes, words: str) -> None:
    message = refusal(data)
    assert message.startswith("INVALID_INPUT: image[0]: ")
    assert words in message


# --- WebP ---


@pytest.mark.parametrize("options", [{"lossless": True}, {"quality": 80}])
def test_webp_is_decoded_as_pillow_does(options: dict) -> None:
    data = save(smooth_picture(), "WEBP", **options)
    assert np.array_equal(decode(data), np.asarray(Image.open(io.BytesIO(data)).convert("RGB")))


def test_lossless_webp_is_exact_and_its_alpha_is_laid_on_black() -> None:
    data = save(Image.new("RGBA", (3, 2), (200, 100, 50, 128)), "WEBP", lossless=True, exact=True)
    assert decode(data).tolist() == [[[100, 50, 25]] * 3] * 2


def test_an_animated_webp_gives_its_first_frame() -> None:
    frames = [Image.new("RGB", (4, 4), colour) for colour in ("red", "lime", "blue")]
    data = save(frames[0], "WEBP", save_all=True, append_images=frames[1:], lossless=True)
    assert decode(data).tolist() == [[[255, 0, 0]] * 4] * 4


@settings(max_examples=60, deadline=None)
@given(st.booleans(), st.data())
def test_a_webp_that_is_cut_anywhere_is_refused(is_lossless: bool, data: st.DataObject) -> None:
    whole = save(smooth_picture(), "WEBP", lossless=is_lossless)
    length = data.draw(st.integers(12, len(whole) - 1))
    assert "(truncated)" in refusal(whole[:length])


def test_a_webp_whose_length_is_corrected_after_a_cut_is_refused() -> None:
    for options in ({"lossless": True}, {"quality": 80}):
        whole = save(smooth_picture(), "WEBP", **options)
        cut = whole[: len(whole) // 4 * 2]
        cut = cut[:4] + struct.pack("<I", len(cut) - 8) + cut[8:16] + struct.pack("<I", len(cut) - 20) + cut[20:]
        assert refusal(cut).startswith("INVALID_INPUT: image[0]: ")


@pytest.mark.parametrize(
    ("chunk_kind", "body"),
    [
        (b"VP8X", bytes(4) + b"\xff\xff\x00\xff\xff\x00"),
        (b"VP8L", b"\x2f\xff\xff\xff\x0f" + bytes(5)),
        (b"VP8 ", b"\x10\x00\x00\x9d\x01\x2a\xff\x3f\xff\x3f"),
    ],
)
def test_a_huge_webp_is_refused_by_its_header_alone(chunk_kind: bytes, body: bytes) -> None:
    data = b"RIFF" + struct.pack("<I", 22) + b"WEBP" + chunk_kind + struct.pack("<I", 10) + body
    assert refusal(data).startswith("TOO_LARGE: image[0]: wanted at most 16777216 pixels, came ")


@pytest.mark.parametrize("options", [{"lossless": True}, {"quality": 80}, {"exif": b"Exif\0\0"}])
def test_the_size_in_a_webp_header_is_read_as_height_and_width(options: dict) -> None:
    data = save(smooth_picture(40, 30), "WEBP", **options)
    message = refusal(data, Limits(max_pixels_per_picture=40 * 30 - 1))
    assert "came 30 x 40 (height x width)" in message


# --- other formats ---


@pytest.mark.parametrize(("kind", "name"), [("GIF", "GIF"), ("BMP", "BMP"), ("TIFF", "TIFF"), ("ICO", "ICO")])
def test_other_formats_are_refused_by_name(kind: str, name: str) -> None:
    assert refusal(save(smooth_picture(), kind)) == f"INVALID_INPUT: image[0]: wanted PNG, JPEG or WebP, came {name}"


def test_base64_of_another_format_is_refused_by_name() -> None:
    with pytest.raises(InvalidInputError, match="wanted base64 of PNG, JPEG or WebP, came GIF"):
        decode_base64_picture(b"R0lGODlhAQABAAAAACw=", "image[0]", LIMITS)


def test_a_path_that_happens_to_be_base64_is_refused() -> None:
    with pytest.raises(InvalidInputError, match="URLs and paths are never followed"):
        decode_base64_picture(b"/etc/ssl/private", "image[0]", LIMITS)


# --- files made to keep the server busy ---


def test_a_jpeg_of_very_many_segments_is_refused() -> None:
    assert "over 4096 segments" in refusal(b"\xff\xd8" + b"\xff\xe0\x00\x02" * 5000)


def test_a_png_of_very_many_chunks_is_refused() -> None:
    data = SIGNATURE + header(1, 1, 8, RGB) + chunk(b"teXt", b"") * 70_000
    assert "over 65536 chunks" in refusal(data)


def test_fill_bytes_between_jpeg_segments_are_skipped() -> None:
    data = save(smooth_picture(), "JPEG")
    assert np.array_equal(decode(data[:2] + b"\xff" * 100 + data[2:]), decode(data))
