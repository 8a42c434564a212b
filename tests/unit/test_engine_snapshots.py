"""Snapshots through the engine: in turn, in parts, within bounds, and restored as a start."""

from __future__ import annotations

import threading
from dataclasses import replace

import numpy as np
import pytest
from worldmodel import snapshot
from worldmodel.errors import (
    BusyError,
    CancelledError,
    InternalError,
    InvalidInputError,
    SessionExistsError,
    SessionLimitError,
    SessionNotFoundError,
    UnavailableError,
)
from worldmodel.saver import cut

from tests.unit.engines import WAIT_S, Gate, ask, bare_end, go_on, start
from tests.unit.snapshots import changed
from tests.unit.worlds import tiny_world
from tests.waiting import wait_for

PART = 20_000


def save(name):
    return go_on(name, num_chunks=0, is_saving=True)


def saved(reply):
    """The whole file of a reply; its parts must say their places."""
    assert reply.done.wait(WAIT_S)
    if reply.error is not None:
        raise reply.error
    places = [batch.chunk for batch in reply.batches]
    assert places == [(places[0][0], part, len(places)) for part in range(len(places))]
    return np.concatenate([batch.snapshot for batch in reply.batches])


def opened(data, world):
    return snapshot.open_snapshot(data, world.config, snapshot.most_bytes(world))


def restore(name, data, world, num_chunks=0, **changes):
    found = opened(data, world)
    options = {"picture": None, "snapshot": found, "size": found.size, "is_resumed": True, **changes}
    return start(name, num_chunks=num_chunks, **options)


@pytest.fixture
def engine_and_file(make_engine):
    """An engine, its world, the file of a session after two chunks, and the frames that follow in it."""
    engine, world = make_engine(response_bytes=PART)
    ask(engine, start("a", 2, actions=("w", "l"))).frames()
    data = saved(ask(engine, save("a")))
    wanted = ask(engine, go_on("a", 2, actions=("w", "", "j"), prompt="night")).frames()
    ask(engine, bare_end("a")).frames()
    return engine, world, data, wanted


def test_a_session_resumed_in_another_engine_equals_the_uninterrupted_one(make_engine, engine_and_file):
    _, _, data, wanted = engine_and_file
    engine, world = make_engine()
    reply = ask(engine, restore("b", data, world))
    assert reply.frames().shape == (0, 32, 48, 3)
    assert reply.batches[0].chunk == (2, 0, 1)
    going_on = ask(engine, go_on("b", 2, actions=("w", "", "j"), prompt="night"))
    np.testing.assert_array_equal(going_on.frames(), wanted)
    assert going_on.batches[0].frame_index[0] == 9 + 12
    assert going_on.batches[0].chunk[0] == 2


def test_the_request_that_restores_may_ask_for_frames_at_once(engine_and_file):
    engine, world, data, wanted = engine_and_file
    reply = ask(engine, restore("b", data, world, 2, actions=("w", "", "j"), prompt="night", is_end=True))
    np.testing.assert_array_equal(reply.frames(), wanted)
    with pytest.raises(SessionNotFoundError):
        ask(engine, go_on("b"))


def test_parts_are_bounded_and_say_their_places(engine_and_file, make_engine):
    engine, _ = make_engine(response_bytes=PART)
    ask(engine, start("a", 3)).frames()
    reply = ask(engine, save("a"))
    saved(reply)
    assert len(reply.batches) > 3
    assert max(len(batch.snapshot) for batch in reply.batches) == PART
    assert [batch.is_last for batch in reply.batches] == [False] * (len(reply.batches) - 1) + [True]
    assert all(batch.frames.shape == (0, 32, 48, 3) for batch in reply.batches)


def test_a_snapshot_waits_for_the_requests_before_it_and_not_for_those_behind(make_engine):
    engine, world = make_engine()
    gate = Gate(world)
    gate.close()
    first = ask(engine, start("a", 2))
    file, later = ask(engine, save("a")), ask(engine, go_on("a"))
    gate.open.set()
    first.frames(), later.frames()
    assert opened(saved(file), world).chunk_index == 2


def test_a_snapshot_answers_its_event_and_computes_nothing(make_engine):
    engine, _ = make_engine()
    ask(engine, start("a")).frames()
    before = engine.stats()
    reply = ask(engine, replace(save("a"), event_id=7))
    saved(reply)
    assert {batch.event_id for batch in reply.batches} == {7}
    assert (engine.stats().denoising_steps, engine.stats().chunks) == (before.denoising_steps, before.chunks)


