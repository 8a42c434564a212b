"""Frames as files: what comes out is what Pillow reads back; and how parts are cut."""

import base64
import io
import subprocess
import sys
import zlib

import numpy as np
import pytest
from PIL import Image
from worldmodel.encoding import NAMES, Encoder, FrameEncoding, parts_of
from worldmodel.errors import UnavailableError
from worldmodel.png import best_compress, write_png

MAGIC = {"png": "PNG", "jpeg": "JPEG", "webp": "WEBP"}


def frames_with_edges(num_frames=5, height_px=48, width_px=80):
    """Slopes of light with a gray box that wanders, each frame another one."""
    rows, columns = np.mgrid[0:height_px, 0:width_px]
    slopes = np.stack([40 + 2 * columns, 60 + 3 * rows, 200 - columns], axis=2).astype(np.uint8)
    frames = np.stack([slopes] * num_frames)
    for number, frame in enumerate(frames):
        frame[10:30, 10 + 7 * number : 25 + 7 * number] = 120
    return frames


FRAMES = frames_with_edges()


@pytest.fixture
def encoder():
    encoder = Encoder()
    yield encoder
    encoder.close()


def decoded(file):
    with Image.open(io.BytesIO(file)) as image:
        assert image.mode == "RGB"
        return np.asarray(image), image.format


def psnr_db(one, other):
    return 10 * np.log10(255**2 / np.mean((one.astype(float) - other.astype(float)) ** 2))


def test_png_loses_nothing_and_keeps_the_order(encoder):
    files = encoder.encode(FRAMES, FrameEncoding("png"))
    assert np.array_equal(np.stack([decoded(file)[0] for file in files]), FRAMES)


@pytest.mark.parametrize("name", ["jpeg", "webp"])
def test_lossy_files_look_like_their_frames(encoder, name):
    files = encoder.encode(FRAMES, FrameEncoding(name))
    for file, frame in zip(files, FRAMES, strict=True):
        # 35 dB: where eyes begin to see differences. Frames that were mixed up, or red for blue, are under 30.
        assert psnr_db(decoded(file)[0], frame) > 35
    assert psnr_db(FRAMES[0], FRAMES[1]) < 30
    assert psnr_db(FRAMES[0], FRAMES[0, :, :, ::-1]) < 30


@pytest.mark.parametrize("name", ["jpeg", "webp"])
def test_more_quality_takes_more_bytes_and_is_nearer(encoder, name):
    files = [encoder.encode(FRAMES[:1], FrameEncoding(name, quality))[0] for quality in (1, 30, 60, 90, 100)]
    assert sorted(map(len, files)) == list(map(len, files))
    assert len(set(map(len, files))) == len(files)
    assert psnr_db(decoded(files[0])[0], FRAMES[0]) < psnr_db(decoded(files[-1])[0], FRAMES[0])


@pytest.mark.parametrize("name", NAMES)
def test_each_encoding_gives_its_own_kind_of_file(encoder, name):
    file = encoder.encode(FRAMES[:1], FrameEncoding(name))[0]
    kind, _, text = name.partition("_")
    if text:
        file = base64.b64decode(file, validate=True)
    assert decoded(file)[1] == MAGIC[kind]


@pytest.mark.parametrize("kind", MAGIC)
def test_base64_holds_the_very_file(encoder, kind):
    plain, text = (encoder.encode(FRAMES, FrameEncoding(name, 75)) for name in (kind, f"{kind}_base64"))
    assert [base64.b64encode(file) for file in plain] == text


def test_frames_that_are_parts_of_a_larger_array_are_encoded_alike(encoder):
    for kind in MAGIC:
        whole = encoder.encode(FRAMES, FrameEncoding(kind))
        assert encoder.encode(FRAMES[2:4], FrameEncoding(kind)) == whole[2:4]


@pytest.mark.parametrize("shape", [(1, 1), (1, 7), (5, 1), (3, 2), (31, 65)])
@pytest.mark.parametrize("compress", [zlib.compress, best_compress()], ids=["zlib", "isal"])
def test_png_of_any_shape_is_whole(shape, compress):
    frame = np.random.default_rng(0).integers(0, 256, (*shape, 3), np.uint8)
    file = write_png(frame, compress)
    with Image.open(io.BytesIO(file)) as image:
        image.verify()  # lengths and checksums
    assert np.array_equal(decoded(file)[0], frame)


def test_png_of_one_pixel_is_the_one_made_by_hand():
    # Header: 1 x 1, 8 bits, RGB. Data: filter 2 and the pixel, in a stored block. The Adler sum is by hand
    # (1+2+10+20+30 = 63, 3+13+33+63 = 112), the CRC sums are gzip's.
    wanted = (
        "89504e470d0a1a0a 0000000d49484452 00000001 00000001 0802000000 907753de"
        "0000000f49444154 7801 01 0400 fbff 02 0a141e 0070003f 56122f1a"
        "0000000049454e44 ae426082"
    )
    stored = write_png(np.array([[[10, 20, 30]]], np.uint8), lambda rows, _: zlib.compress(rows, 0))
    assert stored.hex() == wanted.replace(" ", "")


def test_png_needs_no_package(monkeypatch, encoder):
    for name in ("isal.isal_zlib", "PIL.Image", "simplejpeg"):
        monkeypatch.setitem(sys.modules, name, None)
    files = encoder.encode(FRAMES, FrameEncoding("png"))
    monkeypatch.undo()
    assert np.array_equal(np.stack([decoded(file)[0] for file in files]), FRAMES)


@pytest.mark.parametrize("name", ["webp", "webp_base64"])
def test_a_missing_pillow_is_said(monkeypatch, name):
    monkeypatch.setitem(sys.modules, "PIL.Image", None)
    wanted = "parameter 'frame_encoding': webp needs the Python package pillow, which this server lacks"
    with pytest.raises(UnavailableError, match=wanted):
        FrameEncoding(name).make()


def test_jpeg_needs_one_of_two_packages(monkeypatch, encoder):
    monkeypatch.setitem(sys.modules, "simplejpeg", None)
    file = encoder.encode(FRAMES[:1], FrameEncoding("jpeg"))[0]
    assert psnr_db(decoded(file)[0], FRAMES[0]) > 35
    monkeypatch.setitem(sys.modules, "PIL.Image", None)
    with pytest.raises(UnavailableError, match="jpeg needs the Python package pillow"):
        FrameEncoding("jpeg").make()


def test_the_world_runs_without_any_encoder():
    code = "import sys, worldmodel.engine; assert not {'PIL', 'simplejpeg', 'isal'} & set(sys.modules)"
    environment = {"PYTHONPATH": next(path for path in sys.path if path.endswith("denoise/1"))}
    subprocess.run([sys.executable, "-c", code], env=environment, check=True, timeout=120)


@pytest.mark.parametrize(
    ("sizes", "most", "parts"),
    [
        ([10], 100, [(0, 1)]),
        ([10] * 5, 20, [(0, 2), (2, 4), (4, 5)]),
        ([10] * 5, 25, [(0, 2), (2, 4), (4, 5)]),
        ([10] * 5, 1, [(0, 1), (1, 2), (2, 3), (3, 4), (4, 5)]),
        ([10] * 5, 50, [(0, 5)]),
        ([5, 5, 90, 5, 5], 50, [(0, 2), (2, 3), (3, 5)]),
        ([90, 5, 5, 41, 10], 50, [(0, 1), (1, 3), (3, 4), (4, 5)]),
    ],
)
def test_parts_hold_what_fits_and_at_least_one_frame(sizes, most, parts):
    assert [(part.start, part.stop) for part in parts_of(sizes, most)] == parts
