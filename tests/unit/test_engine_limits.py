"""Refusals, limits, expiry, failures and the engine's own end."""

import gc
import queue
import threading
import weakref

import numpy as np
import pytest
from worldmodel.admission import Admission
from worldmodel.emitter import Delivery
from worldmodel.engine import Engine
from worldmodel.errors import (
    BusyError,
    CancelledError,
    InternalError,
    InvalidInputError,
    SessionExistsError,
    SessionLimitError,
    SessionNotFoundError,
    UnavailableError,
    WorldError,
)
from worldmodel.queues import Job
from worldmodel.serving import ServingConfig

from tests.unit.engines import WAIT_S, Gate, Recorder, ask, bare_end, go_on, start
from tests.unit.worlds import picture, tiny_world
from tests.waiting import wait_for


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
    numbers = f"takes {size} bytes; 2 live sessions hold {2 * size} of {2 * size} bytes; "
    way_out = "end one, or serve with a larger session_budget_bytes or a smaller window_latent_frames$"
    with pytest.raises(SessionLimitError, match=numbers + way_out):
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


def test_cancelled_requests_give_up_their_places_before_their_turn(make_engine):
    engine, world = make_engine(max_requests_per_session=3, max_requests=5)
    gate = Gate(world)
    gate.close()
    running = ask(engine, start("a", 1))
    assert gate.reached.wait(WAIT_S)
    gone = [ask(engine, go_on("a", 2)) for _ in range(2)]
    other = [ask(engine, start("b", 1)), ask(engine, go_on("b", 1))]
    for reply in (*gone, other[1]):
        reply.cancelled.set()
    kept = ask(engine, go_on("a", 1, wants_receipt=True))  # the session's places were taken: three of three
    assert all(reply.done.wait(WAIT_S) and isinstance(reply.error, CancelledError) for reply in gone)
    assert not running.done.is_set()  # it runs: it counts until its next step, cancelled or not
    more = [ask(engine, go_on("b", 1)), ask(engine, start("c", 1))]  # all places: five of five, one cancelled
    assert other[1].done.wait(WAIT_S)
    gate.open.set()
    [reply.frames() for reply in (running, kept, *more)]
    assert [batch.chunk for batch in kept.batches] == [(1, -1, 1), (1, 0, 1)]
    assert [batch.chunk[0] for batch in more[0].batches] == [1]


def test_a_cancelled_end_keeps_its_place_and_still_ends(make_engine):
    engine, world = make_engine(max_requests_per_session=2)
    gate = Gate(world)
    gate.close()
    ask(engine, start("a", 1))
    assert gate.reached.wait(WAIT_S)
    end = ask(engine, go_on("a", 1, is_end=True))
    end.cancelled.set()
    with pytest.raises(SessionNotFoundError):
        engine.submit(go_on("a"), Recorder())
    gate.open.set()
    assert end.done.wait(WAIT_S)
    wait_for(lambda: engine.stats().active_sessions == 0)


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


def test_pictures_that_wait_are_bounded(make_engine):
    engine, world = make_engine(max_waiting_picture_bytes=2 * 32 * 48 * 3)
    gate = Gate(world)
    gate.close()
    replies = [ask(engine, start("running", 1))]
    assert gate.reached.wait(WAIT_S)  # its picture has been let go
    replies += [ask(engine, start("a", 1)), ask(engine, start("b", 1))]
    with pytest.raises(BusyError, match="pixels: 9216 bytes of pictures, snapshots and prompts wait"):
        engine.submit(start("c"), Recorder())
    gate.open.set()
    [reply.frames() for reply in replies]
    assert len(ask(engine, start("c", 1)).frames()) == 9


def test_a_start_that_fails_in_its_first_chunk_leaves_no_session(make_engine):
    engine, _ = make_engine()
    far = np.tile(np.eye(4), (3, 1, 1))
    far[1:, 0, 3] = 1e6
    refused = ask(engine, start("a", 1, cam_to_world=far))
    with pytest.raises(InvalidInputError, match="is translation_scale right"):
        refused.frames()
    assert engine.stats().active_sessions == 0
    assert len(ask(engine, start("a", 1)).frames()) == 9


