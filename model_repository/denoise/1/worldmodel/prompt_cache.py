"""Prompts that were encoded lately, by their text: a prompt that comes again costs nothing. Knows no worlds."""

from __future__ import annotations

import threading
from collections import OrderedDict

from worldmodel.prompt import NoTextEncoder, TextEncoder, Vectors

ENTRY_BYTES = 256  # what Python takes for a text and its vectors, beside their own bytes


class PromptCache:
    """A text encoder and the vectors that it has made, the least recently used of them forgotten first.

    Any thread may ask; texts are encoded one at a time. Those of the empty text are always there, uncounted: no start
    without a prompt waits while somebody else's prompt is read.
    """

    def __init__(self, encoder: TextEncoder, budget_bytes: int) -> None:
        """Take an encoder, and let it read the empty text.

        Args:
            budget_bytes: of the texts and vectors that are kept, ENTRY_BYTES for each included.
        """
        self._encoder = encoder
        self._budget_bytes = budget_bytes
        self._kept: OrderedDict[str, Vectors] = OrderedDict()  # least recently used first
        self._num_bytes = 0  # added up as texts come and go: there may be hundreds of thousands
        self._lock = threading.Lock()  # of what is kept and counted: never held while a text is encoded
        self._encoding = threading.Lock()
        self._nothing = encoder.encode("")
        self.num_encoded = 0
        self.num_hits = 0

    @property
    def reads_text(self) -> bool:
        """Whether there is an encoder at all."""
        return not isinstance(self._encoder, NoTextEncoder)

    @property
    def num_bytes(self) -> int:
        """What is kept takes so many bytes."""
        with self._lock:
            return self._num_bytes

    def find(self, text: str) -> Vectors | None:
        """The vectors of a text that is kept; not to be written to."""
        if text == "":
            return self._nothing
        with self._lock:
            if text not in self._kept:
                return None
            self.num_hits += 1
            self._kept.move_to_end(text)
            return self._kept[text]

    def encode(self, text: str) -> Vectors:
        """The vectors of a text, kept or made now: a real encoder takes from tenths of a second to many."""
        with self._encoding:
            vectors = self.find(text)
            return self._encode(text) if vectors is None else vectors

    def _encode(self, text: str) -> Vectors:
        vectors = self._encoder.encode(text)
        with self._lock:
            self.num_encoded += 1
            self._kept[text] = vectors
            self._num_bytes += _bytes_of(text, vectors)
            while self._num_bytes > self._budget_bytes:
                self._num_bytes -= _bytes_of(*self._kept.popitem(last=False))
        return vectors

    def forget(self) -> None:
        """Keep none but the empty one, and begin to count anew."""
        with self._lock:
            self._kept.clear()
            self._num_bytes = 0
            self.num_encoded = self.num_hits = 0


def _bytes_of(text: str, vectors: Vectors) -> int:
    return ENTRY_BYTES + len(text.encode("utf-8", "surrogatepass")) + vectors.nbytes
