"""A server that goes away and comes back: what the client repeats, what it never repeats, and what it tells."""

import contextlib
import threading
import time

import numpy as np
import pytest
from worldstream import ConnectionLostError, ResponseTimeoutError, SessionExistsError, UnavailableError, WorldClient
from worldstream.backoff import delays
from worldstream.stream import Stream
from worldstream.testing import FakeServer, silence

PIXELS = np.arange(2 * 3 * 3, dtype=np.uint8).reshape(2, 3, 3)


@contextlib.contextmanager
def coming_up_later(server, after_s):
    """The server is away, and comes back after a while."""
    server.stop()
    timer = threading.Timer(after_s, server.start)
    timer.start()
    try:
        yield
    finally:
        timer.join()


def test_pauses_grow_up_to_two_seconds_and_end_with_the_time_allowed():
    assert list(delays(8.0, draw=lambda: 1.0)) == pytest.approx([0.1, 0.2, 0.4, 0.8, 1.6, 2.0, 2.0, 0.9])
    assert list(delays(0.1, draw=lambda: 0.0)) == pytest.approx([0.05, 0.05])
    assert list(delays(0.0)) == []


def test_a_picture_is_sent_again_to_a_server_that_comes_up_late(server):
    with WorldClient(server.url, reconnect_s=20) as client, coming_up_later(server, 0.3):
        assert client.preprocess([b"encoded"]).camera_names == ("camera 0",)


def test_a_session_waits_for_its_server_and_its_start_is_sent_once(server):
    with WorldClient(server.url, reconnect_s=20) as client:
        with coming_up_later(server, 0.3):
            session = client.session(PIXELS)
            numbers = [frame.frame_index for frame in session.frames()]
        session.end()

    assert numbers == list(range(9))
    assert [seen.parameters["sequence_start"] for seen in server.seen] == [True, False]


def test_without_time_to_reconnect_there_is_one_attempt(server):
    server.stop()
    before = time.monotonic()
    with WorldClient(server.url, reconnect_s=0) as client:
        with pytest.raises(UnavailableError, match="no server at"):
            client.info()
        with pytest.raises(UnavailableError, match="no server at"):
            next(client.session(PIXELS).generate())

    assert time.monotonic() - before < 2


def test_a_lost_connection_says_how_many_frames_came_and_the_session_goes_on(server):
    with WorldClient(server.url, reconnect_s=20) as client:
        session = client.session(PIXELS)
        list(session.generate())
        server.chunk_s = 0.2
        batches = session.generate(num_chunks=50)
        received = [next(batches) for _ in range(3)]  # a chunk of 12 frames
        with coming_up_later(server, 0.2):
            with pytest.raises(ConnectionLostError) as caught:
                received.extend(batches)
            server.chunk_s = 0
            goes_on = next(session.frames())
        session.end()

    num_received = sum(len(batch.frames) for batch in received)
    assert caught.value.frames_received == num_received >= 12
    assert goes_on.frame_index >= 9 + num_received  # the server may have made a chunk that never came
    assert session.num_frames_lost == goes_on.frame_index - 9 - num_received


def test_frames_that_were_made_and_never_came_are_counted(server, client):
    session = client.session(PIXELS)
    list(session.generate())
    assert (session.next_frame_index, session.num_frames_lost) == (9, 0)
    session.close()
    with client.session(None, session_id=session.session_id) as other:
        list(other.generate(num_chunks=2))
        # Of a session that others began, the first frames are nobody's loss.
        assert (other.next_frame_index, other.num_frames_lost) == (33, 0)

        assert next(session.frames()).frame_index == 33
        assert session.num_frames_lost == 24


def test_no_request_for_frames_is_sent_twice(server):
    server.chunk_s = 0.2
    with WorldClient(server.url, reconnect_s=20) as client:
        session = client.session(PIXELS)
        list(session.generate())
        lost = session.generate(event_id=5)
        while len(server.seen) < 2:
            time.sleep(0.01)
        with coming_up_later(server, 0.1):
            with pytest.raises(ConnectionLostError):
                list(lost)
            list(session.generate(event_id=6))
        session.end()

    assert [seen.inputs.get("event_id") for seen in server.seen] == [None, [5], [6], None]


def test_an_idle_stream_that_broke_is_opened_anew_without_a_word(server):
    with WorldClient(server.url, reconnect_s=20) as client, client.session(PIXELS) as session:
        list(session.generate())
        server.stop()
        server.start()
        deadline = time.monotonic() + 5
        while not session._stream.has_ended and time.monotonic() < deadline:
            time.sleep(0.01)

        assert [frame.frame_index for frame in session.frames()] == list(range(9, 21))
        assert session.num_frames_lost == 0


def test_reconnect_waits_for_the_server_and_says_so_when_it_does_not_come(server):
    with WorldClient(server.url, reconnect_s=20) as patient, WorldClient(server.url, reconnect_s=0) as hasty:
        session, other = patient.session(PIXELS), hasty.session(PIXELS)
        list(session.generate())
        with coming_up_later(server, 0.3):
            with pytest.raises(UnavailableError, match="no server at"):
                other.reconnect()
            session.reconnect()

        assert next(session.frames()).frame_index == 9
        session.close()


def test_a_second_client_cannot_start_a_live_id_but_may_go_on_with_it(server):
    with WorldClient(server.url) as first, WorldClient(server.url) as second:
        mine = first.session(PIXELS, session_id="robot-7")
        list(mine.generate())
        mine.close()

        with pytest.raises(SessionExistsError):
            list(second.session(PIXELS, session_id="robot-7").generate())
        with second.session(None, session_id="robot-7") as goes_on:
            assert next(goes_on.frames()).frame_index == 9


def test_after_silence_the_word_on_the_end_is_not_waited_for_as_long(server, monkeypatch):
    monkeypatch.setattr("worldstream.session.PARTING_S", 0.1)
    server.script = lambda seen: silence(3.0)
    before = time.monotonic()
    with (
        WorldClient(server.url, timeout_s=0.7) as client,
        pytest.raises(ResponseTimeoutError, match=r"0\.7 s"),
        client.session(PIXELS) as session,
    ):
        list(session.generate())

    assert time.monotonic() - before < 1.4


def test_a_fault_in_the_reader_thread_reaches_whoever_waits(client, monkeypatch):
    class Broken:
        def __iter__(self):
            raise ZeroDivisionError("in the reader")

        def cancel(self):
            pass

    def read_broken(stream, read=Stream._read):
        stream._call.cancel()
        stream._call = Broken()
        read(stream)

    monkeypatch.setattr(Stream, "_read", read_broken)

    with pytest.raises(UnavailableError, match=r"reader failed \(ZeroDivisionError: in the reader\)"):
        next(client.session(PIXELS).generate())


def test_a_session_is_steered_until_there_are_no_more_keys(server, client):
    keys = iter(["w.l", ["wl", "", ""], None])
    with client.session(PIXELS) as session:
        numbers = [int(batch.frame_index[0]) for batch in session.steer(lambda: next(keys))]

    assert numbers == [0, 5, 9, 14, 19]
    assert [seen.inputs.get("actions") for seen in server.seen] == [[b"w", b"", b"l"], [b"wl", b"", b""], None]


def test_the_small_server_keeps_its_port_and_sessions():
    with FakeServer() as server:
        url = server.url
        server.sessions["x"] = None
        server.stop()
        server.start()

        assert server.url == url
        assert "x" in server.sessions