def test_a_later_chunk_that_fails_leaves_the_session(make_engine):
    engine, _ = make_engine()
    ask(engine, start("a", 1)).frames()
    far = np.tile(np.eye(4), (3, 1, 1))
    far[1:, 0, 3] = 1e6
    with pytest.raises(InvalidInputError):
        ask(engine, go_on("a", 1, cam_to_world=far)).frames()
    assert len(ask(engine, go_on("a", 1)).frames()) == 12


def test_an_idle_session_expires_and_its_memory_is_given_back(make_engine):
    stats = queue.SimpleQueue()
    engine, _ = make_engine(stats, session_idle_timeout_s=0.2)
    ask(engine, start("a", 1)).frames()
    wait_for(lambda: engine.stats().session_bytes == 0)
    with pytest.raises(SessionNotFoundError):
        engine.submit(go_on("a"), Recorder())
    wait_for(lambda: stats.get(timeout=WAIT_S).active_sessions == 0)


def test_a_session_whose_client_is_told_to_try_again_later_does_not_expire_meanwhile():
    # Only requests that were let in counted: a minute of BUSY ended in SESSION_NOT_FOUND.
    admission = Admission(ServingConfig(max_requests=1, session_idle_timeout_s=60), lambda _: None)
    admission.admit(start("a"), {None: 1}, 0, now_s=0)
    admission.admit(start("b"), {None: 1}, 0, now_s=0)
    admission.queues.put(("name", "b"), Job(start("b"), Delivery(Recorder()), 0, 0))
    with pytest.raises(BusyError):
        admission.admit(go_on("a"), {None: 1}, 0, now_s=59)
    assert not admission.drop_expired(118)
    assert admission.drop_expired(120)
    assert list(admission.table.entries) == [("name", "b")]  # it has work


def test_a_session_of_one_request_is_freed_after_it(make_engine):
    engine, _ = make_engine()
    ask(engine, start(None, 2)).frames()
    wait_for(lambda: engine.stats().active_sessions == 0)


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


class Broken(Recorder):
    """A reply whose second batch cannot be sent."""

    def send(self, batch):
        if self.batches:
            raise OSError("gone")
        super().send(batch)


def test_a_request_whose_answer_cannot_be_sent_ends_once_and_computes_no_further(make_engine):
    engine, _ = make_engine()
    broken = Broken()
    engine.submit(start("a", 50), broken)
    with pytest.raises(InternalError):
        broken.frames()
    assert broken.num_finals == 1
    later = ask(engine, go_on("a", 1))
    later.frames()
    assert 2 <= later.batches[0].chunk[0] < 20
    assert broken.num_finals == 1


def test_a_freed_session_leaves_no_tensor_behind(make_engine):
    engine, world = make_engine()
    caches = []
    inner = world.new_cache
    world.new_cache = lambda config: caches.append(weakref.ref(made := inner(config))) or made
    gate = Gate(world)
    ask(engine, start("a", 1)).frames()
    gate.close()
    running = ask(engine, go_on("a", 5, is_end=True))
    assert gate.reached.wait(WAIT_S)
    running.cancelled.set()
    gate.open.set()
    with pytest.raises(CancelledError):
        running.frames()
    wait_for(lambda: gc.collect() >= 0 and caches[0]() is None)


def test_a_picture_is_let_go_when_its_session_has_been_made(make_engine):
    engine, _ = make_engine()
    pixels = picture()
    held = weakref.ref(pixels)
    ask(engine, start("a", 1, picture=pixels)).frames()
    del pixels
    wait_for(lambda: gc.collect() >= 0 and held() is None)


def test_an_engine_that_fails_refuses_what_waits_and_what_comes(make_engine, caplog):
    engine, world = make_engine()
    ask(engine, start("a", 1)).frames()
    gate = Gate(world)
    gate.close()
    running, waiting = ask(engine, go_on("a", 1)), ask(engine, start("b", 1))
    assert gate.reached.wait(WAIT_S)
    engine._after_turn = lambda *_: 1 / 0
    gate.open.set()
    for reply in (running, waiting):
        with pytest.raises(UnavailableError, match="it has failed"):
            reply.frames()
    with pytest.raises(UnavailableError, match="it has failed"):
        engine.submit(start("c"), Recorder())
    assert "ZeroDivisionError" in caplog.text


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
    wait_for(lambda: engine._is_closing)
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
