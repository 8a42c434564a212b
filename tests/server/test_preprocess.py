"""`preprocess` on the real server: every transport, errors that harm nobody else, and sessions without pictures."""

import base64
import hashlib
import io
import json
import re
import shutil
import struct
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc as grpcclient
import tritonclient.http as httpclient
from PIL import Image
from tritonclient.utils import InferenceServerException

pytestmark = pytest.mark.server

REPOSITORY = Path(__file__).parents[2] / "model_repository"
URL = "http://{}/v2/models/preprocess/infer"


def png(*rgb: int, width: int = 2, height: int = 1) -> bytes:
    buffer = io.BytesIO()
    Image.new("RGB", (width, height), rgb).save(buffer, "PNG")
    return buffer.getvalue()


RED, BLUE = png(255, 0, 0), png(0, 0, 255)
RED_BASE64 = base64.b64encode(RED).decode()
RED_PIXELS, BLUE_PIXELS = [[[255, 0, 0]] * 2], [[[0, 0, 255]] * 2]
PIXEL_LIST = "[[[255,0,0],[255,0,0]]]"
RED_DIGEST = hashlib.blake2b(struct.pack("<3I", 1, 2, 3) + b"\xff\0\0" * 2, digest_size=16).hexdigest()


def image_json(*elements: str, **more: Any) -> dict[str, Any]:
    return {"inputs": [{"name": "image", "datatype": "BYTES", "shape": [len(elements)], "data": elements}], **more}


def post_json(server: Any, body: dict[str, Any]) -> tuple[int, dict[str, Any]]:
    """Send a plain HTTP JSON request; give status and answer, outputs by name."""
    request = urllib.request.Request(URL.format(server.http), json.dumps(body).encode(), method="POST")
    try:
        with urllib.request.urlopen(request, timeout=30) as response:
            answer = json.load(response)
            return response.status, {output["name"]: output for output in answer["outputs"]}
    except urllib.error.HTTPError as error:
        with error:
            return error.code, json.load(error)


def infer(client_kind: Any, url: str, elements: list[bytes], size: list[int] | None = None, **options: Any) -> Any:
    """Ask over gRPC, or over HTTP with the binary extension."""
    inputs = [client_kind.InferInput("image", [len(elements)], "BYTES")]
    inputs[0].set_data_from_numpy(np.array(elements, dtype=np.object_))
    if size is not None:
        inputs.append(client_kind.InferInput("size", [2], "INT32"))
        inputs[1].set_data_from_numpy(np.array(size, np.int32))
    with client_kind.InferenceServerClient(url) as client:
        return client.infer("preprocess", inputs, **options)


@pytest.fixture(params=["grpc", "http"])
def ask(request: pytest.FixtureRequest, server: Any) -> Any:
    kind, url = {"grpc": (grpcclient, server.grpc), "http": (httpclient, server.http)}[request.param]
    return lambda *elements, **options: infer(kind, url, list(elements), **options)


@pytest.mark.parametrize("element", [RED_BASE64, "data:image/png;base64," + RED_BASE64, PIXEL_LIST])
def test_plain_http_json_reads_each_text_form(server: Any, element: str) -> None:
    status, outputs = post_json(server, image_json(element))
    assert status == 200
    assert outputs["pixels"]["datatype"] == "UINT8"
    assert outputs["pixels"]["shape"] == [1, 1, 2, 3]
    assert outputs["pixels"]["data"] == [255, 0, 0, 255, 0, 0]
    assert outputs["image_digest"]["data"] == [RED_DIGEST]
    assert outputs["camera_name"]["data"] == [""]


@pytest.mark.parametrize("element", [RED, RED_BASE64.encode(), PIXEL_LIST.encode()])
def test_each_form_is_read_over_every_transport(ask: Any, element: bytes) -> None:
    result = ask(element)
    assert result.as_numpy("pixels").tolist() == [RED_PIXELS]
    assert result.as_numpy("pixels").dtype == np.uint8
    assert result.as_numpy("image_digest").tolist() == [RED_DIGEST.encode()]
    assert result.as_numpy("camera_name").tolist() == [b""]


def test_several_pictures_and_cameras_keep_their_order(ask: Any) -> None:
    cameras = json.dumps({"wrist": RED_BASE64, "überkopf": [[[0, 0, 255]] * 2]}).encode()
    result = ask(BLUE, cameras)
    assert result.as_numpy("pixels").tolist() == [BLUE_PIXELS, RED_PIXELS, BLUE_PIXELS]
    assert [name.decode() for name in result.as_numpy("camera_name")] == ["", "wrist", "überkopf"]


