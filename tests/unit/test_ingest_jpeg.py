"""JPEG: Pillow is the reference where files are whole; what is missing or made to keep the server busy is refused."""

import io
import re

import numpy as np
import pytest
import simplejpeg
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from tests.unit.picture_files import decode, refusal, save, smooth_picture


@pytest.mark.parametrize("size", [(1, 1), (7, 5), (16, 16), (33, 17), (48, 32)])
@pytest.mark.parametrize("subsampling", ["4:4:4", "4:2:2", "4:2:0", "4:1:1"])
@pytest.mark.parametrize("options", [{}, {"progressive": True}, {"quality": 95}, {"restart_marker_rows": 1}])
def test_jpeg_is_decoded_as_pillow_does(options: dict, subsampling: str, size: tuple[int, int]) -> None:
    data = save(smooth_picture(*size), "JPEG", subsampling=subsampling, **options)
    assert np.array_equal(decode(data), np.asarray(Image.open(io.BytesIO(data)).convert("RGB")))


def test_jpeg_that_stores_rgb_is_decoded_as_pillow_does() -> None:
    data = save(smooth_picture(), "JPEG", keep_rgb=True)
    assert np.array_equal(decode(data), np.asarray(Image.open(io.BytesIO(data)).convert("RGB")))


def test_gray_jpeg_is_widened() -> None:
    pixels = decode(save(Image.new("L", (8, 8), 77), "JPEG"))
    assert pixels.tolist() == [[[77, 77, 77]] * 8] * 8


def test_cmyk_jpeg_is_not_inverted() -> None:
    # Cyan, magenta, yellow, black ink of 0-255: pure cyan is RGB (0, 255, 255).
    data = save(Image.new("CMYK", (16, 16), (255, 0, 0, 0)), "JPEG", quality=100)
    assert np.abs(decode(data).astype(int) - [0, 255, 255]).max() <= 3  # JPEG's own loss


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
        (b"\xff\xd8\xff\xc0\x00\x0b\x08\x00\x01\x00\x01\x01\x01\x11\x00\xff\xd9", "lacks some of its scans"),
        (
            b"\xff\xd8\xff\xc0\x00\x0b\x08\x00\x01\x00\x01\x01\x01\x11\x00"
            b"\xff\xda\x00\x08\x01\x01\x00\x00\x3f\x00\xff\xd9",
            "cannot be decoded",
        ),
    ],
)
def test_each_fault_of_a_jpeg_is_refused(data: bytes, words: str) -> None:
    message = refusal(data)
    assert message.startswith("INVALID_INPUT: image[0]: ")
    assert words in message


def test_a_jpeg_of_very_many_segments_is_refused() -> None:
    assert "over 4096 segments" in refusal(b"\xff\xd8" + b"\xff\xe0\x00\x02" * 5000)


def test_fill_bytes_between_jpeg_segments_are_skipped() -> None:
    data = save(smooth_picture(), "JPEG")
    assert np.array_equal(decode(data[:2] + b"\xff" * 100 + data[2:]), decode(data))


def with_repeated_last_scan(data: bytes, num_scans: int) -> bytes:
    start = data.rindex(b"\xff\xda")
    return data[:-2] + data[start:-2] * (num_scans - data.count(b"\xff\xda")) + data[-2:]


def test_a_jpeg_of_very_many_scans_is_refused() -> None:
    # Each scan is a pass over all pixels: 4096 of them in 85 KB kept a process busy for 50 s.
    data = save(smooth_picture(), "JPEG", progressive=True)
    message = refusal(with_repeated_last_scan(data, 101))
    assert message == "TOO_LARGE: image[0]: wanted a JPEG of at most 100 scans, came more"
    assert decode(with_repeated_last_scan(data, 100)).shape == (32, 48, 3)


def scan_of(data: bytes) -> tuple[int, int]:
    """Where the entropy-coded data of the last scan starts and ends."""
    start = data.rindex(b"\xff\xda")
    return start + 2 + int.from_bytes(data[start + 2 : start + 4], "big"), len(data) - 2


