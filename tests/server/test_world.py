"""`world` on the real server: the same frames as `denoise` for a picture in any form, over gRPC and plain HTTP."""

import base64
import itertools
import urllib.error
import urllib.request
from typing import Any

import numpy as np
import pytest

from tests.server.events import generate_stream, post
from tests.server.raw import (
    Array,
    ask,
    join,
    make_request,
    mean_difference,
    picture,
    png,
    settled_metrics,
    walk,
)

pytestmark = pytest.mark.server

PICTURE = picture()
PNG = png(PICTURE)
IDS = itertools.count(5000)


def test_world_and_denoise_give_equal_frames_for_equal_inputs(server: Any) -> None:
    inputs = {
        "cam_to_world": walk(8),
        "intrinsics": [[100, 100, 80, 48]],
        "prompt": "Frühling 🌸",
        "seed": 5,
        "event_id": 3,
    }
    through_world = ask(server.grpc, make_request("world", {"image": [PNG], **inputs}))
    direct = ask(server.grpc, make_request("denoise", {"pixels": PICTURE, **inputs}))
    assert [len(response["frames"]) for response in through_world] == [9, 12, 12]
    assert join(through_world).tobytes() == join(direct).tobytes()
    assert join(through_world, "frame_index").tolist() == list(range(33))
    assert [response["chunk"].tolist() for response in through_world] == [[0, 0, 1], [1, 0, 1], [2, 0, 1]]
    assert join(through_world, "applied_event_id").tolist() == [3, 3, 3]
    assert {name: (tensor.dtype.name, tensor.shape) for name, tensor in through_world[2].tensors.items()} == {
        "frames": ("uint8", (12, 96, 160, 3)),
        "frame_index": ("int64", (12,)),
        "chunk": ("int32", (3,)),
        "applied_event_id": ("int64", (1,)),
        "timings": ("float32", (6,)),
    }
    timings = join(through_world, "timings").reshape(3, 6)
    assert np.isfinite(timings).all()
    assert (timings[:, 5] >= timings[:, 2]).all()


@pytest.mark.parametrize("name", [next(IDS), "Straße 🌸"])
def test_a_session_can_go_through_both_entrances(server: Any, name: int | str) -> None:
    steered = {"actions": ["w"] * 3, "num_steps": 1}
    mixed = [
        *ask(server.grpc, make_request("world", {"image": [PNG], **steered}, sequence_id=name, sequence_start=True)),
        *ask(server.grpc, make_request("denoise", steered, sequence_id=name)),
        *ask(server.grpc, make_request("world", steered, sequence_id=name)),
        *ask(server.grpc, make_request("world", steered, sequence_id=name, sequence_end=True)),
    ]
    direct = ask(server.grpc, make_request("denoise", {"pixels": PICTURE, **steered, "actions": ["w"] * 12}))
    assert np.concatenate([response["frame_index"] for response in mixed]).tolist() == list(range(45))
    assert np.concatenate([response["frames"] for response in mixed]).tobytes() == join(direct).tobytes()


def test_size_fits_the_picture_before_it_starts_the_session(server: Any) -> None:
    large = png(np.repeat(np.repeat(PICTURE, 2, axis=1), 2, axis=2))
    fitted = join(ask(server.grpc, make_request("world", {"image": [large], "size": [96, 160], "num_steps": 1})))
    unfitted = join(ask(server.grpc, make_request("world", {"image": [large], "num_steps": 1})))
    assert mean_difference(fitted, unfitted) < 2  # two ways to halve a picture


@pytest.mark.parametrize("parameters", [{}, {"sequence_id": 5999, "sequence_start": True}], ids=["single", "start"])
@pytest.mark.parametrize(
    ("image", "words"),
    [
        (PNG[:-30], "image[0]: wanted a whole PNG"),
        (b"no picture", "image[0]: "),
        ("https://example.com/a.png", "image[0]: wanted a picture, came a URL"),
    ],
)
def test_a_picture_that_is_none_is_refused_once_and_starts_nothing(
    server: Any, image: Any, words: str, parameters: Any
) -> None:
    before = settled_metrics(server.metrics)
    responses = ask(server.grpc, make_request("world", {"image": [image]}, **parameters))
    assert [response.is_final for response in responses] == [True]
    assert responses[0].error.startswith(f"in ensemble 'world', INVALID_INPUT: {words}")
    assert ".py" not in responses[0].error
    assert settled_metrics(server.metrics) == before
    assert len(join(ask(server.grpc, make_request("world", {"image": [PNG], "num_steps": 1})))) == 9


def frames_of(events: list[dict[str, Any]]) -> Array:
    return np.concatenate([np.array(event["frames"], np.uint8).reshape(-1, 96, 160, 3) for event in events])


