"""Frames as files on the real server: each encoding through both entrances, over gRPC and plain HTTP."""

import base64
import io
import itertools
from typing import Any

import numpy as np
import pytest
from PIL import Image
from worldstream import WorldClient

from tests.server.events import generate_stream, post
from tests.server.raw import Array, Response, ask, join, make_request, picture, png

pytestmark = pytest.mark.server

PICTURE = picture()
PNG = png(PICTURE)
IMAGE_TEXT = base64.b64encode(PNG).decode()
STEERED: dict[str, Any] = {"actions": ["w", "", "l", "w"], "num_steps": 1}  # two chunks
FORMATS = {"png": "PNG", "jpeg": "JPEG", "webp": "WEBP"}
NAMES = [*FORMATS, *(f"{each}_base64" for each in FORMATS)]
STARTS: dict[str, dict[str, Any]] = {"denoise": {"pixels": PICTURE}, "world": {"image": [PNG]}}
IDS = itertools.count(7000)


@pytest.fixture(scope="module")
def raw_frames(server: Any) -> Array:
    return join(ask(server.grpc, make_request("denoise", {"pixels": PICTURE, **STEERED})))


def decoded(files: list[bytes], encoding: str) -> Array:
    """Files of one encoding as frames, read by Pillow: [n, H, W, 3]."""
    kind, _, text = encoding.partition("_")
    frames = []
    for file in files:
        with Image.open(io.BytesIO(base64.b64decode(file, validate=True) if text else file)) as image:
            assert image.format == FORMATS[kind]
            frames.append(np.asarray(image))
    return np.stack(frames)


def assert_alike(frames: Array, raw: Array, encoding: str) -> None:
    if encoding.startswith(("png", "raw")):
        assert frames.tobytes() == raw.tobytes()
        return
    # These weights paint colour noise, of which lossy files keep little but the mean colour of each 8 x 8 pixels.
    small, wanted = block_means(frames), block_means(raw)
    loss = np.abs(small - wanted).mean(axis=(1, 2, 3))
    assert (loss < np.abs(wanted - np.roll(wanted, 1, axis=0)).mean(axis=(1, 2, 3)) / 3).all(), "another frame"
    assert loss.mean() < np.abs(wanted - wanted[..., ::-1]).mean() / 3, "other colours"


def block_means(frames: Array) -> Array:
    return frames.reshape(len(frames), 12, 8, 20, 8, 3).mean(axis=(2, 4))


def shapes(responses: list[Response]) -> list[tuple[tuple[int, ...], tuple[int, ...]]]:
    return [(response["frames"].shape, response["encoded_frames"].shape) for response in responses]


@pytest.mark.parametrize("encoding", NAMES)
@pytest.mark.parametrize("model", STARTS)
def test_files_hold_the_frames(server: Any, raw_frames: Array, model: str, encoding: str) -> None:
    responses = ask(server.grpc, make_request(model, {**STARTS[model], **STEERED}, frame_encoding=encoding))
    files = join(responses, "encoded_frames")
    assert shapes(responses) == [((0, 96, 160, 3), (9,)), ((0, 96, 160, 3), (12,))]
    assert_alike(decoded(files.tolist(), encoding), raw_frames, encoding)
    assert join(responses, "frame_index").tolist() == list(range(21))
    assert [response["chunk"].tolist() for response in responses] == [[0, 0, 1], [1, 0, 1]]


@pytest.mark.parametrize("model", STARTS)
def test_raw_frames_come_without_the_output_for_files(server: Any, raw_frames: Array, model: str) -> None:
    responses = ask(server.grpc, make_request(model, {**STARTS[model], **STEERED}, frame_encoding="raw"))
    assert join(responses).tobytes() == raw_frames.tobytes()
    assert all("encoded_frames" not in response.tensors for response in responses)


@pytest.mark.parametrize("encoding", ["jpeg", "webp"])
def test_less_quality_takes_fewer_bytes(server: Any, encoding: str) -> None:
    def num_bytes(quality: int) -> int:
        inputs = {"pixels": PICTURE, "num_steps": 1}
        request = make_request("denoise", inputs, frame_encoding=encoding, frame_quality=quality)
        return sum(map(len, join(ask(server.grpc, request), "encoded_frames")))

    assert num_bytes(10) < num_bytes(60) < num_bytes(95)


@pytest.mark.parametrize(
    ("parameters", "words"),
    [
        ({"frame_encoding": "gif"}, "parameter 'frame_encoding': wanted raw, png, jpeg, webp,"),
        ({"frame_encoding": 7}, "parameter 'frame_encoding': wanted raw, png, jpeg, webp,"),
        ({"frame_encoding": "jpeg", "frame_quality": 0}, "parameter 'frame_quality': wanted an integer from 1 to 100"),
        ({"frame_encoding": "png", "frame_quality": 5}, "parameter 'frame_quality': wanted it beside a frame_encoding"),
        ({"frame_quality": 5}, "parameter 'frame_quality': wanted it beside a frame_encoding"),
    ],
)
@pytest.mark.parametrize("model", STARTS)
def test_what_is_no_encoding_is_refused(server: Any, model: str, parameters: dict[str, Any], words: str) -> None:
    responses = ask(server.grpc, make_request(model, STARTS[model], **parameters))
    assert [response.is_final for response in responses] == [True]
    assert responses[0].error.removeprefix("in ensemble 'world', ").startswith(f"INVALID_INPUT: {words}")