@pytest.mark.parametrize("options", [{}, {"subsampling": 0}, {"optimize": True}, {"restart_marker_rows": 1}])
@pytest.mark.parametrize("mode", ["RGB", "L", "CMYK"])
def test_a_cut_jpeg_that_was_given_an_end_is_refused(mode: str, options: dict) -> None:
    # libjpeg fills the rest with gray; what the last few bytes hold it may guess right.
    whole = save(smooth_picture(97, 65).convert(mode), "JPEG", **options)
    start, end = scan_of(whole)
    for length in range(start, end - (end - start) // 4):
        assert "(damaged)" in refusal(whole[:length] + b"\xff\xd9")


def test_a_jpeg_that_lost_data_in_its_middle_is_refused() -> None:
    # As when a camera's packet does not arrive.
    whole = save(smooth_picture(320, 240), "JPEG")
    start, end = scan_of(whole)
    for first in range(start, end - 512, 97):
        assert "with less data than its size asks for (damaged)" in refusal(whole[:first] + whole[first + 512 :])


@pytest.mark.parametrize("options", [{}, {"progressive": True}, {"restart_marker_rows": 1}])
@pytest.mark.parametrize("mode", ["RGB", "L"])
def test_a_whole_jpeg_that_ends_gray_is_read(mode: str, options: dict) -> None:
    # Gray of 128 is what libjpeg fills in for missing data.
    data = save(Image.new(mode, (50, 50), 128 if mode == "L" else (128, 128, 128)), "JPEG", **options)
    assert decode(data).tolist() == [[[128, 128, 128]] * 50] * 50


def test_restart_markers_are_read_and_a_gap_in_them_is_refused() -> None:
    data = save(smooth_picture(48, 200), "JPEG", restart_marker_rows=1)
    assert data.count(b"\xff\xd0") == 2  # numbered 0 to 7, then 0 again
    assert np.array_equal(decode(data), np.asarray(Image.open(io.BytesIO(data)).convert("RGB")))
    gap = data[: data.index(b"\xff\xd2")] + data[data.index(b"\xff\xd4") :]
    assert "a gap in its restart markers (damaged)" in refusal(gap)


@pytest.mark.parametrize("mode", ["RGB", "L"])
def test_stray_bytes_before_the_end_as_cameras_leave_them_are_skipped(mode: str) -> None:
    data = save(smooth_picture().convert(mode), "JPEG")
    assert np.array_equal(decode(data[:-2] + b"\x00\x01\x02" + data[-2:]), decode(data))


def test_sampling_that_only_pillow_decodes_is_read_by_pillow() -> None:
    # 3 luma blocks beside one of each chroma, which libjpeg reads and its TurboJPEG interface does not. The height in
    # the header is cut to one row of blocks, so that no data is missing.
    data = save(smooth_picture(24, 40), "JPEG", subsampling="4:4:4")
    frame = data.index(b"\xff\xc0")
    odd = data[: frame + 5] + b"\x00\x08" + data[frame + 7 : frame + 11] + b"\x31" + data[frame + 12 :]
    with pytest.raises(ValueError, match="subsampling"):
        simplejpeg.decode_jpeg_header(odd)
    assert np.array_equal(decode(odd), np.asarray(Image.open(io.BytesIO(odd)).convert("RGB")))


def test_a_progressive_jpeg_that_lost_data_is_refused() -> None:
    whole = save(smooth_picture(320, 240), "JPEG", progressive=True)
    first = whole.index(b"\xff\xda") + 300
    assert "with less data than its size asks for (damaged)" in refusal(whole[:first] + whole[first + 200 :])


def scan_starts(data: bytes) -> list[int]:
    return [found.start() for found in re.finditer(b"\xff\xda", data)]


@pytest.mark.parametrize("mode", ["RGB", "L", "CMYK"])
@pytest.mark.parametrize("subsampling", ["4:4:4", "4:2:2", "4:2:0"])
@pytest.mark.parametrize("quality", [1, 50, 100])
def test_a_progressive_jpeg_without_its_last_scans_is_refused(mode: str, subsampling: str, quality: int) -> None:
    # Each scan ends well-formed, and with an end glued on libjpeg has nothing to say.
    image = smooth_picture(97, 65).convert(mode)
    whole = save(image, "JPEG", progressive=True, subsampling=subsampling, quality=quality)
    starts = scan_starts(whole)
    assert len(starts) >= 6
    for start in starts:
        assert "(damaged)" in refusal(whole[: whole.rindex(b"\xff\xda", 0, start + 2)] + b"\xff\xd9")
    tables = re.compile(b"(?:\xff\xc4..[^\xff]*)*$", re.DOTALL)
    for start in starts[1:]:  # and without the tables of the scan that is missing
        assert "lacks some of its scans" in refusal(tables.sub(b"", whole[:start]) + b"\xff\xd9")


@settings(max_examples=150, deadline=None)
@given(
    st.integers(1, 70),
    st.integers(1, 70),
    st.integers(1, 100),
    st.sampled_from(["4:4:4", "4:2:2", "4:2:0", "4:1:1"]),
    st.sampled_from(["RGB", "L", "CMYK"]),
    st.booleans(),
    st.booleans(),
)
def test_no_whole_jpeg_of_pillow_is_refused(
    width: int, height: int, quality: int, subsampling: str, mode: str, is_progressive: bool, is_noise: bool
) -> None:
    noise = np.random.default_rng(width).integers(0, 256, (height, width, 3), np.uint8)
    image = (Image.fromarray(noise) if is_noise else smooth_picture(width, height)).convert(mode)
    data = save(image, "JPEG", quality=quality, subsampling=subsampling, progressive=is_progressive)
    assert np.array_equal(decode(data), np.asarray(Image.open(io.BytesIO(data)).convert("RGB")))


def with_frame_size(data: bytes, width: int, height: int) -> bytes:
    frame = re.search(b"\xff[\xc0-\xc2]\x00", data).start()
    return data[: frame + 5] + height.to_bytes(2, "big") + width.to_bytes(2, "big") + data[frame + 9 :]


@pytest.mark.parametrize("size", [(64, 64), (16, 16), (80, 48), (16, 64)])
@pytest.mark.parametrize("options", [{}, {"subsampling": 0}, {"progressive": True}, {"restart_marker_rows": 1}])
@pytest.mark.parametrize("mode", ["RGB", "L", "CMYK"])
def test_a_jpeg_with_more_data_than_its_header_asks_for_is_refused(
    mode: str, options: dict, size: tuple[int, int]
) -> None:
    # Of a smaller size, the data gives a sheared picture.
    noise = np.random.default_rng(1).integers(0, 256, (64, 80, 3), np.uint8)
    data = save(Image.fromarray(noise).convert(mode), "JPEG", **options)
    assert "(damaged)" in refusal(with_frame_size(data, *size))


@pytest.mark.parametrize(
    "stuffing", [b"\x01", b"\x00" * 512, bytes(range(1, 17)), b"\x07\x08" + b"\x00" * 100, b"\xff" * 99]
)
@pytest.mark.parametrize("mode", ["RGB", "L", "CMYK"])
def test_stuffing_before_the_end_is_no_data(mode: str, stuffing: bytes) -> None:
    data = save(smooth_picture(64, 48).convert(mode), "JPEG")
    assert np.array_equal(decode(data[:-2] + stuffing + data[-2:]), decode(data))
