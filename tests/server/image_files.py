"""Picture files made by hand or by Pillow as the writer, for the table of image cases; nothing here decodes.

PNG is written from its specification (chunks, line filters, Adam7), so that every kind of it can be had. JPEG is made
of blocks of one gray each: at quality 100 a flat 8 x 8 block is its DC value alone, which comes back exactly.
"""

import io
import struct
import zlib
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from PIL import Image

GRAY, RGB, PALETTE, GRAY_ALPHA, RGBA = 0, 2, 3, 4, 6
PNG_SIGNATURE = b"\x89PNG\r\n\x1a\n"
# First row, first column, row step, column step of each pass.
ADAM7 = ((0, 0, 8, 8), (0, 4, 8, 8), (4, 0, 8, 4), (0, 2, 4, 4), (2, 0, 4, 2), (0, 1, 2, 2), (1, 0, 2, 1))
BLOCK_PX = 8


def chunk(kind: bytes, body: bytes) -> bytes:
    return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))


def header(width: int, height: int, depth: int = 8, colour: int = RGB, interlace: int = 0) -> bytes:
    return chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, depth, colour, 0, 0, interlace))


END = chunk(b"IEND", b"")


def png_file(*chunks: bytes) -> bytes:
    """Chunks as a file, with an end."""
    return PNG_SIGNATURE + b"".join(chunks) + END


def png(
    samples: ArrayLike, depth: int = 8, colour: int = RGB, *, interlace: int = 0, extra: bytes = b"", num_idats: int = 1
) -> bytes:
    """A whole PNG.

    Args:
        samples: [H, W, C], at the file's own depth; [H, W] counts as C = 1.
        extra: chunks between header and data.
        num_idats: in how many chunks the data comes.
    """
    values = np.asarray(samples)
    values = values.reshape(*values.shape[:2], -1)
    passes = ADAM7 if interlace else ((0, 0, 1, 1),)
    parts = [values[row::row_step, column::column_step] for row, column, row_step, column_step in passes]
    lines = b"".join(b"\0" + pack_line(line, depth) for part in parts for line in part if line.size)
    data = zlib.compress(lines)
    cuts = [len(data) * index // num_idats for index in range(num_idats + 1)]
    idats = b"".join(chunk(b"IDAT", data[start:end]) for start, end in pairwise(cuts))
    return png_file(header(values.shape[1], values.shape[0], depth, colour, interlace), extra, idats)


def pack_line(line: NDArray[Any], depth: int) -> bytes:
    """One line's samples, most significant bit first, filled up to a whole byte."""
    bits = "".join(f"{int(sample):0{depth}b}" for sample in line.reshape(-1))
    bits += "0" * (-len(bits) % 8)
    return int(bits, 2).to_bytes(len(bits) // 8, "big")


def filtered_png(pixels: NDArray[Any], filters: Sequence[int]) -> bytes:
    """An 8-bit RGB PNG whose lines use these filters (0 none, 1 sub, 2 up, 3 average, 4 Paeth), one each."""
    height, width = pixels.shape[:2]
    lines = pixels.reshape(height, -1).astype(int)
    stream = b""
    for row, kind in enumerate(filters):
        stream += bytes([kind])
        for index in range(width * 3):
            left = lines[row, index - 3] if index >= 3 else 0
            up = lines[row - 1, index] if row else 0
            corner = lines[row - 1, index - 3] if row and index >= 3 else 0
            predicted = (0, left, up, (left + up) // 2, paeth(left, up, corner))[kind]
            stream += bytes([int(lines[row, index] - predicted) % 256])
    return png_file(header(width, height), chunk(b"IDAT", zlib.compress(stream)))


def paeth(left: int, up: int, corner: int) -> int:
    """The neighbour nearest to left + up - corner; the first of them wins a tie."""
    return min((left, up, corner), key=lambda neighbour: abs(left + up - corner - neighbour))


def animated_png(first: Sequence[int], second: Sequence[int], width: int, height: int) -> bytes:
    """An APNG of two one-coloured frames, the first of which is the default image too."""
    frames = [zlib.compress((b"\0" + bytes(colour) * width) * height) for colour in (first, second)]
    control = struct.pack(">IIIIHHBB", width, height, 0, 0, 1, 10, 0, 0)
    return png_file(
        header(width, height),
        chunk(b"acTL", struct.pack(">II", 2, 0)),
        chunk(b"fcTL", struct.pack(">I", 0) + control),
        chunk(b"IDAT", frames[0]),
        chunk(b"fcTL", struct.pack(">I", 1) + control),
        chunk(b"fdAT", struct.pack(">I", 2) + frames[1]),
    )


def bomb_png(side_px: int) -> bytes:
    """A whole black PNG of one bit a pixel: tiny as a file, huge as pixels."""
    line = bytes(1 + (side_px + 7) // 8)
    deflate = zlib.compressobj(9)
    data = b"".join(deflate.compress(line) for _ in range(side_px)) + deflate.flush()
    return png_file(header(side_px, side_px, 1, GRAY), chunk(b"IDAT", data))


def exif(orientation: int) -> bytes:
    """A TIFF directory with nothing but the orientation (tag 0x0112, SHORT)."""
    return b"MM\0*" + struct.pack(">IHHHIHHI", 8, 1, 0x0112, 3, 1, orientation, 0, 0)


def save(image: Image.Image, kind: str, **options: object) -> bytes:
    """Write a file with Pillow."""
    buffer = io.BytesIO()
    image.save(buffer, kind, **options)
    return buffer.getvalue()


def blocks(values: ArrayLike) -> NDArray[Any]:
    """One flat 8 x 8 block for each value: [h, w] -> UINT8 [8h, 8w]."""
    return np.kron(np.asarray(values, np.uint8), np.ones((BLOCK_PX, BLOCK_PX), np.uint8))


def gray_jpeg(values: ArrayLike, orientation: int = 0, **options: object) -> bytes:
    """A gray JPEG of flat blocks, with EXIF where an orientation is given."""
    data = save(Image.fromarray(blocks(values)), "JPEG", quality=100, **options)
    return with_exif(data, orientation) if orientation else data


def with_exif(jpeg: bytes, orientation: int) -> bytes:
    body = b"Exif\0\0" + exif(orientation)
    return jpeg[:2] + b"\xff\xe1" + struct.pack(">H", len(body) + 2) + body + jpeg[2:]


def flat_jpeg(mode: str, colour: int | Sequence[int], side_px: int = 8, **options: object) -> bytes:
    """A JPEG of one colour, without subsampling where it has colour."""
    value = colour if isinstance(colour, int) else tuple(colour)
    return save(Image.new(mode, (side_px, side_px), value), "JPEG", quality=100, **options)


def with_frame_size(jpeg: bytes, width: int, height: int) -> bytes:
    """The same baseline file, whose header says another size."""
    frame = jpeg.index(b"\xff\xc0")
    return jpeg[: frame + 5] + struct.pack(">HH", height, width) + jpeg[frame + 9 :]


def webp(image: Image.Image, **options: object) -> bytes:
    """A WebP file; lossless and exact unless the options say otherwise."""
    return save(image, "WEBP", **({"lossless": True, "exact": True} | options))


def webp_bomb() -> bytes:
    """An extended WebP whose canvas is 16384 x 16384."""
    body = bytes(4) + (16383).to_bytes(3, "little") * 2
    chunks = b"WEBPVP8X" + struct.pack("<I", len(body)) + body + bytes(20)
    return b"RIFF" + struct.pack("<I", len(chunks)) + chunks
