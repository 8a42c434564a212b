"""A session saved on one server and restored on another: the same bytes as if nothing had happened."""

import itertools
import os
import signal
from typing import Any

import numpy as np
import pytest

from tests.server.processes import stub_pids
from tests.server.raw import Array, Response, Stream, ask, join, make_request, picture, settled_metrics, walk
from tests.server.test_denoise_errors import assert_refused

pytestmark = pytest.mark.server

IDS = itertools.count(1)
START: dict[str, Any] = {
    "pixels": picture(120, 170),
    "prompt": "a street",
    "seed": 11,
    "actions": ["w", "wl", "w", "w"],
}
LATER: tuple[dict[str, Any], ...] = (
    {"cam_to_world": walk(4)},
    {"actions": ["s", "j"], "prompt": "a harbour", "num_steps": 3},
    {"num_chunks": 4},
)


def new_id() -> str:
    return f"snapshot-{next(IDS)}"


def go_on(name: str, inputs: Any = None, **parameters: Any) -> Any:
    return make_request("denoise", inputs or {}, sequence_id=name, **parameters)


def end(server: Any, name: str) -> None:
    ask(server.grpc, go_on(name, sequence_end=True))


def start(server: Any, name: str) -> Array:
    return join(ask(server.grpc, go_on(name, START, sequence_start=True)))


def continued(server: Any, name: str) -> list[Array]:
    """The frames of all later requests, and the end of the session."""
    answers = [join(ask(server.grpc, go_on(name, inputs))) for inputs in LATER]
    end(server, name)
    return answers


def save(server: Any, name: str) -> Array:
    return join(ask(server.grpc, go_on(name, save=True)), "snapshot")


def restore(server: Any, name: str, file: Array, **inputs: Any) -> list[Response]:
    return ask(server.grpc, go_on(name, {"snapshot": file, **inputs}, sequence_start=True))


@pytest.fixture(scope="module")
def saved(server: Any) -> tuple[Array, list[Array]]:
    """The file of a session after its first request, and what followed in it."""
    name = new_id()
    start(server, name)
    file = save(server, name)
    return file, continued(server, name)


def test_a_fresh_server_goes_on_where_another_was_killed(start_server: Any, saved: Any) -> None:
    _, wanted = saved
    first = start_server()
    start(first, "robot")
    file = save(first, "robot")
    for pid in (*stub_pids(first.pid), first.pid):
        os.kill(pid, signal.SIGKILL)
    second = start_server()
    [answer] = restore(second, "robot", file)
    assert answer.is_final
    for frames, each in zip(continued(second, "robot"), wanted, strict=True):
        np.testing.assert_array_equal(frames, each)


def test_a_restored_session_numbers_its_frames_on(server: Any, saved: Any) -> None:
    name = new_id()
    responses = restore(server, name, saved[0], actions=["w"], event_id=3)
    end(server, name)
    assert join(responses, "frame_index").tolist() == list(range(21, 33))
    assert {response["chunk"][0] for response in responses} == {2}
    assert set(join(responses, "event_id")) == {3}


def test_a_bare_restore_answers_one_empty_batch(server: Any, saved: Any) -> None:
    name, before = new_id(), settled_metrics(server.metrics)["sessions_restored_total"]
    [answer] = restore(server, name, saved[0])
    end(server, name)
    assert settled_metrics(server.metrics)["sessions_restored_total"] == before + 1
    assert answer["frames"].shape == (0, 96, 160, 3)
    assert answer["chunk"].tolist() == [2, 0, 1]
    assert "snapshot" not in answer.tensors


def test_a_file_comes_in_parts_of_a_mebibyte_that_say_their_places(server: Any) -> None:
    name = new_id()
    start(server, name)
    before = settled_metrics(server.metrics)["sessions_saved_total"]
    receipt, *parts = ask(server.grpc, go_on(name, {"event_id": 4}, save=True, receipt=True))
    end(server, name)
    assert settled_metrics(server.metrics)["sessions_saved_total"] == before + 1
    assert receipt["chunk"].tolist() == [2, -1, 0]
    assert "snapshot" not in receipt.tensors
    assert len(parts) > 3
    assert [part["chunk"].tolist() for part in parts] == [[2, index, len(parts)] for index in range(len(parts))]
    assert [len(part["snapshot"]) for part in parts[:-1]] == [2**20] * (len(parts) - 1)
    assert {part["frames"].shape for part in parts} == {(0, 96, 160, 3)}
    assert set(join(parts, "event_id")) == {4}


