"""Every row of the table of image cases, through the real server, over every way in."""

import hashlib
import struct
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from tests.server.entrance import Answer, Entrance, is_utf8, open_entrances
from tests.server.image_case import Array, Case
from tests.server.image_cases import CASES

pytestmark = pytest.mark.server

# Every element can go over gRPC and the binary extension; a JSON body carries text alone.
RUNS = [
    pytest.param(case, way, id=f"{way}: {case.name}")
    for case in CASES
    for way in ("grpc", "http-binary", "http-json")
    if way != "http-json" or is_utf8(case.elements)
]


@pytest.fixture(scope="module")
def entrances(server: Any) -> Iterator[dict[str, Entrance]]:
    opened = open_entrances(server)
    yield opened
    for entrance in opened.values():
        entrance.close()


def test_the_table_is_large_and_its_names_are_told_apart() -> None:
    assert len(CASES) >= 60
    assert len({case.name for case in CASES}) == len(CASES)


@pytest.mark.parametrize(("case", "way"), RUNS)
def test_each_case_gives_the_wanted_pixels_or_refusal(entrances: dict[str, Entrance], case: Case, way: str) -> None:
    answer = entrances[way].ask(case.elements, case.size)
    if case.pixels is None:
        check_refusal(answer, case)
    else:
        check_pixels(answer, case.pixels, case)


def check_refusal(answer: Answer, case: Case) -> None:
    assert answer.is_refusal, answer
    assert [word for word in case.words if word not in answer.message] == [], answer.message
    assert "Traceback" not in answer.message
    assert ".py" not in answer.message
    assert len(answer.message) < 500


def check_pixels(answer: Answer, wanted: Array, case: Case) -> None:
    assert answer.message == ""
    assert answer.pixels.shape == wanted.shape
    difference = np.abs(answer.pixels.astype(int) - wanted.astype(int))
    assert difference.max() <= case.tolerance, f"{int((difference > case.tolerance).sum())} values differ"
    assert answer.camera_names == case.camera_names
    assert answer.digests == tuple(digest(picture) for picture in answer.pixels)


def digest(picture: Array) -> str:
    """As documented: BLAKE2b-128 of height, width and channels (uint32, little endian), then the pixels."""
    return hashlib.blake2b(struct.pack("<3I", *picture.shape) + picture.tobytes(), digest_size=16).hexdigest()
