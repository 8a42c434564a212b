"""Every refusal of `denoise` on the real server, through both entrances: one response, nothing private."""

import itertools
import re
from typing import Any

import numpy as np
import pytest

from tests.server.raw import Array, Response, Stream, ask, join, make_request, picture, png, wait_for_metrics, walk

PICTURE = picture()
ENTRANCES: dict[str, dict[str, Any]] = {"denoise": {"pixels": PICTURE}, "world": {"image": [png(PICTURE)]}}
IDS = itertools.count(2000)
CODE_WORDS = (
    "INVALID_INPUT|TOO_LARGE|SESSION_NOT_FOUND|SESSION_EXISTS|SESSION_LIMIT|BUSY|CANCELLED|UNAVAILABLE|INTERNAL"
)
PRIVATE = re.compile(r"(^|[\s'\"(])[~.]?/\w|\w/\w+/|\.py\b|Traceback|\bline \d+|0x[0-9a-f]{6}")

pytestmark = [pytest.mark.server, pytest.mark.parametrize("model", ["denoise", "world"])]


def assert_refused(responses: list[Response], code: str, *words: str) -> None:
    """One response, error and final flag together, with its code word first and nothing that is not the client's."""
    assert len(responses) == 1
    error = responses[0].error
    assert responses[0].is_final
    assert responses[0].tensors == {}
    # An ensemble puts its own words before the code word.
    assert re.findall(CODE_WORDS, error) == [code]
    assert error.removeprefix("in ensemble 'world', ").startswith(f"{code}: ")
    for word in words:
        assert word in error
    assert not PRIVATE.search(error)
    assert len(error) < 500


def assert_good(server: Any, model: str) -> None:
    """A good request works."""
    frames = join(ask(server.grpc, make_request(model, {**ENTRANCES[model], "num_steps": 1})))
    assert frames.shape == (9, 96, 160, 3)


def pose(rotation: Any) -> Array:
    """One camera pose [1, 4, 4] with this 3 x 3 part, one to the right of the origin."""
    cam_to_world = np.eye(4, dtype=np.float32)
    cam_to_world[:3, :3] = rotation
    cam_to_world[0, 3] = 1
    return cam_to_world[None]


NOT_FINITE, TRANSPOSED = pose(np.eye(3)), np.swapaxes(pose(np.eye(3)), 1, 2)
NOT_FINITE[0, 1, 1] = np.nan
SECOND_IS_BAD = np.concatenate([pose(np.eye(3)), pose(2 * np.eye(3))])

BAD_INPUTS: list[tuple[dict[str, Any], str, tuple[str, ...]]] = [
    ({"cam_to_world": NOT_FINITE}, "INVALID_INPUT", ("cam_to_world: frame 0", "not finite")),
    ({"cam_to_world": SECOND_IS_BAD}, "INVALID_INPUT", ("cam_to_world: frame 1", "not a rotation", "det = 8.000")),
    (
        {"cam_to_world": pose(np.diag([1, -1, 1]))},
        "INVALID_INPUT",
        ("cam_to_world: frame 0", "mirrored", "det = -1.000"),
    ),
    (
        {"cam_to_world": TRANSPOSED},
        "INVALID_INPUT",
        ("cam_to_world: frame 0", "bottom row 0 0 0 1, got 1 0 0 1", "transposed"),
    ),
    ({"cam_to_world": np.zeros((0, 4, 4))}, "INVALID_INPUT", ("cam_to_world: wanted one pose or more, got none",)),
    ({"cam_to_world": walk(1), "actions": ["w"]}, "INVALID_INPUT", ("actions", "cam_to_world", "got both")),
    ({"actions": ["w", "wx"]}, "INVALID_INPUT", ("actions: frame 1", "'x'", "w a s d")),
    ({"actions": ["W"]}, "INVALID_INPUT", ("actions: frame 0", "'W'", "lower case: w")),
    ({"actions": ["ww"]}, "INVALID_INPUT", ("actions: frame 0", "'w' comes twice", "one entry a latent frame")),
    ({"actions": []}, "INVALID_INPUT", ("actions: wanted one entry or more, got none",)),
    ({"actions": [b"w", b"\xff"]}, "INVALID_INPUT", ("actions: frame 1", "UTF-8")),
    (
        {"actions": ["w"] * 7, "num_chunks": 2},
        "INVALID_INPUT",
        ("actions: 7 latent frames fill 3 chunks", "num_chunks"),
    ),
    ({"intrinsics": [[0, 100, 80, 48]]}, "INVALID_INPUT", ("intrinsics: row 0", "positive", "got 0, 100")),
    ({"intrinsics": [[100, 100, np.inf, 48]]}, "INVALID_INPUT", ("intrinsics: row 0", "not finite")),
    (
        {"intrinsics": [[0.8, 1.2, 0.5, 0.5]]},
        "INVALID_INPUT",
        ("intrinsics: row 0", "got 0.8 1.2 0.5 0.5", "normalised"),
    ),
    (
        {"cam_to_world": walk(3), "intrinsics": [[100, 100, 80, 48]] * 2},
        "INVALID_INPUT",
        ("intrinsics: wanted 1 row, or one per pose (3 came), got 2 rows",),
    ),
    ({"translation_scale": 0}, "INVALID_INPUT", ("translation_scale: wanted a positive number, got 0",)),
    ({"translation_scale": np.nan}, "INVALID_INPUT", ("translation_scale", "got nan")),
    ({"num_chunks": 0}, "INVALID_INPUT", ("num_chunks: wanted 1 or more, got 0",)),
    ({"num_chunks": 65}, "TOO_LARGE", ("num_chunks: wanted at most 64", "got 65")),
    ({"actions": ["w"] * 193}, "TOO_LARGE", ("actions: wanted at most 192 entries", "got 193")),
    ({"cam_to_world": walk(193)}, "TOO_LARGE", ("cam_to_world: wanted at most 192 poses", "got 193")),
    ({"num_steps": 0}, "INVALID_INPUT", ("num_steps", "50", "0")),
    ({"num_steps": 51}, "INVALID_INPUT", ("num_steps", "50", "51")),
    ({"event_id": -1}, "INVALID_INPUT", ("event_id: wanted 0 or more, got -1",)),
    ({"prompt": b"gr\xfcn"}, "INVALID_INPUT", ("prompt", "UTF-8")),
    ({"prompt": "x" * 5000}, "TOO_LARGE", ("prompt: wanted at most 4096 bytes, got 5000",)),
]


