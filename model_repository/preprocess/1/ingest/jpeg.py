"""JPEG: the segments are walked here (size first, whole to the end), libjpeg-turbo decodes, through simplejpeg.

libjpeg fills what is missing with gray and only warns. simplejpeg hands the first warning on, so most damage is refused
by what libjpeg says; restart markers out of order, a missing end and missing scans are noticed by the walk. JPEG has no
checksum: changed bits that leave the count of blocks right cannot be noticed.

What simplejpeg does not decode (CMYK, unusual sampling), or not without a warning that may be harmless (cameras leave
stray bytes before the end), goes through Pillow. That hides the warnings, so `_refuse_missing_data` looks for gray.
"""

import re
from typing import NamedTuple

import numpy as np
import simplejpeg
from PIL import Image

from ingest.colour import Picture, Pixels
from ingest.errors import InvalidInputError, TooLargeError
from ingest.exif import exif_orientation
from ingest.jpeg_frame import START_OF_FRAME, Frame, read_frame, sends_everything
from ingest.limits import Limits
from ingest.pillow import open_and_load

SIGNATURE = b"\xff\xd8\xff"

# Of libjpeg's warnings, those that mean pixels were made up.
_DAMAGE_WARNINGS = ("premature end of", "Premature end of", "bad Huffman code", "found marker")
_EXTRANEOUS = re.compile(r"(\d+) extraneous bytes before marker 0x([0-9a-f]{2})")
# What cameras leave before the end; zeros at its end are not counted.
_MAX_STRAY_BYTES = 16
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
# Progressive files have about ten. Each costs a pass over the whole picture, however few bytes it has.
_MAX_SCANS = 100
# Data to a Huffman decoder that looks for some, and skipped by one that is done. A decoder that looks for a restart
# marker first finds each of the eight.
_NOISE = b"".join(bytes(range(1, 255)) + bytes((0xFF, marker)) for marker in range(0xD0, 0xD8)) + bytes(range(1, 255))


class _Segment(NamedTuple):
    marker: int
    start: int  # of its body, after the two length bytes
    end: int


class _File(NamedTuple):
    exif: bytes | None
    pixel_data: bytes  # the file without its metadata and without what follows its end
    frame: Frame


def decode(data: bytes, place: str, limits: Limits) -> Picture:
    """Decode a baseline or progressive JPEG; CMYK and YCCK become RGB."""
    file = _read_segments(data, place, limits)
    samples = _decode_without_warning(file, place)
    if samples is None:
        samples = _decode_with_pillow(file, place)
    return Picture(samples, exif_orientation(file.exif))


def _decode_without_warning(file: _File, place: str) -> Pixels | None:
    """Decode gray and RGB; None where libjpeg has something to say that need not be damage, and for CMYK."""
    is_cmyk = len(file.frame.components) == 4
    try:
        # TurboJPEG does not make RGB of CMYK; this is for the warnings.
        samples = simplejpeg.decode_jpeg(file.pixel_data, "CMYK" if is_cmyk else "RGB")
        return None if is_cmyk else samples
    except ValueError as warning:
        if any(words in str(warning) for words in _DAMAGE_WARNINGS):
            raise _missing_data(place) from warning
        _refuse_leftover(str(warning), file, place)
        return None


def _refuse_leftover(warning: str, file: _File, place: str) -> None:
    """Refuse data that the decoder leaves over: that of a larger picture, whose header was changed."""
    found = _EXTRANEOUS.search(warning)
    if found is None:
        return
    scans = file.pixel_data[:-2]
    num_stray = int(found[1]) - (len(scans) - len(scans.rstrip(b"\0")))
    is_at_end = int(found[2], 16) == _END_OF_IMAGE
    if not is_at_end or num_stray > max(_MAX_STRAY_BYTES, file.frame.min_bytes_of_a_line()):
        raise InvalidInputError(
            f"{place}: wanted a whole JPEG, came one with more data than its size asks for (damaged)"
        )


def _decode_with_pillow(file: _File, place: str) -> Pixels:
    image = open_and_load(file.pixel_data, "JPEG", place)
    if file.frame.is_sequential and _ends_gray(image):
        _refuse_missing_data(image, file.pixel_data, place)
    rgb_or_gray = image if image.mode in ("L", "RGB") else image.convert("RGB")
    samples = np.asarray(rgb_or_gray)
    return samples.reshape(*samples.shape[:2], -1)


