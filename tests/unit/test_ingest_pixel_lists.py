"""Pixel lists: hand-worked cases, every refusal by name, and a slow reading with `json` and loops as the reference."""

import json
import math
import tracemalloc

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
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


def test_whole_numbers_are_bytes() -> None:
    pixels = read("[[[0, 1, 2], [253, 254, 255]]]")
    assert pixels.dtype == np.uint8
    assert pixels.tolist() == [[[0, 1, 2], [253, 254, 255]]]


def test_whole_zeros_and_ones_stay_almost_black() -> None:
    assert read("[[[0,0,0],[1,1,1]]]").tolist() == [[[0, 0, 0], [1, 1, 1]]]


def test_one_float_anywhere_makes_the_list_floats() -> None:
    assert read("[[[0,0,0],[1,1,1.0]]]").tolist() == [[[0, 0, 0], [255, 255, 255]]]
    assert read("[[[1,0,1e0]]]").tolist() == [[[255, 0, 255]]]
    assert read("[[[1,0,1E-0]]]").tolist() == [[[255, 0, 255]]]


def test_floats_are_rounded_half_up() -> None:
    # 0.1 * 255 = 25.5 and 0.3 * 255 = 76.5: half to even would give 76 for the second.
    assert read("[[[0.1, 0.3, 0.5]]]").tolist() == [[[26, 77, 128]]]
    assert read("[[[0.0019607, 0.0019608, -0.0]]]").tolist() == [[[0, 1, 0]]]


def test_gray_is_widened() -> None:
    assert read("[[7, 200]]").tolist() == [[[7, 7, 7], [200, 200, 200]]]


def test_three_rows_of_three_numbers_are_gray_and_not_one_row_of_colours() -> None:
    assert read("[[1,2,3],[4,5,6]]").shape == (2, 3, 3)


def test_alpha_is_laid_on_black() -> None:
    # 200 * 128 / 255 = 100.39, 255 * 128 / 255 = 128
    assert read("[[[200, 255, 10, 128], [9, 8, 7, 255], [9, 8, 7, 0]]]").tolist() == [
        [[100, 128, 5], [9, 8, 7], [0, 0, 0]]
    ]


def test_float_alpha_is_laid_on_black() -> None:
    assert read("[[[1.0, 0.5, 0, 0.5]]]").tolist() == [[[128, 64, 0]]]


def test_any_json_whitespace_is_allowed() -> None:
    assert read("[\r\n [\t[ 1 ,2,\n3 ] ] ]").tolist() == [[[1, 2, 3]]]


