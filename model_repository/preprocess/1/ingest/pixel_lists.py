"""Pictures written as JSON lists of numbers: H x W x 3, H x W x 4 (with alpha) or H x W (gray).

All numbers are whole and 0-255, or any of them is written with a fraction or exponent and all are floats in [0, 1].

Most lists are written so evenly that `uniform_lists` reads them. For all others, and to say what is wrong, a list's
shape is checked on its *skeleton*, the text without numbers and spaces: a regular list has exactly one, so one
comparison finds every irregularity, also where totals agree; simdjson's flat buffer of numbers is then all that is
needed. `list_places` says where in a list something was found.
"""

import math
import re
from collections.abc import Iterator

import numpy as np
import simdjson
from numpy.typing import NDArray

from ingest.colour import Pixels, to_rgb
from ingest.errors import InvalidInputError
from ingest.limits import Limits
from ingest.list_places import (
    NUMBER_BYTES,
    SPACE_BYTES,
    check_depth,
    first_difference,
    path_after,
    shape_by_counting,
    skeleton_of,
    where,
    where_after,
)
from ingest.uniform_lists import read_uniform_list

# simdjson takes 14 times the memory of what it parses at once.
_BLOCK_BYTES = 256 * 1024
_MAX_NUMBER_BYTES = 256 * 1024  # with the spaces around it
_CONTENTS = ("rows", "pixels", "numbers")
_STRANGERS = {
    b'"': "a string",
    b"{": "an object",
    b"t": "a boolean",
    b"f": "a boolean",
    b"n": "null",
    b"N": "NaN",
    b"I": "Infinity",
}
_NUMBER = rb"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?"
_BAD_NUMBER = re.compile(rb"(?<![0-9+\-.eE])(?!" + _NUMBER + rb"(?![0-9+\-.eE]))[0-9+\-.eE]+")
# simdjson refuses numbers that fit no 64-bit type; they are far out of range here.
_HUGE_NUMBER = re.compile(rb"(?<![0-9+\-.eE])-?(?:[1-9][0-9]{18,}|[0-9.]+[eE]\+?0*[1-9][0-9]{2,})")


def read_pixel_list(text: bytes, place: str, limits: Limits) -> Pixels:
    """Read the JSON text of one pixel list, from its '[' on, into UINT8 [H, W, 3].

    Floats become value * 255 (in float64), rounded half up. Alpha is laid on black.

    Raises:
        InvalidInputError: naming row, column and channel of what is wrong.
        TooLargeError: more pixels or levels than the limits.
    """
    samples = read_uniform_list(text, limits.max_pixels_per_picture) if limits.max_json_depth >= 3 else None
    if samples is None or samples.shape[2] not in (1, 3, 4):
        samples = _read_any_list(text, place, limits)
    return to_rgb(samples)


def _read_any_list(text: bytes, place: str, limits: Limits) -> Pixels:
    """Read a list however it is written, or say what is wrong with it."""
    max_depth = limits.max_json_depth
    skeleton = skeleton_of(text)
    num_levels = len(skeleton) - len(skeleton.lstrip(b"["))
    # Before anything else: whatever is wrong with it, a place at a great depth is not looked for.
    check_depth(max(num_levels, skeleton.count(b"[") - skeleton.count(b"]")), place, max_depth)
    refuse_strangers(text, place, max_depth)
    shape = _read_shape(text, skeleton, num_levels, place, limits)
    del skeleton  # half of the text in length
    is_float = any(mark in text for mark in (b".", b"e", b"E"))
    samples = np.empty(math.prod(shape), np.uint8)
    num_read = 0
    for values in _read_numbers(text, place, max_depth):
        _refuse_out_of_range(text, values, num_read, shape, is_float, place, max_depth)
        samples[num_read : num_read + len(values)] = _round_half_up(values * 255.0) if is_float else values
        num_read += len(values)
    if num_read != len(samples):
        _refuse_empty(text, place, max_depth)
        raise _not_json(place)
    return samples.reshape(shape[0], shape[1], -1)


