"""Chunks, turns, cancel and end, with a real tiny world and a reply that records."""

import time

import numpy as np
import pytest
from worldmodel.errors import CancelledError, SessionNotFoundError

from tests.unit.engines import WAIT_S, Gate, Recorder, ask, bare_end, go_on, start
from tests.waiting import wait_for


def test_frames_are_numbered_without_a_gap_across_requests(make_engine):
    engine, _ = make_engine()
    replies = [ask(engine, start("a", 2)), ask(engine, go_on("a", 2, event_id=9))]
    [reply.frames() for reply in replies]
    index = np.concatenate([batch.frame_index for reply in replies for batch in reply.batches])
    assert index.tolist() == list(range(45))
    assert [batch.chunk for reply in replies for batch in reply.batches] == [(c, 0, 1) for c in range(4)]
    assert [batch.event_id for batch in replies[0].batches + replies[1].batches] == [-1, -1, 9, 9]
    assert [reply.num_finals for reply in replies] == [1, 1]


def test_a_chunk_is_sent_in_parts_of_bounded_size(make_engine):
    engine, _ = make_engine(response_bytes=4 * 32 * 48 * 3 + 100)
    reply = ask(engine, start(None))
    reply.frames()
    assert [len(batch.frames) for batch in reply.batches] == [4, 4, 1]
    assert [batch.chunk for batch in reply.batches] == [(0, 0, 3), (0, 1, 3), (0, 2, 3)]
    assert [batch.is_last for batch in reply.batches] == [False, False, True]


def test_a_frame_larger_than_the_bound_is_sent_alone(make_engine):
    engine, _ = make_engine(response_bytes=1)
    reply = ask(engine, start(None))
    reply.frames()
    assert [len(batch.frames) for batch in reply.batches] == [1] * 9


def test_timings_tell_waiting_from_computing(make_engine):
    engine, world = make_engine()
    gate = Gate(world)
    gate.close()
    held, waiting = ask(engine, start("a", 1)), ask(engine, start("b", 1))
    assert gate.reached.wait(WAIT_S)
    time.sleep(0.2)
    gate.open.set()
    held.frames()
    waiting.frames()
    queued, condition, denoise, decode, transfer, total = held.batches[-1].timings_ms
    assert denoise >= 200
    assert queued < 200
    assert total >= condition + denoise + decode + transfer
    assert waiting.batches[-1].timings_ms[0] >= 200
    assert min(waiting.batches[-1].timings_ms) >= 0


def test_sessions_take_turns_chunk_by_chunk(make_engine):
    engine, world = make_engine()
    gate = Gate(world)
    gate.close()
    journal = []
    first = ask(engine, start("a", 6), journal)
    assert gate.reached.wait(WAIT_S)
    second, third = ask(engine, start("b", 3), journal), ask(engine, start("c", 3), journal)
    gate.open.set()
    [reply.frames() for reply in (first, second, third)]
    names = {id(first): "a", id(second): "b", id(third): "c"}
    assert "".join(names[id(reply)] for reply in journal) == "abcabcabcaaa"


def test_interleaved_requests_equal_solo_runs(make_engine):
    engine, _ = make_engine()
    solo = [ask(engine, start(None, 4, seed=seed)).frames() for seed in range(3)]
    replies = [ask(engine, start(f"s{seed}", 4, seed=seed)) for seed in range(3)]
    for wanted, reply in zip(solo, replies, strict=True):
        assert np.array_equal(reply.frames(), wanted)
    assert not np.array_equal(solo[0], solo[1])


def test_a_cancel_stops_before_the_next_step_and_the_session_goes_on(make_engine):
    engine, world = make_engine()
    wanted = ask(engine, start("twin", 2)).frames()
    ask(engine, start("a", 1)).frames()
    gate = Gate(world)
    gate.close()
    steps = world.counters.denoising_steps
    stopped = ask(engine, go_on("a", 5, num_steps=20, actions=("s",) * 15))
    assert gate.reached.wait(WAIT_S)
    stopped.cancelled.set()
    gate.open.set()
    with pytest.raises(CancelledError, match="the session is as it was before this chunk"):
        stopped.frames()
    assert world.counters.denoising_steps - steps == 1
    later = ask(engine, go_on("a", 1))
    assert np.array_equal(later.frames(), wanted[9:])
    assert later.batches[0].frame_index[0] == 9


