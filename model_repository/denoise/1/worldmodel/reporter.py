"""Tells the metrics page what the engine has done, on a thread of its own. Knows no metrics system.

Each number on the page is a call to another process, which waits for that process to run. Measured on two busy cores:
up to a millisecond a call, and ten calls a chunk, when the compute thread made them. It only leaves a note here.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from worldmodel.metrics import ChunkTimes, Stats

log = logging.getLogger("worldstream")


class Reporter:
    """Holds the newest numbers until they are told; numbers that came between are passed over."""

    def __init__(
        self,
        on_change: Callable[[Stats], None],
        on_chunk: Callable[[ChunkTimes], None],
        on_error: Callable[[str], None] = lambda _: None,
    ) -> None:
        """Prepare; all are called from several threads, but never at one time."""
        self._on_change = on_change
        self._on_chunk = on_chunk
        self._on_error = on_error
        self._noted = threading.Condition()
        self._telling = threading.Lock()
        self._stats: Stats | None = None
        self._times: list[ChunkTimes] = []
        self._errors: list[str] = []
        self._is_closing = False
        self._thread = threading.Thread(target=self._run, name="worldstream-reporter", daemon=True)

    def start(self) -> None:
        """Begin to tell."""
        self._thread.start()

    def note(self, stats: Stats) -> None:
        """The numbers of this moment, to be told soon."""
        with self._noted:
            self._stats = stats
            self._noted.notify()

    def note_chunk(self, times: ChunkTimes) -> None:
        """A chunk's times, to be told soon."""
        with self._noted:
            self._times.append(times)
            self._noted.notify()

    def note_error(self, code: str) -> None:
        """The code word of an error that answers a request, to be told soon."""
        with self._noted:
            self._errors.append(code)
            self._noted.notify()

    def tell(self) -> None:
        """Tell what has been noted; when this returns, the page says so."""
        with self._telling:
            with self._noted:
                stats, self._stats = self._stats, None
                times, self._times = self._times, []
                errors, self._errors = self._errors, []
            try:
                for code in errors:
                    self._on_error(code)
                for each in times:
                    self._on_chunk(each)
                if stats is not None:
                    self._on_change(stats)
            except Exception:
                # A metric that cannot be written must not stop the world.
                log.exception("the metrics could not be brought up to date")

    def close(self, timeout_s: float) -> None:
        """Tell what is left, then stop."""
        with self._noted:
            self._is_closing = True
            self._noted.notify()
        if self._thread.is_alive():
            self._thread.join(timeout_s)

    @property
    def _has_news(self) -> bool:
        return self._stats is not None or bool(self._times or self._errors)

    def _run(self) -> None:
        while not self._is_closing:
            with self._noted:
                self._noted.wait_for(lambda: self._is_closing or self._has_news)
            self.tell()
