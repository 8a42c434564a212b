"""JPEG: the segments are walked here (size first, whole to the end), Pillow decodes.

The walk is what notices a missing tail: libjpeg fills it with gray and only warns.
"""

import re
from typing import NamedTuple

import numpy as np

from ingest.colour import Picture
from ingest.errors import InvalidInputError
from ingest.exif import exif_orientation
from ingest.limits import Limits
from ingest.pillow import open_and_load

SIGNATURE = b"\xff\xd8\xff"

_START_OF_FRAME = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}
_START_OF_SCAN = 0xDA
_END_OF_IMAGE = 0xD9
_EXIF = 0xE1
# APP0 (JFIF) and APP14 (Adobe) say how to read the colours and stay.
_METADATA = frozenset(range(0xE1, 0xF0)) - {0xEE} | {0xFE}
_WITH_LENGTH = frozenset(range(0xC0, 0xFF)) - frozenset(range(0xD0, 0xDA))
_FILL = re.compile(rb"\xff*(?=\xff)")
# Inside a scan 0xFF00 is a data byte and D0-D7 restart it; any other marker ends it.
_SCAN_END = re.compile(rb"\xff[^\x00\xd0-\xd7\xff]")
# Real files have some tens; walking millions would hold up everybody else.
_MAX_SEGMENTS = 4096


class _Segment(NamedTuple):
    marker: int
    start: int  # of its body, after the two length bytes
    end: int


def decode(data: bytes, place: str, limits: Limits) -> Picture:
    """Decode a baseline or progressive JPEG; CMYK and YCCK become RGB."""
    exif, pixel_data = _read_segments(data, place, limits)
    image = open_and_load(pixel_data, "JPEG", place)
    rgb_or_gray = image if image.mode in ("L", "RGB") else image.convert("RGB")
    samples = np.asarray(rgb_or_gray)
    return Picture(samples.reshape(*samples.shape[:2], -1), exif_orientation(exif))


def _read_segments(data: bytes, place: str, limits: Limits) -> tuple[bytes | None, bytes]:
    """Hold the size against the limits and walk on to the end marker.

    Returns:
        EXIF, and the file without its metadata and without what follows its end: the decoder gets pixels only.
    """
    exif, kept, has_size = None, [data[:2]], False
    position, marker, num_segments = 2, 0, 0
    while marker != _END_OF_IMAGE:
        num_segments += 1
        if num_segments > _MAX_SEGMENTS:
            raise InvalidInputError(f"{place}: wanted a JPEG, came one with over {_MAX_SEGMENTS} segments (damaged)")
        segment = _segment_at(data, position, place)
        marker, start = segment.marker, position
        body = data[segment.start : segment.end]
        position = _end_of_scan(data, segment.end, place) if marker == _START_OF_SCAN else segment.end
        if marker in _START_OF_FRAME:
            _check_size(body, place, limits)
            has_size = True
        if marker == _EXIF and exif is None and body.startswith(b"Exif\0\0"):
            exif = body
        if marker not in _METADATA:
            kept.append(data[start:position])
    if not has_size:
        raise InvalidInputError(f"{place}: wanted a JPEG with a frame, came one without (damaged)")
    return exif, b"".join(kept)


def _segment_at(data: bytes, position: int, place: str) -> _Segment:
    if data[position : position + 1] not in (b"\xff", b""):
        raise InvalidInputError(
            f"{place}: wanted a whole JPEG, came one with stray bytes between its segments (damaged)"
        )
    fill = _FILL.match(data, position)
    position = fill.end() if fill else position
    body = position + 4
    if data[position + 1 : position + 2] == b"\xd9":
        return _Segment(_END_OF_IMAGE, position + 2, position + 2)
    if len(data) < body:
        raise _truncated(place)
    marker = data[position + 1]
    end = position + 2 + int.from_bytes(data[position + 2 : body], "big")
    if marker not in _WITH_LENGTH or end < body:
        raise InvalidInputError(f"{place}: wanted a whole JPEG, came one with an impossible segment (damaged)")
    if end > len(data):
        raise _truncated(place)
    return _Segment(marker, body, end)


def _check_size(frame: bytes, place: str, limits: Limits) -> None:
    if len(frame) < 6:
        raise InvalidInputError(f"{place}: wanted a whole JPEG, came one with a short frame header (damaged)")
    limits.check_picture(int.from_bytes(frame[1:3], "big"), int.from_bytes(frame[3:5], "big"), place)


def _end_of_scan(data: bytes, position: int, place: str) -> int:
    end = _SCAN_END.search(data, position)
    if end is None:
        raise _truncated(place)
    return end.start()


def _truncated(place: str) -> InvalidInputError:
    return InvalidInputError(f"{place}: wanted a whole JPEG, came one without its end (truncated)")
