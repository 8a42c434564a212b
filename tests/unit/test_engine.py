"""Threads, queues, turns, cancel and refusals, with a real tiny world and a reply that records."""

import queue
import threading
import time

import numpy as np
import pytest
from worldmodel.engine import Engine
from worldmodel.errors import (
    BusyError,
    CancelledError,
    InternalError,
    SessionExistsError,
    SessionLimitError,
    SessionNotFoundError,
    UnavailableError,
    WorldError,
)
from worldmodel.request import Request
from worldmodel.serving import ServingConfig

from tests.unit.worlds import picture, tiny_world

WAIT_S = 30


class Recorder:
    """A reply that keeps what it is sent."""

    def __init__(self, journal=None):
        self.batches = []
        self.error = None
        self.num_finals = 0
        self.cancelled = threading.Event()
        self.done = threading.Event()
        self.first = threading.Event()
        self.journal = journal

    def send(self, batch):
        assert not self.done.is_set()
        self.batches.append(batch)
        if self.journal is not None:
            self.journal.append(self)
        self.first.set()
        self._finish(batch.is_last)

    def fail(self, error):
        assert not self.done.is_set()
        self.error = error
        self._finish(True)

    def _finish(self, is_last):
        if is_last:
            self.num_finals += 1
            self.done.set()

    def is_cancelled(self):
        return self.cancelled.is_set()

    def frames(self):
        assert self.done.wait(WAIT_S)
        if self.error is not None:
            raise self.error
        return np.concatenate([batch.frames for batch in self.batches])


class Gate:
    """Holds the compute thread before a denoising step, so that a test can act while a chunk runs."""

    def __init__(self, world):
        self.reached, self.open = threading.Event(), threading.Event()
        self.open.set()
        inner = world.transformer.forward

        def forward(*inputs):
            if not self.open.is_set():
                self.reached.set()
                assert self.open.wait(WAIT_S)
            return inner(*inputs)

        world.transformer.forward = forward

    def close(self):
        self.reached.clear()
        self.open.clear()


@pytest.fixture
def make_engine():
    engines = []

    def make(stats=None, **serving):
        world = tiny_world()
        changes = stats if stats is not None else queue.SimpleQueue()
        engine = Engine(lambda: world, ServingConfig(**serving), changes.put)
        engine.start()
        engines.append(engine)
        return engine, world

    yield make
    for engine in engines:
        engine.close()


def start(name, num_chunks=1, **changes):
    changes.setdefault("picture", picture())
    session = None if name is None else ("name", name)
    changes.setdefault("is_end", name is None)
    return Request(session=session, is_start=True, num_chunks=num_chunks, **changes)


def go_on(name, num_chunks=1, **changes):
    changes.setdefault("is_end", False)
    return Request(session=("name", name), is_start=False, num_chunks=num_chunks, **changes)


def bare_end(name):
    return go_on(name, num_chunks=0, is_end=True)


def ask(engine, request, journal=None):
    reply = Recorder(journal)
    engine.submit(request, reply)
    return reply


def wait_until(holds):
    deadline = time.monotonic() + WAIT_S
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.01)


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


def test_timings_are_plausible(make_engine):
    engine, _ = make_engine()
    reply = ask(engine, start(None, 2))
    reply.frames()
    for batch in reply.batches:
        queued, condition, denoise, decode, transfer, total = batch.timings_ms
        assert min(batch.timings_ms) >= 0
        assert denoise > 0
        assert decode > 0
        assert total >= condition + denoise + decode - 1
        assert queued >= 0
        assert transfer >= 0


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
    cancelled, behind, end = ask(engine, start("a", 1)), ask(engine, go_on("a", 1)), ask(engine, bare_end("a"))
    cancelled.cancelled.set()
    gate.open.set()
    assert end.frames().shape == (0, 32, 48, 3)
    assert isinstance(cancelled.error, CancelledError)
    assert isinstance(behind.error, CancelledError | SessionNotFoundError)


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
    wait_until(lambda: engine.stats().active_sessions == 0 and engine.stats().session_bytes == 0)
    with pytest.raises(SessionNotFoundError):
        engine.submit(go_on("a"), Recorder())


def test_an_end_with_work_answers_it_and_then_frees_the_session(make_engine):
    engine, _ = make_engine()
    ask(engine, start("a", 1)).frames()
    last = ask(engine, go_on("a", 2, is_end=True))
    with pytest.raises(SessionNotFoundError):
        engine.submit(go_on("a"), Recorder())
    assert len(last.frames()) == 24
    wait_until(lambda: engine.stats().active_sessions == 0)
    assert len(ask(engine, start("a", 1)).frames()) == 9


def test_a_second_start_of_a_live_id_is_refused(make_engine):
    engine, _ = make_engine()
    ask(engine, start("a", 1)).frames()
    with pytest.raises(SessionExistsError):
        engine.submit(start("a"), Recorder())
    assert len(ask(engine, go_on("a", 1)).frames()) == 12


def test_an_unknown_session_is_refused(make_engine):
    engine, _ = make_engine()
    for request in (go_on("nobody"), bare_end("nobody")):
        with pytest.raises(SessionNotFoundError):
            engine.submit(request, Recorder())


