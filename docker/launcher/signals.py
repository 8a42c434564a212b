"""The signals that ask us to end."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Iterator
from types import FrameType


class Stop(Exception):
    """A signal asked us to end."""

    def __init__(self, signum: int) -> None:
        super().__init__(signal.Signals(signum).name)
        self.signum = signum


class StopSignals:
    """Turns the signals that ask us to end into Stop; only inside of `raising`, so that no step is left half done."""

    def __init__(self) -> None:
        self._is_raising = False
        self._came: int | None = None
        for signum in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            # Started by nohup, it is to outlive its terminal.
            if signum != signal.SIGHUP or signal.getsignal(signum) is not signal.SIG_IGN:
                signal.signal(signum, self._take)

    @contextlib.contextmanager
    def raising(self) -> Iterator[None]:
        """Raise Stop in the body, once, when a signal comes; at once if one has come already."""
        self._is_raising = True
        try:
            if self._came is not None:
                raise Stop(self._came)
            yield
        finally:
            self._is_raising = False

    def forget(self) -> None:
        """Let the next signal count as the first one."""
        self._came = None

    def _take(self, signum: int, _: FrameType | None) -> None:
        self._came = signum
        if self._is_raising:
            # What is closed on the way out must not be broken off by a second one.
            self._is_raising = False
            raise Stop(signum)
