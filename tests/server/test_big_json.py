"""What robots really send: three cameras as pixel lists in one request, bodies beyond the limit, and plain curl.

Triton 2.51 dies of JSON bodies from about 4.19 MB unless the launcher has raised its stack limit.
"""

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from tests.server.entrance import Entrance, open_entrances
from tests.server.processes import stub_pids
from tests.server.repositories import preprocess_alone

pytestmark = pytest.mark.server

ROOT = Path(__file__).parents[2]
HEIGHT, WIDTH = 360, 640
NAMES = ("wrist", "left", "right")
PIXELS = np.random.default_rng(3).integers(0, 256, (3, HEIGHT, WIDTH, 3)).astype(np.uint8)
LISTS = [json.dumps(picture.tolist(), separators=(",", ":")) for picture in PIXELS]
CAMERAS = "{" + ",".join(f'"{name}":{text}' for name, text in zip(NAMES, LISTS, strict=True)) + "}"
START = np.asarray(Image.open(ROOT / "client" / "pictures" / "start.png").convert("RGB"))
OVER_BYTES = (64 << 20) + 1

# As a person would copy them. A text goes straight into JSON; bytes go behind it, each element behind its length.
JSON_CURL = r"""
curl -s localhost:8000/v2/models/preprocess/infer -d @- <<END
{"inputs": [{"name": "image", "datatype": "BYTES", "shape": [1],
             "data": ["$(base64 -w0 client/pictures/start.png)"]}],
 "outputs": [{"name": "pixels"}]}
END
"""
LIST_CURL = r"""
curl -s localhost:8000/v2/models/preprocess/infer -d '
{"inputs": [{"name": "image", "datatype": "BYTES", "shape": [1],
             "data": ["{\"wrist\": [[[255,0,0],[0,255,0]]], \"left\": [[[0,0,255],[9,9,9]]]}"]}]}'
"""
BINARY_CURL = r"""
picture=client/pictures/start.png
bytes=$(stat -c %s $picture)
header='{"inputs": [{"name": "image", "datatype": "BYTES", "shape": [1],
                     "parameters": {"binary_data_size": '$((bytes + 4))'}}],
         "outputs": [{"name": "pixels", "parameters": {"binary_data": true}}]}'
length=$(printf '\\x%02x' $((bytes & 255)) $((bytes >> 8 & 255)) $((bytes >> 16 & 255)) $((bytes >> 24)))
{ printf %s "$header"; printf "$length"; cat $picture; } |
    curl -s localhost:8000/v2/models/preprocess/infer --data-binary @- -o answer.bin \
        -H "Inference-Header-Content-Length: ${#header}"
tail -c $((384 * 640 * 3)) answer.bin > pixels.rgb    # raw RGB, height x width x 3, behind a JSON header
"""


@pytest.fixture(scope="module")
def entrances(server: Any) -> Iterator[dict[str, Entrance]]:
    opened = open_entrances(server)
    yield opened
    for entrance in opened.values():
        entrance.close()


WAYS = pytest.mark.parametrize("way", ["grpc", "http-binary", "http-json"])


@WAYS
def test_three_cameras_as_one_object_of_pixel_lists_are_read(entrances: dict[str, Entrance], way: str) -> None:
    assert len(CAMERAS) > 8_000_000
    answer = entrances[way].ask([CAMERAS.encode()])
    assert answer.message == ""
    assert answer.camera_names == NAMES
    assert np.array_equal(answer.pixels, PIXELS)


@WAYS
def test_three_pictures_as_pixel_lists_are_read(entrances: dict[str, Entrance], way: str) -> None:
    answer = entrances[way].ask([text.encode() for text in LISTS])
    assert answer.message == ""
    assert np.array_equal(answer.pixels, PIXELS)


@WAYS
def test_a_fault_in_the_last_pixel_of_the_last_camera_is_found(entrances: dict[str, Entrance], way: str) -> None:
    answer = entrances[way].ask([CAMERAS[: CAMERAS.rindex(",") + 1].encode() + b"256]]]}"])
    assert answer.is_refusal
    assert "INVALID_INPUT: image[0]['right']: row 359, column 639, channel 2: wanted" in answer.message
    assert "came 256" in answer.message


def test_elements_over_the_limit_are_refused_and_harm_nothing(start_server: Any, tmp_path: Path) -> None:
    # A server of its own, since shared memory never shrinks.
    server = start_server(repository=preprocess_alone(tmp_path))
    pids = stub_pids(server.pid)
    for entrance in open_entrances(server).values():
        answer = entrance.ask([b"[" * OVER_BYTES])
        assert answer.is_refusal
        assert f"TOO_LARGE: image[0]: wanted at most {OVER_BYTES - 1} bytes, came {OVER_BYTES}" in answer.message
        assert entrance.ask([b"[[7]]"]).pixels.tolist() == [[[[7, 7, 7]]]]
        entrance.close()
    assert stub_pids(server.pid) == pids


def run(server: Any, code: str, folder: Path, stdin: bytes = b"") -> bytes:
    """A snippet as it stands, on this server's port, with the repository's pictures, in a folder of its own."""
    (folder / "client").symlink_to(ROOT / "client")
    code = "set -euo pipefail\n" + code.replace("localhost:8000", server.http)
    done = subprocess.run(["bash", "-c", code], cwd=folder, input=stdin, capture_output=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def outputs(answer: bytes) -> dict[str, Any]:
    return {output["name"]: output for output in json.loads(answer)["outputs"]}


def test_curl_sends_a_picture_as_base64_in_json(server: Any, tmp_path: Path) -> None:
    pixels = outputs(run(server, JSON_CURL, tmp_path))["pixels"]
    assert pixels["shape"] == [1, *START.shape]
    assert pixels["data"] == START.reshape(-1).tolist()


def test_curl_sends_cameras_as_pixel_lists_in_json(server: Any, tmp_path: Path) -> None:
    answer = outputs(run(server, LIST_CURL, tmp_path))
    assert answer["pixels"]["shape"] == [2, 1, 2, 3]
    assert answer["pixels"]["data"] == [255, 0, 0, 0, 255, 0, 0, 0, 255, 9, 9, 9]
    assert answer["camera_name"]["data"] == ["wrist", "left"]


def test_curl_sends_a_picture_by_the_binary_extension(server: Any, tmp_path: Path) -> None:
    run(server, BINARY_CURL, tmp_path)
    assert (tmp_path / "pixels.rgb").read_bytes() == START.tobytes()
    header = (tmp_path / "answer.bin").read_bytes()[: -START.size]
    assert outputs(header)["pixels"]["shape"] == [1, *START.shape]


def test_curl_sends_three_cameras_of_pixel_lists(server: Any, tmp_path: Path) -> None:
    body = {"inputs": [{"name": "image", "datatype": "BYTES", "shape": [1], "data": [CAMERAS]}]}
    sent = json.dumps(body).encode()
    assert len(sent) > 8_000_000
    answer = outputs(run(server, "curl -s localhost:8000/v2/models/preprocess/infer -d @-", tmp_path, sent))
    assert answer["pixels"]["shape"] == [3, HEIGHT, WIDTH, 3]
    assert np.array_equal(np.array(answer["pixels"]["data"], np.uint8).reshape(PIXELS.shape), PIXELS)
    assert answer["camera_name"]["data"] == list(NAMES)
