"""The life of a session against the small server: order, end, cancel, starting again."""

import threading
import time

import numpy as np
import pytest
from worldstream import BusyError, CancelledError, InvalidInputError, SessionNotFoundError
from worldstream.testing import answer_once, error_message, silence

from tests.waiting import wait_for

PIXELS = np.arange(2 * 3 * 3, dtype=np.uint8).reshape(2, 3, 3)


def test_two_requests_under_way_answer_each_its_own(client):
    with client.session(b"encoded") as session:
        first = session.generate(num_chunks=1, event_id=1)
        second = session.generate(num_chunks=1, event_id=2)
        events = [batch.event_id for batch in second] + [batch.event_id for batch in first]

    assert events == [2, 2, 2, 1, 1]


def test_a_cancel_in_the_first_request_of_an_encoded_picture_reaches_the_server(server, client):
    server.chunk_s = 0.1
    session = client.session(b"encoded")
    batches = session.generate(num_chunks=50)
    next(batches)

    session.cancel()

    with pytest.raises(CancelledError):
        list(batches)
    assert server.cancelled.wait(3)
    assert {seen.model for seen in server.seen} == {"preprocess", "denoise"}
    server.chunk_s = 0
    session.end()


def test_a_picture_is_decoded_once_however_often_its_start_is_sent(server, client):
    server.script = answer_once(error_message("BUSY: denoise: 8 requests wait"))
    with client.session(b"encoded") as session:
        with pytest.raises(BusyError):
            next(session.generate())
        list(session.generate())

    assert [seen.model for seen in server.seen] == ["preprocess", "denoise", "denoise", "denoise"]


def test_a_picture_that_cannot_be_decoded_starts_nothing(server, client):
    with client.session(b"broken") as session, pytest.raises(InvalidInputError, match="image 0: not a picture"):
        session.generate()

    assert [seen.model for seen in server.seen] == ["preprocess"]


def test_a_dropped_iterator_does_not_disturb_the_next_request(client):
    with client.session(PIXELS) as session:
        next(session.generate(num_chunks=2))
        numbers = [frame.frame_index for frame in session.frames(num_chunks=1)]

    assert numbers == list(range(21, 33))


def test_end_frees_the_session_once(server, client):
    session = client.session(PIXELS)
    list(session.generate())

    session.end()
    session.end()

    assert server.sessions == {}
    assert [seen.parameters["sequence_end"] for seen in server.seen] == [False, True]
    with pytest.raises(SessionNotFoundError, match="has ended"):
        session.generate()


def test_a_request_that_ends_the_session_needs_no_end_after_it(server, client):
    with client.session(PIXELS) as session:
        list(session.generate(num_chunks=1, end=True))

    assert len(server.seen) == 1
    assert server.sessions == {}


def test_a_session_that_never_began_is_not_ended(server, client):
    with client.session(PIXELS):
        pass

    assert server.seen == []


def test_a_session_gone_already_ends_without_an_error(server, client):
    with client.session(PIXELS) as session:
        list(session.generate())
        server.sessions.clear()

    assert server.seen[-1].parameters["sequence_end"]
    with pytest.raises(SessionNotFoundError, match="has ended"):
        session.generate()


def test_the_end_is_sent_when_the_body_raises_and_the_first_error_is_seen(server, client):
    session = client.session(PIXELS)
    next(session.generate(num_chunks=2))

    with pytest.raises(ZeroDivisionError), session:
        raise ZeroDivisionError

    assert server.sessions == {}


def test_an_error_in_the_middle_of_a_last_request_still_sends_the_bare_end(server, client):
    server.chunk_s = 0.05

    def watch():
        with client.session(PIXELS) as session:
            for _ in session.generate(num_chunks=50, end=True):
                raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        watch()

    last, bare = server.seen
    assert (last.parameters["sequence_end"], last.inputs["num_chunks"]) == (True, [50])
    assert (bare.parameters["sequence_end"], bare.inputs) == (True, {})
    assert server.sessions == {}


def test_a_last_request_that_nobody_reads_is_stopped_by_a_bare_end(server, client):
    with client.session(PIXELS) as session:
        next(session.generate(num_chunks=3, end=True))

    assert [seen.parameters["sequence_end"] for seen in server.seen] == [True, True]
    assert server.seen[-1].inputs == {}


def test_a_last_request_that_names_no_length_still_asks_for_its_chunk(server, client):
    with client.session(PIXELS) as session:
        list(session.generate())
        numbers = [frame.frame_index for frame in session.frames(end=True)]

    assert numbers == list(range(9, 21))
    assert server.seen[1].inputs == {"num_chunks": [1]}


def test_a_live_session_goes_on_by_its_id(client):
    first = client.session(PIXELS, session_id="shared")
    list(first.generate(num_chunks=1))
    first.close()

    with client.session(None, session_id="shared") as second:
        numbers = [frame.frame_index for frame in second.frames(num_chunks=1)]

    assert numbers == list(range(9, 21))


def test_a_cancel_reaches_the_server_and_the_session_goes_on(server, client):
    server.chunk_s = 0.1
    session = client.session(PIXELS)
    batches = session.generate(num_chunks=50)
    next(batches)

    session.cancel()

    with pytest.raises(CancelledError):
        list(batches)
    assert server.cancelled.wait(3)
    server.chunk_s = 0
    assert len(list(session.generate(num_chunks=1))) == 3
    session.end()


def test_a_cancel_from_another_thread_wakes_the_reader(server, client):
    server.script = lambda seen: silence()
    session = client.session(PIXELS)
    batches = session.generate()
    threading.Timer(0.1, session.cancel).start()
    before = time.monotonic()

    with pytest.raises(CancelledError):
        next(batches)

    assert time.monotonic() - before < 1
    session.close()


def test_a_start_cancelled_before_its_answer_is_undone_and_sent_again(server, client):
    server.script = answer_once()  # the first request ends without any answer
    session = client.session(PIXELS)
    session.generate()
    wait_for(lambda: server.seen)
    session.cancel()

    numbers = [frame.frame_index for frame in session.frames(num_chunks=1)]

    assert numbers == list(range(9))
    flags = [(seen.parameters["sequence_start"], seen.parameters["sequence_end"]) for seen in server.seen]
    assert flags[-2:] == [(False, True), (True, False)]
    session.end()
