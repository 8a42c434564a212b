"""Films and contact sheets, read back with PyAV and Pillow."""

import av
import numpy as np
import pytest
from PIL import Image
from worldstream import InvalidInputError, video


def gray(value, height_px=32, width_px=48):
    return np.full((height_px, width_px, 3), value, dtype=np.uint8)


def decode(path):
    with av.open(str(path)) as container:
        (stream,) = container.streams.video
        return stream.average_rate, [frame.to_ndarray(format="rgb24") for frame in container.decode(stream)]


def test_a_film_holds_all_frames_in_order_at_its_rate(tmp_path):
    values = list(range(0, 250, 25))

    written = video.write_mp4((gray(value) for value in values), tmp_path / "film.mp4", fps=16)

    rate, frames = decode(tmp_path / "film.mp4")
    assert written == 10
    assert rate == 16
    assert [frame.shape for frame in frames] == [(32, 48, 3)] * 10
    # H.264 is lossy and goes through limited-range YUV: a few levels off at most.
    np.testing.assert_allclose([frame.mean() for frame in frames], values, atol=4)


def test_colours_keep_their_order(tmp_path):
    red = np.zeros((32, 32, 3), np.uint8)
    red[..., 0] = 220

    video.write_mp4([red], tmp_path / "red.mp4")

    _, (frame,) = decode(tmp_path / "red.mp4")
    np.testing.assert_allclose(frame.mean(axis=(0, 1)), [220, 0, 0], atol=8)


def test_odd_sides_are_padded_by_one(tmp_path):
    video.write_mp4([gray(90, height_px=31, width_px=47)], tmp_path / "odd.mp4")

    _, (frame,) = decode(tmp_path / "odd.mp4")
    assert frame.shape == (32, 48, 3)
    np.testing.assert_allclose(frame[-1, -1], 90, atol=4)


def test_a_film_reaches_the_disk_while_frames_still_come(tmp_path):
    noise = np.random.default_rng(0).integers(0, 256, (120, 96, 128, 3), dtype=np.uint8)

    with video.Mp4Writer(tmp_path / "film.mp4") as writer:
        for pixels in noise:
            writer.write(pixels)
        size_before_the_end = (tmp_path / "film.mp4").stat().st_size

    assert size_before_the_end > 100_000
    assert len(decode(tmp_path / "film.mp4")[1]) == 120


@pytest.mark.parametrize(
    ("frames", "complaint"),
    [
        ([], "frames: wanted 1 or more, got none"),
        ([gray(1), gray(1, width_px=50)], "wanted the first frame's"),
        ([np.zeros((4, 4, 3), np.float32)], r"frame: wanted uint8 \[H, W, 3\], got float32 \[4, 4, 3\]"),
    ],
)
def test_what_is_no_film_is_refused(tmp_path, frames, complaint):
    with pytest.raises(InvalidInputError, match=complaint):
        video.write_mp4(frames, tmp_path / "film.mp4")


@pytest.mark.parametrize("fps", [0, 1001, 10**30])
def test_a_rate_that_no_film_has_is_refused(tmp_path, fps):
    with pytest.raises(InvalidInputError, match=f"^fps: wanted 1 to 1000, got {fps}$"):
        video.write_mp4([gray(1)], tmp_path / "film.mp4", fps)
    video.write_mp4([gray(1)], tmp_path / "film.mp4", fps=1000)
    assert decode(tmp_path / "film.mp4")[0] == 1000


def test_a_contact_sheet_shows_frames_row_by_row(tmp_path):
    frames = [gray(value, height_px=4, width_px=6) for value in (10, 20, 30, 40, 50)]

    video.contact_sheet(frames, tmp_path / "sheet.png", num_columns=3, gap_px=2)

    with Image.open(tmp_path / "sheet.png") as file:
        sheet = file.convert("RGB")
    assert sheet.size == (3 * 6 + 2 * 2, 2 * 4 + 2)
    assert [sheet.getpixel((x, 0))[0] for x in (0, 8, 16)] == [10, 20, 30]
    assert [sheet.getpixel((x, 6))[0] for x in (0, 8)] == [40, 50]
    assert sheet.getpixel((6, 0)) == (255, 255, 255)
    assert sheet.getpixel((16, 6)) == (255, 255, 255)


@pytest.mark.parametrize(
    ("num_frames", "num_wanted", "wanted"), [(9, 3, [0, 4, 8]), (2, 5, [0, 1]), (1, 4, [0]), (21, 2, [0, 20])]
)
def test_a_spread_reaches_from_first_to_last(num_frames, num_wanted, wanted):
    assert video.spread(num_frames, num_wanted) == wanted