@pytest.mark.parametrize(("inputs", "code", "words"), BAD_INPUTS, ids=[words[0] for _, _, words in BAD_INPUTS])
def test_a_bad_input_is_named(
    server: Any, model: str, inputs: dict[str, Any], code: str, words: tuple[str, ...]
) -> None:
    assert_refused(ask(server.grpc, make_request(model, {**ENTRANCES[model], **inputs})), code, *words)
    assert_good(server, model)


@pytest.mark.parametrize(
    ("parameters", "words"),
    [
        ({"sequence_start": True}, ("sequence_id", "sequence_start", "got none")),
        ({"sequence_end": True}, ("sequence_id", "sequence_end", "got none")),
        ({"session_start": True}, ("'session'", "session_start", "got none")),
        ({"session": ""}, ("'session'", "string of 1 to 128 characters", "got ''")),
        ({"session": True}, ("'session'", "got True")),
        ({"session": "x" * 129, "session_start": True}, ("'session'", "string of 1 to 128 characters")),
        ({"session": "a", "session_end": 1}, ("'session_end'", "true or false", "got 1")),
        ({"sequence_id": 2999, "session": "a"}, ("'session'", "sequence_id")),
        ({"colour": "red"}, ("'colour'", "neither an input", "fit")),
        ({"fit": "squeeze"}, ("'fit'", "crop or stretch", "got 'squeeze'")),
    ],
)
def test_a_bad_parameter_is_named(server: Any, model: str, parameters: Any, words: tuple[str, ...]) -> None:
    assert_refused(ask(server.grpc, make_request(model, ENTRANCES[model], **parameters)), "INVALID_INPUT", *words)
    assert_good(server, model)


@pytest.mark.parametrize("id_parameters", [{}, {"sequence_id": 2998, "sequence_start": True}], ids=["single", "start"])
def test_a_start_without_a_picture_names_the_input(server: Any, model: str, id_parameters: Any) -> None:
    missing = {"denoise": "pixels: wanted the picture", "world": "image: wanted at least one picture"}[model]
    responses = ask(server.grpc, make_request(model, {"num_chunks": 1}, **id_parameters))
    assert_refused(responses, "INVALID_INPUT", missing, "none")
    assert_good(server, model)


def start_with(model: str, pixels: Array) -> dict[str, Any]:
    """The input of either entrance for pictures [N, H, W, 3]."""
    return {"pixels": pixels} if model == "denoise" else {"image": [png(each[None]) for each in pixels]}


def test_two_pictures_are_refused(server: Any, model: str) -> None:
    two = start_with(model, np.repeat(PICTURE, 2, axis=0))
    refused = ask(server.grpc, make_request(model, two))
    assert_refused(refused, "INVALID_INPUT", "pixels: wanted exactly one picture, got 2")
    assert_good(server, model)


def test_a_picture_over_the_limit_is_refused(server: Any, model: str) -> None:
    large = start_with(model, np.zeros((1, 4097, 4096, 3), np.uint8))  # one row more than 16 Mi pixels
    name = {"denoise": "pixels: ", "world": "image[0]"}[model]
    assert_refused(ask(server.grpc, make_request(model, large)), "TOO_LARGE", name, "4097")
    assert_good(server, model)