@pytest.mark.parametrize("model", STARTS)
def test_receipts_and_bare_ends_come_without_files(server: Any, model: str) -> None:
    name = next(IDS)
    asked = {"frame_encoding": "png", "sequence_id": name}
    start = make_request(model, {**STARTS[model], "num_steps": 1}, receipt=True, sequence_start=True, **asked)
    responses = ask(server.grpc, start)
    assert shapes(responses) == [((0, 96, 160, 3), (0,)), ((0, 96, 160, 3), (9,))]
    assert [response["chunk"].tolist()[1] for response in responses] == [-1, 0]
    assert shapes(ask(server.grpc, make_request(model, {}, sequence_end=True, **asked))) == [((0, 96, 160, 3), (0,))]


@pytest.mark.parametrize("outputs", [["frames"], ["encoded_frames"], ["frame_index"], ["encoded_frames", "chunk"]])
@pytest.mark.parametrize("encoding", ["raw", "png"])
@pytest.mark.parametrize("model", STARTS)
def test_a_client_may_ask_for_some_outputs_only(server: Any, model: str, encoding: str, outputs: list[str]) -> None:
    request = make_request(model, {**STARTS[model], "num_steps": 1}, frame_encoding=encoding)
    for name in outputs:
        request.outputs.add(name=name)
    [response] = ask(server.grpc, request)
    assert (response.error, response.is_final) == ("", True)
    sent = [name for name in outputs if (name, encoding) != ("encoded_frames", "raw")]
    assert sorted(response.tensors) == sorted(sent)


@pytest.mark.parametrize("encoding", ["raw", *FORMATS])
def test_the_client_reads_every_encoding(server: Any, raw_frames: Array, encoding: Any) -> None:
    with WorldClient(server.grpc) as client, client.session(PICTURE[0], frame_encoding=encoding) as session:
        batches = list(session.generate(actions=STEERED["actions"], num_steps=1))
    assert_alike(np.concatenate([batch.frames for batch in batches]), raw_frames, encoding)
    assert [batch.encoded is None for batch in batches] == [encoding == "raw"] * 2


@pytest.mark.parametrize("encoding", [name for name in NAMES if name.endswith("_base64")])
@pytest.mark.parametrize("model", STARTS)
def test_http_events_carry_files_as_text(server: Any, raw_frames: Array, model: str, encoding: str) -> None:
    # HTTP's flat lists cannot carry pixels: there, `denoise` goes on with a session that `world` began.
    name = next(IDS)
    steered = {"num_steps": 1, "session": name, "frame_encoding": encoding}
    first = generate_stream(
        server, "world", image=IMAGE_TEXT, actions=STEERED["actions"][:3], session_start=True, **steered
    )
    last = generate_stream(server, model, actions=STEERED["actions"][3:], session_end=True, **steered)
    files = [file for event in [*first, *last] for file in event["encoded_frames"]]
    assert_alike(decoded(files, encoding), raw_frames, encoding)
    assert [event["frames"] for event in [*first, *last]] == [[], []]


def test_http_events_of_raw_frames_have_no_files(server: Any) -> None:
    [event] = generate_stream(server, image=IMAGE_TEXT, num_steps=1)
    assert "encoded_frames" not in event
    assert len(event["frames"]) == 9 * 96 * 160 * 3


def test_http_has_one_text_in_place_of_a_list_where_one_file_fits(start_server: Any) -> None:
    # Triton writes a tensor of one element without brackets.
    small = start_server(overrides={"denoise.response_bytes": "1"})
    events = generate_stream(small, image=IMAGE_TEXT, num_steps=1, frame_encoding="jpeg_base64")
    assert [event["frame_index"] for event in events] == list(range(9))
    assert [event["chunk"] for event in events] == [[0, part, 9] for part in range(9)]
    assert decoded([event["encoded_frames"] for event in events], "jpeg_base64").shape == (9, 96, 160, 3)


def test_http_refuses_what_is_no_encoding(server: Any) -> None:
    status, [event] = post(server, {"image": IMAGE_TEXT, "frame_encoding": "tiff"})
    assert status == 400
    assert "INVALID_INPUT: parameter 'frame_encoding': wanted raw, png, jpeg, webp," in event["error"]


def test_parts_in_any_order_can_be_put_right_by_their_numbers(server: Any, start_server: Any) -> None:
    small = start_server(overrides={"denoise.response_bytes": "100000"})  # two frames
    request = make_request("denoise", {"pixels": PICTURE, **STEERED})
    whole, parts = join(ask(server.grpc, request)), ask(small.grpc, request)
    assert len(parts) == 5 + 6
    shuffled = [parts[place] for place in np.random.default_rng(0).permutation(len(parts))]
    ordered = sorted(shuffled, key=lambda part: part["chunk"].tolist()[:2])
    assert np.concatenate([part["frames"] for part in ordered]).tobytes() == whole.tobytes()
    assert all(len(part["frame_index"]) == len(part["frames"]) for part in parts)
    by_number = dict(zip(np.concatenate([part["frame_index"] for part in shuffled]).tolist(), range(21), strict=True))
    frames = np.concatenate([part["frames"] for part in shuffled])
    assert frames[[by_number[number] for number in range(21)]].tobytes() == whole.tobytes()