def test_a_cancelled_request_that_ends_its_session_says_so(make_engine):
    # It said that the session is as before, and the next request was told that there is none.
    engine, world = make_engine()
    ask(engine, start("a", 1)).frames()
    gate = Gate(world)
    gate.close()
    last = ask(engine, go_on("a", 1, is_end=True))
    assert gate.reached.wait(WAIT_S)
    last.cancelled.set()
    gate.open.set()
    with pytest.raises(CancelledError, match="the session has ended with it"):
        last.frames()
    with pytest.raises(SessionNotFoundError):
        engine.submit(go_on("a"), Recorder())


def test_a_request_cancelled_while_it_waits_costs_nothing(make_engine):
    engine, world = make_engine()
    gate = Gate(world)
    gate.close()
    running = ask(engine, start("a", 1))
    assert gate.reached.wait(WAIT_S)
    waiting = ask(engine, start("b", 1))
    waiting.cancelled.set()
    gate.open.set()
    running.frames()
    with pytest.raises(CancelledError, match="the session was not started"):
        waiting.frames()
    assert world.counters.denoising_steps == 4
    assert len(ask(engine, start("b", 1)).frames()) == 9


def test_requests_behind_a_start_that_was_cancelled_find_no_session(make_engine):
    engine, world = make_engine()
    gate = Gate(world)
    gate.close()
    ask(engine, start("x", 1))
    assert gate.reached.wait(WAIT_S)
    cancelled, behind = ask(engine, start("a", 1)), ask(engine, go_on("a", 1))
    cancelled.cancelled.set()
    gate.open.set()
    with pytest.raises(CancelledError):
        cancelled.frames()
    with pytest.raises(SessionNotFoundError):
        behind.frames()


def test_a_bare_end_behind_a_start_that_was_cancelled_is_answered(make_engine):
    engine, world = make_engine()
    gate = Gate(world)
    gate.close()
    ask(engine, start("x", 1))
    assert gate.reached.wait(WAIT_S)
    cancelled, end = ask(engine, start("a", 1)), ask(engine, bare_end("a"))
    cancelled.cancelled.set()
    gate.open.set()
    assert end.frames().shape == (0, 32, 48, 3)
    assert isinstance(cancelled.error, CancelledError)


def test_a_bare_end_also_stops_a_last_request_that_runs(make_engine):
    engine, world = make_engine()
    ask(engine, start("a", 1)).frames()
    gate = Gate(world)
    gate.close()
    last = ask(engine, go_on("a", 60, is_end=True))
    assert gate.reached.wait(WAIT_S)
    end = ask(engine, bare_end("a"))
    with pytest.raises(SessionNotFoundError):
        engine.submit(bare_end("a"), Recorder())
    gate.open.set()
    with pytest.raises(CancelledError):
        last.frames()
    assert end.frames().shape == (0, 32, 48, 3)
    assert engine.stats().active_sessions == 0


def test_a_bare_end_stops_the_running_chunk_and_what_waits_and_frees_the_session(make_engine):
    engine, world = make_engine()
    ask(engine, start("a", 1)).frames()
    gate = Gate(world)
    gate.close()
    steps = world.counters.denoising_steps
    running, waiting = ask(engine, go_on("a", 5)), ask(engine, go_on("a", 5))
    assert gate.reached.wait(WAIT_S)
    end = ask(engine, bare_end("a"))
    gate.open.set()
    assert end.frames().shape == (0, 32, 48, 3)
    assert end.num_finals == 1
    assert len(end.batches) == 1
    for reply in (running, waiting):
        with pytest.raises(CancelledError, match="ended"):
            reply.frames()
    assert world.counters.denoising_steps - steps == 1
    wait_for(lambda: engine.stats().active_sessions == 0 and engine.stats().session_bytes == 0)
    with pytest.raises(SessionNotFoundError):
        engine.submit(go_on("a"), Recorder())


def test_an_end_with_work_answers_it_and_then_frees_the_session(make_engine):
    engine, _ = make_engine()
    ask(engine, start("a", 1)).frames()
    last = ask(engine, go_on("a", 2, is_end=True))
    with pytest.raises(SessionNotFoundError):
        engine.submit(go_on("a"), Recorder())
    assert len(last.frames()) == 24
    wait_for(lambda: engine.stats().active_sessions == 0)
    assert len(ask(engine, start("a", 1)).frames()) == 9
