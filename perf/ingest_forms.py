"""What the benchmark of the image entrance sends, and what `preprocess` makes of it in this process."""

from __future__ import annotations

import base64
import io
import json
import sys

import numpy as np
from common import ROOT
from numpy.typing import NDArray
from PIL import Image

# At the front: a script beside this file has the package's name.
sys.path.insert(0, str(ROOT / "model_repository" / "preprocess" / "1"))
from ingest import Limits, read_images

Pixels = NDArray[np.uint8]

LIMITS = Limits()
CAMERA = (360, 640)
NUM_CAMERAS = 3
JPEG_QUALITY = 90


def natural_picture(height_px: int, width_px: int, seed: int) -> Pixels:
    """Draw UINT8 [H, W, 3] as a camera might see it: slopes of light, edged shapes, sensor noise."""
    rng = np.random.default_rng(seed)
    y, x = np.mgrid[0:height_px, 0:width_px] / height_px
    light = np.stack([80 + 90 * x + 30 * np.sin(5 * y), 120 + 60 * y, 160 - 60 * x * y], axis=2)
    for _ in range(12):
        centre_y, centre_x, radius = rng.uniform(0, 1), rng.uniform(0, width_px / height_px), rng.uniform(0.03, 0.25)
        inside = (y - centre_y) ** 2 + (x - centre_x) ** 2 < radius**2
        light[inside] = light[inside] * 0.4 + rng.uniform(0, 150, 3)
    return (light + rng.normal(0, 3, light.shape)).clip(0, 255).astype(np.uint8)


def file_of(pixels: Pixels, kind: str) -> bytes:
    buffer = io.BytesIO()
    options = {"quality": JPEG_QUALITY} if kind == "JPEG" else {}
    Image.fromarray(pixels).save(buffer, kind, **options)
    return buffer.getvalue()


def list_of(pixels: Pixels) -> bytes:
    """As JavaScript writes it, and most robots: without spaces."""
    return json.dumps(pixels.tolist(), separators=(",", ":")).encode()


def cameras_of(pictures: list[Pixels]) -> bytes:
    cameras = {f"camera_{index}": pixels.tolist() for index, pixels in enumerate(pictures)}
    return json.dumps(cameras, separators=(",", ":")).encode()


def forms_of(pixels: Pixels) -> dict[str, bytes]:
    """Each form that a client may choose for a picture."""
    png_file, jpeg_file = file_of(pixels, "PNG"), file_of(pixels, "JPEG")
    return {
        "JPEG": jpeg_file,
        "base64 JPEG": base64.b64encode(jpeg_file),
        "PNG": png_file,
        "base64 PNG": base64.b64encode(png_file),
        "pixel list": list_of(pixels),
        "pixel list, json.dumps": json.dumps(pixels.tolist()).encode(),
        "pixel list of floats": json.dumps((pixels / 255).round(4).tolist(), separators=(",", ":")).encode(),
    }


def ours(*elements: bytes) -> Pixels:
    """Everything that a request gets which asks for all outputs."""
    pictures = read_images(elements, None, LIMITS)
    pictures.digests()
    return pictures.pixels


def check_equal(left: Pixels, right: Pixels | list[Pixels]) -> None:
    if not np.array_equal(left, np.stack(list(right))):
        raise SystemExit("the two sides of a comparison give different pixels")
