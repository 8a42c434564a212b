import sys

import numpy as np
import pytest
from worldmodel.config import EMBEDDED
from worldmodel.errors import InvalidInputError, TooLargeError, UnavailableError
from worldmodel.request import Envelope, parse_request
from worldmodel.serving import ServingConfig

START = Envelope("robot", is_start=True)
GO_ON = Envelope("robot")
PIXELS = np.zeros((1, 8, 8, 3), np.uint8)


def parse(envelope=START, **tensors):
    if envelope is START and "pixels" not in tensors:
        tensors["pixels"] = PIXELS
    return parse_request(tensors, envelope, EMBEDDED, ServingConfig())


def texts(*values):
    return np.array([value.encode() if isinstance(value, str) else value for value in values], dtype=object)


def poses(count):
    return np.tile(np.eye(4, dtype=np.float32), (count, 1, 1))


def number(value, dtype):
    return np.array([value], dtype)


def test_a_request_without_an_id_is_a_session_of_one():
    request = parse(Envelope(), pixels=PIXELS)
    assert request.session is None
    assert request.is_start
    assert request.is_end
    assert request.num_chunks == 1


def test_an_integer_and_a_string_of_the_same_look_are_two_sessions():
    assert (
        parse(Envelope(7, is_start=True), pixels=PIXELS).session
        != parse(Envelope("7", is_start=True), pixels=PIXELS).session
    )


def test_parameters_carry_the_session_where_there_is_no_sequence_id():
    parameters = {"session": "a", "session_start": True, "session_end": True}
    request = parse(Envelope(parameters=parameters), pixels=PIXELS)
    assert (request.session, request.is_start, request.is_end) == (("name", "a"), True, True)


def test_sequence_fields_that_come_as_parameters_count_as_such():
    parameters = {"sequence_id": 7, "sequence_start": True, "sequence_end": False}
    request = parse(Envelope(parameters=parameters), pixels=PIXELS)
    assert (request.session, request.is_start, request.is_end) == (("number", 7), True, False)
    assert request.session == parse(Envelope(7, is_start=True), pixels=PIXELS).session


@pytest.mark.parametrize(("count", "chunks"), [(1, 1), (3, 1), (4, 2), (6, 2), (7, 3)])
def test_poses_fill_as_many_chunks_as_they_need(count, chunks):
    assert parse(cam_to_world=poses(count)).num_chunks == chunks
    assert parse(actions=texts(*["w"] * count)).num_chunks == chunks


def test_a_chunk_that_is_not_full_stands_still():
    request = parse(actions=texts("w", "l", "wl", "w"))
    assert request.controls(1, 3).actions == ("w", "", "")
    moved = poses(4)
    moved[:, 0, 3] = [0, 1, 2, 3]
    assert parse(cam_to_world=moved).controls(1, 3).cam_to_world[:, 0, 3].tolist() == [3, 3, 3]


def test_chunks_beyond_the_poses_stand_still():
    request = parse(actions=texts("w"), num_chunks=number(3, np.int32))
    assert request.num_chunks == 3
    assert request.controls(2, 3).actions == ("", "", "")


def test_a_prompt_switches_once_at_the_first_chunk_of_its_request():
    request = parse(GO_ON, prompt=texts("night"), num_chunks=number(2, np.int32))
    assert [request.controls(chunk, 3).prompt for chunk in range(2)] == ["night", None]


def test_an_end_without_anything_to_do_is_bare():
    assert parse(Envelope("robot", is_end=True)).num_chunks == 0
    assert parse(Envelope("robot", is_end=True), actions=texts("w")).num_chunks == 1
    assert parse(Envelope("robot", is_end=True), num_chunks=number(2, np.int32)).num_chunks == 2


def test_an_empty_picture_counts_as_absent():
    nothing = np.zeros((0, 0, 0, 3), np.uint8)
    assert parse(GO_ON, pixels=nothing).picture is None
    with pytest.raises(InvalidInputError, match="pixels: wanted the picture that starts the session, got none"):
        parse(START, pixels=nothing)


