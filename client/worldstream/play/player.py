"""Plays a world by keys: keys become requests, one chunk each; their frames are shown, written, or both."""

import statistics
import time
from collections import deque
from collections.abc import Callable

from worldstream.batch import Batch
from worldstream.errors import CancelledError, ConnectionLostError
from worldstream.play.hands import Hands
from worldstream.play.playback import Shot
from worldstream.requests import Controls, make_controls
from worldstream.session import Session

# A chunk is asked for this much earlier than the one before it ends, beside the time that chunks took to begin.
_MARGIN_S = 0.05
_FPS_OVER_S = 2.0


class Player:
    """One walk, and its numbers."""

    def __init__(
        self, hands: Hands, chunk_latent_frames: int, paced_fps: float | None = None, most_chunks: int | None = None
    ) -> None:
        """Prepare it.

        Args:
            hands: whoever steers.
            chunk_latent_frames: how many entries of keys fill a chunk.
            paced_fps: frames are seen at this rate, so that keys are wanted at it too; None as fast as frames are made.
            most_chunks: the walk ends after so many; None when the hands quit.
        """
        self.num_frames = 0
        self.num_times_lost = 0
        self._hands = hands
        self._length = chunk_latent_frames
        self._paced_fps = paced_fps
        self._most_chunks = most_chunks
        self._ends_s = 0.0  # when the last frame will have been seen
        self._num_asked = 0
        self._asked_s = 0.0
        self._begin_s = 0.0  # from a request to its first frame
        self._chunk_s = 0.0  # and to its last
        self._keys = ""
        self._pressed_s: dict[int, float] = {}  # by event id
        self._latencies_s: list[float] = []  # from a key to the first frame that it steered
        self._shown_s: deque[float] = deque(maxlen=64)

    def play(self, session: Session, show: Callable[[list[Shot]], None]) -> None:
        """Walk until the hands quit, and hand all frames to `show` as they come.

        A connection that breaks is made anew, unless it breaks without a frame between.
        """
        while True:
            num_frames = self.num_frames
            try:
                for batch in session.steer(self._next_controls):
                    show(self._take(batch))
                break
            except ConnectionLostError:
                if self.num_frames == num_frames:
                    raise
                self.num_times_lost += 1
            except CancelledError:
                if not self._hands.has_quit:
                    raise
        if self._paced_fps is not None and not self._hands.has_quit:
            time.sleep(max(0.0, self._ends_s - time.monotonic()))  # the last frames are still to be seen

    def status(self, num_skipped: int = 0) -> str:
        """A line of numbers as they are now; `num_skipped` frames were not shown."""
        shown_s = [at_s for at_s in list(self._shown_s) if at_s > time.monotonic() - _FPS_OVER_S]
        fps = (len(shown_s) - 1) / (shown_s[-1] - shown_s[0]) if len(shown_s) > 1 else 0.0
        latency = f"{1000 * self._latencies_s[-1]:.0f} ms" if self._latencies_s else "-"
        skipped = f" | {num_skipped} skipped" if num_skipped else ""
        return f"{fps:.0f} fps | chunk {1000 * self._chunk_s:.0f} ms | key to frame {latency}{skipped} | {self._keys}"

    def closing_line(self, num_skipped: int = 0) -> str:
        """The line that ends a walk."""
        parts = [f"{self.num_frames} frames in {self._num_asked} chunks"]
        if self._latencies_s:
            parts.append(f"key to frame {1000 * statistics.median(self._latencies_s):.0f} ms (median)")
        if num_skipped:
            parts.append(f"{num_skipped} frames not shown")
        if self.num_times_lost:
            parts.append(f"connection lost {self.num_times_lost} times")
        return ", ".join(parts)

    def shown(self, shot: Shot, at_s: float) -> None:
        """Note that a frame can be seen now."""
        self._shown_s.append(at_s)
        pressed_s = None if shot.event_id is None else self._pressed_s.pop(shot.event_id, None)
        if pressed_s is not None:
            self._latencies_s.append(at_s - pressed_s)

    def _next_controls(self) -> Controls | None:
        """Ask the hands, so late that the next chunk just comes in time."""
        if self._most_chunks is not None and self._num_asked >= self._most_chunks:
            return None
        sample = self._hands.sample(self._length, self._ends_s - self._begin_s - _MARGIN_S)
        if sample is None:
            return None
        event_id = self._num_asked
        self._num_asked += 1
        self._asked_s = time.monotonic()
        self._keys = " ".join(keys or "." for keys in sample.actions)
        if sample.pressed_s is not None:
            self._pressed_s[event_id] = sample.pressed_s
        return make_controls(actions=sample.actions, prompt=sample.prompt, event_id=event_id)

    def _take(self, batch: Batch) -> list[Shot]:
        now_s = time.monotonic()
        if batch.part_index == 0:
            # The longest of late is safe: a chunk that comes too late is a pause.
            self._begin_s = max(now_s - self._asked_s, 0.8 * self._begin_s)
        self._chunk_s = now_s - self._asked_s
        self.num_frames += len(batch.frames)
        if self._paced_fps is not None:
            self._ends_s = max(now_s, self._ends_s) + len(batch.frames) / self._paced_fps
        return [Shot(pixels, batch.event_id) for pixels in batch.frames]
