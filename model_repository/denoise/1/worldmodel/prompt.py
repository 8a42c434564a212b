"""Prompts as token vectors, and encoders that need no language model. NumPy only.

A text encoder is anything with `encode(text) -> [n, text_dim]`, n at most text_len; text_encoder.py has the real one.
"""

from __future__ import annotations

import hashlib
import re
from typing import Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

Vectors: TypeAlias = NDArray[np.float32]  # [n, text_dim], 0 <= n <= text_len; the transformer pads with zeros
_WORD = re.compile(r"\w+")


class TextEncoder(Protocol):
    """What turns a prompt into vectors."""

    def encode(self, text: str) -> Vectors:
        """[n, text_dim], 0 <= n <= text_len; equal texts give equal bytes."""


class HashedWords:
    """Gives every word a fixed unit vector, drawn from a generator that the word itself seeds."""

    def __init__(self, text_len: int, text_dim: int, vocabulary: tuple[str, ...] = ()) -> None:
        self.text_len = text_len
        self.text_dim = text_dim
        self.vocabulary = frozenset(word.casefold() for word in vocabulary)

    def encode(self, text: str) -> Vectors:
        """The vectors of the first text_len known words, in order.

        Args:
            text: any Unicode. Words outside the vocabulary are passed over (an empty vocabulary knows every word).

        Returns:
            [n, text_dim] float32, 0 <= n <= text_len; the transformer pads with zeros.
        """
        words = [word for word in _WORD.findall(text.casefold()) if not self.vocabulary or word in self.vocabulary]
        vectors = [self._vector(word) for word in words[: self.text_len]]
        return np.stack(vectors) if vectors else np.zeros((0, self.text_dim), np.float32)

    def _vector(self, word: str) -> Vectors:
        seed = int.from_bytes(hashlib.blake2b(word.encode(), digest_size=8).digest(), "little")
        vector = np.random.default_rng(seed).standard_normal(self.text_dim)
        return (vector / np.linalg.norm(vector) * np.sqrt(self.text_dim)).astype(np.float32)


class NoTextEncoder:
    """Stands where clients bring their own vectors: it knows no words."""

    def __init__(self, text_dim: int) -> None:
        self.text_dim = text_dim

    def encode(self, text: str) -> Vectors:
        """[0, text_dim], whatever the text: what a start without a prompt begins with."""
        return np.zeros((0, self.text_dim), np.float32)
