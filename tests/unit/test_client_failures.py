"""What a server does wrong, and what becomes of the session then."""

import http.server
import threading

import grpc
import numpy as np
import pytest
from worldstream import (
    CancelledError,
    InvalidInputError,
    ProtocolError,
    ResponseTimeoutError,
    SessionExistsError,
    SharedSessionError,
    UnavailableError,
    WorldClient,
)
from worldstream.testing import FakeServer, answer_once, error_message, frames_message, silence

PIXELS = np.arange(2 * 3 * 3, dtype=np.uint8).reshape(2, 3, 3)


def test_silence_is_a_timeout_and_counts_as_unavailable(server):
    server.script = lambda seen: silence()
    with WorldClient(server.url, timeout_s=0.2) as client:
        batches = client.session(PIXELS).generate()

        with pytest.raises(ResponseTimeoutError, match=r"no response within 0\.2 s") as caught:
            next(batches)

    assert isinstance(caught.value, UnavailableError)
    assert isinstance(caught.value, TimeoutError)


def test_an_error_names_its_class_and_leaves_the_session_usable(server, client):
    with client.session(PIXELS) as session:
        list(session.generate())
        server.script = answer_once(error_message("in ensemble 'world', INVALID_INPUT: actions: no such key 'q'"))

        with pytest.raises(InvalidInputError, match=r"^INVALID_INPUT: actions: no such key 'q'$"):
            list(session.generate(actions="w"))

        assert [frame.frame_index for frame in session.frames()] == list(range(9, 21))


def test_an_error_is_raised_once_and_ends_its_iterator(server, client):
    server.script = answer_once(error_message("BUSY: denoise: 8 requests wait"))
    batches = client.session(PIXELS).generate()
    with pytest.raises(Exception, match="BUSY"):
        next(batches)

    assert list(batches) == []


def test_a_refused_start_can_be_sent_again(server, client):
    server.script = answer_once(error_message("BUSY: denoise: 8 requests wait"))
    with client.session(PIXELS) as session:
        with pytest.raises(Exception, match="BUSY"):
            next(session.generate())

        list(session.generate())

    assert [seen.parameters["sequence_start"] for seen in server.seen] == [True, True, False]


def test_the_session_of_another_is_never_ended(server, client):
    owner = client.session(PIXELS, session_id="mine")
    list(owner.generate())

    with pytest.raises(SessionExistsError), client.session(PIXELS, session_id="mine") as intruder:
        list(intruder.generate())

    assert list(server.sessions) == ["mine"]
    owner.end()


@pytest.mark.parametrize(
    ("messages", "complaint"),
    [
        pytest.param([frames_message(1, 4, (0, 0, 1), True)], "frame_index: wanted 0..3, got 1..4", id="first frame"),
        pytest.param(
            [frames_message(0, 4, (0, 0, 2), False), frames_message(5, 4, (0, 1, 2), True)],
            "frame_index: wanted 4..7, got 5..8",
            id="gap",
        ),
        pytest.param(
            [frames_message(0, 4, (0, 0, 3), False), frames_message(4, 4, (0, 2, 3), True)],
            "wanted chunk 0 part 1, got chunk 0 part 2 of 3",
            id="part left out",
        ),
        pytest.param(
            [frames_message(0, 4, (0, 0, 1), False), frames_message(4, 4, (2, 0, 1), True)],
            "wanted chunk 1 part 0, got chunk 2 part 0 of 1",
            id="chunk left out",
        ),
        pytest.param([frames_message(0, 4, (0, 0, 2), True)], "the last response is part 0 of 2", id="cut short"),
        pytest.param([frames_message(0, 0, (0, 0, 1), False)], "frames: .* without frames", id="empty"),
    ],
)
def test_responses_out_of_order_are_refused(server, client, messages, complaint):
    server.script = answer_once(*messages)
    session = client.session(PIXELS)

    with pytest.raises(ProtocolError, match=complaint):
        list(session.generate())

    session.close()


def test_chunks_that_somebody_else_asked_for_tell_of_another_client(server, client):
    # It once read as if the server had broken the contract.
    session = client.session(PIXELS, session_id="robot")
    server.script = answer_once(frames_message(0, 9, (0, 0, 1), True))
    list(session.generate())
    server.script = answer_once(frames_message(21, 12, (2, 0, 1), True))

    with pytest.raises(SharedSessionError, match="session: another client uses it too: wanted chunk 1, got chunk 2"):
        list(session.generate())

    session.close()


def test_a_response_that_lacks_a_tensor_is_refused(server, client):
    message = frames_message(0, 4, (0, 0, 1), True)
    del message.infer_response.outputs[4], message.infer_response.raw_output_contents[4]
    server.script = answer_once(message)

    with pytest.raises(ProtocolError, match="timings: the response lacks this output"):
        list(client.session(PIXELS).generate())


def test_a_tensor_shorter_than_its_shape_is_refused(server, client):
    message = frames_message(0, 4, (0, 0, 1), True)
    message.infer_response.outputs[0].shape[0] = 5
    server.script = answer_once(message)

    with pytest.raises(ProtocolError, match=r"frames: UINT8 \[5, 6, 8, 3\] needs 720 bytes, 576 came"):
        list(client.session(PIXELS).generate())


def test_a_server_that_goes_away_is_unavailable(server, client):
    server.chunk_s = 0.1
    batches = client.session(PIXELS).generate(num_chunks=50)
    next(batches)

    server.stop()

    with pytest.raises((UnavailableError, CancelledError)):
        list(batches)


def test_a_server_that_goes_away_while_it_is_asked_is_not_ready():
    class Vanishing(FakeServer):
        """Says that it is ready, and then no more."""

        def ModelReady(self, request, context):
            context.abort(grpc.StatusCode.UNAVAILABLE, "going away")

    with Vanishing() as server, WorldClient(server.url, reconnect_s=0) as client:
        assert not client.is_ready()


def test_no_server_is_unavailable():
    with WorldClient("127.0.0.1:1", timeout_s=5, reconnect_s=0) as client:
        with pytest.raises(UnavailableError) as streamed:
            next(client.session(PIXELS).generate())
        with pytest.raises(UnavailableError) as called:
            client.info()

        assert not client.is_ready()
    for caught in (streamed, called):
        assert str(caught.value) == (
            "UNAVAILABLE: no server at 127.0.0.1:1; start one with `make serve`; "
            "wanted HOST:PORT of its gRPC endpoint, without http://"
        )


def test_a_port_that_speaks_http_only_is_no_server():
    with http.server.HTTPServer(("127.0.0.1", 0), http.server.BaseHTTPRequestHandler) as page:
        thread = threading.Thread(target=page.serve_forever)
        thread.start()
        with (
            WorldClient(f"127.0.0.1:{page.server_port}", timeout_s=5, reconnect_s=0) as client,
            pytest.raises(UnavailableError, match=r"no server at .*; wanted HOST:PORT of its gRPC endpoint"),
        ):
            client.info()
        page.shutdown()
        thread.join()


def test_a_url_with_a_scheme_is_refused():
    wanted = "url: wanted HOST:PORT of the server's gRPC endpoint, without a scheme, got http://h:8001"

    with pytest.raises(InvalidInputError, match=wanted):
        WorldClient("http://h:8001")


def test_a_closed_client_is_unavailable(server):
    client = WorldClient(server.url)
    client.close()

    with pytest.raises(UnavailableError, match="client is closed"):
        client.session(PIXELS).generate()
