"""Pixel lists of every kind, good, odd and broken, against a slow reading with `json` and loops.

Small blocks bring the seams between blocks into small lists.
"""

import contextlib
import itertools
import json
import math
import re
from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from ingest import list_places, pixel_lists, uniform_lists
from ingest.errors import InvalidInputError, TooLargeError
from ingest.limits import Limits
from ingest.pixel_lists import read_pixel_list

LIMITS = Limits()


def read(text: str, limits: Limits = LIMITS) -> np.ndarray:
    return read_pixel_list(text.encode(), "image[0]", limits)


def refusal(text: str, limits: Limits = LIMITS) -> str:
    with pytest.raises((InvalidInputError, TooLargeError)) as caught:
        read(text, limits)
    return str(caught.value)


def read_slowly(text: str) -> list | None:
    """The rules once more, with `json` and loops: nested RGB lists, or None where the list must be refused."""

    def refuse_constant(_: str) -> None:
        raise ValueError

    try:
        picture = json.loads(text, parse_constant=refuse_constant)
    except ValueError:
        return None
    if not isinstance(picture, list) or not picture:
        return None
    numbers = []
    rgb = []
    for row in picture:
        if not isinstance(row, list) or not row or len(row) != len(picture[0]):
            return None
        for pixel in row:
            if isinstance(pixel, list) != isinstance(picture[0][0], list):
                return None
            channels = pixel if isinstance(pixel, list) else [pixel]
            if isinstance(pixel, list) and (len(pixel) not in (3, 4) or len(pixel) != len(picture[0][0])):
                return None
            if any(type(channel) not in (int, float) for channel in channels):
                return None
            numbers += channels
    is_float = any(type(number) is float for number in numbers)
    if not all(0 <= number <= (1 if is_float else 255) for number in numbers):
        return None

    def to_byte(number: float) -> int:
        scaled = number * 255.0
        return math.floor(scaled) + (scaled - math.floor(scaled) >= 0.5) if is_float else int(number)

    for row in picture:
        line = []
        for pixel in row:
            channels = [to_byte(c) for c in pixel] if isinstance(pixel, list) else [to_byte(pixel)] * 3
            if len(channels) == 4:
                channels = [(2 * c * channels[3] + 255) // 510 for c in channels[:3]]
            line.append(channels)
        rgb.append(line)
    return rgb


NUMBERS = st.one_of(
    st.integers(0, 255).map(str),
    st.integers(0, 1).map(str),
    st.floats(0, 1).map(repr),
    st.sampled_from(["0.1", "0.3", "1e0", "1E-3", "-0", "-0.0", "0.49999999999999994"]),
)
ODDITIES = st.sampled_from(
    [
        *("256", "-1", "1.5", "true", "null", '"1"', "NaN", "[1]", "[]", "01", "1.", "1e400", "{}", ""),
        *("false", "Infinity", "-Infinity", "9" * 20, "-" + "9" * 30, "0." + "3" * 25, "1" + "0" * 400, "[[[1]]]"),
        *("[" * 12 + "1" + "]" * 12, "[1", "1]", "1 2", "1,", "- 1", "1e", "0x1", "\x00"),
    ]
)
# One of these among whole numbers is refused where it stands.
WRONG_NUMBERS = st.sampled_from(
    [
        *("256", "-1", "65535", "9" * 20, "-" + "9" * 30, "1" + "0" * 400, "01", "+1", "1e", ".5", "true", "false"),
        *("null", "NaN", "Infinity", "-Infinity", '"1"', "{}", "\x00", "1_0"),
    ]
)
GARBAGE = st.sampled_from(
    [" ", "\n\t", "]", "[", ",", "x", "[[1]]", "[1]", "0", " 5", "null", "}", "//", "\x00", '"', ".", "-"]
)
BLOCK_BYTES = (1, 7, 50, 256 * 1024)


@contextlib.contextmanager
def blocks_of(num_bytes: int) -> Iterator[None]:
    """Bring the seams between blocks into small lists."""
    with pytest.MonkeyPatch.context() as patch:
        for module in (pixel_lists, uniform_lists, list_places):
            patch.setattr(module, "_BLOCK_BYTES", num_bytes)
        yield


def agrees_with_the_slow_reading(text: str) -> bool:
    expected = read_slowly(text)
    try:
        return read(text).tolist() == expected
    except (InvalidInputError, TooLargeError):
        return expected is None


def lists(item: st.SearchStrategy[str], min_size: int = 1, max_size: int = 3) -> st.SearchStrategy[str]:
    return st.lists(item, min_size=min_size, max_size=max_size).map(lambda items: "[" + ", ".join(items) + "]")


@st.composite
def spaced(draw: st.DrawFn, text: str) -> str:
    """The same list, with any JSON spaces between its parts, evenly or not."""
    spaces = draw(st.lists(st.text(" \t\r\n", max_size=3), min_size=1, max_size=5))
    parts = re.findall(r"[\[\],]|[^\[\],]+", text)
    return "[" + "".join(space + part for space, part in zip(itertools.cycle(spaces), parts[1:], strict=False))


@st.composite
def regular_lists(draw: st.DrawFn, max_side: int = 3) -> str:
    height, width = draw(st.integers(1, max_side)), draw(st.integers(1, max_side))
    channels = draw(st.sampled_from([1, 3, 4]))
    number = draw(st.sampled_from([st.integers(0, 255).map(str), st.floats(0, 1).map(repr), NUMBERS]))
    pixel = number if channels == 1 else lists(number, channels, channels)
    text = draw(lists(lists(pixel, width, width), height, height))
    return draw(st.one_of(st.just(text), st.just(text.replace(" ", "")), spaced(text)))


Picture = list[list[list[str]]]


@st.composite
def written_pictures(draw: st.DrawFn, min_side: int = 1) -> Picture:
    """Whole numbers as text, [H][W][C] with C 1, 3 or 4."""
    height, width = draw(st.integers(min_side, 7)), draw(st.integers(min_side, 7))
    channels = draw(st.sampled_from([1, 3, 4]))
    numbers = draw(st.lists(st.integers(0, 255).map(str), min_size=1, max_size=20))
    endless = itertools.cycle(numbers)
    return [[[next(endless) for _ in range(channels)] for _ in range(width)] for _ in range(height)]


def as_text(picture: Picture, is_gray: bool) -> str:
    rows = [[pixel[0] if is_gray else "[" + ",".join(pixel) + "]" for pixel in row] for row in picture]
    return "[" + ",".join("[" + ",".join(row) + "]" for row in rows) + "]"


def draw_place(data: st.DataObject, picture: Picture) -> tuple[int, int, int]:
    sides = (len(picture), len(picture[0]), len(picture[0][0]))
    row, column, channel = (data.draw(st.integers(0, side - 1)) for side in sides)
    return row, column, channel


@settings(max_examples=200, deadline=None)
@given(written_pictures(), WRONG_NUMBERS, st.sampled_from(BLOCK_BYTES), st.data())
def test_one_wrong_number_is_refused_at_its_place(
    picture: Picture, wrong: str, block_bytes: int, data: st.DataObject
) -> None:
    row, column, channel = draw_place(data, picture)
    is_gray = len(picture[0][0]) == 1
    picture[row][column][channel] = wrong
    if "e" in wrong or "." in wrong:  # a list of floats: other numbers must not be wrong as well
        picture = [[[n if n == wrong else "1" for n in pixel] for pixel in line] for line in picture]
    text = as_text(picture, is_gray)
    text = data.draw(st.one_of(st.just(text), spaced(text)))
    with blocks_of(block_bytes):
        message = refusal(text)
    place = f"row {row}, column {column}" + ("" if is_gray else f", channel {channel}")
    assert message.startswith(f"INVALID_INPUT: image[0]: {place}: wanted a")


@settings(max_examples=200, deadline=None)
@given(written_pictures(min_side=2), st.booleans(), st.sampled_from(BLOCK_BYTES), st.data())
def test_one_ragged_row_or_pixel_is_refused_at_its_place(
    picture: Picture, is_longer: bool, block_bytes: int, data: st.DataObject
) -> None:
    row, column, _ = draw_place(data, picture)
    width, channels = len(picture[0]), len(picture[0][0])
    if channels == 1 or column == 0:
        row = max(row, 1)  # what the first has is what is wanted
        picture[row] = [*picture[row], picture[row][0]] if is_longer else picture[row][1:]
        words = f"ragged at row {row}: wanted {width} pixels as in the first, came "
        words += f"more than {width}" if is_longer else str(width - 1)
    else:
        picture[row][column] = [*picture[row][column], "1"] if is_longer else picture[row][column][1:]
        words = f"ragged at row {row}, column {column}: wanted {channels} numbers as in the first, came "
        words += f"more than {channels}" if is_longer else str(channels - 1)
    text = as_text(picture, channels == 1)
    text = data.draw(st.one_of(st.just(text), spaced(text)))
    with blocks_of(block_bytes):
        assert refusal(text) == f"INVALID_INPUT: image[0]: {words}"


@settings(max_examples=300, deadline=None)
@given(written_pictures(), st.lists(st.one_of(NUMBERS, ODDITIES), max_size=2), st.sampled_from(BLOCK_BYTES), st.data())
def test_oddities_anywhere_are_read_as_the_slow_reading_reads_them(
    picture: Picture, odd: list[str], block_bytes: int, data: st.DataObject
) -> None:
    is_gray = len(picture[0][0]) == 1
    for value in odd:
        row, column, channel = draw_place(data, picture)
        picture[row][column][channel] = value
    text = as_text(picture, is_gray)
    text = data.draw(st.one_of(st.just(text), spaced(text))) + data.draw(st.one_of(st.just(""), GARBAGE))
    with blocks_of(block_bytes):
        assert agrees_with_the_slow_reading(text.rstrip(" \t\r\n"))


@settings(max_examples=100, deadline=None)
@given(st.integers(0, 40), st.integers(0, 40), st.sampled_from(["1", "", "true", "1,2", "1 2"]), GARBAGE)
def test_deep_nesting_is_read_as_the_slow_reading_reads_it(
    num_open: int, num_closed: int, inner: str, end: str
) -> None:
    assert agrees_with_the_slow_reading("[" + "[" * num_open + inner + "]" * num_closed + "]" + end.strip())


@settings(max_examples=400, deadline=None)
@given(st.one_of(regular_lists(), lists(lists(lists(NUMBERS, 2, 4))), lists(lists(st.one_of(NUMBERS, ODDITIES)))))
@example("[[[1,2,3],[4,5,6]],[[1,2,3]]]")
def test_every_list_is_read_as_the_slow_reading_reads_it(text: str) -> None:
    assert agrees_with_the_slow_reading(text)


@settings(max_examples=300, deadline=None)
@given(regular_lists(max_side=6), st.sampled_from(BLOCK_BYTES), st.data())
def test_a_list_with_one_changed_character_is_read_as_the_slow_reading_reads_it(
    text: str, block_bytes: int, data: st.DataObject
) -> None:
    index = data.draw(st.integers(1, len(text) - 1))
    character = data.draw(st.sampled_from(["", "[", "]", ",", "-", "e", "1", '"', " ", "t", ".", "\n", "\x00"]))
    changed = text[:index] + character + text[index + 1 :]
    with blocks_of(block_bytes):
        assert agrees_with_the_slow_reading(changed)
