"""Frames to files: an MP4 written as frames come, and a contact sheet. Knows nothing of the server.

Frames are uint8 [H, W, 3] RGB, all of one size.
"""

import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

import av
import numpy as np
import numpy.typing as npt
from PIL import Image

from worldstream.checks import MAX_FPS
from worldstream.errors import InvalidInputError

Pixels = npt.NDArray[np.uint8]


class Mp4Writer:
    """An H.264 file that takes one frame at a time, in constant memory."""

    def __init__(self, path: str | os.PathLike[str], fps: int = 16) -> None:
        if not 1 <= fps <= MAX_FPS:
            raise InvalidInputError(f"fps: wanted 1 to {MAX_FPS}, got {fps}")
        self._path = Path(path)
        self._fps = fps
        self._size: tuple[int, ...] | None = None
        self._container: Any = None
        self._stream: Any = None

    def write(self, pixels: Pixels) -> None:
        """Append a frame.

        Raises:
            InvalidInputError: if it is not uint8 [H, W, 3], or not of the first frame's size.
        """
        if pixels.dtype != np.uint8 or pixels.ndim != 3 or pixels.shape[2] != 3:
            raise InvalidInputError(f"frame: wanted uint8 [H, W, 3], got {pixels.dtype} {list(pixels.shape)}")
        if self._size is None:
            self._open(pixels.shape)
        if pixels.shape != self._size:
            raise InvalidInputError(f"frame: wanted the first frame's {self._size}, got {pixels.shape}")
        frame = av.VideoFrame.from_ndarray(_pad_to_even(pixels), format="rgb24")
        self._container.mux(self._stream.encode(frame))

    def close(self) -> None:
        """Write what the encoder still holds, and the file's index."""
        if self._container is None:
            return
        self._container.mux(self._stream.encode(None))
        self._container.close()
        self._container = None

    def __enter__(self) -> "Mp4Writer":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.close()

    def _open(self, shape: tuple[int, ...]) -> None:
        self._container = av.open(str(self._path), "w", format="mp4")
        self._stream = self._container.add_stream("h264", rate=self._fps)
        # Every player takes 4:2:0, which needs even sides.
        self._stream.pix_fmt = "yuv420p"
        self._stream.height, self._stream.width = (side + side % 2 for side in shape[:2])
        self._stream.options = {"crf": "18"}
        self._size = shape


def write_mp4(frames: Iterable[Pixels], path: str | os.PathLike[str], fps: int = 16) -> int:
    """Write frames as they come; returns how many they were.

    Raises:
        InvalidInputError: if there is none, or one differs in size or type.
    """
    num_frames = 0
    with Mp4Writer(path, fps) as writer:
        for pixels in frames:
            writer.write(pixels)
            num_frames += 1
    if num_frames == 0:
        raise InvalidInputError("frames: wanted 1 or more, got none")
    return num_frames


def contact_sheet(
    frames: Sequence[Pixels], path: str | os.PathLike[str], num_columns: int = 4, gap_px: int = 4
) -> None:
    """Write a PNG that shows all of these frames, row by row; choose few, for instance with `spread`.

    Raises:
        InvalidInputError: if there is none, or they differ in size.
    """
    if not frames or num_columns < 1:
        raise InvalidInputError(f"contact sheet: wanted frames and columns, got {len(frames)} and {num_columns}")
    height_px, width_px = frames[0].shape[:2]
    num_columns = min(num_columns, len(frames))
    num_rows = -(-len(frames) // num_columns)
    size = (num_columns * (width_px + gap_px) - gap_px, num_rows * (height_px + gap_px) - gap_px)
    sheet = Image.new("RGB", size, "white")
    for place, pixels in enumerate(frames):
        if pixels.shape != frames[0].shape:
            raise InvalidInputError(f"contact sheet: wanted frames of {frames[0].shape}, got {pixels.shape}")
        row, column = divmod(place, num_columns)
        sheet.paste(Image.fromarray(pixels), (column * (width_px + gap_px), row * (height_px + gap_px)))
    sheet.save(path, format="PNG")


def spread(num_frames: int, num_wanted: int) -> list[int]:
    """Numbers of frames spread evenly over a clip, its first and last among them."""
    num_shown = min(num_frames, num_wanted)
    return np.linspace(0, num_frames - 1, num_shown).round().astype(int).tolist()


def _pad_to_even(pixels: Pixels) -> Pixels:
    """Repeat the last row or column where a side is odd: [H, W, 3] -> [H + H % 2, W + W % 2, 3]."""
    height_px, width_px = pixels.shape[:2]
    if height_px % 2 == 0 and width_px % 2 == 0:
        return np.ascontiguousarray(pixels)
    return np.pad(pixels, ((0, height_px % 2), (0, width_px % 2), (0, 0)), mode="edge")