REFUSALS = [
    ("[[[1,2,3],[4,5,6]],[[1,2,3]]]", "ragged at row 1: wanted 2 pixels as in the first, came 1"),
    ("[[[1,2,3]],[[1,2,3],[4,5,6]]]", "ragged at row 1: wanted 1 pixels as in the first, came more than 1"),
    ("[[[1,2,3],[4,5]]]", "ragged at row 0, column 1: wanted 3 numbers as in the first, came 2"),
    ("[[[1,2,3],[4,5,6,7]]]", "ragged at row 0, column 1: wanted 3 numbers as in the first, came more than 3"),
    # Totals agree with 2 x 2 x 3 here:
    ("[[[1,2,3],[1,2,3],[1,2,3]],[[1,2,3]]]", "ragged at row 1: wanted 3 pixels as in the first, came 1"),
    ("[[[1,2,3,4],[1,2]],[[1,2,3],[1,2,3]]]", "ragged at row 0, column 1: wanted 4 numbers as in the first, came 2"),
    ("[[1,2],[1,2,3],[1]]", "ragged at row 1: wanted 2 pixels as in the first, came more than 2"),
    ("[[[1,2,3],4]]", "mixed depth at row 0, column 1: wanted a list, came a number"),
    ("[[1,[2,3,4]]]", "mixed depth at row 0, column 1: wanted a number, came a list"),
    ("[[[1,2,[3]]]]", "mixed depth at row 0, column 0, channel 2: wanted a number, came a list"),
    ("[1,[2]]", "mixed depth at row 1: wanted a number, came a list"),
    ("[[[1,true,3]]]", "row 0, column 0, channel 1: wanted a number, came a boolean"),
    ("[[[1,2,3],[1,2,false]]]", "row 0, column 1, channel 2: wanted a number, came a boolean"),
    ('[[[1,2,3]],[[1,"2",3]]]', "row 1, column 0, channel 1: wanted a number, came a string"),
    ("[[[null,2,3]]]", "row 0, column 0, channel 0: wanted a number, came null"),
    ("[[[0.5,NaN,0.5]]]", "row 0, column 0, channel 1: wanted a number, came NaN"),
    ("[[[0.5,0.5,-Infinity]]]", "row 0, column 0, channel 2: wanted a number, came Infinity"),
    ('[[{"r":1}]]', "row 0, column 0: wanted a number, came an object"),
    ('["iVBORw0KGgo="]', "row 0: wanted a number, came a string"),
    ("[[[1,2,256]]]", "row 0, column 0, channel 2: wanted a whole number 0-255, came 256"),
    ("[[[1,2,3],[-1,2,3]]]", "row 0, column 1, channel 0: wanted a whole number 0-255, came -1"),
    ("[[1,2],[300,4]]", "row 1, column 0: wanted a whole number 0-255, came 300"),
    ("[[[0.5,0.5,1.0001]]]", "row 0, column 0, channel 2: wanted a number in [0, 1]"),
    ("[[[0.5,128,0]]]", "row 0, column 0, channel 1: wanted a number in [0, 1]"),
    ("[[[0.5,-1e-9,0]]]", "row 0, column 0, channel 1: wanted a number in [0, 1]"),
    (
        "[[[1,2,99999999999999999999999]]]",
        "row 0, column 0, channel 2: wanted a number 0-255 or in [0, 1], came one that",
    ),
    ("[[[0.1,1e999,0]]]", "row 0, column 0, channel 1: wanted a number 0-255 or in [0, 1], came one that"),
    (
        "[[[1,02,3]]]",
        "row 0, column 0, channel 1: wanted a number 0-255 or in [0, 1], came text that is no JSON number",
    ),
    (
        "[[[1,+2,3]]]",
        "row 0, column 0, channel 1: wanted a number 0-255 or in [0, 1], came text that is no JSON number",
    ),
    (
        "[[[1,.5,3]]]",
        "row 0, column 0, channel 1: wanted a number 0-255 or in [0, 1], came text that is no JSON number",
    ),
    ("[]", "the whole list: wanted at least one number, came an empty list"),
    ("[[]]", "row 0: wanted at least one number, came an empty list"),
    ("[[[]]]", "row 0, column 0: wanted at least one number, came an empty list"),
    ("[[[1,2,3]],[ ]]", "row 1: wanted at least one number, came an empty list"),
    ("[[1],[]]", "row 1: wanted at least one number, came an empty list"),
    ("[1,2,3]", "wanted a pixel list of H x W x 3, H x W x 4 or H x W, came 3"),
    ("[[[1,2],[3,4]]]", "wanted a pixel list of H x W x 3, H x W x 4 or H x W, came 1 x 2 x 2"),
    ("[[[1],[3]]]", "wanted a pixel list of H x W x 3, H x W x 4 or H x W, came 1 x 2 x 1"),
    ("[[[[1,2,3]]]]", "wanted a pixel list of H x W x 3, H x W x 4 or H x W, came 1 x 1 x 1 x 3"),
    ("[[[1,2,3]]", "valid JSON"),
    ("[[[1,2,3]]]]", "valid JSON"),
    ("[[[1,2,3]]],", "valid JSON"),
    ("[[[1,2,3]]] 5", "valid JSON"),
    ("[[[1,2,]]]", "valid JSON"),
    ("[[[,,1]]]", "valid JSON"),
    ("[[[1 2,3,4]]]", "valid JSON"),
    # A missing comma, or one too many, makes another shape of it, which is not to blame.
    ("[[[1,2 3]]]", "wanted a pixel list in valid JSON, came text that is not"),
    ("[[[1,2,3 4,5]]]", "wanted a pixel list in valid JSON, came text that is not"),
    ("[[[1,]]]", "wanted a pixel list in valid JSON, came text that is not"),
    ("[1,,2]", "wanted a pixel list in valid JSON, came text that is not"),
    ("[[[[1 2]]]]", "wanted a pixel list in valid JSON, came text that is not"),
    ("[[[1,02]]]", "row 0, column 0, channel 1: wanted a number 0-255 or in [0, 1], came text that is no JSON number"),
    ("[", "valid JSON"),
    ("[[", "valid JSON"),
    ("[[[1,2,3", "valid JSON"),
    ("[[[1,2,3]]]\x00", "the whole list: wanted a number, came the byte 0x00"),
]


