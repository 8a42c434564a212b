"""What the tests of picture files share: files by Pillow, and the decoder with one set of limits."""

import io

import numpy as np
import pytest
from ingest.errors import InvalidInputError, TooLargeError
from ingest.limits import Limits
from ingest.pictures import decode_picture
from PIL import Image

LIMITS = Limits()


def decode(data: bytes, limits: Limits = LIMITS) -> np.ndarray:
    pixels = decode_picture(data, "image[0]", limits)
    assert pixels.dtype == np.uint8
    assert pixels.flags.c_contiguous
    return pixels


def refusal(data: bytes, limits: Limits = LIMITS) -> str:
    with pytest.raises((InvalidInputError, TooLargeError)) as caught:
        decode(data, limits)
    return str(caught.value)


def save(image: Image.Image, kind: str, **options: object) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, kind, **options)
    return buffer.getvalue()


def smooth_picture(width: int = 48, height: int = 32) -> Image.Image:
    """A picture that JPEG keeps well, with four different corners."""
    y, x = np.mgrid[0:height, 0:width]
    return Image.fromarray(np.stack([x * 5, y * 7, 255 - x * 3 - y], axis=2).clip(0, 255).astype(np.uint8))