def test_size_brings_pictures_of_different_size_together(ask: Any) -> None:
    result = ask(RED, png(0, 255, 0, width=9, height=5), size=[4, 6])
    assert result.as_numpy("pixels").shape == (2, 4, 6, 3)
    assert (result.as_numpy("pixels")[1] == [0, 255, 0]).all()


def test_a_camera_sized_picture_comes_back_exactly(ask: Any) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (480, 640, 3)).astype(np.uint8)
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, "PNG", compress_level=1)
    assert np.array_equal(ask(buffer.getvalue()).as_numpy("pixels")[0], pixels)


@pytest.mark.parametrize(
    ("elements", "words"),
    [
        ([b"[[1,2],[3]]"], "INVALID_INPUT: image[0]: ragged at row 1: wanted 2 pixels as in the first, came 1"),
        ([RED, b"https://example.com/cat.png"], "INVALID_INPUT: image[1]: wanted a picture, came a URL"),
        ([RED[:-1]], "INVALID_INPUT: image[0]: wanted a whole PNG"),
        ([b""], "INVALID_INPUT: image[0]: wanted a picture, came an empty element"),
        ([RED, png(0, 0, 0, width=3)], "came image[0] with 1 x 2 and image[1] with 1 x 3 (height x width)"),
        ([RED] * 17, "TOO_LARGE: image: wanted at most 16 pictures"),
        ([], "INVALID_INPUT: image: wanted at least one picture, came none"),
    ],
)
def test_faults_are_named_over_every_transport(ask: Any, elements: list[bytes], words: str) -> None:
    with pytest.raises(InferenceServerException) as caught:
        ask(*elements)
    assert words in caught.value.message()
    assert caught.value.status() in ("StatusCode.INVALID_ARGUMENT", "400")


def test_plain_http_json_names_faults_with_status_400(server: Any) -> None:
    status, answer = post_json(server, image_json("not base64!"))
    assert status == 400
    assert "INVALID_INPUT: image[0]: " in answer["error"]


def test_a_wrong_size_is_refused(ask: Any) -> None:
    with pytest.raises(InferenceServerException, match="INVALID_INPUT: size: wanted height and width"):
        ask(RED, size=[0, 4])


def test_errors_show_no_path_and_no_traceback(ask: Any) -> None:
    with pytest.raises(InferenceServerException) as caught:
        ask(b"\xff\xd8\xff\xe0damaged")
    assert "Traceback" not in caught.value.message()
    assert ".py" not in caught.value.message()


def test_bad_requests_leave_those_beside_them_alone(server: Any) -> None:
    def answer(index: int) -> Any:
        try:
            return infer(grpcclient, server.grpc, [b"[[1],[]]" if index % 2 else RED]).as_numpy("pixels").tolist()
        except InferenceServerException as error:
            return error.message()

    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(answer, range(24)))
    assert answers[0::2] == [[RED_PIXELS]] * 12
    assert all("INVALID_INPUT: image[0]: row 1" in message for message in answers[1::2])


def assert_empty(result: Any) -> None:
    assert result.as_numpy("pixels").shape == (0, 0, 0, 3)
    assert result.as_numpy("image_digest").shape == (0,)
    assert result.as_numpy("camera_name").shape == (0,)


@pytest.mark.parametrize("sequence_id", [7, "robot"])
def test_a_request_that_continues_a_session_needs_no_picture(ask: Any, sequence_id: int | str) -> None:
    assert_empty(ask(sequence_id=sequence_id))
    assert_empty(ask(sequence_id=sequence_id, sequence_end=True))


@pytest.mark.parametrize("sequence_id", [7, "robot"])
def test_a_request_that_starts_a_session_needs_a_picture(ask: Any, sequence_id: int | str) -> None:
    with pytest.raises(InferenceServerException, match="INVALID_INPUT: image: wanted at least one picture, came none"):
        ask(sequence_id=sequence_id, sequence_start=True)
    assert ask(RED, sequence_id=sequence_id, sequence_start=True).as_numpy("pixels").tolist() == [RED_PIXELS]


def test_a_request_that_continues_a_session_may_still_send_a_picture(ask: Any) -> None:
    assert ask(RED, sequence_id=7).as_numpy("pixels").tolist() == [RED_PIXELS]