@pytest.mark.parametrize(("text", "words"), REFUSALS)
def test_each_fault_is_refused_at_its_place(text: str, words: str) -> None:
    message = refusal(text)
    assert message.startswith("INVALID_INPUT: image[0]: ")
    assert words in message


def test_more_pixels_than_the_limit_are_refused_before_they_are_parsed() -> None:
    assert "TOO_LARGE: image[0]: wanted at most 3 pixels, came 2 x 2" in refusal(
        "[[1,2],[3,999]]", Limits(max_pixels_per_picture=3)
    )


def test_deep_nesting_is_refused_without_recursion() -> None:
    assert refusal("[" * 100_000 + "]" * 100_000).startswith("TOO_LARGE: image[0]: wanted at most 8 levels")


@pytest.mark.parametrize("stranger", ["t", "}", "", '"', "null", "\x00"])
@pytest.mark.parametrize("opening", ["[", "[ ", "[1,", "[1,2], ["])
def test_strangers_at_a_great_depth_are_refused_for_their_depth_and_briefly(opening: str, stranger: str) -> None:
    # 40 000 brackets before a stranger took 5 s and gave a message of 788 KB.
    message = refusal("[" + opening * 300_000 + stranger)
    assert message.startswith("TOO_LARGE: image[0]: wanted at most 8 levels of JSON, came 300")
    assert len(message) < 100


def test_an_empty_list_at_a_great_depth_is_refused_for_its_depth() -> None:
    assert refusal("[1,[1,[1,[1,[1,[1,[1,[1,[1,[]]]]]]]]]]").startswith("TOO_LARGE: image[0]: wanted at most 8 levels")


def test_doubled_levels_do_not_double_the_work() -> None:
    # Of a regular list of this shape, 2 x 2 x 2 x ... x 1 000 000, only as much is built as there is to compare.
    text = "[" * 8 + ",".join(["1"] * 1_000_000) + "],1]" + ",1]" * 6
    tracemalloc.start()
    assert "mixed depth at row 0, column 0" in refusal(text)
    assert tracemalloc.get_traced_memory()[1] < 5 * len(text)
    tracemalloc.stop()


NUMBERS = st.one_of(
    st.integers(0, 255).map(str),
    st.integers(0, 1).map(str),
    st.floats(0, 1).map(repr),
    st.sampled_from(["0.1", "0.3", "1e0", "1E-3", "-0", "-0.0", "0.49999999999999994"]),
)
ODDITIES = st.sampled_from(
    ["256", "-1", "1.5", "true", "null", '"1"', "NaN", "[1]", "[]", "01", "1.", "1e400", "{}", ""]
)


def lists(item: st.SearchStrategy[str], min_size: int = 1, max_size: int = 3) -> st.SearchStrategy[str]:
    return st.lists(item, min_size=min_size, max_size=max_size).map(lambda items: "[" + ", ".join(items) + "]")


@st.composite
def regular_lists(draw: st.DrawFn) -> str:
    height, width, channels = draw(st.integers(1, 3)), draw(st.integers(1, 3)), draw(st.sampled_from([1, 3, 4]))
    number = draw(st.sampled_from([st.integers(0, 255).map(str), st.floats(0, 1).map(repr), NUMBERS]))
    pixel = number if channels == 1 else lists(number, channels, channels)
    return draw(lists(lists(pixel, width, width), height, height))


@settings(max_examples=400, deadline=None)
@given(st.one_of(regular_lists(), lists(lists(lists(NUMBERS, 2, 4))), lists(lists(st.one_of(NUMBERS, ODDITIES)))))
@example("[[[1,2,3],[4,5,6]],[[1,2,3]]]")
def test_every_list_is_read_as_the_slow_reading_reads_it(text: str) -> None:
    expected = read_slowly(text)
    if expected is None:
        with pytest.raises(InvalidInputError):
            read(text)
    else:
        assert read(text).tolist() == expected


@settings(max_examples=300, deadline=None)
@given(regular_lists(), st.data())
def test_a_list_with_one_changed_character_is_read_as_the_slow_reading_reads_it(text: str, data: st.DataObject) -> None:
    index = data.draw(st.integers(1, len(text) - 1))
    character = data.draw(st.sampled_from(["", "[", "]", ",", "-", "e", "1", '"', " ", "t"]))
    changed = text[:index] + character + text[index + 1 :]
    expected = read_slowly(changed)
    if expected is None:
        with pytest.raises(InvalidInputError):
            read(changed)
    else:
        assert read(changed).tolist() == expected
