"""The fast way for evenly written pixel lists: exact where it answers, and silent about everything else.

`json` and loops are the reference; small blocks bring the seams between blocks into small lists.
"""

import json

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from ingest import pixel_lists, uniform_lists
from ingest.errors import InvalidInputError
from ingest.limits import Limits
from ingest.pixel_lists import read_pixel_list
from ingest.uniform_lists import read_uniform_list

MAX_PIXELS = 1000
SEPARATORS = [(",", ":"), (", ", ": "), (",\n", ": "), (", \t\r\n", ": ")]


def read(text: str, max_pixels: int = MAX_PIXELS) -> np.ndarray | None:
    return read_uniform_list(text.encode("latin-1"), max_pixels)


def read_slowly(text: str) -> list | None:
    """A list of H x W x C or H x W whole numbers 0-255, [H][W][C] with C 1 for the latter; else None."""
    try:
        picture = json.loads(text)
    except ValueError:
        return None
    if not isinstance(picture, list) or not all(isinstance(row, list) for row in picture):
        return None
    pixels = [pixel for row in picture for pixel in row]
    if any(isinstance(pixel, list) != isinstance(pixels[0], list) for pixel in pixels):
        return None
    if pixels and not isinstance(pixels[0], list):
        picture = [[[pixel] for pixel in row] for row in picture]
    channels = [channel for row in picture for pixel in row for channel in pixel]
    widths, depths = {len(row) for row in picture}, {len(pixel) for row in picture for pixel in row}
    if len(widths) != 1 or len(depths) != 1 or any(type(c) is not int or not 0 <= c <= 255 for c in channels):
        return None
    return picture


def pictures(min_side: int = 2) -> st.SearchStrategy[list]:
    """Lists of H x W x 3, H x W x 4 or H x W; numbers of one, two and three digits alike often."""
    number = st.one_of(st.integers(0, 9), st.integers(10, 99), st.integers(100, 255))

    def of_shape(shape: tuple[int, int, int]) -> st.SearchStrategy[list]:
        height, width, depth = shape
        pixel = number if depth == 1 else st.lists(number, min_size=depth, max_size=depth)
        row = st.lists(pixel, min_size=width, max_size=width)
        return st.lists(row, min_size=height, max_size=height)

    sides = st.integers(min_side, 5)
    return st.tuples(sides, sides, st.sampled_from([1, 3, 4])).flatmap(of_shape)