def test_a_session_that_is_saved_and_its_twin_go_on_side_by_side(server: Any, saved: Any) -> None:
    file, wanted = saved
    one, two = new_id(), new_id()
    for name in (one, two):
        restore(server, name, file)
    with Stream(server.grpc) as stream:
        stream.send(*(go_on(name, inputs) for inputs in LATER for name in (one, two)))
        responses = stream.receive_all()
    frames = np.concatenate([response["frames"] for response in responses])
    assert len(frames) == 2 * sum(len(each) for each in wanted)
    assert frames.sum(dtype=np.int64) == 2 * sum(int(each.sum(dtype=np.int64)) for each in wanted)
    np.testing.assert_array_equal(save(server, one), save(server, two))
    end(server, one)
    end(server, two)


def test_saving_in_the_middle_of_a_request_waits_for_its_end(server: Any) -> None:
    name = new_id()
    with Stream(server.grpc) as stream:
        stream.send(go_on(name, START, sequence_start=True), go_on(name, save=True), go_on(name, LATER[0]))
        responses = stream.receive_all()
    file = np.concatenate([each["snapshot"] for each in responses if "snapshot" in each.tensors])
    twin = new_id()
    restore(server, twin, file)
    after = np.concatenate([each["frames"] for each in responses if each["chunk"][0] > 1])
    np.testing.assert_array_equal(join(ask(server.grpc, go_on(twin, LATER[0]))), after)
    end(server, name)
    end(server, twin)


def test_a_client_that_leaves_in_the_middle_of_a_file_leaves_the_session_whole(server: Any, saved: Any) -> None:
    file, wanted = saved
    name = new_id()
    restore(server, name, file)
    for _ in range(2):  # no more: a few hundred of them end Triton before 25.04 (its issue 8034)
        with Stream(server.grpc) as stream:
            stream.send(go_on(name, save=True))
            stream.receive()
            stream.cancel()
    np.testing.assert_array_equal(save(server, name), file)
    for frames, each in zip(continued(server, name), wanted, strict=True):
        np.testing.assert_array_equal(frames, each)


def test_a_live_id_is_not_restored_over(server: Any, saved: Any) -> None:
    name = new_id()
    restore(server, name, saved[0])
    assert_refused(restore(server, name, saved[0]), "SESSION_EXISTS", "sequence_id")
    end(server, name)


def test_an_unknown_session_cannot_be_saved(server: Any) -> None:
    assert_refused(ask(server.grpc, go_on(new_id(), save=True)), "SESSION_NOT_FOUND", "sequence_id")


def test_damaged_and_foreign_files_are_refused_by_name_and_leave_nothing(server: Any, saved: Any) -> None:
    before = settled_metrics(server.metrics)["active_sessions"]
    file = saved[0]
    flipped = file.copy()
    flipped[len(file) // 2] ^= 1
    for wrong, word in (
        (flipped, "checksum"),
        (file[:-1], "checksum"),
        (file[:1000], "checksum"),
        (np.zeros(0, np.uint8), "begin"),
        (picture().reshape(-1), "begin"),
    ):
        assert_refused(restore(server, new_id(), wrong), "INVALID_INPUT", "snapshot: ", word)
    assert_refused(restore(server, new_id(), np.zeros(1 << 25, np.uint8)), "TOO_LARGE", "snapshot: wanted at most")
    assert settled_metrics(server.metrics)["active_sessions"] == before


def test_a_server_with_other_weights_or_less_room_refuses(server: Any, start_server: Any, saved: Any) -> None:
    other = start_server(overrides={"denoise.weights_seed": "7"})
    assert_refused(restore(other, "robot", saved[0]), "INVALID_INPUT", "snapshot: weights")
    name = new_id()
    start(server, name)
    one = settled_metrics(server.metrics)["session_bytes"]
    end(server, name)
    small = start_server(overrides={"denoise.session_budget_bytes": str(one)})
    start(small, "another")
    assert_refused(restore(small, "robot", saved[0]), "SESSION_LIMIT", f"of {one} bytes")


def test_a_file_is_made_only_where_it_can_come_out(server: Any) -> None:
    name = new_id()
    start(server, name)
    assert_refused(ask(server.grpc, make_request("world", {}, sequence_id=name, save=True)), "INVALID_INPUT", "'save'")
    assert len(save(server, name)) > 0
    end(server, name)