@pytest.mark.parametrize(
    ("inputs", "parameters", "words"),
    [
        ({"seed": 1}, {}, ("seed", "starts")),
        ({"translation_scale": 1}, {}, ("translation_scale", "starts")),
        ({}, {"fit": "crop"}, ("'fit'", "starts")),
        ("picture", {}, ("pixels", "starts a session")),
        ({"num_chunks": 0}, {"sequence_end": True}, ("num_chunks", "got 0")),
        ({"cam_to_world": NOT_FINITE}, {"sequence_end": True}, ("cam_to_world", "not finite")),
    ],
    ids=["seed", "translation_scale", "fit", "picture", "end of none", "end with a bad pose"],
)
def test_a_refused_request_leaves_its_session_alone(
    server: Any, model: str, inputs: Any, parameters: Any, words: tuple[str, ...]
) -> None:
    name = next(IDS)
    start = make_request(model, {**ENTRANCES[model], "num_steps": 1}, sequence_id=name, sequence_start=True)
    assert len(join(ask(server.grpc, start))) == 9
    bad = make_request(model, ENTRANCES[model] if inputs == "picture" else inputs, sequence_id=name, **parameters)
    assert_refused(ask(server.grpc, bad), "INVALID_INPUT", *words)
    good = make_request(model, {"num_chunks": 1, "num_steps": 1}, sequence_id=name, sequence_end=True)
    assert join(ask(server.grpc, good), "frame_index").tolist() == list(range(9, 21))


@pytest.mark.parametrize("name", [2997, "nobody"])
@pytest.mark.parametrize("parameters", [{}, {"sequence_end": True}])
def test_an_unknown_session_is_not_found(server: Any, model: str, name: int | str, parameters: Any) -> None:
    responses = ask(server.grpc, make_request(model, {}, sequence_id=name, **parameters))
    assert_refused(responses, "SESSION_NOT_FOUND", "sequence_id", "sequence_start")
    assert_good(server, model)


def test_an_ended_session_is_not_found(server: Any, model: str) -> None:
    name = next(IDS)
    inputs = {**ENTRANCES[model], "num_steps": 1}
    assert_started(
        ask(server.grpc, make_request(model, inputs, sequence_id=name, sequence_start=True, sequence_end=True))
    )
    assert_refused(ask(server.grpc, make_request(model, {}, sequence_id=name)), "SESSION_NOT_FOUND", "sequence_id")
    assert_started(ask(server.grpc, make_request(model, inputs, sequence_id=name, sequence_start=True)))
    assert_refused_nothing(ask(server.grpc, make_request(model, {}, sequence_id=name, sequence_end=True)))


def assert_started(responses: list[Response]) -> None:
    assert join(responses, "frame_index").tolist() == list(range(9))


def assert_refused_nothing(responses: list[Response]) -> None:
    """The answer to a bare end: one response, no frames, the final flag."""
    assert join(responses).shape == (0, 96, 160, 3)
    assert join(responses, "frame_index").tolist() == []
    assert len(responses) == 1


def test_a_live_session_cannot_be_started_again(server: Any, model: str) -> None:
    name = next(IDS)
    start = make_request(model, {**ENTRANCES[model], "num_steps": 1}, sequence_id=name, sequence_start=True)
    assert_started(ask(server.grpc, start))
    assert_refused(ask(server.grpc, start), "SESSION_EXISTS", "sequence_id")
    last = make_request(model, {"num_chunks": 1, "num_steps": 1}, sequence_id=name, sequence_end=True)
    assert join(ask(server.grpc, last), "frame_index").tolist() == list(range(9, 21))


def test_a_request_too_many_is_refused_at_once_and_the_others_run(server: Any, model: str) -> None:
    name = next(IDS)
    long = {**ENTRANCES[model], "num_chunks": 2, "num_steps": 50}
    with Stream(server.grpc) as stream:
        stream.send(make_request(model, long, sequence_id=name, sequence_start=True))
        assert stream.receive().is_final is False
        stream.send(*[make_request(model, {"num_steps": 1}, sequence_id=name) for _ in range(4)])
        assert_refused([stream.receive()], "BUSY", "request", "at most 4 unanswered requests of one session")
        rest = stream.receive_all()
    assert [response.error for response in rest] == [""] * 4
    assert [response.is_final for response in rest] == [True] * 4
    assert [int(response["chunk"][0]) for response in rest] == [1, 2, 3, 4]
    assert_refused_nothing(ask(server.grpc, make_request(model, {}, sequence_id=name, sequence_end=True)))


def test_a_bare_end_cancels_what_runs_and_waits(server: Any, model: str) -> None:
    name = next(IDS)
    long = {**ENTRANCES[model], "num_chunks": 64, "num_steps": 50}
    with Stream(server.grpc) as stream:
        stream.send(make_request(model, long, sequence_id=name, sequence_start=True))
        assert stream.receive().is_final is False
        stream.send(*[make_request(model, {}, sequence_id=name) for _ in range(4)])
        # Three of the four are accepted: the refusal of one says so.
        assert_refused([stream.receive()], "BUSY", "request")
        assert_refused_nothing(ask(server.grpc, make_request(model, {}, sequence_id=name, sequence_end=True)))
        cancelled = [response for response in stream.receive_all() if response.is_final]
    assert len(cancelled) == 4
    for response in cancelled:
        assert_refused([response], "CANCELLED", "request", "session was ended")
    assert_refused(ask(server.grpc, make_request(model, {}, sequence_id=name)), "SESSION_NOT_FOUND", "sequence_id")
    assert wait_for_metrics(server.metrics, active_sessions=0, session_bytes=0)["active_sessions"] == 0
    assert_good(server, model)
