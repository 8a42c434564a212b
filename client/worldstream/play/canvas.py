"""The alternate screen of a terminal: written to without ever blocking for good, and left as it was found."""

import atexit
import contextlib
import os
import select
import termios
import threading
import time

_POLL_S = 0.05
_RESTORE_S = 1.0
# The alternate screen without a cursor, and back.
_OPEN = b"\x1b[?1049h\x1b[?25l\x1b[2J"
_RESTORE = b"\x1b[0m\x1b[?2026l\x1b[?25h\x1b[?1049l"


class Canvas:
    """A place to draw in the terminal `fd`."""

    def __init__(self, fd: int) -> None:
        """Prepare it."""
        self._fd = fd
        self._out = fd
        self._is_leaving = threading.Event()

    @property
    def size(self) -> os.terminal_size:
        """Columns and lines; 80 by 24 where the terminal does not say."""
        size = os.get_terminal_size(self._fd)
        return os.terminal_size((size.columns or 80, size.lines or 24))

    def open(self) -> None:
        """Begin to draw."""
        # Of its own, so that not to block is not asked of stdin and of the shell, which may share stdout's.
        self._out = os.open(os.ttyname(self._fd), os.O_WRONLY | os.O_NONBLOCK | os.O_NOCTTY)
        atexit.register(self.close)  # for a second Ctrl-C while this one's way out is under way
        self.write(_OPEN)

    def write(self, data: bytes) -> None:
        """Write as fast as the terminal takes it; what is left when `leave` is called is dropped."""
        while data and not self._is_leaving.is_set():
            data = self._write_some(data, _POLL_S)

    def leave(self) -> None:
        """Draw no more: a `write` that is under way returns."""
        self._is_leaving.set()

    def close(self) -> None:
        """Show what the terminal showed before; gives up on one that takes nothing, even if it is told to go on."""
        self.leave()
        with contextlib.suppress(OSError, termios.error):  # the terminal is gone
            if not select.select([], [self._out], [], 0)[1]:  # stopped by Ctrl-S, or at the end of a line that is dead
                termios.tcflow(self._out, termios.TCOON)
                termios.tcflush(self._out, termios.TCOFLUSH)
            data, end_s = _RESTORE, time.monotonic() + _RESTORE_S
            while data and time.monotonic() < end_s:
                data = self._write_some(data, _POLL_S)
        if self._out != self._fd:
            os.close(self._out)
            self._out = self._fd
        atexit.unregister(self.close)

    def _write_some(self, data: bytes, timeout_s: float) -> bytes:
        """Write what can be written now; returns the rest."""
        if not select.select([], [self._out], [], timeout_s)[1]:
            return data
        try:
            return data[os.write(self._out, data) :]
        except BlockingIOError:  # less room than there seemed to be
            return data