def index_of(events: list[dict[str, Any]]) -> list[int]:
    return [number for event in events for number in event["frame_index"]]


IMAGE_TEXT = base64.b64encode(PNG).decode()


def test_http_generate_stream_sends_the_frames_of_denoise(server: Any) -> None:
    inputs = {"actions": ["w", "", "l", "w"], "prompt": "Ein Garten im Frühling 🌸", "num_steps": 2, "event_id": 12}
    events = generate_stream(server, image=IMAGE_TEXT, **inputs)
    direct = join(ask(server.grpc, make_request("denoise", {"pixels": PICTURE, **inputs})))
    assert index_of(events) == list(range(21))
    assert frames_of(events).tobytes() == direct.tobytes()
    assert [event["applied_event_id"] for event in events] == [12, 12]
    assert [event["chunk"] for event in events] == [[0, 0, 1], [1, 0, 1]]
    assert [len(event["timings"]) for event in events] == [6, 6]


@pytest.mark.parametrize("name", ["browser", "Fenster 🌸", 5998])
def test_http_parameters_carry_a_session(server: Any, name: int | str) -> None:
    one = {"num_steps": 1, "num_chunks": 1}
    events = [
        *generate_stream(server, image=IMAGE_TEXT, **one, parameters={"session": name, "session_start": True}),
        *generate_stream(server, **one, parameters={"session": name}),
        *generate_stream(server, **one, parameters={"session": name, "session_end": True}),
    ]
    direct = join(ask(server.grpc, make_request("denoise", {"pixels": PICTURE, "num_steps": 1, "num_chunks": 3})))
    assert index_of(events) == list(range(33))
    assert frames_of(events).tobytes() == direct.tobytes()
    status, gone = post(server, {**one, "parameters": {"session": name}})
    assert status == 400  # whatever the code: generate_stream knows no other
    assert [sorted(event) for event in gone] == [["error"]]
    assert "SESSION_NOT_FOUND: sequence_id: no session with this id" in gone[0]["error"]


def test_http_without_an_id_is_a_session_of_one_request(server: Any) -> None:
    before = settled_metrics(server.metrics)["active_sessions"]
    events = [generate_stream(server, image=IMAGE_TEXT, num_steps=1, num_chunks=2) for _ in range(2)]
    assert [index_of(each) for each in events] == [list(range(21))] * 2
    assert frames_of(events[0]).tobytes() == frames_of(events[1]).tobytes()
    assert settled_metrics(server.metrics)["active_sessions"] == before


def test_http_and_grpc_share_a_session(server: Any) -> None:
    name = next(IDS)
    generate_stream(server, image=IMAGE_TEXT, num_steps=1, parameters={"session": name, "session_start": True})
    last = ask(server.grpc, make_request("denoise", {"num_chunks": 1}, sequence_id=name, sequence_end=True))
    assert join(last, "frame_index").tolist() == list(range(9, 21))


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ({"image": "not base64!"}, "INVALID_INPUT: image[0]: "),
        ({"image": IMAGE_TEXT, "num_steps": 51}, "INVALID_INPUT: num_steps"),
        ({"image": IMAGE_TEXT, "num_chunks": 65}, "TOO_LARGE: num_chunks"),
        ({"image": IMAGE_TEXT, "actions": ["q"]}, "INVALID_INPUT: actions: frame 0"),
        ({"num_chunks": 1}, "INVALID_INPUT: image: wanted at least one picture, came none"),
        ({"image": IMAGE_TEXT, "parameters": {"session": 0}}, "INVALID_INPUT: parameter 'session'"),
        ({"image": IMAGE_TEXT, "colour": "red"}, "INVALID_INPUT: 'colour' is neither an input"),
    ],
)
def test_http_errors_are_one_event_that_names_the_input(server: Any, body: dict[str, Any], words: str) -> None:
    status, events = post(server, body)
    assert status == 400
    assert [sorted(event) for event in events] == [["error"]]
    assert events[0]["error"].startswith(f"in ensemble 'world', {words}")
    assert len(generate_stream(server, image=IMAGE_TEXT, num_steps=1)) == 1


@pytest.mark.parametrize("name", [b"session", b"frame_encoding"])
def test_http_parameters_that_are_no_text_are_refused(server: Any, name: bytes) -> None:
    image = base64.b64encode(png(picture()))
    body = b'{"image": "' + image + b'", "num_steps": 1, "' + name + b'": "\xff\xfe"}'
    url = f"http://{server.http}/v2/models/world/generate_stream"
    request = urllib.request.Request(url, body, {"Content-Type": "application/json"})
    with pytest.raises(urllib.error.HTTPError) as refused:
        urllib.request.urlopen(request, timeout=60)
    with refused.value as answer:
        assert "INVALID_INPUT: parameters: wanted names and texts in UTF-8" in answer.read().decode()
