"""When each frame is to be shown, and which are skipped when showing is slow. Pure; times are seconds of one clock."""

from collections import deque
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt


@dataclass(frozen=True, eq=False)
class Shot:
    """A frame to be shown."""

    pixels: npt.NDArray[np.uint8]  # [H, W, 3]
    event_id: int | None  # of the request that steered it


class Playback:
    """Frames that come in bursts, to be shown evenly. The oldest go when too many wait, late ones are skipped."""

    def __init__(self, fps: float, most_waiting: int = 64) -> None:
        self.num_skipped = 0
        self.ends_s = 0.0  # when the last frame will have had its time
        self._frame_s = 1 / fps
        self._most_waiting = most_waiting
        self._waiting: deque[tuple[float, Shot]] = deque()  # with the time that each is due

    @property
    def next_due_s(self) -> float | None:
        """When the next frame is due; None where none waits."""
        return self._waiting[0][0] if self._waiting else None

    def add(self, shot: Shot, now_s: float) -> None:
        """Take a frame, to be shown after those that wait."""
        due_s = max(now_s, self.ends_s)
        self.ends_s = due_s + self._frame_s
        self._waiting.append((due_s, shot))
        if len(self._waiting) > self._most_waiting:
            self._waiting.popleft()
            self.num_skipped += 1

    def take(self, now_s: float) -> Shot | None:
        """The newest frame that is due; those before it have missed their time."""
        shot = None
        while self._waiting and self._waiting[0][0] <= now_s:
            self.num_skipped += int(shot is not None)
            shot = self._waiting.popleft()[1]
        return shot