def test_a_session_over_the_byte_budget_is_refused_with_the_numbers(make_engine):
    size = tiny_world().session_bytes()
    engine, _ = make_engine(session_budget_bytes=2 * size)
    ask(engine, start("a", 1)), ask(engine, start("b", 1))
    with pytest.raises(SessionLimitError, match=f"takes {size} bytes; 2 live sessions hold {2 * size} of {2 * size}"):
        engine.submit(start("c"), Recorder())
    ask(engine, bare_end("a")).frames()
    assert len(ask(engine, start("c", 1)).frames()) == 9


def test_too_many_requests_of_one_session_are_refused_but_never_its_end(make_engine):
    engine, world = make_engine(max_requests_per_session=2)
    gate = Gate(world)
    gate.close()
    ask(engine, start("a", 1)), ask(engine, go_on("a", 1))
    with pytest.raises(BusyError, match="at most 2 unanswered requests of one session"):
        engine.submit(go_on("a"), Recorder())
    end = ask(engine, bare_end("a"))
    gate.open.set()
    end.frames()


def test_too_many_requests_in_all_are_refused(make_engine):
    engine, world = make_engine(max_requests=2)
    gate = Gate(world)
    gate.close()
    running = [ask(engine, start("a", 1)), ask(engine, start("b", 1))]
    with pytest.raises(BusyError, match="2 of 2 places are taken"):
        engine.submit(start("c"), Recorder())
    gate.open.set()
    [reply.frames() for reply in running]
    assert engine.stats().active_sessions == 2


def test_an_idle_session_expires_and_its_memory_is_given_back(make_engine):
    stats = queue.SimpleQueue()
    engine, _ = make_engine(stats, session_idle_timeout_s=0.2)
    ask(engine, start("a", 1)).frames()
    wait_until(lambda: engine.stats().session_bytes == 0)
    with pytest.raises(SessionNotFoundError):
        engine.submit(go_on("a"), Recorder())
    wait_until(lambda: stats.get(timeout=WAIT_S).active_sessions == 0)


def test_a_session_of_one_request_is_freed_after_it(make_engine):
    engine, _ = make_engine()
    ask(engine, start(None, 2)).frames()
    wait_until(lambda: engine.stats().active_sessions == 0)


def test_a_failure_of_ours_tells_the_client_a_reference_only_and_the_session_goes_on(make_engine, caplog):
    engine, world = make_engine()
    wanted = ask(engine, start("twin", 2)).frames()
    ask(engine, start("a", 1)).frames()
    inner = world.transformer.forward
    world.transformer.forward = lambda *_: (_ for _ in ()).throw(RuntimeError("secret /path"))
    failed = ask(engine, go_on("a", 2))
    with pytest.raises(InternalError) as caught:
        failed.frames()
    world.transformer.forward = inner
    reference = str(caught.value).rsplit(" ", 1)[1]
    assert "secret" not in str(caught.value)
    assert len(reference) == 8
    assert f"INTERNAL {reference}" in caplog.text
    assert "secret" in caplog.text
    assert np.array_equal(ask(engine, go_on("a", 1)).frames(), wanted[9:])


def test_a_reply_that_cannot_be_sent_does_not_stop_the_engine(make_engine):
    engine, _ = make_engine()

    class Broken(Recorder):
        def send(self, batch):
            raise OSError("gone")

    engine.submit(start("a", 1), Broken())
    assert len(ask(engine, go_on("a", 1)).frames()) == 12


def test_metrics_that_fail_do_not_stop_the_engine(caplog):
    def broken(_):
        raise OSError("the page is gone")

    engine = Engine(tiny_world, ServingConfig(), broken)
    engine.start()
    assert len(ask(engine, start(None, 2)).frames()) == 21
    engine.close()
    assert "could not be brought up to date" in caplog.text


def test_an_id_can_start_again_as_soon_as_its_last_answer_has_come(make_engine):
    engine, _ = make_engine(max_requests_per_session=1)
    for _ in range(20):
        assert len(ask(engine, start("a", 1, is_end=True)).frames()) == 9
        assert engine.stats().active_sessions == 0


def test_closing_stops_the_running_chunk_and_refuses_what_waits(make_engine):
    engine, world = make_engine()
    gate = Gate(world)
    gate.close()
    running, waiting = ask(engine, start("a", 3)), ask(engine, start("b", 1))
    assert gate.reached.wait(WAIT_S)
    closing = threading.Thread(target=engine.close)
    closing.start()
    wait_until(lambda: engine._is_closing)
    gate.open.set()
    closing.join(WAIT_S)
    for reply in (running, waiting):
        with pytest.raises(UnavailableError):
            reply.frames()
    with pytest.raises(UnavailableError):
        engine.submit(start("c"), Recorder())
    assert engine.stats().session_bytes == 0


def test_a_world_that_cannot_be_made_says_why():
    def broken():
        raise ValueError("no weights")

    with pytest.raises(ValueError, match="no weights"):
        Engine(broken, ServingConfig(), lambda _: None).start()


def test_every_error_has_a_code_word():
    words = {error.code for error in WorldError.__subclasses__()}
    assert words == {
        "INVALID_INPUT", "TOO_LARGE", "SESSION_NOT_FOUND", "SESSION_EXISTS", "SESSION_LIMIT", "BUSY", "CANCELLED",
        "UNAVAILABLE", "INTERNAL",
    }  # fmt: skip
