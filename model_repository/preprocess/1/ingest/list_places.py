"""Where something stands in a pixel list, read from its *skeleton*: the text without its numbers and spaces.

A *path* is the index at each level that is open at a place: row, column, channel. All of this is asked for only to
refuse a list, and of lists of any size, so the work is a few passes over the text, in blocks.
"""

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from ingest.errors import TooLargeError

NUMBER_BYTES = b"0123456789+-.eE"
SPACE_BYTES = b" \t\r\n"

_BLOCK_BYTES = 256 * 1024
_LEVELS = ("row", "column", "channel")


def skeleton_of(text: bytes) -> bytes:
    """Leave brackets and commas, and whatever does not belong into a pixel list."""
    return text.translate(None, NUMBER_BYTES + SPACE_BYTES)


def check_depth(num_levels: int, place: str, max_depth: int) -> None:
    """Refuse more levels of lists than the limit.

    Raises:
        TooLargeError: more than `max_depth`.
    """
    if num_levels > max_depth:
        raise TooLargeError(f"{place}: wanted at most {max_depth} levels of JSON, came {num_levels}")


def where_after(prefix: bytes, place: str, max_depth: int) -> str:
    """Say in words where `prefix`, the text or skeleton before some place in a list, ends.

    Raises:
        TooLargeError: more than `max_depth` lists are open there.
    """
    check_depth(prefix.count(b"[") - prefix.count(b"]"), place, max_depth)
    return where(path_after(skeleton_of(prefix)))


def path_after(skeleton: bytes) -> tuple[int, ...]:
    """Give the index at each level that is open at the end of a skeleton; a pass over it for each of them."""
    num_commas = [0] * max(0, skeleton.count(b"[") - skeleton.count(b"]"))
    for marks, depth in _blocks(skeleton, 0, 0):
        for index in range(len(num_commas)):
            is_here = depth == index + 1
            is_comma = (marks == ord(",")) & is_here
            opened = np.flatnonzero((marks == ord("[")) & is_here)
            if len(opened):
                num_commas[index], is_comma = 0, is_comma[opened[-1] :]
            num_commas[index] += int(np.count_nonzero(is_comma))
    return tuple(num_commas)


def shape_by_counting(skeleton: bytes, num_levels: int) -> tuple[int, ...]:
    """Count the items of the first list of each level, regular or not; the skeleton opens them all at its start."""
    shape, is_closed = [1] * num_levels, [False] * num_levels
    for marks, depth in _blocks(skeleton, num_levels, num_levels):
        for index in range(num_levels):
            if is_closed[index]:
                continue
            is_after = depth < index + 1
            is_closed[index] = bool(is_after.any())
            end = int(is_after.argmax()) if is_closed[index] else len(depth)
            is_comma = (marks[:end] == ord(",")) & (depth[:end] == index + 1)
            shape[index] += int(np.count_nonzero(is_comma))
    return tuple(shape)


def first_difference(one: bytes, other: bytes) -> int:
    """Give where two texts first differ; the length of the shorter if that is all that they differ in."""
    length = min(len(one), len(other))
    for start in range(0, length, _BLOCK_BYTES):
        end = min(start + _BLOCK_BYTES, length)
        if one[start:end] != other[start:end]:
            differs = np.frombuffer(one[start:end], np.uint8) != np.frombuffer(other[start:end], np.uint8)
            return start + int(differs.argmax())
    return length


def where(path: tuple[int, ...]) -> str:
    """Say in words where a path leads to."""
    if not path:
        return "the whole list"
    named = [f"{name} {index}" for name, index in zip(_LEVELS, path, strict=False)]
    return ", ".join(named + [f"level {level + 4} item {index}" for level, index in enumerate(path[3:])])


def _blocks(skeleton: bytes, start: int, num_open: int) -> Iterator[tuple[NDArray[np.uint8], NDArray[np.int32]]]:
    """Give the bytes from `start` on, where `num_open` lists are open, and how many are open after each of them."""
    stored = np.frombuffer(skeleton, np.uint8)
    for block_start in range(start, len(stored), _BLOCK_BYTES):
        marks = stored[block_start : block_start + _BLOCK_BYTES]
        steps = (marks == ord("[")).astype(np.int8) - (marks == ord("]"))
        depth = np.cumsum(steps, dtype=np.int32)
        depth += num_open
        num_open = int(depth[-1])
        yield marks, depth
