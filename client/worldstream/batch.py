"""What a client receives: batches of frames with their numbers and timings.

n is the number of frames in one response; H and W are the size that the model makes.
"""

from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from worldstream.picture import decode_frames


@dataclass(frozen=True)
class Timings:
    """How long this chunk took on the server, in milliseconds; complete in the chunk's last part."""

    queued_ms: float
    condition_ms: float
    denoise_ms: float
    decode_ms: float
    transfer_ms: float
    total_ms: float  # without queued_ms


class Frame(NamedTuple):
    """One frame: its absolute number in the session, and its pixels, uint8 [H, W, 3] RGB, read-only."""

    frame_index: int
    pixels: npt.NDArray[np.uint8]


@dataclass(frozen=True)
class Receipt:
    """What the server answers before any frame, where a request asked for it: it has taken the request up."""

    chunk_index: int  # the first that the request will steer, if all that is ahead of it runs to its end
    num_ahead: int  # requests of its session that are to be answered before it
    event_id: int | None


@dataclass(frozen=True, eq=False)
class Batch:
    """One response: some consecutive frames of one chunk.

    Where the session asked for a `frame_encoding`, `encoded` holds the frames as files, and `frames` decodes them when
    it is first asked for.
    """

    raw_frames: npt.NDArray[np.uint8]  # [n, H, W, 3], a view of the message; [0, H, W, 3] where they came as files
    frame_index: npt.NDArray[np.int64]  # [n], absolute numbers in the session
    chunk_index: int
    part_index: int
    num_parts: int
    event_id: int | None  # of the request that steered these frames
    timings: Timings
    is_last: bool  # no further batch answers this request
    encoded: tuple[bytes, ...] | None = None  # n files: PNG, JPEG or WebP; None where the frames came raw

    @cached_property
    def frames(self) -> npt.NDArray[np.uint8]:
        """The frames, uint8 [n, H, W, 3] RGB, read-only; copy them to write into them.

        Raises:
            ProtocolError: if a file cannot be decoded.
        """
        return self.raw_frames if self.encoded is None else decode_frames(self.encoded)

    def singles(self) -> list[Frame]:
        """Its frames one by one."""
        return [Frame(index, pixels) for index, pixels in zip(self.frame_index.tolist(), self.frames, strict=True)]