@pytest.fixture(params=[1, 192 * 1024])
def block_bytes(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    monkeypatch.setattr(uniform_lists, "_BLOCK_BYTES", request.param)
    return request.param


@pytest.mark.parametrize("separators", SEPARATORS)
@pytest.mark.parametrize("shape", [(2, 2), (7, 5), (2, 2, 3), (6, 9, 3), (5, 4, 4)])
def test_evenly_written_lists_are_read_exactly(
    shape: tuple[int, ...], separators: tuple[str, str], block_bytes: int
) -> None:
    values = np.random.default_rng(len(shape)).integers(0, 256, shape)
    pixels = read(json.dumps(values.tolist(), separators=separators))
    assert pixels is not None
    assert pixels.dtype == np.uint8
    assert pixels.tolist() == values.reshape(*shape[:2], -1).tolist()


def test_every_number_is_read(block_bytes: int) -> None:
    values = np.arange(256).reshape(16, 16)
    pixels = read(json.dumps(values.tolist()))
    assert pixels is not None
    assert pixels[:, :, 0].tolist() == values.tolist()


@pytest.mark.parametrize("pixel_bytes", [150_000, 200_000, 400_000])
def test_lists_longer_than_a_block_are_read_exactly(pixel_bytes: int) -> None:
    values = np.random.default_rng(3).integers(0, 256, (pixel_bytes // 300, 100, 3))
    pixels = read(json.dumps(values.tolist(), separators=(",", ":")), max_pixels=1 << 20)
    assert pixels is not None
    assert np.array_equal(pixels, values)


NO_NUMBERS = [
    "256",
    "299",
    "300",
    "999",
    "1000",
    "0255",
    "00",
    "01",
    "007",
    "-1",
    "+1",
    "1.0",
    "1e1",
    "true",
    "null",
    "[1]",
    "[]",
    "1,",
    ",1",
    "]",
    "[",
    "\x00",
    "1\x00",
]


@pytest.mark.parametrize("wrong", [*NO_NUMBERS, "", " 1", "1 ", "1 1"])
@pytest.mark.parametrize("place", [0, 3, 9, 17])
def test_whatever_is_no_such_number_is_left_alone(wrong: str, place: int, block_bytes: int) -> None:
    text = json.dumps(np.full((3, 2, 3), 255).tolist(), separators=(",", ":"))
    assert read(text) is not None
    parts = text.split("255")
    assert read("255".join(parts[: place + 1]) + wrong + "255".join(parts[place + 1 :])) is None


@pytest.mark.parametrize(
    "text",
    [
        "[[1,2],[3,4]",
        "[[1,2],[3,4]]]",
        "[[1,2],[3,4]] ",
        "[[1,2],[3,4],]",
        "[[1,2][3,4]]",
        "[[1,2],[3,4],[5]]",
        "[[1,2],[3],[4,5]]",
        "[[1,2],[3,4] ,[5,6]]",
        "[[1,2],[3,4], [5,6]]",
        "[[[1,2,3],[4,5,6]],[[7,8,9]],[[1,2,3]]]",
        "[[[1,2,3],[4,5]],[[6,7,8],[9,1,2]]]",
        "[[[1,2,3],[4,5,6]],[[7,8,9],4,[5,6]]]",
        "[[[1,2,3],[4,5,6]],[[7,8,9],[1,2,3]]]]",
        "[[[1,2,3],[4,5,6]],[7,8,9],[1,2,3]]]",
        "[[[1[,2,3],[4,5,6]],[[7,8,9],[1,2,3]]]",
        "[[[1,2,3],[4,5,6]],[[7,8,9]1,[,2,3]]]",
        "[[[1,2,3],[4,5,6]],[[7,8,9],[1,,2  3]]]",
        "[]",
        "[[]]",
        "[[[",
        "[[1,2]]",
        "[[1],[2]]",
        "[" * 5000 + "]" * 5000,
        "[[1," + " " * 100_000,
    ],
)
def test_unevenly_written_and_broken_lists_are_left_alone(text: str, block_bytes: int) -> None:
    assert read(text) is None


def test_a_list_over_the_limit_is_left_alone() -> None:
    text = json.dumps(np.zeros((4, 5, 3), int).tolist())
    assert read(text, max_pixels=20) is not None
    assert read(text, max_pixels=19) is None


@settings(max_examples=300, deadline=None)
@given(
    pictures(), st.sampled_from(SEPARATORS), st.lists(st.tuples(st.integers(0, 999), st.text(max_size=2)), max_size=3)
)
@example([[1, 2], [3, 4]], SEPARATORS[0], [(5, "\x00")])
@example([[0, 0], [0, 0], [0, 10]], SEPARATORS[1], [(254, "")])  # a last block that is shorter than the gap of rows
def test_a_changed_list_is_read_as_json_reads_it_or_left_alone(
    picture: list, separators: tuple[str, str], changes: list[tuple[int, str]]
) -> None:
    text = json.dumps(picture, separators=separators)
    for place, character in changes:
        place %= len(text)
        replacement = "".join("0123456789[], -.\x00"[ord(letter) % 17] for letter in character)
        text = text[:place] + replacement + text[place + 1 :]
    for block_bytes in (1, 192 * 1024):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(uniform_lists, "_BLOCK_BYTES", block_bytes)
            pixels = read(text)
        assert pixels is None or pixels.tolist() == read_slowly(text)
        assert changes or pixels is not None


@settings(max_examples=100, deadline=None)
@given(pictures(min_side=1), st.sampled_from(SEPARATORS), st.sampled_from([1, None]))
def test_both_ways_give_the_same_pixels(picture: list, separators: tuple[str, str], indent: int | None) -> None:
    even = json.dumps(picture, separators=separators)
    other = json.dumps(picture, indent=indent).replace(",", " ,", 1)
    wanted = read_pixel_list(even.encode(), "image[0]", Limits()).tolist()
    for block_bytes in (1, 50, 256 * 1024):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(pixel_lists, "_BLOCK_BYTES", block_bytes)
            assert read_pixel_list(other.encode(), "image[0]", Limits()).tolist() == wanted


@settings(max_examples=100, deadline=None)
@given(st.lists(st.lists(st.floats(0, 1), min_size=3, max_size=3), min_size=1, max_size=9))
def test_floats_are_the_same_in_blocks_of_any_size(pixels: list) -> None:
    text = json.dumps([[pixel] for pixel in pixels]).encode()
    whole = read_pixel_list(text, "image[0]", Limits())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pixel_lists, "_BLOCK_BYTES", 1)
        assert np.array_equal(read_pixel_list(text, "image[0]", Limits()), whole)


@pytest.mark.parametrize("row", [0, 1, 4])
def test_a_number_out_of_range_is_named_in_whichever_block_it_is(monkeypatch: pytest.MonkeyPatch, row: int) -> None:
    monkeypatch.setattr(pixel_lists, "_BLOCK_BYTES", 1)
    values = np.zeros((5, 2, 3), int)
    values[row, 1, 2] = 256
    words = f"row {row}, column 1, channel 2: wanted a whole number 0-255, came 256"
    with pytest.raises(InvalidInputError, match=words):
        read_pixel_list(json.dumps(values.tolist()).encode(), "image[0]", Limits())
