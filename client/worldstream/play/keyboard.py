"""The keyboard of a terminal: its raw mode, and a thread that reads it."""

import atexit
import contextlib
import os
import select
import termios
import threading
import time
from collections.abc import Callable
from types import TracebackType

from worldstream.play.hands import Sample
from worldstream.play.keys import HeldKeys, KeyEvent, KeyParser, Kind

_POLL_S = 0.05
_LOCAL_FLAGS, _SPECIAL_CHARACTERS = 3, 6  # places in what termios calls a terminal's attributes


class Keyboard:
    """Keys as they are pressed; a context manager, on whose exit the terminal is as it was before."""

    def __init__(self, fd: int, on_quit: Callable[[], None]) -> None:
        """Prepare the keyboard of the terminal `fd`; `on_quit` is called, in the reading thread, when q is pressed."""
        # Called there for each answer of the terminal to the question where its cursor is.
        self.on_seen: Callable[[], None] = lambda: None
        self._fd = fd
        self._on_quit = on_quit
        self._parser = KeyParser()
        self._held = HeldKeys()
        self._lock = threading.Lock()
        self._quit = threading.Event()
        self._is_closing = threading.Event()
        self._reader = threading.Thread(target=self._read, name="worldstream-keyboard", daemon=True)
        self._error: Exception | None = None
        self._prompt: str | None = None
        self._pressed_s: float | None = None
        self._sampled_s = time.monotonic()

    @property
    def has_quit(self) -> bool:
        """Whether q was pressed, or the terminal is gone."""
        return self._quit.is_set()

    @property
    def line(self) -> str | None:
        """The prompt as far as it is typed; None while none is."""
        return self._parser.line

    def sample(self, num_latent_frames: int, due_s: float) -> Sample | None:
        """As `Hands.sample`; the span since the last sample is cut into as many parts as there are latent frames."""
        if self._quit.wait(max(0.0, due_s - time.monotonic())):
            if self._error is not None:
                raise self._error
            return None
        with self._lock:
            now_s = time.monotonic()
            actions = self._held.actions(self._sampled_s, now_s, num_latent_frames)
            sample = Sample(actions, self._prompt, self._pressed_s)
            self._sampled_s, self._prompt, self._pressed_s = now_s, None, None
            return sample

    def __enter__(self) -> "Keyboard":
        self._before = termios.tcgetattr(self._fd)
        atexit.register(self._restore)  # for a second Ctrl-C while this one's way out is under way
        raw = termios.tcgetattr(self._fd)
        # Keys come one by one and are not printed; Ctrl-C stays a signal. Ctrl-Z would leave the screen as it is.
        raw[_LOCAL_FLAGS] &= ~(termios.ICANON | termios.ECHO)
        raw[_SPECIAL_CHARACTERS][termios.VSUSP] = b"\0"
        raw[_SPECIAL_CHARACTERS][termios.VMIN] = 1
        raw[_SPECIAL_CHARACTERS][termios.VTIME] = 0
        try:
            termios.tcsetattr(self._fd, termios.TCSANOW, raw)
            self._reader.start()
        except BaseException:
            self._restore()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        try:
            self._is_closing.set()
            self._reader.join()
        finally:
            self._restore()

    def _restore(self) -> None:
        with contextlib.suppress(termios.error):  # the terminal is gone
            termios.tcflush(self._fd, termios.TCIFLUSH)  # what was typed too late is not for the shell
            termios.tcsetattr(self._fd, termios.TCSANOW, self._before)
        atexit.unregister(self._restore)

    def _read(self) -> None:
        try:
            while not self._is_closing.is_set():
                is_readable = bool(select.select([self._fd], [], [], _POLL_S)[0])
                data = os.read(self._fd, 4096) if is_readable else b""
                if is_readable and not data:
                    break  # the terminal was closed
                for event in self._parser.feed(data):
                    self._take(event, time.monotonic())
        except Exception as error:
            self._error = error
        if not self._is_closing.is_set():
            self._leave()

    def _leave(self) -> None:
        self._quit.set()
        self._on_quit()

    def _take(self, event: KeyEvent, now_s: float) -> None:
        if event.kind is Kind.SEEN:
            self.on_seen()
        elif event.kind is Kind.QUIT:
            self._leave()
        else:
            with self._lock:
                self._take_steering(event, now_s)

    def _take_steering(self, event: KeyEvent, now_s: float) -> None:
        is_new = True
        if event.kind is Kind.PRESS:
            is_new = self._held.press(event.text, now_s)
        elif event.kind is Kind.STAND:
            self._held.release_all(now_s)
        else:
            self._prompt = event.text
        if is_new and self._pressed_s is None:
            self._pressed_s = now_s
