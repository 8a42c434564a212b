"""What the client sends for a session's requests, and what it makes of the answers."""

import inspect
import io

import numpy as np
import pytest
from PIL import Image
from worldstream import InvalidInputError, Session, TritonError
from worldstream.testing import answer_once, error_message

PIXELS = np.arange(2 * 3 * 3, dtype=np.uint8).reshape(2, 3, 3)


def test_pixels_start_a_session_straight_at_denoise(server, client):
    with client.session(
        PIXELS, prompt="a street", seed=7, translation_scale=0.5, fit="stretch", size=(96, 160)
    ) as session:
        list(session.generate(num_chunks=1))

    start = server.seen[0]
    assert start.model == "denoise"
    assert start.inputs["pixels"] == list(range(18))
    assert start.shapes["pixels"] == [1, 2, 3, 3]
    assert start.inputs["prompt"] == [b"a street"]
    assert start.inputs["seed"] == [7]
    assert start.inputs["translation_scale"] == [0.5]
    assert start.parameters["fit"] == "stretch"
    assert (start.parameters["height"], start.parameters["width"]) == (96, 160)


def test_a_picture_file_is_decoded_first_so_that_each_request_can_be_cancelled(server, client, tmp_path):
    (tmp_path / "start.png").write_bytes(b"encoded picture")

    with client.session(tmp_path / "start.png") as session:
        list(session.generate(actions="w.l"))
        list(session.generate(actions=["wl", "", "s"]))

    # Triton carries no cancel into the ensemble `world`.
    assert [seen.model for seen in server.seen] == ["preprocess", "denoise", "denoise", "denoise"]
    decoded, start, later, _ = server.seen
    assert decoded.inputs == {"image": [b"encoded picture"]}
    assert start.inputs["actions"] == [b"w", b"", b"l"]
    assert start.shapes["pixels"] == [1, 6, 8, 3]
    assert set(start.inputs["pixels"]) == {255}  # the small server makes each picture white
    assert later.inputs == {"actions": [b"wl", b"", b"s"]}


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
    batches = [*client.generate(b"encoded", event_id=0), *client.generate(b"encoded", event_id=5)]

    assert [batch.event_id for batch in batches] == [0, 0, 5, 5]


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


def test_a_session_paces_every_request_but_the_bare_end(server, client):
    with client.session(PIXELS, fps=16) as session:
        list(session.generate())
        list(session.generate())
    list(client.generate(PIXELS, fps=np.float32(29.5)))
    with client.session(PIXELS) as session:
        list(session.generate())

    assert [seen.parameters.get("fps") for seen in server.seen] == [16.0, 16.0, None, 29.5, None, None]
    assert type(server.seen[0].parameters["fps"]) is float


def test_a_save_and_a_restore_are_not_paced(server, client):
    with client.session(PIXELS, fps=16) as session:
        list(session.generate())
        file = session.snapshot()
    with client.session(None, snapshot=file, fps=16) as session:
        session.restore()

    assert ["fps" in seen.parameters for seen in server.seen] == [True, False, False, False, False]


def test_a_prompt_holds_for_the_past_where_that_is_asked_for(server, client):
    with client.session(PIXELS, prompt="rain") as session:
        list(session.generate())
        list(session.generate(prompt="night", recache=np.True_))
        list(session.generate(prompt="dawn"))

    assert [seen.parameters.get("recache") for seen in server.seen] == [None, True, None, None]
    assert [seen.inputs.get("prompt") for seen in server.seen] == [[b"rain"], [b"night"], [b"dawn"], None]


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


def test_numpys_integers_are_integers(server, client):
    with client.session(PIXELS, session_id=np.int64(7), seed=np.int32(3)) as session:
        list(session.generate(num_chunks=np.uint8(2), event_id=np.int64(5)))
    client.preprocess([b"encoded"], size=np.array([3, 5]))

    start, _, picture = server.seen
    assert start.parameters["sequence_id"] == 7
    assert (start.inputs["seed"], start.inputs["num_chunks"], start.inputs["event_id"]) == ([3], [2], [5])
    assert picture.inputs["size"] == [3, 5]


def test_frames_takes_what_generate_takes():
    generate, frames = (inspect.signature(method).parameters for method in (Session.generate, Session.frames))

    assert list(generate) == [
        *("self", "cam_to_world", "actions", "num_chunks", "intrinsics"),
        *("prompt", "num_steps", "event_id", "end", "recache", "receipt", "parameters"),
        "prompt_embeds",
    ]
    assert frames == generate


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


def test_further_parameters_reach_the_server_as_they_are(server, client):
    wishes = {"step_cache": "dynamic", "step_cache_threshold": 0.4, "step_cache_first_blocks": 2, "anything": True}
    with client.session(PIXELS) as session:
        list(session.generate(parameters=wishes))

    assert wishes.items() <= server.seen[0].parameters.items()


def test_a_further_parameter_that_triton_cannot_carry_is_refused(client):
    session = client.session(PIXELS)
    with pytest.raises(InvalidInputError, match="parameters: 'step_cache': wanted a bool, an int"):
        session.generate(parameters={"step_cache": [1, 0]})
