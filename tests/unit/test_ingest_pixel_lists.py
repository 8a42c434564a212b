"""Pixel lists: hand-worked cases, every refusal by name."""

import contextlib
import json
import subprocess
import sys
import tracemalloc
from pathlib import Path

import ingest
import numpy as np
import pytest
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


@pytest.mark.parametrize(
    "end", ["]", ",[[1,2,3],[1,2]]]", ",[[1,2,3],[1,true,3]]]", ",[[1,2,3],[]]]", ",[[1,2,3],[1,2,256]]]", "", "]]"]
)
@pytest.mark.parametrize("pixel", ["[1,2,3]", "[1, 2 ,3]", "[0.5,1,0]", "[ 1,2,3]"])
def test_reading_and_refusing_take_at_most_four_bytes_for_each_that_was_sent(pixel: str, end: str) -> None:
    row = "[" + ",".join([pixel] * 2) + "]"
    text = ("[" + ",".join([row] * 300_000) + end).encode()
    tracemalloc.start()
    with contextlib.suppress(InvalidInputError):
        read_pixel_list(text, "image[0]", LIMITS)
    assert tracemalloc.get_traced_memory()[1] < 4 * len(text)
    tracemalloc.stop()


READ_WIDE = """
import re, sys
from pathlib import Path
from ingest.errors import TooLargeError
from ingest.limits import Limits
from ingest.pixel_lists import read_pixel_list

def peak_kib():  # simdjson's memory is not Python's
    return int(re.search(r"VmHWM:\\s+(\\d+)", Path("/proc/self/status").read_text())[1])

num_rows, item, max_pixels = int(sys.argv[1]), sys.argv[2].encode(), int(sys.argv[3])
row = b"[" + (item + b",") * (8_000_000 // num_rows // len(item)) + item + b"]"
text = b"[" + (row + b",") * (num_rows - 1) + row + b"]"
read_pixel_list(b"[[[1,2,3]]]", "image[0]", Limits())
before = peak_kib()
try:
    read_pixel_list(text, "image[0]", Limits(max_pixels_per_picture=max_pixels))
except TooLargeError:
    pass
print(1024 * (peak_kib() - before) / len(text))
"""


@pytest.mark.parametrize("max_pixels", [1 << 24, 1000])
@pytest.mark.parametrize("item", ["1", "[1,2,3]", "[0.5,1,0]"])
@pytest.mark.parametrize("num_rows", [1, 2])
def test_a_row_as_long_as_the_whole_list_takes_no_more_memory(num_rows: int, item: str, max_pixels: int) -> None:
    # Whole rows were worked on at once: a list of 64 MB took 1.5 GB, and was then refused for its pixels.
    folder = Path(ingest.__file__).parents[1]
    command = [sys.executable, "-c", READ_WIDE, str(num_rows), item, str(max_pixels)]
    reading = subprocess.run(command, cwd=folder, check=True, capture_output=True, text=True, timeout=60)
    assert float(reading.stdout) < 4


@pytest.mark.parametrize("pixel", ["1", "[1,2,3]"])
def test_a_row_that_is_longer_than_the_first_takes_no_more_memory(pixel: str) -> None:
    # Only the first row was bounded: a short one before a long one was worked on at once all the same.
    text = f"[[{pixel},{pixel}],[" + f"{pixel}," * 1_999_999 + f"{pixel}]]"
    tracemalloc.start()
    assert "ragged at row 1: wanted 2 pixels as in the first, came more than 2" in refusal(text)
    assert tracemalloc.get_traced_memory()[1] < 4 * len(text)
    tracemalloc.stop()


@pytest.mark.parametrize("shape", [(1, 100_000, 3), (2, 100_000, 3), (3, 300_000)])
def test_rows_of_many_blocks_are_read_in_order(shape: tuple[int, ...]) -> None:
    values = np.random.default_rng(0).integers(0, 256, shape, np.uint8)
    text = json.dumps(values.tolist())
    assert np.array_equal(read(text), values if len(shape) == 3 else np.stack([values] * 3, axis=2))


@pytest.mark.parametrize(
    ("last", "words"),
    [
        ("256", "row 0, column 300000: wanted a whole number 0-255, came 256"),
        ("1.2.3", "row 0, column 300000: wanted a number 0-255 or in [0, 1], came text that is no JSON number"),
        ("true", "row 0, column 300000: wanted a number, came a boolean"),
        ("1[2", "mixed depth"),
        ("1 2", "valid JSON"),
        ("", "valid JSON"),
    ],
)
def test_what_is_wrong_behind_many_blocks_of_a_row_is_named(last: str, words: str) -> None:
    assert words in refusal("[[" + "1, " * 300_000 + last + "]]")


def test_a_number_without_end_is_refused_before_it_is_parsed() -> None:
    message = refusal("[[1," + "0" * 600_000 + "]]")
    words = "row 0, column 1: wanted a number, came one of more than 262144 bytes"
    assert message == f"INVALID_INPUT: image[0]: {words}"