def _ends_gray(image: Image.Image) -> bool:
    """Say whether the last corner may be libjpeg's filling; in gray and RGB that is a brightness of 128."""
    corner = image.getpixel((image.width - 1, image.height - 1))
    if isinstance(corner, tuple) and len(corner) == 3:
        corner = 0.299 * corner[0] + 0.587 * corner[1] + 0.114 * corner[2]
    # The colour is not looked at: it may be blended with that of a neighbour that is there.
    return not isinstance(corner, (int, float)) or abs(corner - 128) < 2


def _refuse_missing_data(image: Image.Image, pixel_data: bytes, place: str) -> None:
    """Decode once more with noise before the end marker: the pixels change only if the decoder still wanted data."""
    scans = pixel_data[:-2].rstrip(b"\xff")  # fill bytes would make a marker of the noise
    with_noise = open_and_load(scans + _NOISE + pixel_data[-2:], "JPEG", place)
    if not np.array_equal(np.asarray(image), np.asarray(with_noise)):
        raise _missing_data(place)


def _read_segments(data: bytes, place: str, limits: Limits) -> _File:
    """Hold the size against the limits and walk on to the end marker."""
    exif, frame, kept = None, None, [data[:2]]
    scan_headers: list[bytes] = []
    position, marker, num_segments = 2, 0, 0
    while marker != _END_OF_IMAGE:
        num_segments += 1
        if num_segments > _MAX_SEGMENTS:
            raise InvalidInputError(f"{place}: wanted a JPEG, came one with over {_MAX_SEGMENTS} segments (damaged)")
        segment = _segment_at(data, position, place)
        marker, start = segment.marker, position
        body = data[segment.start : segment.end]
        position = segment.end
        if marker == _START_OF_SCAN:
            scan_headers.append(body)
            if len(scan_headers) > _MAX_SCANS:
                raise TooLargeError(f"{place}: wanted a JPEG of at most {_MAX_SCANS} scans, came more")
            position = _end_of_scan(data, segment.end, place)
        if marker in START_OF_FRAME:
            frame = _frame(marker, body, place, limits)
        if marker == _EXIF and exif is None and body.startswith(b"Exif\0\0"):
            exif = body
        if marker not in _METADATA:
            kept.append(data[start:position])
    if frame is None:
        raise InvalidInputError(f"{place}: wanted a JPEG with a frame, came one without (damaged)")
    if not sends_everything(frame, scan_headers):
        raise InvalidInputError(f"{place}: wanted a whole JPEG, came one that lacks some of its scans (damaged)")
    return _File(exif, b"".join(kept), frame)


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


def _frame(marker: int, body: bytes, place: str, limits: Limits) -> Frame:
    frame = read_frame(marker, body)
    if frame is None:
        raise InvalidInputError(f"{place}: wanted a whole JPEG, came one with a short frame header (damaged)")
    limits.check_picture(frame.height_px, frame.width_px, place)
    return frame


def _end_of_scan(data: bytes, position: int, place: str) -> int:
    end = _SCAN_END.search(data, position)
    if end is None:
        raise _truncated(place)
    _check_restarts(data[position : end.start()], place)
    return end.start()


def _check_restarts(scan: bytes, place: str) -> None:
    """Restart markers are numbered 0 to 7 in turn: a gap is where data was lost."""
    stored = np.frombuffer(scan, np.uint8)
    is_restart = (stored[:-1] == 0xFF) & (stored[1:] & 0xF8 == 0xD0)
    numbers = stored[1:][is_restart] & 7
    if not np.array_equal(numbers, np.arange(len(numbers)) % 8):
        raise InvalidInputError(f"{place}: wanted a whole JPEG, came one with a gap in its restart markers (damaged)")


def _truncated(place: str) -> InvalidInputError:
    return InvalidInputError(f"{place}: wanted a whole JPEG, came one without its end (truncated)")


def _missing_data(place: str) -> InvalidInputError:
    return InvalidInputError(f"{place}: wanted a whole JPEG, came one with less data than its size asks for (damaged)")
