"""Frames as picture files, for those who want to look at them: PNG, JPEG, WebP, and their base64 for JSON.

Raw frames are the rule: they are lossless, and cost neither side any time. The packages that encode are imported when
a client first asks for one; the world runs without them, and so does PNG, only slower. Knows nothing of chunks,
requests' parameters or Triton.
"""

from __future__ import annotations

import base64
import importlib
import io
import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from worldmodel.errors import UnavailableError
from worldmodel.pixels import Pixels
from worldmodel.png import best_compress, write_png

LOSSY = ("jpeg", "webp")
FORMATS = ("png", *LOSSY)
NAMES = (*FORMATS, *(f"{each}_base64" for each in FORMATS))
DEFAULT_QUALITY = 90
MAX_THREADS = 4  # a chunk has a dozen frames, and computing wants the cores too

Encode = Callable[[Pixels], bytes]


@dataclass(frozen=True)
class FrameEncoding:
    """What each frame of a request becomes."""

    name: str  # one of NAMES
    quality: int = DEFAULT_QUALITY  # 1 to 100; png has none

    @property
    def format(self) -> str:
        """One of FORMATS."""
        return self.name.removesuffix("_base64")

    def make(self) -> Encode:
        """The function that encodes one frame, [H, W, 3] uint8.

        Raises:
            UnavailableError: a package is missing.
        """
        encode = {"png": _png, "jpeg": _jpeg, "webp": _webp}[self.format](self.quality)
        return encode if self.name == self.format else lambda frame: base64.b64encode(encode(frame))


class Encoder:
    """Encodes frames on a few threads of its own, which exist once there are frames to encode."""

    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(
            min(MAX_THREADS, len(os.sched_getaffinity(0))), thread_name_prefix="worldstream-encoder"
        )

    def encode(self, frames: Pixels, encoding: FrameEncoding) -> list[bytes]:
        """Encode each of [n, H, W, 3] uint8, side by side: all of these encoders free Python's lock but Pillow's JPEG.

        Raises:
            UnavailableError: a package is missing.
        """
        return list(self._pool.map(encoding.make(), frames))

    def close(self) -> None:
        """End the threads."""
        self._pool.shutdown()


def parts_of(sizes: Sequence[int], most_bytes: int) -> list[slice]:
    """Cut a row of frames of these sizes in bytes into parts of at most so many bytes, and of at least one frame."""
    parts, begin, held = [], 0, 0
    for index, size in enumerate(sizes):
        if index > begin and held + size > most_bytes:
            parts.append(slice(begin, index))
            begin, held = index, 0
        held += size
    return [*parts, slice(begin, len(sizes))]


def _png(_: int) -> Encode:
    compress = best_compress()
    return lambda frame: write_png(frame, compress)


def _jpeg(quality: int) -> Encode:
    try:
        simplejpeg: Any = importlib.import_module("simplejpeg")  # half again as fast as Pillow
    except ImportError:
        return _pillow("jpeg", quality=quality)
    return lambda frame: simplejpeg.encode_jpeg(frame, quality, "RGB", "420")


def _webp(quality: int) -> Encode:
    return _pillow("webp", quality=quality, method=0)  # a third of the usual effort's time for a third more bytes


def _pillow(format_name: str, **options: int) -> Encode:
    try:
        image: Any = importlib.import_module("PIL.Image")
    except ImportError as error:
        raise UnavailableError(
            f"parameter 'frame_encoding': {format_name} needs the Python package pillow, which this server lacks"
        ) from error

    def encode(frame: Pixels) -> bytes:
        file = io.BytesIO()
        image.fromarray(frame).save(file, format_name, **options)
        return file.getvalue()

    return encode
