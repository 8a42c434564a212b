"""WebP: the header is read here (size first, whole to the end), Pillow decodes the first frame."""

import numpy as np

from ingest.colour import Picture
from ingest.errors import InvalidInputError
from ingest.exif import exif_orientation
from ingest.limits import Limits
from ingest.pillow import open_and_load

_RIFF_HEADER_BYTES = 8
_SIZE_HEADER_BYTES = 30


def is_webp(data: bytes) -> bool:
    """Say whether the first bytes are those of a WebP file."""
    return data[:4] == b"RIFF" and data[8:12] == b"WEBP"


def decode(data: bytes, place: str, limits: Limits) -> Picture:
    """Decode the first frame of a lossy, lossless or animated WebP."""
    num_bytes = _RIFF_HEADER_BYTES + int.from_bytes(data[4:8], "little")
    if num_bytes > len(data) or num_bytes < _SIZE_HEADER_BYTES:
        raise InvalidInputError(f"{place}: wanted a whole WebP of {num_bytes} bytes, came {len(data)} (truncated)")
    height_px, width_px = _size(data, place)
    limits.check_picture(height_px, width_px, place)
    image = open_and_load(data[:num_bytes], "WEBP", place)
    orientation = exif_orientation(image.info.get("exif"))
    wanted_mode = "RGBA" if image.mode == "RGBA" else "RGB"
    return Picture(np.asarray(image.convert(wanted_mode)), orientation)


def _size(data: bytes, place: str) -> tuple[int, int]:
    """Read height and width from the first chunk, whichever of the three kinds it is."""
    kind, body = data[12:16], data[20:_SIZE_HEADER_BYTES]
    if kind == b"VP8X":
        return int.from_bytes(body[7:10], "little") + 1, int.from_bytes(body[4:7], "little") + 1
    if kind == b"VP8L" and body[0] == 0x2F:
        bits = int.from_bytes(body[1:5], "little")
        return (bits >> 14 & 0x3FFF) + 1, (bits & 0x3FFF) + 1
    if kind == b"VP8 " and body[3:6] == b"\x9d\x01\x2a":
        return int.from_bytes(body[8:10], "little") & 0x3FFF, int.from_bytes(body[6:8], "little") & 0x3FFF
    raise InvalidInputError(f"{place}: wanted a WebP, came one with an unknown first chunk (damaged)")