def test_the_picture_is_a_copy():
    pixels = PIXELS.copy()
    request = parse(pixels=pixels)
    pixels[:] = 9
    assert request.picture.max() == 0


def test_the_longest_step_spans_chunks():
    moved = poses(5)
    moved[:, 0, 3] = [0, 1, 2, 3, 10]
    assert parse(cam_to_world=moved).controls(0, 3).clip_step == pytest.approx(7)


@pytest.mark.parametrize(
    ("envelope", "tensors", "says"),
    [
        (START, {"pixels": np.zeros((2, 8, 8, 3), np.uint8)}, "pixels: wanted exactly one picture, got 2"),
        (GO_ON, {"pixels": PIXELS}, "pixels: a picture starts a session; this request continues one"),
        (GO_ON, {"seed": number(1, np.int64)}, "seed: is set when a session starts"),
        (GO_ON, {"translation_scale": number(1, np.float32)}, "translation_scale: is set when a session starts"),
        (START, {"translation_scale": number(0, np.float32)}, "translation_scale: wanted a positive number, got 0.0"),
        (
            START,
            {"translation_scale": number(np.nan, np.float32)},
            "translation_scale: wanted a positive number, got nan",
        ),
        (START, {"cam_to_world": poses(1), "actions": texts("w")}, "actions: wanted cam_to_world or actions"),
        (START, {"cam_to_world": poses(0)}, "cam_to_world: wanted one pose or more, got none"),
        (START, {"cam_to_world": 2 * poses(1)}, "cam_to_world: frame 0: wanted the bottom row"),
        (START, {"actions": texts()}, "actions: wanted one entry or more, got none"),
        (START, {"actions": texts("w", b"\xff")}, "actions: frame 1: wanted UTF-8 text, byte 0 is none"),
        (START, {"actions": texts("q")}, "actions: frame 0: key 'q' is unknown"),
        (START, {"num_chunks": number(0, np.int32)}, "num_chunks: wanted 1 or more, got 0"),
        (
            START,
            {"num_chunks": number(1, np.int32), "actions": texts(*"wwww")},
            "actions: 4 latent frames fill 2 chunks",
        ),
        (START, {"num_steps": number(51, np.int32)}, "num_steps: wanted 1 to 50, got 51"),
        (START, {"num_steps": number(0, np.int32)}, "num_steps: wanted 1 to 50, got 0"),
        (START, {"event_id": number(-2, np.int64)}, "event_id: wanted 0 or more, got -2"),
        (START, {"prompt": texts(b"day \xff")}, "prompt: wanted UTF-8 text, byte 4 is none"),
        (
            START,
            {"cam_to_world": poses(3), "intrinsics": np.ones((2, 4), np.float32)},
            "intrinsics: wanted 1 row, or one per pose (3 came), got 2 rows",
        ),
        (START, {"intrinsics": np.zeros((0, 4), np.float32)}, "intrinsics: wanted one row or more, got none"),
        (START, {"intrinsics": np.zeros((1, 4), np.float32)}, "intrinsics: row 0: wanted positive focal lengths"),
        (Envelope(is_start=True), {"pixels": PIXELS}, "sequence_id: wanted an id beside sequence_start"),
        (Envelope(parameters={"session_start": True}), {"pixels": PIXELS}, "parameter 'session': wanted an id beside"),
        (Envelope(parameters={"session": ""}), {"pixels": PIXELS}, "parameter 'session': wanted an integer of 1"),
        (Envelope(parameters={"session": True}), {"pixels": PIXELS}, "parameter 'session': wanted an integer of 1"),
        (Envelope(parameters={"session": -5}), {"pixels": PIXELS}, "parameter 'session': wanted an integer of 1"),
        (Envelope("x" * 129), {}, "sequence_id: wanted an integer of 1 or more, or a string of 1 to 128 characters"),
        (
            Envelope(parameters={"session": 1, "sequence_id": 2}),
            {},
            "parameter 'session': wanted session or sequence_id",
        ),
        (START, {"actions": texts("wasdwasdw")}, "actions: frame 0: wanted at most 8 keys, got 9 bytes"),
        (
            Envelope(parameters={"session": "a", "session_start": "yes"}),
            {"pixels": PIXELS},
            "parameter 'session_start': wanted true or false, got 'yes'",
        ),
        (Envelope("a", parameters={"session": "b"}), {}, "parameter 'session': this request carries a sequence_id"),
        (Envelope(parameters={"sesion": "b"}), {"pixels": PIXELS}, "'sesion' is neither an input (pixels, "),
        (Envelope(parameters={"fit": "squeeze"}), {"pixels": PIXELS}, "parameter 'fit': wanted crop or stretch"),
        (
            Envelope(parameters={"height": 64, "width": 64}),
            {"pixels": PIXELS},
            "parameters 'height', 'width': wanted a size that is served (96 x 160; height x width), got 64 x 64",
        ),
        (
            Envelope(parameters={"height": 32.0, "width": 48}),
            {"pixels": PIXELS},
            "parameters 'height', 'width': wanted a",
        ),
        (Envelope("a", parameters={"recache": True}), {}, "parameter 'recache': wanted it beside a prompt"),
        (Envelope(parameters={"recache": True}), {"pixels": PIXELS}, "parameter 'recache': wanted it beside a prompt"),
        (Envelope("a", parameters={"recache": 1}), {}, "parameter 'recache': wanted true or false, got 1"),
        (
            Envelope(parameters={"fps": 1}),
            {"pixels": PIXELS, "num_chunks": np.array([6], np.int32)},
            "parameter 'fps': wanted a request whose frames last at most 60 s, got 6 chunks, 72 s at 1 frames a second",
        ),
        (
            Envelope(parameters={"fps": 0.5}),
            {"pixels": PIXELS},
            "parameter 'fps': wanted a number from 1 to 1000, got 0.5",
        ),
        (Envelope(parameters={"width": 48}), {"pixels": PIXELS}, "parameter 'width': wanted height and width together"),
        (Envelope("a", parameters={"height": 32, "width": 48}), {}, "parameter 'height': is set when a session starts"),
        (Envelope("a", parameters={"fit": "crop"}), {}, "parameter 'fit': is set when a session starts"),
    ],
)
def test_what_cannot_be_meant_is_refused_by_name(envelope, tensors, says):
    with pytest.raises(InvalidInputError) as caught:
        parse(envelope, **tensors)
    assert str(caught.value).startswith(says)


