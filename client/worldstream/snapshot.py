"""A session's file: what the server saves it to and restores it from. Its contents are the server's own affair."""

import errno
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from worldstream.errors import InvalidInputError, ProtocolError


@dataclass(frozen=True, eq=False)
class Snapshot:
    """A whole file, to start a session from."""

    content: npt.NDArray[np.uint8]


@dataclass(frozen=True, eq=False)
class SnapshotPart:
    """One response's share of a file."""

    part_index: int
    num_parts: int
    content: npt.NDArray[np.uint8]


def load_snapshot(file: Any) -> Snapshot:
    """Take what `Session.snapshot` returned.

    Raises:
        InvalidInputError: if it is not bytes, or none.
    """
    if not isinstance(file, (bytes, bytearray, memoryview)):
        raise InvalidInputError(f"snapshot: wanted bytes, got {type(file).__name__}")
    content = np.frombuffer(file, np.uint8)
    if len(content) == 0:
        raise InvalidInputError("snapshot: wanted a session's file, got none")
    return Snapshot(content)


def join_parts(parts: Sequence[SnapshotPart]) -> bytes:
    """The file that came in these parts.

    Raises:
        ProtocolError: if one is missing or out of order.
    """
    places = [(part.part_index, part.num_parts) for part in parts]
    if not parts or places != [(index, len(parts)) for index in range(len(parts))]:
        raise ProtocolError(f"snapshot: wanted all parts of a file in order, {len(parts)} came")
    return b"".join(part.content.data for part in parts)


def check_place(path: Path) -> None:
    """Find out whether `write_whole` can write there, before work is done for it.

    Raises:
        OSError: it cannot.
    """
    if path.is_dir():
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    unfinished = path.with_name(f"{path.name}.part")
    unfinished.touch()
    unfinished.unlink()


def write_whole(path: Path, content: bytes) -> None:
    """Write a file so that there is the whole of it or none: what was there before stays until it is."""
    unfinished = path.with_name(f"{path.name}.part")
    try:
        with unfinished.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        unfinished.replace(path)
    finally:
        unfinished.unlink(missing_ok=True)
