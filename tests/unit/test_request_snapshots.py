"""Which requests save a session, and which restore one."""

from __future__ import annotations

import numpy as np
import pytest
from worldmodel import snapshot
from worldmodel.errors import InvalidInputError, TooLargeError
from worldmodel.request import Envelope, parse_request
from worldmodel.serving import ServingConfig

from tests.unit.snapshots import go, save
from tests.unit.worlds import TINY, picture, tiny_world

START, GO_ON = Envelope("robot", is_start=True), Envelope("robot")


@pytest.fixture(scope="module")
def world():
    return tiny_world()


@pytest.fixture(scope="module")
def data(world):
    session = world.start(picture())
    go(world, session)
    return save(session, world)


def parse(world, tensors, envelope=START, **parameters):
    envelope = Envelope(envelope.correlation_id, envelope.is_start, envelope.is_end, parameters)
    return parse_request(tensors, envelope, TINY, ServingConfig(), snapshot.most_bytes(world))


def texts(*values):
    return np.array([value.encode() for value in values], dtype=object)


def one(value, dtype=np.int32):
    return np.array([value], dtype)


def test_a_snapshot_alone_restores_and_asks_for_no_frames(world, data):
    request = parse(world, {"snapshot": data})
    assert (request.is_start, request.is_resumed, request.is_end, request.num_chunks) == (True, True, False, 0)
    assert request.size == (32, 48)
    assert request.snapshot.chunk_index == 1
    assert not request.is_bare_end


@pytest.mark.parametrize(
    ("tensors", "num_chunks"),
    [({"actions": texts("w", "", "", "l")}, 2), ({"num_chunks": one(3)}, 3), ({"prompt": texts("night")}, 1)],
)
def test_a_snapshot_with_controls_asks_for_their_chunks(world, data, tensors, num_chunks):
    assert parse(world, {"snapshot": data, **tensors}).num_chunks == num_chunks


def test_a_snapshot_with_an_end_or_without_an_id_makes_one_chunk(world, data):
    assert parse(world, {"snapshot": data}, Envelope("robot", is_start=True, is_end=True)).num_chunks == 1
    request = parse(world, {"snapshot": data}, Envelope())
    assert (request.session, request.num_chunks, request.is_end) == (None, 1, True)


def test_the_prompt_beside_a_snapshot_is_a_switch_from_its_next_chunk_on(world, data):
    request = parse(world, {"snapshot": data, "prompt": texts("night")}, recache=True)
    assert request.controls(0, 3).prompt == "night"
    assert request.controls(0, 3).is_recached
    assert request.controls(1, 3).prompt is None


def test_the_snapshot_that_is_kept_is_a_copy(world, data):
    sent = data.copy()
    request = parse(world, {"snapshot": sent})
    sent[:] = 0
    snapshot.check(request.snapshot, world)
    assert request.waiting_bytes == len(data)


def test_a_session_starts_from_one_of_picture_and_snapshot(world, data):
    with pytest.raises(InvalidInputError, match=r"^snapshot: wanted pixels or snapshot to start a session, got both$"):
        parse(world, {"snapshot": data, "pixels": picture()[None]})
    assert parse(world, {"snapshot": data, "pixels": np.zeros((0, 0, 0, 3), np.uint8)}).is_resumed


def test_a_request_that_continues_a_session_cannot_restore_one(world, data):
    with pytest.raises(InvalidInputError, match=r"^snapshot: a session is restored by the request that starts it"):
        parse(world, {"snapshot": data}, GO_ON)


@pytest.mark.parametrize("tensor", [{"seed": one(1, np.int64)}, {"translation_scale": one(1, np.float32)}])
def test_what_a_start_sets_is_in_the_snapshot(world, data, tensor):
    with pytest.raises(InvalidInputError, match=f"^{next(iter(tensor))}: is set when a session starts"):
        parse(world, {"snapshot": data, **tensor})


@pytest.mark.parametrize("parameters", [{"fit": "crop"}, {"height": 32, "width": 48}])
def test_what_a_start_chooses_is_in_the_snapshot(world, data, parameters):
    with pytest.raises(InvalidInputError, match="is set when a session starts"):
        parse(world, {"snapshot": data}, **parameters)


def test_a_snapshot_longer_than_any_session_of_this_world_is_too_large(world):
    length = snapshot.most_bytes(world) + 1
    with pytest.raises(TooLargeError, match=f"^snapshot: wanted at most {length - 1} bytes .* got {length}$"):
        parse(world, {"snapshot": np.zeros(length, np.uint8)})


@pytest.mark.parametrize("length", [0, 1, 100])
def test_an_empty_or_short_snapshot_is_refused(world, length):
    with pytest.raises(InvalidInputError, match=r"^snapshot: wanted the bytes of a session's snapshot"):
        parse(world, {"snapshot": np.zeros(length, np.uint8)})


def test_a_request_that_saves_computes_nothing(world):
    request = parse(world, {"event_id": one(5, np.int64)}, GO_ON, save=True)
    assert (request.is_saving, request.num_chunks, request.event_id) == (True, 0, 5)
    assert not request.is_bare_end
    assert not parse(world, {}, GO_ON, save=False).is_saving


@pytest.mark.parametrize(
    "envelope", [START, Envelope("robot", is_end=True), Envelope("robot", is_start=True, is_end=True), Envelope()]
)
def test_only_a_request_that_continues_a_session_saves_it(world, envelope):
    with pytest.raises(InvalidInputError, match=r"^parameter 'save': wanted it in a request that continues a session"):
        parse(world, {}, envelope, save=True)


@pytest.mark.parametrize(
    "tensors",
    [
        {"actions": texts("w")},
        {"num_chunks": one(1)},
        {"prompt": texts("night")},
        {"num_steps": one(2)},
        {"pixels": picture()[None]},
        {"snapshot": np.zeros(9, np.uint8)},
    ],
)
def test_a_request_that_saves_takes_no_controls(world, tensors):
    with pytest.raises(InvalidInputError, match=f"^{next(iter(tensors))}: a request that saves its session"):
        parse(world, tensors, GO_ON, save=True)


@pytest.mark.parametrize("parameter", [{"fps": 16}, {"fit": "crop"}, {"frame_encoding": "png"}, {"step_cache": "off"}])
def test_a_request_that_saves_takes_no_options_of_frames(world, parameter):
    with pytest.raises(InvalidInputError, match=f"^parameter '{next(iter(parameter))}': a request that saves"):
        parse(world, {}, GO_ON, save=True, **parameter)


@pytest.mark.parametrize("value", [1, "true", None])
def test_whether_to_save_is_true_or_false(world, value):
    with pytest.raises(InvalidInputError, match=r"^parameter 'save': wanted true or false"):
        parse(world, {}, GO_ON, save=value)
