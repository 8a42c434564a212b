"""What a client hears before its frames, and frames that wait for those who watch them."""

import time

import numpy as np
import pytest

from tests.unit.engines import WAIT_S, Gate, ask, bare_end, go_on, start
from tests.waiting import wait_for

RECEIPT = -1


def receipt_of(reply):
    """The first batch, which must be a receipt: chunk that will be steered, requests ahead, event."""
    batch = reply.batches[0]
    assert (batch.frames.shape, batch.frame_index.shape) == ((0, 32, 48, 3), (0,))
    assert not batch.is_last
    chunk, kind, num_ahead = batch.chunk
    assert kind == RECEIPT
    return chunk, num_ahead, batch.event_id


def test_a_receipt_comes_at_once_and_says_what_will_be_steered(make_engine):
    engine, world = make_engine()
    gate = Gate(world)
    gate.close()
    first = ask(engine, start("a", 2, wants_receipt=True, event_id=5))
    assert gate.reached.wait(WAIT_S)
    second = ask(engine, go_on("a", 3, wants_receipt=True, event_id=6))
    third = ask(engine, go_on("a", 1, wants_receipt=True))
    other = ask(engine, start("b", 1, wants_receipt=True))
    # All four are answered while nothing has been computed.
    wait_for(lambda: all(reply.batches for reply in (first, second, third, other)))
    assert [receipt_of(reply) for reply in (first, second, third, other)] == [
        (0, 0, 5),
        (2, 1, 6),
        (5, 2, -1),
        (0, 0, -1),
    ]
    gate.open.set()
    for reply, chunks in ((first, [0, 1]), (second, [2, 3, 4]), (third, [5]), (other, [0])):
        reply.frames()
        assert [batch.chunk[0] for batch in reply.batches[1:]] == chunks


def test_nobody_who_did_not_ask_gets_a_receipt(make_engine):
    engine, _ = make_engine()
    reply = ask(engine, start("a", 2))
    reply.frames()
    assert all(len(batch.frames) for batch in reply.batches)


def test_a_receipt_after_a_cancelled_request_counts_from_what_was_committed(make_engine):
    engine, world = make_engine()
    ask(engine, start("a", 1)).frames()
    gate = Gate(world)
    gate.close()
    cancelled, waiting = ask(engine, go_on("a", 5)), ask(engine, go_on("a", 2))
    assert gate.reached.wait(WAIT_S)
    cancelled.cancelled.set()
    gate.open.set()
    wait_for(cancelled.done.is_set)
    wait_for(lambda: waiting.first.is_set())
    late = ask(engine, go_on("a", 1, wants_receipt=True))
    waiting.frames()
    late.frames()
    assert [batch.chunk[0] for batch in waiting.batches] == [1, 2]
    assert receipt_of(late)[0] == late.batches[1].chunk[0] == 3


def test_a_receipt_does_not_count_a_cancelled_request_whose_place_it_takes(make_engine):
    # The request behind the cancelled one kept the number that it had behind it.
    engine, world = make_engine(max_requests_per_session=3)
    ask(engine, start("a", 1)).frames()
    gate = Gate(world)
    gate.close()
    running, cancelled, waiting = ask(engine, go_on("a", 1)), ask(engine, go_on("a", 5)), ask(engine, go_on("a", 2))
    assert gate.reached.wait(WAIT_S)
    cancelled.cancelled.set()
    late = ask(engine, go_on("a", 1, wants_receipt=True))
    gate.open.set()
    running.frames()
    waiting.frames()
    late.frames()
    assert receipt_of(late)[:2] == (4, 2)
    assert late.batches[1].chunk[0] == 4


def test_a_bare_end_has_no_receipt_but_its_answer(make_engine):
    engine, _ = make_engine()
    ask(engine, start("a", 1)).frames()
    end = bare_end("a")
    reply = ask(engine, type(end)(**{**vars(end), "wants_receipt": True}))
    assert reply.done.wait(WAIT_S)
    assert [batch.is_last for batch in reply.batches] == [True]


@pytest.mark.parametrize("split", [False, True])
def test_paced_chunks_begin_when_the_one_before_has_been_watched(make_engine, split):
    engine, _ = make_engine()
    began = time.monotonic()
    # 9, 12 and 12 frames: the third chunk may begin when 21 have been watched.
    if split:
        replies = [
            ask(engine, start("a", 1, fps=60.0)),
            ask(engine, go_on("a", 1, fps=60.0)),
            ask(engine, go_on("a", 1, fps=60.0)),
        ]
    else:
        replies = [ask(engine, start("a", 3, fps=60.0))]
    frames = [reply.frames() for reply in replies]
    assert time.monotonic() - began >= 21 / 60
    plain, _ = make_engine()
    assert np.array_equal(np.concatenate(frames), ask(plain, start("b", 3)).frames())


def test_a_cancelled_paced_request_is_answered_before_its_time(make_engine):
    engine, _ = make_engine()
    paced = ask(engine, start("a", 3, fps=1.0))  # its second chunk begins after 9 s
    waiting = ask(engine, go_on("a", 1))
    assert paced.first.wait(WAIT_S)
    began = time.monotonic()
    paced.cancelled.set()
    waiting.frames()
    assert paced.done.wait(WAIT_S)
    assert time.monotonic() - began < 4
    assert [batch.chunk[0] for batch in waiting.batches] == [1]


def test_a_paced_session_keeps_no_other_one_waiting(make_engine):
    engine, _ = make_engine()
    paced = ask(engine, start("slow", 3, fps=2.0))  # its second chunk begins after 4.5 s
    assert paced.first.wait(WAIT_S)
    other = ask(engine, start("quick", 5))
    other.frames()
    assert not paced.done.is_set()
    assert len(paced.batches) == 1
    # Nor does it keep its own end waiting.
    began = time.monotonic()
    assert ask(engine, bare_end("slow")).done.wait(WAIT_S)
    assert paced.done.wait(WAIT_S)
    assert time.monotonic() - began < 4
    wait_for(lambda: engine.stats().active_sessions == 1)
