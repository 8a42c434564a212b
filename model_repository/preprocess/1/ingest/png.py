"""PNG, read by its own rules: every chunk's checksum, all of its lines, 16 bits kept until they are scaled.

ISA-L decompresses (three times faster than zlib), Pillow undoes the line filters; palettes, transparency and depth
are done here, because Pillow cuts 16-bit colour to its high byte and compares a low-depth transparent key with already
scaled samples.
"""

import struct
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from isal import isal_zlib
from isal.igzip_lib import IsalError
from numpy.typing import NDArray

from ingest.colour import Picture, Pixels, Samples, scale_to_8_bits
from ingest.errors import InvalidInputError
from ingest.exif import exif_orientation
from ingest.limits import Limits
from ingest.pillow import unfilter_png

SIGNATURE = b"\x89PNG\r\n\x1a\n"

_GRAY, _RGB, _PALETTE, _GRAY_ALPHA, _RGBA = 0, 2, 3, 4, 6
_NUM_CHANNELS = {_GRAY: 1, _RGB: 3, _PALETTE: 1, _GRAY_ALPHA: 2, _RGBA: 4}
_BIT_DEPTHS = {_GRAY: (1, 2, 4, 8, 16), _PALETTE: (1, 2, 4, 8)}  # the others: 8 and 16
# Bits a pixel -> the Pillow mode whose pixels have as many, and how it reads their bytes as they are: for 48 and 64
# bits once for the high byte of each sample, once for the low one.
_RAW_MODES = {
    1: ("P", ("P;1",)),
    2: ("P", ("P;2",)),
    4: ("P", ("P;4",)),
    8: ("L", ("L",)),
    16: ("LA", ("LA",)),
    24: ("RGB", ("RGB",)),
    32: ("RGBA", ("RGBA",)),
    48: ("RGB", ("RGB;16B", "RGB;16L")),
    64: ("RGBA", ("RGBA;16B", "RGBA;16L")),
}
# First row, first column, row step, column step of each pass.
_ADAM7 = ((0, 0, 8, 8), (0, 4, 8, 8), (4, 0, 8, 4), (0, 2, 4, 4), (2, 0, 4, 2), (0, 1, 2, 2), (1, 0, 2, 1))
# A file of the largest size in chunks of 1 KiB; walking millions of empty ones would hold up everybody else.
_MAX_CHUNKS = 65536
_ONCE = (b"IHDR", b"PLTE", b"tRNS", b"eXIf")


class _Header(NamedTuple):
    width_px: int
    height_px: int
    bit_depth: int
    colour_type: int
    compression: int
    filtering: int
    interlace: int

    @property
    def bits_per_pixel(self) -> int:
        return self.bit_depth * _NUM_CHANNELS[self.colour_type]


def decode(data: bytes, place: str, limits: Limits) -> Picture:
    """Decode any PNG of the specification; an animated one gives its default image."""
    header = _read_header(data, place)
    limits.check_picture(header.height_px, header.width_px, place)
    chunks, lines = _read_chunks(data, header, place)
    samples = _unpack(header, lines, place)
    if header.colour_type == _PALETTE:
        coloured = _look_up(samples, chunks, place)
    else:
        coloured = _with_alpha(header, samples, chunks.get(b"tRNS"), place)
    return Picture(coloured, exif_orientation(chunks.get(b"eXIf")))


def _read_header(data: bytes, place: str) -> _Header:
    if len(data) < 33:
        raise _truncated(place)
    if data[8:16] != b"\0\0\0\x0dIHDR":
        raise _damaged(place, "its first chunk is not a header")
    header = _Header(*struct.unpack(">IIBBBBB", data[16:29]))
    depths = _BIT_DEPTHS.get(header.colour_type, (8, 16))
    if header.colour_type not in _NUM_CHANNELS or header.bit_depth not in depths:
        raise _damaged(place, "its header names an impossible colour type")
    if header.compression or header.filtering or header.interlace > 1:
        raise _damaged(place, "its header names an unknown method")
    return header


def _chunks(data: bytes, place: str) -> Iterator[tuple[bytes, memoryview]]:
    """Yield kind and body of each chunk up to IEND, each held against its checksum."""
    view = memoryview(data)
    position, kind, num_chunks = len(SIGNATURE), b"", 0
    while kind != b"IEND":
        num_chunks += 1
        if num_chunks > _MAX_CHUNKS:
            raise _damaged(place, f"it has over {_MAX_CHUNKS} chunks")
        body = position + 8
        end = body + int.from_bytes(data[position : position + 4], "big")
        if end + 4 > len(data):
            raise _truncated(place)
        kind = data[position + 4 : body]
        checksum = isal_zlib.crc32(view[position + 4 : end])
        if not kind.isalpha() or checksum != int.from_bytes(data[end : end + 4], "big"):
            raise _damaged(place, "a chunk does not match its checksum")
        yield kind, view[body:end]
        position = end + 4