def _round_half_up(values: NDArray[np.float64]) -> Pixels:
    # Not floor(v + 0.5): that addition rounds too, and lifts the largest double below one half to 1.
    whole = np.floor(values)
    whole += values - whole >= 0.5
    return whole.astype(np.uint8)


def refuse_strangers(text: bytes, place: str, max_depth: int) -> None:
    """Refuse what is not a number, at its place; `text` is a list from its '[' on, maybe cut after the stranger.

    Raises:
        InvalidInputError: naming the first stranger.
        TooLargeError: it stands in more than `max_depth` lists.
    """
    strange = text.translate(None, NUMBER_BYTES + SPACE_BYTES + b"[],")
    if strange:
        place_in_list = where_after(text[: text.index(strange[:1])], place, max_depth)
        came = _STRANGERS.get(strange[:1], f"the byte 0x{strange[0]:02x}")
        raise InvalidInputError(f"{place}: {place_in_list}: wanted a number, came {came}")


def _read_shape(text: bytes, skeleton: bytes, num_levels: int, place: str, limits: Limits) -> tuple[int, ...]:
    """Take the shape from the first row and pixel, and hold the whole skeleton against it."""
    shape = _shape_by_length(skeleton, num_levels)
    if _regular_skeleton(shape, len(skeleton)) != skeleton:
        _refuse_empty(text, place, limits.max_json_depth)
        raise _irregular(skeleton, num_levels, place)
    if num_levels not in (2, 3) or (num_levels == 3 and shape[2] not in (3, 4)):
        _refuse_empty(text, place, limits.max_json_depth)
        # A missing comma, or one too many, makes another shape of it.
        num_values = sum(map(len, _read_numbers(text, place, limits.max_json_depth)))
        if num_values != math.prod(shape):
            raise _not_json(place)
        came = " x ".join(map(str, shape))
        raise InvalidInputError(f"{place}: wanted a pixel list of H x W x 3, H x W x 4 or H x W, came {came}")
    limits.check_picture(shape[0], shape[1], place)
    return shape