def test_sessions_of_others_go_on_between_and_change_nothing(engine_and_file):
    engine, world, data, wanted = engine_and_file
    other = start("other", 3, actions=("s",))
    alone = ask(engine, replace(other, is_end=True)).frames()
    one = ask(engine, restore("b", data, world, 2, actions=("w", "", "j"), prompt="night"))
    two = ask(engine, other)
    np.testing.assert_array_equal(one.frames(), wanted)
    np.testing.assert_array_equal(two.frames(), alone)


def test_a_paced_session_is_saved_between_its_chunks_and_its_twin_takes_a_pace_of_its_own(make_engine):
    engine, world = make_engine()
    ask(engine, start("a", 2, fps=1000.0)).frames()
    file = ask(engine, save("a"))
    wanted = ask(engine, go_on("a", 2, actions=("w",), fps=1000.0)).frames()
    reply = ask(engine, restore("b", saved(file), world, 2, actions=("w",), fps=500.0))
    np.testing.assert_array_equal(reply.frames(), wanted)


def test_the_snapshot_of_an_unknown_session_is_not_found(make_engine):
    engine, _ = make_engine()
    with pytest.raises(SessionNotFoundError):
        ask(engine, save("nobody"))


def test_a_snapshot_behind_an_end_is_not_found(make_engine):
    engine, world = make_engine()
    gate = Gate(world)
    gate.close()
    ask(engine, start("a", is_end=True))
    with pytest.raises(SessionNotFoundError):
        ask(engine, save("a"))
    gate.open.set()


def test_a_snapshot_behind_a_start_that_fails_is_not_found(make_engine):
    engine, world = make_engine()
    gate = Gate(world)
    gate.close()
    ask(engine, start("other"))
    ask(engine, start("a", num_steps=77))
    file = ask(engine, save("a"))
    gate.open.set()
    with pytest.raises(SessionNotFoundError):
        saved(file)


def test_a_live_id_cannot_be_restored_over(engine_and_file):
    engine, world, data, _ = engine_and_file
    ask(engine, start("a")).frames()
    with pytest.raises(SessionExistsError):
        ask(engine, restore("a", data, world))


def test_a_restored_session_is_admitted_by_its_bytes(make_engine, engine_and_file):
    _, _, data, _ = engine_and_file
    engine, world = make_engine(session_budget_bytes=tiny_world().session_bytes())
    ask(engine, restore("a", data, world)).frames()
    assert engine.stats().session_bytes == world.session_bytes()
    with pytest.raises(SessionLimitError):
        ask(engine, restore("b", data, world))


def test_a_file_of_other_weights_is_refused_before_anything_is_reserved(make_engine, engine_and_file):
    engine, world, data, _ = engine_and_file
    model = {**opened(data, world).document["model"], "weights": "0" * 32}
    with pytest.raises(InvalidInputError, match="weights"):
        ask(engine, restore("b", changed(data, {"model": model}), world))
    assert engine.stats().active_sessions == 0


def test_a_number_that_is_not_finite_leaves_no_session(engine_and_file):
    engine, world, data, _ = engine_and_file
    tensor = opened(data, world).tensors["keys.0"].tensor().clone()
    tensor.view(-1)[3] = np.nan
    with pytest.raises(InvalidInputError, match="keys: a number is not finite"):
        ask(engine, restore("b", changed(data, tensors={"keys.0": tensor}), world)).frames()
    assert engine.stats().active_sessions == 0


def test_a_receipt_of_a_restored_session_counts_on_from_its_chunks(engine_and_file):
    engine, world, data, _ = engine_and_file
    reply = ask(engine, restore("b", data, world, 1, wants_receipt=True))
    reply.frames()
    assert reply.batches[0].chunk == (2, -1, 0)


def test_a_receipt_of_a_save_says_which_chunk_the_file_will_hold(make_engine):
    engine, world = make_engine(response_bytes=PART)
    frames = ask(engine, start("a", 3))
    file = ask(engine, go_on("a", num_chunks=0, is_saving=True, wants_receipt=True))
    frames.frames()
    assert file.done.wait(WAIT_S)
    receipt, *parts = file.batches
    assert (receipt.chunk[:2], receipt.snapshot) == ((3, -1), None)
    assert opened(np.concatenate([part.snapshot for part in parts]), world).chunk_index == 3