def _read_chunks(data: bytes, header: _Header, place: str) -> tuple[dict[bytes, bytes], bytes]:
    """Collect the chunks that matter, and the scanlines out of the compressed stream."""
    chunks: dict[bytes, bytes] = {}
    compressed = []
    for kind, body in _chunks(data, place):
        if kind == b"IDAT":
            compressed.append(body)
        elif kind in _ONCE:
            if kind in chunks:
                raise _damaged(place, f"it has two {kind.decode()} chunks")
            chunks[kind] = bytes(body)
        elif kind[:1].isupper() and kind != b"IEND":
            raise _damaged(place, "it has an unknown critical chunk")
    stream = compressed[0] if len(compressed) == 1 else b"".join(compressed)
    return chunks, _inflate(stream, _num_scanline_bytes(header), place)


def _inflate(compressed: bytes | memoryview, num_bytes: int, place: str) -> bytes:
    """Decompress exactly `num_bytes`; one byte more is asked for, so that a stream that goes on is noticed."""
    stream = isal_zlib.decompressobj()
    try:
        lines = stream.decompress(compressed, num_bytes + 1)
    except IsalError as error:  # type: ignore[misc]  # its stubs take the class for an instance
        raise _damaged(place, "its data cannot be decompressed") from error
    if len(lines) > num_bytes:
        raise _damaged(place, "it has more data than its size asks for")
    if len(lines) < num_bytes or not stream.eof:
        raise _damaged(place, "it has less data than its size asks for")
    return lines


def _num_scanline_bytes(header: _Header) -> int:
    """Count the bytes of all lines, each with its filter byte; empty interlace passes have none."""
    passes = _ADAM7 if header.interlace else ((0, 0, 1, 1),)
    total = 0
    for first_row, first_column, row_step, column_step in passes:
        num_rows = -(-(header.height_px - first_row) // row_step)
        num_columns = -(-(header.width_px - first_column) // column_step)
        if num_rows > 0 and num_columns > 0:
            total += num_rows * (1 + (num_columns * header.bits_per_pixel + 7) // 8)
    return total


def _unpack(header: _Header, lines: bytes, place: str) -> Samples:
    """Give the samples at their own depth: [H, W, C] UINT8, or UINT16 for 16-bit files."""
    mode, raw_modes = _RAW_MODES[header.bits_per_pixel]
    size = (header.width_px, header.height_px)
    planes = [unfilter_png(lines, mode, raw, size, bool(header.interlace), place) for raw in raw_modes]
    if header.bit_depth < 16:
        return planes[0]
    high, low = planes if len(planes) == 2 else (planes[0][:, :, 0::2], planes[0][:, :, 1::2])
    joined: NDArray[np.uint16] = high.astype(np.uint16)
    joined *= 256
    joined += low
    return joined


def _look_up(indices: Samples, chunks: dict[bytes, bytes], place: str) -> Pixels:
    """Replace palette indices by their colours: [H, W, 1] -> [H, W, 3], or [H, W, 4] where the file has alpha."""
    stored = chunks.get(b"PLTE", b"")
    if not stored or len(stored) % 3 or len(stored) > 768:
        raise _damaged(place, "it has no usable palette")
    palette = np.frombuffer(stored, np.uint8).reshape(-1, 3)
    if indices.max() >= len(palette):
        raise _damaged(place, "a pixel points beyond its palette")
    alpha = chunks.get(b"tRNS")
    if alpha is not None:
        padded = (alpha + b"\xff" * len(palette))[: len(palette)]
        palette = np.concatenate([palette, np.frombuffer(padded, np.uint8)[:, None]], axis=1)
    return np.take(palette, indices[:, :, 0], axis=0)


def _with_alpha(header: _Header, samples: Samples, key: bytes | None, place: str) -> Pixels:
    """Scale to 8 bits; a colour key makes the pixels that equal it, at the file's own depth, transparent."""
    scaled = scale_to_8_bits(samples, (1 << header.bit_depth) - 1)
    if key is None or header.colour_type not in (_GRAY, _RGB):
        return scaled
    if len(key) != 2 * samples.shape[2]:
        raise _damaged(place, "its transparent colour has the wrong length")
    transparent = np.frombuffer(key, ">u2") & ((1 << header.bit_depth) - 1)
    is_opaque = (samples != transparent).any(axis=2, keepdims=True)
    return np.concatenate([scaled, is_opaque.astype(np.uint8) * np.uint8(255)], axis=2)


def _damaged(place: str, what: str) -> InvalidInputError:
    return InvalidInputError(f"{place}: wanted a whole PNG, came a damaged one: {what}")


def _truncated(place: str) -> InvalidInputError:
    return InvalidInputError(f"{place}: wanted a whole PNG, came one without its end (truncated)")