@pytest.mark.parametrize(
    ("tensors", "says"),
    [
        ({"num_chunks": number(65, np.int32)}, "num_chunks: wanted at most 64 chunks in one request, got 65"),
        ({"cam_to_world": poses(193)}, "cam_to_world: wanted at most 192 poses in one request, got 193"),
        ({"actions": texts(*["w"] * 193)}, "actions: wanted at most 192 entries in one request, got 193"),
        ({"prompt": texts("x" * 4097)}, "prompt: wanted at most 4096 bytes, got 4097"),
        (
            {"pixels": np.zeros((1, 16385, 1, 3), np.uint8)},
            "pixels: wanted sides of at most 16384 pixels, got 16385 x 1",
        ),
        ({"pixels": np.broadcast_to(np.uint8(0), (1, 6000, 6000, 3))}, "pixels: wanted at most 16777216 pixels"),
    ],
)
def test_what_passes_a_limit_is_too_large(tensors, says):
    with pytest.raises(TooLargeError) as caught:
        parse(START, **tensors)
    assert str(caught.value).startswith(says)


def test_a_clients_own_words_are_cut_short_in_a_message():
    with pytest.raises(InvalidInputError) as caught:
        parse(Envelope(parameters={"ü" * 10_000: 1}), pixels=PIXELS)
    assert len(str(caught.value)) < 600
    assert str(caught.value).isascii()


