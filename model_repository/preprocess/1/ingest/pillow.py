"""The narrow door to Pillow: its many exceptions become one refusal here."""

import io
import struct
import zlib
from collections.abc import Callable

import numpy as np
from PIL import Image

from ingest.colour import Pixels
from ingest.errors import InvalidInputError

# What Pillow's decoders raise for damaged files, as seen; anything else is our own fault and stays visible.
_DAMAGE = (OSError, SyntaxError, ValueError, IndexError, EOFError, struct.error, Image.DecompressionBombError)


def open_and_load(data: bytes, kind: str, place: str) -> Image.Image:
    """Decode the first frame of a file of the one format `kind` ("JPEG", "WEBP")."""

    def load() -> Image.Image:
        image = Image.open(io.BytesIO(data), formats=(kind,))
        image.load()
        return image

    return _guarded(load, place)


def unfilter_png(
    scanlines: bytes, mode: str, raw_mode: str, size: tuple[int, int], is_interlaced: bool, place: str
) -> Pixels:
    """Undo PNG's line filters and interlacing; UINT8 [H, W, C] with the channels of `mode`; `size` is (W, H).

    Pillow's zip decoder takes a zlib stream, so the lines are wrapped in one that stores them as they are.
    """
    stream = zlib.compress(scanlines, level=0)
    image = _guarded(lambda: Image.frombytes(mode, size, stream, "zip", raw_mode, int(is_interlaced)), place)
    pixels = np.asarray(image)
    return pixels.reshape(size[1], size[0], -1)


def _guarded(decode: Callable[[], Image.Image], place: str) -> Image.Image:
    try:
        return decode()
    except _DAMAGE as error:
        raise InvalidInputError(
            f"{place}: wanted a whole picture, came one that cannot be decoded (damaged)"
        ) from error
