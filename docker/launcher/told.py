"""What the person who runs this hears."""

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Callable, Iterator

PATIENCE_S = 15.0  # a wait says so this often


class ServeError(Exception):
    """What the person who runs this can mend, in one message."""


def say(message: str) -> None:
    """Tell the person; stdout is kept for the JSON line."""
    print(f"serve.py: {message}", file=sys.stderr, flush=True)


@contextlib.contextmanager
def saying_now_and_then(words: Callable[[], str]) -> Iterator[None]:
    """Say something again and again while the body takes its time."""
    is_over = threading.Event()

    def repeat() -> None:
        while not is_over.wait(PATIENCE_S):
            say(words())

    threading.Thread(target=repeat, name="patience", daemon=True).start()
    try:
        yield
    finally:
        is_over.set()