def test_the_session_parameter_continues_a_session_too(server: Any) -> None:
    body = {"inputs": [{"name": "size", "datatype": "INT32", "shape": [2], "data": [4, 4]}]}
    status, outputs = post_json(server, {**body, "parameters": {"session": "robot"}})
    assert status == 200
    assert outputs["pixels"]["shape"] == [0, 0, 0, 3]
    assert outputs["image_digest"]["shape"] == [0]
    status, answer = post_json(server, {**body, "parameters": {"session": "robot", "session_start": True}})
    assert status == 400
    assert "INVALID_INPUT: image: wanted at least one picture, came none" in answer["error"]


def test_an_absent_image_without_a_session_is_refused(server: Any) -> None:
    body = {"inputs": [{"name": "size", "datatype": "INT32", "shape": [2], "data": [4, 4]}]}
    status, answer = post_json(server, body)
    assert status == 400
    assert "INVALID_INPUT: image: wanted at least one picture, came none" in answer["error"]


def test_an_absent_image_is_enough_to_continue_a_session_over_grpc(server: Any) -> None:
    with grpcclient.InferenceServerClient(server.grpc) as client:
        assert_empty(client.infer("preprocess", [], sequence_id="robot"))


# Appended to a copy of the model: pictures that fail as only our own bug could, and pictures that take long.
TAMPERED = """
import time
_read_images = read_images

def read_images(elements, size, limits):
    if elements[:1] == [b"fail"]:
        raise RuntimeError("a secret at /secret/path \\ud800")
    if elements[:1] == [b"slow"]:
        time.sleep(0.3)
        elements = [b"[[7]]"]
    return _read_images(elements, size, limits)
"""


@pytest.fixture
def tampered(tmp_path: Path) -> Path:
    """A repository of `preprocess` alone, with the above; a test may change it before it starts a server."""
    copy = tmp_path / "models" / "preprocess"
    shutil.copytree(REPOSITORY / "preprocess", copy, ignore=shutil.ignore_patterns("__pycache__", ".mypy_cache"))
    with (copy / "1" / "ingest" / "request.py").open("a") as source:
        source.write(TAMPERED)
    return copy.parent


def test_an_internal_failure_is_told_by_reference_alone(start_server: Any, tampered: Path) -> None:
    server = start_server(repository=tampered)
    status, answer = post_json(server, image_json("fail"))
    assert status == 500
    found = re.search(r"INTERNAL: the server failed, its log has more under reference ([0-9a-f]{8})$", answer["error"])
    assert found is not None
    assert not any(word in answer["error"] for word in ("secret", "RuntimeError", "Traceback", ".py"))
    with pytest.raises(InferenceServerException) as caught:
        infer(grpcclient, server.grpc, [b"fail"])
    assert caught.value.status() == "StatusCode.INTERNAL"
    entry = server.log().partition(f"preprocess: INTERNAL {found[1]}")[2]
    assert "Traceback (most recent call last)" in entry
    assert "RuntimeError: a secret at /secret/path" in entry
    assert infer(grpcclient, server.grpc, [RED]).as_numpy("pixels").tolist() == [RED_PIXELS]


def test_every_request_is_answered_when_the_queue_is_full(start_server: Any, tampered: Path) -> None:
    config = tampered / "preprocess" / "config.pbtxt"
    text = config.read_text(encoding="utf-8")
    assert text.count("max_queue_size: 64") == text.count("count: 2 kind") == 1
    text = text.replace("max_queue_size: 64", "max_queue_size: 1").replace("count: 2 kind", "count: 1 kind")
    config.write_text(text, encoding="utf-8")
    server = start_server(repository=tampered)

    def answer(_: int) -> Any:
        try:
            return infer(grpcclient, server.grpc, [b"slow"], client_timeout=60).as_numpy("pixels").tolist()
        except InferenceServerException as error:
            return error.status(), "Exceeds maximum queue size" in error.message()

    with ThreadPoolExecutor(16) as pool:
        answers = list(pool.map(answer, range(16)))
    num_read = answers.count([[[[7, 7, 7]]]])
    num_refused = answers.count(("StatusCode.UNAVAILABLE", True))
    assert num_read >= 1
    assert num_refused >= 1
    assert num_read + num_refused == 16
    assert infer(grpcclient, server.grpc, [RED]).as_numpy("pixels").tolist() == [RED_PIXELS]
