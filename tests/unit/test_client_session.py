"""Sessions of the client against a small real gRPC server that keeps the tensor contract."""

import io
import threading
import time

import numpy as np
import pytest
from PIL import Image
from worldstream import (
    CancelledError,
    InvalidInputError,
    ProtocolError,
    ResponseTimeoutError,
    SessionExistsError,
    SessionNotFoundError,
    TritonError,
    UnavailableError,
    WorldClient,
)
from worldstream.testing import FakeServer, error_message, frames_message

PIXELS = np.arange(2 * 3 * 3, dtype=np.uint8).reshape(2, 3, 3)


@pytest.fixture
def server():
    with FakeServer() as fake:
        yield fake


@pytest.fixture
def client(server):
    with WorldClient(server.url, timeout_s=5) as client:
        yield client


def silence():
    """Never answer: what a client hears of a model whose process has died."""
    threading.Event().wait(2)
    yield from ()


def wait_until_seen(server):
    """Return once the server has a request."""
    deadline = time.monotonic() + 5
    while not server.seen and time.monotonic() < deadline:
        time.sleep(0.01)


def answer_once(*messages):
    """A script that answers the first request with these messages, and the others as usual."""
    answers = [iter(messages)]
    return lambda seen: answers.pop() if answers else None


def test_pixels_start_a_session_straight_at_denoise(server, client):
    with client.session(PIXELS, prompt="a street", seed=7, translation_scale=0.5, fit="stretch") as session:
        list(session.generate(num_chunks=1))

    start = server.seen[0]
    assert start.model == "denoise"
    assert start.inputs["pixels"] == list(range(18))
    assert start.shapes["pixels"] == [1, 2, 3, 3]
    assert start.inputs["prompt"] == [b"a street"]
    assert start.inputs["seed"] == [7]
    assert start.inputs["translation_scale"] == [0.5]
    assert start.parameters["fit"] == "stretch"


def test_a_picture_file_starts_at_world_and_goes_on_at_denoise(server, client, tmp_path):
    (tmp_path / "start.png").write_bytes(b"encoded picture")

    with client.session(tmp_path / "start.png") as session:
        list(session.generate(actions="w.l"))
        list(session.generate(actions=["wl", "", "s"]))

    assert [seen.model for seen in server.seen] == ["world", "denoise", "denoise"]
    assert server.seen[0].inputs["image"] == [b"encoded picture"]
    assert server.seen[0].inputs["actions"] == [b"w", b"", b"l"]
    assert server.seen[1].inputs == {"actions": [b"wl", b"", b"s"]}


def test_each_request_carries_the_session_and_its_place_in_it(server, client):
    with client.session(PIXELS, session_id="robot-7") as session:
        list(session.generate())
        list(session.generate())

    flags = [(seen.parameters["sequence_start"], seen.parameters["sequence_end"]) for seen in server.seen]
    assert flags == [(True, False), (False, False), (False, True)]
    assert {seen.parameters["sequence_id"] for seen in server.seen} == {"robot-7"}
    assert {seen.metadata["x-session-id"] for seen in server.seen} == {"robot-7"}


def test_an_integer_id_stays_an_integer(server, client):
    with client.session(PIXELS, session_id=7) as session:
        list(session.generate())

    assert server.seen[0].parameters["sequence_id"] == 7
    assert server.seen[0].metadata["x-session-id"] == "7"


def test_sessions_without_an_id_get_different_ones(client):
    ids = {client.session(PIXELS).session_id for _ in range(3)}

    assert len(ids) == 3


def test_a_batch_holds_what_the_response_says(client):
    with client.session(PIXELS) as session:
        batch = next(session.generate(num_chunks=1, event_id=42))

    assert batch.frames.shape == (5, 6, 8, 3)
    assert batch.frames[:, 0, 0, 0].tolist() == [0, 1, 2, 3, 4]
    assert batch.frame_index.tolist() == [0, 1, 2, 3, 4]
    assert (batch.chunk_index, batch.part_index, batch.num_parts) == (0, 0, 2)
    assert batch.event_id == 42
    assert batch.timings.queued_ms == 1
    assert batch.timings.total_ms == 14
    assert not batch.is_last
    assert not batch.frames.flags.writeable


def test_the_event_id_comes_back_through_world_too(client):
    with client.session(b"encoded") as session:
        batches = [*session.generate(event_id=0), *session.generate(event_id=5)]

    assert [batch.event_id for batch in batches] == [0, 0, 5, 5, 5]


def test_no_event_id_is_none_and_the_last_batch_says_so(client):
    with client.session(PIXELS) as session:
        *_, last = session.generate(num_chunks=2)

    assert last.event_id is None
    assert last.is_last
    assert last.frame_index.tolist() == [19, 20]