def _shape_by_length(skeleton: bytes, num_levels: int) -> tuple[int, ...]:
    """Compute the shape from the lengths of the first pixel, the first row and the whole; right if regular."""
    shape: list[int] = []
    item_bytes = 0
    for level in reversed(range(num_levels)):
        # All lists that are open at the first number close together at the end of the last item of this level's first.
        end = skeleton.find(b"]" * (num_levels - level), level)
        if end < 0:
            return ()
        num_bytes = end + num_levels - 2 * level
        # A list of n items is '[' + n items + (n - 1) commas + ']'.
        shape.insert(0, max(1, (num_bytes - 1) // (item_bytes + 1)))
        item_bytes = num_bytes
    return tuple(shape)


def _regular_skeleton(shape: tuple[int, ...], max_bytes: int) -> bytes:
    """Build the skeleton of a regular list; no more of it than makes a difference to one of `max_bytes`."""
    regular = b""
    for count in reversed(shape):
        if len(regular) > max_bytes:  # what comes behind it is not compared with anything
            regular = (b"[" + regular)[: max_bytes + 1]
            continue
        useful = min(count, max_bytes // (len(regular) + 1) + 2)
        regular = b"[" + ((regular + b",") * useful)[:-1] + b"]"
    return regular


def _irregular(skeleton: bytes, num_levels: int, place: str) -> InvalidInputError:
    """Say where the list first leaves the shape of its first row and pixel."""
    shape = shape_by_counting(skeleton, num_levels)
    regular = _regular_skeleton(shape, len(skeleton))
    first = first_difference(skeleton, regular)
    came, wanted = skeleton[first : first + 1], regular[first : first + 1]
    path = path_after(skeleton[:first])  # at most one level deeper than the first number
    if not came or not wanted or not path:
        return _not_json(place)
    if came == b"[" or wanted == b"[":
        kinds = ("a number", "a list") if came == b"[" else ("a list", "a number")
        return InvalidInputError(f"{place}: mixed depth at {where(path)}: wanted {kinds[0]}, came {kinds[1]}")
    level = len(path) - 1
    count = f"{path[-1] + 1}" if came == b"]" else f"more than {shape[level]}"
    contents = _CONTENTS[level] if level < 3 else "items"
    return InvalidInputError(
        f"{place}: ragged at {where(path[:-1])}: wanted {shape[level]} {contents} as in the first, came {count}"
    )


def _read_numbers(text: bytes, place: str, max_depth: int) -> Iterator[NDArray[np.float64]]:
    """Parse a list of regular skeleton with simdjson and give its numbers in order, float64, a block at a time."""
    end = text.rindex(b"]") + 1
    if text[end:].strip(SPACE_BYTES):
        raise _not_json(place)
    parser = simdjson.Parser()
    num_open = 0
    for start, cut in _cut_blocks(text, end):
        if cut - start > _BLOCK_BYTES + _MAX_NUMBER_BYTES:
            place_in_list = where_after(text[: start + _BLOCK_BYTES], place, max_depth)
            raise InvalidInputError(
                f"{place}: {place_in_list}: wanted a number, came one of more than {_MAX_NUMBER_BYTES} bytes"
            )
        block = text[start:cut]
        # Lists that are open where it was cut are closed there, and opened again in the next block.
        opening = b"[" * num_open
        num_open += block.count(b"[") - block.count(b"]")
        try:
            yield _flat_numbers(parser, opening + block + b"]" * num_open)
        except (ValueError, RuntimeError, TypeError) as error:
            raise _why_not_json(text, start, cut, place, max_depth) from error


def _cut_blocks(text: bytes, end: int) -> Iterator[tuple[int, int]]:
    """Say where to cut a list: at commas, wherever they stand, since a row may be as long as the whole text."""
    start = 0
    while start < end:
        found = text.find(b",", start + _BLOCK_BYTES, end)
        cut = found if found >= 0 else end
        yield start, cut
        start = cut + 1


def _flat_numbers(parser: simdjson.Parser, text: bytes) -> NDArray[np.float64]:
    # The list is a view into the parser, which takes no other text while one is alive: here it ends at once.
    numbers: simdjson.Array = parser.parse(text)  # type: ignore[assignment]
    return np.frombuffer(numbers.as_buffer(of_type="d"), np.float64)


def _why_not_json(text: bytes, start: int, end: int, place: str, max_depth: int) -> InvalidInputError:
    """Say what is wrong with a list, between `start` and `end`."""
    for pattern, came in ((_BAD_NUMBER, "text that is no JSON number"), (_HUGE_NUMBER, "one that is out of range")):
        found = pattern.search(text, start, end)
        if found:
            place_in_list = where_after(text[: found.start()], place, max_depth)
            return InvalidInputError(f"{place}: {place_in_list}: wanted a number 0-255 or in [0, 1], came {came}")
    return _not_json(place)


def _refuse_out_of_range(
    text: bytes,
    values: NDArray[np.float64],
    num_before: int,
    shape: tuple[int, ...],
    is_float: bool,
    place: str,
    max_depth: int,
) -> None:
    """Check some of a list's numbers, `num_before` being how many come before them."""
    is_wrong = (values < 0) | (values > (1 if is_float else 255))
    if is_wrong.any():
        _refuse_empty(text, place, max_depth)  # or the place would be counted wrong
        first = int(is_wrong.argmax())
        path = tuple(int(index) for index in np.unravel_index(num_before + first, shape))
        rule = "a number in [0, 1], since the list has fractions or exponents" if is_float else "a whole number 0-255"
        raise InvalidInputError(f"{place}: {where(path)}: wanted {rule}, came {values[first]:g}")


def _refuse_empty(text: bytes, place: str, max_depth: int) -> None:
    without_spaces = text.translate(None, SPACE_BYTES)
    start = without_spaces.find(b"[]")
    if start >= 0:
        place_in_list = where_after(without_spaces[:start], place, max_depth)
        raise InvalidInputError(f"{place}: {place_in_list}: wanted at least one number, came an empty list")


def _not_json(place: str) -> InvalidInputError:
    return InvalidInputError(f"{place}: wanted a pixel list in valid JSON, came text that is not")
