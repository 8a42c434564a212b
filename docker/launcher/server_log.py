"""What the server says: its log, forwarded and read on the way."""

from __future__ import annotations

import contextlib
import re
import threading
from collections import deque
from typing import IO

LOG_TAIL_LINES = 40
LOADED = re.compile(rb"successfully loaded '([^']+)'")
# Triton's line about a model that could not be loaded, without the places in the code that follow the text.
FAILURE = re.compile(rb"""failed to load '([^']+)' version \d+: (?:Internal: )?(.*?)(?:\\n|"?\s*$)""")


class ServerLog:
    """Takes what the server says: forwards it to a file, remembers its end and which models it says are loaded."""

    def __init__(self, source: IO[bytes], target: IO[bytes] | None) -> None:
        self.loaded: set[str] = set()
        self.failures: dict[str, str] = {}  # of models that could not be loaded: what they said
        self._tail: deque[bytes] = deque(maxlen=LOG_TAIL_LINES)
        self._source = source
        self._target = target
        self._reader = threading.Thread(target=self._read, name="server-log", daemon=True)
        self._reader.start()

    def wait(self) -> None:
        """Return once the server has said all, or a moment has passed."""
        self._reader.join(1.0)

    def tail(self) -> str:
        """The last lines; of a server that has ended, all of them."""
        self.wait()
        return b"".join(self._tail.copy()).decode("utf-8", errors="replace")

    def _read(self) -> None:
        for line in self._source:
            if not line.endswith(b"\n"):  # broken off by a kill: what we say next begins a line of its own
                line += b"\n"
            self._tail.append(line)
            if found := LOADED.search(line):
                self.loaded.add(found[1].decode())
            if found := FAILURE.search(line):
                self.failures[found[1].decode()] = found[2].decode("utf-8", errors="replace").strip()
            if self._target is not None:
                with contextlib.suppress(OSError):  # a reader that went away must not block the server
                    self._target.write(line)
                    self._target.flush()