def test_frames_come_one_by_one_with_their_number_in_the_session(client):
    with client.session(PIXELS) as session:
        first = [frame.frame_index for frame in session.frames(num_chunks=1)]
        second = [(frame.frame_index, int(frame.pixels[0, 0, 0])) for frame in session.frames(num_chunks=1)]

    assert first == list(range(9))
    assert second == [(number, number) for number in range(9, 21)]


def test_settings_of_the_session_fill_requests_and_give_way_to_their_own(server, client):
    with client.session(PIXELS, prompt="rain", num_steps=4, intrinsics=[50, 51, 4, 3]) as session:
        list(session.generate())
        list(session.generate(num_steps=2, intrinsics=[[60, 61, 4, 3]]))

    start, later, _ = server.seen
    assert (start.inputs["num_steps"], start.inputs["intrinsics"]) == ([4], [50, 51, 4, 3])
    assert (later.inputs["num_steps"], later.inputs["intrinsics"]) == ([2], [60, 61, 4, 3])
    assert start.inputs["prompt"] == [b"rain"]
    assert "prompt" not in later.inputs


def test_two_requests_under_way_answer_each_its_own(client):
    with client.session(b"encoded") as session:
        first = session.generate(num_chunks=1, event_id=1)
        second = session.generate(num_chunks=1, event_id=2)
        events = [batch.event_id for batch in second] + [batch.event_id for batch in first]

    assert events == [2, 2, 2, 1, 1]


def test_nothing_overtakes_a_start_through_world(server, client):
    gate = threading.Event()

    def slow_start():
        gate.wait(5)
        yield frames_message(0, 4, (0, 0, 1), True)

    server.script = lambda seen: (
        slow_start() if seen.model == "world" else iter([frames_message(4, 4, (1, 0, 1), True)])
    )
    session = client.session(b"encoded")
    session.generate()
    threading.Timer(0.2, gate.set).start()
    before = time.monotonic()

    session.generate()

    assert time.monotonic() - before > 0.15


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


def test_the_end_is_sent_when_the_body_raises_and_the_first_error_is_seen(server, client):
    session = client.session(PIXELS)
    next(session.generate(num_chunks=2))

    with pytest.raises(ZeroDivisionError), session:
        raise ZeroDivisionError

    assert server.sessions == {}


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
    wait_until_seen(server)
    session.cancel()

    numbers = [frame.frame_index for frame in session.frames(num_chunks=1)]

    assert numbers == list(range(9))
    flags = [(seen.parameters["sequence_start"], seen.parameters["sequence_end"]) for seen in server.seen]
    assert flags[-2:] == [(False, True), (True, False)]
    session.end()


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


def test_a_start_refused_while_another_request_waits_for_it_is_told(server, client):
    server.script = answer_once(error_message("SESSION_LIMIT: 2 GB wanted, 1 GB left"))
    session = client.session(b"encoded")
    session.generate()

    with pytest.raises(Exception, match="SESSION_LIMIT"):
        session.generate()

    assert len(server.seen) == 1


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


def test_no_server_is_unavailable():
    with WorldClient("127.0.0.1:1", timeout_s=5) as client:
        with pytest.raises(UnavailableError):
            next(client.session(PIXELS).generate())

        assert not client.is_ready()


def test_a_closed_client_is_unavailable(server):
    client = WorldClient(server.url)
    client.close()

    with pytest.raises(UnavailableError, match="client is closed"):
        client.session(PIXELS).generate()


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        ({"cam_to_world": np.eye(4)}, r"cam_to_world: wanted \[T, 4, 4\] with T of 1 or more, got \[4, 4\]"),
        ({"cam_to_world": "north"}, "cam_to_world: wanted an array of numbers"),
        ({"cam_to_world": np.zeros((3, 4, 4)), "actions": "www"}, "a request takes one of them, both came"),
        ({"actions": "wq"}, "actions: 'q' is no key"),
        ({"intrinsics": [1, 2, 3]}, r"intrinsics: wanted \[4\], \[1, 4\] or \[T, 4\], got \[1, 3\]"),
        ({"num_chunks": 0}, "num_chunks: wanted 1 or more, got 0"),
        ({"num_steps": 0}, "num_steps: wanted 1 or more, got 0"),
        ({"event_id": -1}, "event_id: wanted 0 or more, got -1"),
        ({"num_chunks": 2**31}, "num_chunks: wanted 2147483647 or less, got 2147483648"),
        ({"prompt": "\ud800"}, "prompt: wanted text that UTF-8 can carry"),
        ({"actions": ["w", 7]}, "actions: wanted text, got int"),
    ],
)
def test_what_cannot_be_right_is_refused_before_anything_is_sent(server, client, arguments, complaint):
    session = client.session(PIXELS)

    with pytest.raises(InvalidInputError, match=complaint):
        session.generate(**arguments)

    assert server.seen == []


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        ({"seed": 2**63}, "seed: wanted 9223372036854775807 or less"),
        ({"translation_scale": 0}, "translation_scale: wanted a number over 0, got 0"),
        ({"translation_scale": float("nan")}, "translation_scale: wanted a number over 0, got nan"),
        ({"fit": "pad"}, "fit: wanted crop or stretch, got 'pad'"),
        ({"intrinsics": np.ones((2, 4))}, "intrinsics: a session takes one row, got 2"),
    ],
)
def test_settings_that_cannot_be_right_are_refused(client, arguments, complaint):
    with pytest.raises(InvalidInputError, match=complaint):
        client.session(PIXELS, **arguments)


