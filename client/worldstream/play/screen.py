"""Frames in a terminal: a thread that draws them in time, and drops what the terminal is too slow for.

A slow line (ssh) hides behind buffers of megabytes, where frames would grow old. So each frame ends with a question
that terminals answer once they have come to it (where is the cursor?), and only a few may be unanswered. A terminal
that has never answered is held back by its writes alone.
"""

import os
import threading
import time
from collections.abc import Callable
from types import TracebackType

import numpy as np
import numpy.typing as npt

from worldstream.play.canvas import Canvas
from worldstream.play.half_blocks import draw, fitted_size, to_cells
from worldstream.play.playback import Playback, Shot

_MOST_UNSEEN = 3
_FORGET_UNSEEN_S = 10.0  # an answer got lost, or will never come
_LAST_ANSWER_S = 1.0
_STATUS_S = 0.25
# A terminal that knows it shows a frame whole, not line by line.
_BEGIN_FRAME, _END_FRAME = b"\x1b[?2026h", b"\x1b[?2026l"
_ASK = b"\x1b[6n"


class Screen:
    """Shows frames in the terminal `fd`; a context manager, on whose exit the terminal shows what it did before."""

    def __init__(self, fd: int, fps: float, status: Callable[[], str], on_shown: Callable[[Shot, float], None]) -> None:
        """Prepare it.

        Args:
            fd: of a terminal.
            fps: frames a second to show at most.
            status: the last line's text, asked for with each frame, in the drawing thread.
            on_shown: told each frame that was drawn, and when, in the drawing thread.
        """
        self.playback = Playback(fps)
        self._canvas = Canvas(fd)
        self._status = status
        self._on_shown = on_shown
        self._news = threading.Condition()
        self._is_closing = False
        self._error: Exception | None = None
        self._answers = False
        self._num_unseen = 0
        self._seen_s = 0.0
        self._size: os.terminal_size | None = None
        self._cells: npt.NDArray[np.uint8] | None = None  # as they are on the screen
        self._painter = threading.Thread(target=self._paint, name="worldstream-screen", daemon=True)

    def show(self, shots: list[Shot]) -> None:
        """Take frames to be shown one after another; returns at once.

        Raises:
            OSError: if the terminal has failed.
        """
        with self._news:
            if self._error is not None:
                raise self._error
            now_s = time.monotonic()
            for shot in shots:
                self.playback.add(shot, now_s)
            self._news.notify_all()

    def seen(self) -> None:
        """Note an answer of the terminal."""
        with self._news:
            self._answers = True
            self._num_unseen = max(0, self._num_unseen - 1)
            self._seen_s = time.monotonic()
            self._news.notify_all()

    def __enter__(self) -> "Screen":
        self._canvas.open()
        self._canvas.write(_ASK)
        self._painter.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        try:
            with self._news:
                self._is_closing = True
                self._news.notify_all()
            self._canvas.leave()
            self._painter.join()
            with self._news:  # answers that come later would be typed into the shell
                self._news.wait_for(lambda: not self._answers or self._num_unseen == 0, _LAST_ANSWER_S)
        finally:
            self._canvas.close()

    def _paint(self) -> None:
        try:
            while True:
                with self._news:
                    if not self._wait_for_time():
                        return
                    shot = self.playback.take(time.monotonic())
                self._draw(shot)
                if shot is not None:
                    self._on_shown(shot, time.monotonic())
        except Exception as error:
            with self._news:
                self._error = error

    def _wait_for_time(self) -> bool:
        """Wait until a frame is due and the terminal is ready, or the status is due; False to end. Holds the lock."""
        status_due_s = time.monotonic() + _STATUS_S
        while not self._is_closing:
            now_s = time.monotonic()
            due_s = min(self.playback.next_due_s or status_due_s, status_due_s)
            if not self._is_ready(now_s):
                due_s = max(due_s, now_s + _STATUS_S)
            elif due_s <= now_s:
                return True
            self._news.wait(due_s - now_s)
        return False

    def _is_ready(self, now_s: float) -> bool:
        if self._num_unseen and now_s - self._seen_s > _FORGET_UNSEEN_S:
            self._num_unseen, self._seen_s = 0, now_s
        return not self._answers or self._num_unseen < _MOST_UNSEEN

    def _draw(self, shot: Shot | None) -> None:
        """Draw a frame, or the status alone."""
        size = self._canvas.size
        parts = [_BEGIN_FRAME]
        if size != self._size:
            self._size, self._cells = size, None
            parts.append(b"\x1b[2J")
        if shot is not None and size.lines > 1:
            height_px, width_px = shot.pixels.shape[:2]
            rows, columns = fitted_size(height_px, width_px, size.lines - 1, size.columns)
            cells = to_cells(shot.pixels, rows, columns)
            before = self._cells if self._cells is not None and self._cells.shape == cells.shape else None
            parts.append(draw(cells, before, 1 + (size.lines - 1 - rows) // 2, 1 + (size.columns - columns) // 2))
            self._cells = cells
        status = self._status()[: size.columns - 1].encode(errors="replace")
        parts.append(b"\x1b[%d;1H\x1b[2K%s" % (size.lines, status))
        parts.append(_END_FRAME)
        with self._news:
            self._num_unseen += int(self._answers)
            parts.append(_ASK if self._answers else b"")
        self._canvas.write(b"".join(parts))
