"""The narrow door to Pillow: its many exceptions become one refusal here."""

import io
import struct
from collections.abc import Callable

import numpy as np
from isal import isal_zlib
from PIL import Image

from ingest.colour import Pixels
from ingest.errors import InvalidInputError

# What Pillow's decoders raise for damaged files, as seen; anything else is our own fault and stays visible.
_DAMAGE = (OSError, SyntaxError, ValueError, IndexError, EOFError, struct.error, Image.DecompressionBombError)
_MAX_STORED_BYTES = 0xFFFF


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
    stream = _zlib_stored(scanlines)
    image = _guarded(lambda: Image.frombytes(mode, size, stream, "zip", raw_mode, int(is_interlaced)), place)
    pixels = np.asarray(image)
    return pixels.reshape(size[1], size[0], -1)


def _zlib_stored(data: bytes) -> bytes:
    """Wrap bytes as they are; zlib's own level 0 takes as long for its checksum as Pillow for a third of its work."""
    parts = [b"\x78\x01"]
    for start in range(0, len(data), _MAX_STORED_BYTES):
        block = data[start : start + _MAX_STORED_BYTES]
        is_last = start + _MAX_STORED_BYTES >= len(data)
        parts += [struct.pack("<BHH", is_last, len(block), len(block) ^ 0xFFFF), block]
    parts.append(struct.pack(">I", isal_zlib.adler32(data)))
    return b"".join(parts)


def _guarded(decode: Callable[[], Image.Image], place: str) -> Image.Image:
    try:
        return decode()
    except _DAMAGE as error:
        raise InvalidInputError(
            f"{place}: wanted a whole picture, came one that cannot be decoded (damaged)"
        ) from error
