"""WebP, EXIF orientation in each format that has it, and the formats that are refused; Pillow is the reference."""

import io
import struct

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from ingest.errors import InvalidInputError
from ingest.limits import Limits
from ingest.pictures import decode_base64_picture
from PIL import Image, ImageOps

from tests.unit.picture_files import LIMITS, decode, refusal, save, smooth_picture


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


@pytest.mark.parametrize(("kind", "name"), [("GIF", "GIF"), ("BMP", "BMP"), ("TIFF", "TIFF"), ("ICO", "ICO")])
def test_other_formats_are_refused_by_name(kind: str, name: str) -> None:
    assert refusal(save(smooth_picture(), kind)) == f"INVALID_INPUT: image[0]: wanted PNG, JPEG or WebP, came {name}"


def test_base64_of_another_format_is_refused_by_name() -> None:
    with pytest.raises(InvalidInputError, match="wanted base64 of PNG, JPEG or WebP, came GIF"):
        decode_base64_picture(b"R0lGODlhAQABAAAAACw=", "image[0]", LIMITS)


def test_a_path_that_happens_to_be_base64_is_refused() -> None:
    with pytest.raises(InvalidInputError, match="URLs and paths are never followed"):
        decode_base64_picture(b"/etc/ssl/private", "image[0]", LIMITS)