def test_a_bare_restore_may_have_a_receipt(engine_and_file):
    engine, world, data, _ = engine_and_file
    reply = ask(engine, restore("b", data, world, wants_receipt=True))
    assert reply.done.wait(WAIT_S)
    assert [(batch.chunk, batch.is_last) for batch in reply.batches] == [((2, -1, 0), False), ((2, 0, 1), True)]


def test_files_and_what_begins_from_them_are_counted(engine_and_file):
    engine, world, data, _ = engine_and_file
    before = engine.stats()
    ask(engine, restore("b", data, world)).frames()
    saved(ask(engine, save("b")))
    with pytest.raises(SessionNotFoundError):
        saved(ask(engine, save("nobody")))
    after = engine.stats()
    assert after.sessions_restored - before.sessions_restored == 1
    assert after.sessions_saved - before.sessions_saved == 1


def test_the_end_of_a_session_does_not_take_its_snapshot_away(make_engine):
    engine, world = make_engine(response_bytes=1000)
    ask(engine, start("a", 3)).frames()
    file, end = ask(engine, save("a")), ask(engine, go_on("a", is_end=True))
    end.frames()
    assert opened(saved(file), world).chunk_index == 3


def test_files_under_way_are_bounded_by_their_bytes(make_engine):
    world_bytes = tiny_world().session_bytes()
    engine, world = make_engine(max_waiting_picture_bytes=2 * world_bytes)
    gate = Gate(world)
    ask(engine, start("a")).frames()
    gate.close()
    running = ask(engine, go_on("a"))
    files = [ask(engine, save("a")), ask(engine, save("a"))]
    with pytest.raises(BusyError, match="snapshot: "):
        ask(engine, save("a"))
    gate.open.set()
    running.frames()
    for file in files:
        saved(file)
    wait_for(lambda: engine._saver.num_bytes == 0)
    saved(ask(engine, save("a")))


def test_a_client_that_is_gone_gets_no_further_parts(make_engine):
    engine, _ = make_engine(response_bytes=100)
    ask(engine, start("a")).frames()
    reply = SlowReply(after=3)
    engine.submit(save("a"), reply)
    assert reply.done.wait(WAIT_S)
    assert isinstance(reply.error, CancelledError)
    assert len(reply.batches) < 50
    wait_for(lambda: engine._saver.num_bytes == 0)
    ask(engine, go_on("a")).frames()


def test_a_part_that_cannot_be_sent_ends_the_snapshot_and_nothing_else(make_engine):
    engine, _ = make_engine(response_bytes=100)
    ask(engine, start("a")).frames()
    reply = SlowReply(after=2, has_broken=True)
    engine.submit(save("a"), reply)
    assert reply.done.wait(WAIT_S)
    assert isinstance(reply.error, InternalError)
    wait_for(lambda: engine._saver.num_bytes == 0)
    saved(ask(engine, save("a")))


def test_a_file_that_is_being_sent_when_the_server_stops_is_sent_to_its_end(make_engine):
    engine, world = make_engine(response_bytes=1000)
    ask(engine, start("a", 3)).frames()
    file = ask(engine, save("a"))
    assert file.first.wait(WAIT_S)
    engine.close()
    assert opened(saved(file), world).chunk_index == 3
    with pytest.raises(UnavailableError):
        ask(engine, save("a"))


class SlowReply:
    """A reply that is cancelled, or whose way breaks, after some parts."""

    def __init__(self, after, has_broken=False):
        self.after, self.has_broken = after, has_broken
        self.batches, self.error, self.done = [], None, threading.Event()

    def send(self, batch):
        if self.has_broken and len(self.batches) == self.after:
            raise RuntimeError("the way is broken")
        self.batches.append(batch)

    def fail(self, error):
        self.error = error
        self.done.set()

    def is_cancelled(self):
        return not self.has_broken and len(self.batches) >= self.after


@pytest.mark.parametrize("part_bytes", [1, 3, 4, 7, 100])
def test_parts_join_to_the_pieces_that_were_cut(part_bytes):
    pieces = [np.arange(4, dtype=np.uint8), np.zeros(0, np.uint8), np.arange(9, dtype=np.uint8)]
    parts = list(cut(pieces, part_bytes))
    assert [len(part) for part in parts[:-1]] == [part_bytes] * (len(parts) - 1)
    np.testing.assert_array_equal(np.concatenate(parts), np.concatenate(pieces))