def test_a_start_brings_its_prompt_with_it_and_does_not_switch_to_it():
    assert parse(START, prompt=texts("night")).controls(0, 3).prompt is None


def test_forwarded_headers_and_tritons_own_parameters_pass():
    parameters = {"triton_enable_empty_final_response": True, "x-request-source": "edge"}
    assert parse(Envelope(parameters=parameters), pixels=PIXELS).session is None


def encoding_of(**parameters):
    return parse(Envelope(parameters=parameters), pixels=PIXELS).encoding


def test_frames_are_raw_unless_an_encoding_is_asked_for():
    assert encoding_of() is None
    assert encoding_of(frame_encoding="raw") is None
    assert encoding_of(frame_encoding="png_base64").name == "png_base64"


@pytest.mark.parametrize("name", ["jpeg", "jpeg_base64", "webp", "webp_base64"])
def test_a_lossy_encoding_has_a_quality_of_90_or_as_asked(name):
    assert encoding_of(frame_encoding=name).quality == 90
    assert [encoding_of(frame_encoding=name, frame_quality=each).quality for each in (1, 100)] == [1, 100]


@pytest.mark.parametrize(
    ("parameters", "words"),
    [
        (
            {"frame_encoding": "gif"},
            "parameter 'frame_encoding': wanted raw, png, .*, webp_base64, got 'gif'",
        ),
        ({"frame_encoding": "PNG"}, "parameter 'frame_encoding': wanted raw, .* got 'PNG'"),
        ({"frame_encoding": "raw_base64"}, "parameter 'frame_encoding': .* got 'raw_base64'"),
        ({"frame_encoding": ""}, "parameter 'frame_encoding': .* got ''"),
        ({"frame_encoding": "webp\0"}, r"parameter 'frame_encoding': .* got 'webp\\x00'"),
        ({"frame_encoding": True}, "parameter 'frame_encoding': .* got True"),
        ({"frame_encoding": ["png"]}, "parameter 'frame_encoding': "),
        ({"frame_encoding": None}, "parameter 'frame_encoding': .* got None"),
        ({"frame_encoding": "jpeg", "frame_quality": 0}, "'frame_quality': wanted an integer from 1 to 100, got 0"),
        ({"frame_encoding": "jpeg", "frame_quality": 101}, "'frame_quality': wanted an integer from 1 to 100, got 101"),
        ({"frame_encoding": "jpeg", "frame_quality": 90.0}, "'frame_quality': wanted an integer .* got 90.0"),
        ({"frame_encoding": "jpeg", "frame_quality": True}, "'frame_quality': wanted an integer .* got True"),
        ({"frame_encoding": "jpeg", "frame_quality": "90"}, "'frame_quality': wanted an integer .* got '90'"),
        (
            {"frame_encoding": "png", "frame_quality": 90},
            r"'frame_quality': wanted it beside .* \(jpeg, webp\), got png",
        ),
        ({"frame_encoding": "png_base64", "frame_quality": 90}, "'frame_quality': .* got png_base64"),
        ({"frame_encoding": "raw", "frame_quality": 90}, "'frame_quality': .* got raw"),
        ({"frame_quality": 90}, "'frame_quality': .* got raw"),
    ],
)
def test_an_encoding_that_is_none_is_refused_with_what_is_served(parameters, words):
    with pytest.raises(InvalidInputError, match=words):
        encoding_of(**parameters)


def test_an_encoding_whose_package_is_missing_is_refused_at_once(monkeypatch):
    monkeypatch.setitem(sys.modules, "PIL.Image", None)
    with pytest.raises(UnavailableError, match="webp needs the Python package pillow, which this server lacks"):
        encoding_of(frame_encoding="webp")