@pytest.mark.parametrize("session_id", ["", "a b", "å", "x" * 129, 0, -1, 2**63, True, 1.5])
def test_ids_that_triton_or_a_header_cannot_carry_are_refused(client, session_id):
    with pytest.raises(InvalidInputError, match="session_id: wanted"):
        client.session(PIXELS, session_id=session_id)


@pytest.mark.parametrize(
    ("picture", "complaint"),
    [
        (np.zeros((4, 4, 3), np.float32), r"picture: wanted uint8 \[H, W, 3\], got float32 \[4, 4, 3\]"),
        (np.zeros((4, 4), np.uint8), r"picture: wanted uint8 \[H, W, 3\], got uint8 \[4, 4\]"),
        ("no_such_file.png", "picture: cannot read no_such_file.png: No such file"),
        (Image.new("I;16", (2, 2)), "picture: PIL mode I;16 is not 8 bits a channel"),
        (7, "picture: wanted a path, bytes, an array or a PIL image, got int"),
        (None, "session_id: wanted one"),
    ],
)
def test_pictures_that_cannot_be_used_are_refused(client, picture, complaint):
    with pytest.raises(InvalidInputError, match=complaint):
        client.session(picture)


def test_a_pil_image_is_sent_upright_with_alpha_on_black(server, client):
    image = Image.new("RGBA", (2, 1), (200, 100, 50, 255))
    image.putpixel((1, 0), (200, 100, 50, 0))
    upright = io.BytesIO()
    exif = Image.Exif()
    exif[0x0112] = 6  # turn a quarter right: the left pixel becomes the upper one
    image.save(upright, format="PNG", exif=exif)

    with client.session(Image.open(upright)) as session:
        list(session.generate())

    assert server.seen[0].shapes["pixels"] == [1, 2, 1, 3]
    assert server.seen[0].inputs["pixels"] == [200, 100, 50, 0, 0, 0]


def test_one_request_makes_a_clip_without_a_session(server, client):
    batches = list(client.generate(b"encoded", actions="wwwwww", prompt="dusk", seed=3))

    assert sum(len(batch.frames) for batch in batches) == 9 + 12
    (seen,) = server.seen
    assert seen.model == "world"
    assert seen.inputs["prompt"] == [b"dusk"]
    assert "sequence_id" not in seen.parameters
    assert "x-session-id" not in seen.metadata


def test_an_error_without_a_code_word_is_tritons_own(server, client):
    server.script = answer_once(error_message("[request id: x] unexpected shape for input 'pixels'"))

    with pytest.raises(TritonError, match="unexpected shape"):
        next(client.generate(b"encoded"))


def test_preprocess_decodes_pictures_in_order(server, client):
    pictures = client.preprocess([b"first", np.full((1, 1, 3), 9, np.uint8)], size=(3, 5))

    assert pictures.pixels.shape == (2, 3, 5, 3)
    assert pictures.image_digests == ("0" * 32, "0" * 31 + "1")
    assert pictures.camera_names == ("camera 0", "camera 1")
    raw, png = server.seen[0].inputs["image"]
    assert raw == b"first"
    assert Image.open(io.BytesIO(png)).getpixel((0, 0)) == (9, 9, 9)
    assert server.seen[0].inputs["size"] == [3, 5]


def test_a_picture_that_preprocess_refuses_is_an_invalid_input(client):
    with pytest.raises(InvalidInputError, match="image 0: not a picture"):
        client.preprocess([b"broken"])


def test_info_tells_what_the_server_says(server, client):
    server.is_ready = False
    state = client.info()

    assert (state.name, state.version) == ("fake", "0.0")
    assert (state.is_live, state.is_ready) == (True, False)
    assert state.models == {"preprocess": False, "denoise": False, "world": False}
    assert state.metrics is None
    assert not client.is_ready()


def test_the_chunk_length_is_the_models(server, client):
    server.chunk_latent_frames = 5

    assert client.chunk_latent_frames() == 5
