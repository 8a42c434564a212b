"""What goes for every file of a checkpoint: that it is one, how its JSON is read, and what an error about it says.

Knows no tensors and no layout. A checkpoint comes from elsewhere: its texts and numbers may be anything.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

MOST_JSON_BYTES = 64 << 20  # the index of a model of 20,000 tensors has 2 MB
MOST_MESSAGE_LETTERS = 1000
MOST_VALUE_LETTERS = 60


class CheckpointError(Exception):
    """A checkpoint does not fit the module: says which keys, and what was wanted."""

    def __init__(self, message: str) -> None:
        """Take a message; what a log line or a pipe could not carry of a file's own names is written as an escape."""
        cut = _cut(message, MOST_MESSAGE_LETTERS)
        super().__init__("".join(each if each.isprintable() else ascii(each)[1:-1] for each in cut))


@dataclass(frozen=True)
class Range:
    """Numbers that may be meant: without an end, one line of JSON would make torch work or allocate for ever."""

    least: float
    most: float
    is_whole: bool = True

    def check(self, name: str, value: Any) -> None:
        """Refuse what lies outside; also true, which Python takes for 1, and 3.0, of which no range can be made.

        Raises:
            CheckpointError: with the name, what was wanted, what came.
        """
        is_number = isinstance(value, int if self.is_whole else int | float) and not isinstance(value, bool)
        if not (is_number and self.least <= value <= self.most):  # NaN is not
            kind = "a whole number" if self.is_whole else "a number"
            wanted = f"{kind} from {self.least} to {self.most}" if self.least < self.most else self.least
            raise CheckpointError(f"{name}: wanted {wanted}, got {shown(value)}")


def shown(value: Any) -> str:
    """A value as Python writes it, or its beginning."""
    return _cut(repr(value), MOST_VALUE_LETTERS)


def _cut(text: str, most_letters: int) -> str:
    return text if len(text) <= most_letters else text[: most_letters - 4] + " ..."


@contextmanager
def named(name: str) -> Iterator[None]:
    """Say of an error which part of the checkpoint it is in."""
    try:
        yield
    except CheckpointError as error:
        text = str(error)
        raise CheckpointError(text if text.startswith(f"{name}: ") else f"{name}: {text}") from error


@contextmanager
def looking(folder: Path) -> Iterator[None]:
    """Say of a folder that it may not be looked into; the error itself tells its whole path."""
    try:
        yield
    except OSError as error:
        raise CheckpointError(f"{folder.name}: cannot be looked into ({error.strerror})") from error


def check_is_file(file: Path) -> None:
    """Refuse what is no file, or none that can be reached: to open a named pipe would wait for ever.

    Raises:
        CheckpointError: there is nothing, or something else.
    """
    try:
        is_there, is_file = file.exists(), file.is_file()
    except (OSError, ValueError) as error:  # it may not be looked at; a name that no file can have
        raise CheckpointError(f"{file.name}: cannot be read ({type(error).__name__})") from error
    if not is_there:
        raise CheckpointError(f"{file.name}: no such file")
    if not is_file:
        raise CheckpointError(f"{file.name}: wanted a file, this is a folder or something else")


def read_object(file: Path) -> dict[str, Any]:
    """The object that a small JSON file holds.

    Raises:
        CheckpointError: there is no such file, or it holds something else.
    """
    check_is_file(file)
    try:
        num_bytes = file.stat().st_size
        if num_bytes > MOST_JSON_BYTES:
            raise CheckpointError(f"{file.name}: wanted JSON of at most {MOST_JSON_BYTES} bytes, got {num_bytes}")
        said = json.loads(file.read_text(encoding="utf-8"))
    except (ValueError, OSError, RecursionError) as error:
        raise CheckpointError(f"{file.name}: cannot be read as JSON ({type(error).__name__})") from error
    if not isinstance(said, dict):
        raise CheckpointError(f"{file.name}: wanted an object, got {type(said).__name__}")
    return said
