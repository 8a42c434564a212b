"""The limits of `preprocess` from its configuration: what is just allowed, what is just not, what a refusal costs."""

import base64
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from tests.conftest import running_server
from tests.server.entrance import Entrance, open_entrances
from tests.server.image_files import bomb_png, flat_jpeg, png, webp, webp_bomb, with_frame_size
from tests.server.processes import peak_bytes, shm_bytes, stub_pids
from tests.server.repositories import preprocess_alone

pytestmark = pytest.mark.server

# serve.py's canary, a picture of 16 x 16, must still get in.
SMALL = {
    "preprocess.max_bytes_per_element": "2000",
    "preprocess.max_pixels_per_picture": "400",
    "preprocess.max_pixels_per_request": "600",
    "preprocess.max_pictures_per_request": "3",
    "preprocess.max_json_depth": "3",
}
# What a stub may have in memory over what it had before bombs came: a copy of the largest, 48 KB as a file, in some
# forms, and the pages of code that a first refusal runs. The smallest of the bombs is 50 MB when unpacked.
MORE_BYTES = 8 << 20
RED = Image.new("RGB", (64, 64), "red")


@pytest.fixture(scope="module")
def small_entrances(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Entrance]]:
    folder = tmp_path_factory.mktemp("limits")
    with running_server(folder / "log", repository=preprocess_alone(folder), overrides=SMALL) as server:
        opened = open_entrances(server)
        yield opened
        for entrance in opened.values():
            entrance.close()


@pytest.fixture(params=["grpc", "http-binary", "http-json"])
def small(request: pytest.FixtureRequest, small_entrances: dict[str, Entrance]) -> Entrance:
    """Each way into a server with small limits."""
    return small_entrances[request.param]


def gray_list(height: int, width: int) -> bytes:
    return json.dumps([[7] * width] * height).encode()


def gray_base64(height: int, width: int) -> bytes:
    return base64.b64encode(png([[7] * width] * height, 8, 0))


def cameras(num: int) -> bytes:
    return json.dumps({f"camera {index}": [[7]] for index in range(num)}).encode()


def with_spaces(element: bytes, num_bytes: int) -> bytes:
    """The same element, spaces behind it, of this length."""
    return element + b" " * (num_bytes - len(element))


ALLOWED = {
    "bytes of a list": [with_spaces(gray_list(2, 3), 2000)],
    "bytes of base64": [with_spaces(gray_base64(2, 3), 2000)],
    "pixels of a list": [gray_list(20, 20)],
    "pixels of a file": [gray_base64(4, 100)],
    "pixels of a request": [gray_list(10, 20)] * 3,
    "pictures": [gray_list(1, 1)] * 3,
    "cameras": [cameras(3)],
    "levels of a list": [b"[[[7,7,7]]]"],
    "levels of an object": [b'{"a": {"base64": "%s"}}' % gray_base64(1, 1)],
}
REFUSED = {
    "bytes of a list": ([with_spaces(gray_list(2, 3), 2001)], "image[0]: wanted at most 2000 bytes, came 2001"),
    "bytes of base64": ([with_spaces(gray_base64(2, 3), 2001)], "image[0]: wanted at most 2000 bytes, came 2001"),
    "bytes of a later element": ([gray_list(2, 3), b"[" * 2001], "image[1]: wanted at most 2000 bytes, came 2001"),
    "pixels of a list": ([gray_list(1, 401)], "image[0]: wanted at most 400 pixels, came 1 x 401"),
    "pixels of a file": ([gray_base64(401, 1)], "image[0]: wanted at most 400 pixels, came 401 x 1"),
    "pixels of a camera": ([b'{"a": %s}' % gray_list(21, 20)], "image[0]['a']: wanted at most 400 pixels"),
    "pixels of a request": ([gray_list(10, 21)] * 3, "image: wanted at most 600 pixels in one request"),
    "pictures": ([gray_list(1, 1)] * 4, "image: wanted at most 3 pictures"),
    "cameras": ([cameras(2), cameras(2)], "image: wanted at most 3 pictures"),
    "levels of a list": ([b"[[[[7]]]]"], "image[0]: wanted at most 3 levels of JSON, came 4"),
    "levels of an object": ([b'{"a": {"b": {"c": {"base64": ""}}}}'], "image[0]"),
}


@pytest.mark.parametrize("elements", ALLOWED.values(), ids=ALLOWED)
def test_what_is_just_within_a_limit_is_read(small: Entrance, elements: list[bytes]) -> None:
    answer = small.ask(elements)
    assert answer.message == ""
    assert (answer.pixels == 7).all()


@pytest.mark.parametrize(("elements", "words"), REFUSED.values(), ids=REFUSED)
def test_what_is_just_over_a_limit_is_refused(small: Entrance, elements: list[bytes], words: str) -> None:
    answer = small.ask(elements)
    assert answer.is_refusal
    assert f"TOO_LARGE: {words}" in answer.message


def test_pixels_count_as_they_are_returned_too(small: Entrance) -> None:
    assert small.ask([gray_list(1, 1)], size=(20, 20)).pixels.shape == (1, 20, 20, 3)
    assert "TOO_LARGE: size: wanted at most 400 pixels" in small.ask([gray_list(1, 1)], size=(1, 401)).message
    assert "TOO_LARGE: image: wanted at most 600" in small.ask([gray_list(1, 1)] * 2, size=(10, 31)).message


def test_refused_bombs_take_no_memory(start_server: Any, tmp_path: Path) -> None:
    server = start_server(repository=preprocess_alone(tmp_path))
    jpeg, bomb = flat_jpeg("L", 7), bomb_png(20_000)
    bombs = [bomb, base64.b64encode(bomb), with_frame_size(jpeg, 65_500, 65_500), webp_bomb()]
    entrances = [entrance for name, entrance in open_entrances(server).items() if name != "http-json"]
    # Good ones first, so that libraries are loaded; often, so that both stubs get some.
    for good in (gray_base64(360, 640), jpeg, webp(RED)):
        assert ask_often(entrances, good) == {""}
    stubs = stub_pids(server.pid)
    before, shm_before = [peak_bytes(pid) for pid in stubs], shm_bytes(server.pid)
    for element in bombs:
        assert ask_often(entrances, element) == {"TOO_LARGE"}
    grown = [peak_bytes(pid) - at_first for pid, at_first in zip(stubs, before, strict=True)]
    assert max(grown) < MORE_BYTES
    assert shm_bytes(server.pid) == shm_before
    for entrance in entrances:
        entrance.close()


def ask_often(entrances: list[Entrance], element: bytes) -> set[str]:
    """The code words that came back; "" is none."""
    messages = [entrance.ask([element]).message for _ in range(10) for entrance in entrances]
    return {message.partition(":")[0] for message in messages}
