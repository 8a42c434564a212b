"""Elements, cameras, sizes, digests and limits: what one request may hold, and what comes of it."""

import base64
import hashlib
import io
import itertools
import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from ingest import (
    IngestError,
    InvalidInputError,
    Limits,
    Pictures,
    TooLargeError,
    continues_session,
    read_images,
)
from ingest.fit import crop_box, fit
from PIL import Image

LIMITS = Limits()


def png(width: int, height: int, colour: tuple[int, int, int]) -> bytes:
    buffer = io.BytesIO()
    Image.new("RGB", (width, height), colour).save(buffer, "PNG")
    return buffer.getvalue()


RED, BLUE = png(2, 1, (255, 0, 0)), png(2, 1, (0, 0, 255))
RED_BASE64 = base64.b64encode(RED).decode()
RED_PIXELS = [[[255, 0, 0], [255, 0, 0]]]
BLUE_PIXELS = [[[0, 0, 255], [0, 0, 255]]]


def read(*elements: bytes, size: list[int] | None = None, limits: Limits = LIMITS) -> Pictures:
    return read_images(elements, size, limits)


def refusal(*elements: bytes, size: list[int] | None = None, limits: Limits = LIMITS) -> str:
    with pytest.raises(IngestError) as caught:
        read(*elements, size=size, limits=limits)
    return str(caught.value)


@pytest.mark.parametrize(
    "element",
    [
        RED,
        RED_BASE64.encode(),
        b" \n" + RED_BASE64.encode() + b"\n",
        b"data:image/png;base64," + RED_BASE64.encode(),
        json.dumps({"b64_json": RED_BASE64}).encode(),
        json.dumps({"base64": "data:image/png;base64," + RED_BASE64}).encode(),
        json.dumps({"b64_json": RED_BASE64}).replace("/", "\\/").encode(),
        b" [[[255,0,0],[255,0,0]]] ",
        b"[[[1.0,0,0],[1,0,0]]]",
    ],
)
def test_each_form_gives_the_same_picture(element: bytes) -> None:
    pictures = read(element)
    assert pictures.pixels.tolist() == [RED_PIXELS]
    assert pictures.camera_names == [""]


def test_several_elements_keep_their_order() -> None:
    assert read(RED, BLUE, RED_BASE64.encode()).pixels.tolist() == [RED_PIXELS, BLUE_PIXELS, RED_PIXELS]


def test_cameras_keep_their_order_and_names() -> None:
    cameras = {"wrist": RED_BASE64, "left": [[[0, 0, 255], [0, 0, 255]]], "ümlaut": {"b64_json": RED_BASE64}}
    pictures = read(json.dumps(cameras).encode(), BLUE)
    assert pictures.camera_names == ["wrist", "left", "ümlaut", ""]
    assert pictures.pixels.tolist() == [RED_PIXELS, BLUE_PIXELS, RED_PIXELS, BLUE_PIXELS]


def test_two_elements_may_use_the_same_camera_names() -> None:
    element = json.dumps({"wrist": RED_BASE64}).encode()
    assert read(element, element).camera_names == ["wrist", "wrist"]


@pytest.mark.parametrize(
    ("element", "words"),
    [
        (b"", "image[0]: wanted a picture, came an empty element"),
        (b" \n", "image[0]: wanted a picture, came an empty element"),
        (b'"iVBORw0KGgo="', "came a JSON string"),
        (b"GIF89a\x01\0\x01\0", "came GIF"),
        (b"<svg xmlns='http://www.w3.org/2000/svg'/>", "came SVG"),
        (b"\0\0\0\x1cftypavif", "came AVIF, HEIC or video"),
        (b"https://example.com/cat.png", "came a URL"),
        (b"\x89PNG", "came text with the byte 0x89"),
        (b"true", "text that decodes to none of them"),
        (b"{}", "came an empty object"),
        (b'{"wrist": }', "valid JSON"),
        (b'{"wrist"', "valid JSON"),
        (b"{'wrist': 1}", "valid JSON"),
        (b'{"wrist": "AA==",}', "valid JSON"),
        (b'{"wrist": "AA=="} x', "valid JSON"),
        (b'{"wrist": [[1,2],[3,4]]', "valid JSON"),
        (b'{"wrist": [[1,2],[3,4]', "valid JSON"),
        (b'{"wrist": "\\ud800"}', "valid JSON"),
        (b'{"wr\xffist": "AA=="}', "valid JSON"),
        (
            b'{"wrist": 5}',
            "image[0]['wrist']: wanted a base64 string, a pixel list or {'b64_json': ...}, came a number",
        ),
        (b'{"wrist": null}', "came null"),
        (b'{"wrist": true}', "came a boolean"),
        (b'{"wrist": {"left": "AA=="}}', "came an object without them"),
        (b'{"": "AA=="}', "wanted a name for each camera"),
        (b'{"a": "AA==", "b": "AA==", "a": "AA=="}', "wanted each name once, came 'a' twice"),
        (b'{"a": "AA==", "\\u0061": "AA=="}', "wanted each name once, came 'a' twice"),
        (b'{"b64_json": "AA==", "b64_json": "AA=="}', "wanted each name once, came 'b64_json' twice"),
        (b'{"b64_json": "AA==", "wrist": "AA=="}', "wanted 'b64_json' or 'base64' alone in its object, came 2 names"),
        (b'{"b64_json": [[1,2],[3,4]]}', "'b64_json': wanted a base64 string, came a list"),
        (b'{"wrist": {"base64": 7}}', "image[0]['wrist']: 'base64': wanted a base64 string, came a number"),
        (b'{"left": [[[1,"x",3]]]}', "image[0]['left']: row 0, column 0, channel 1: wanted a number, came a string"),
        (b'{"left": [[[1,2,3],[1,2]]]}', "image[0]['left']: ragged at row 0, column 1"),
        (b'{"left": [[1]]], "right": [[1]]}', "image[0]['left']: wanted a pixel list in valid JSON"),
        (b'{"wrist": "AA-/"}', "image[0]['wrist']: wanted one base64 alphabet"),
        (b'{"wrist": "caf\\u00e9"}', "image[0]['wrist']: wanted PNG, JPEG or WebP bytes"),
    ],
)
def test_each_faulty_element_is_refused_by_name(element: bytes, words: str) -> None:
    message = refusal(element)
    assert message.startswith("INVALID_INPUT: image[0]")
    assert words in message


def test_the_faulty_element_is_named_among_others() -> None:
    assert refusal(RED, BLUE, b"[[1,2],[3]]").startswith("INVALID_INPUT: image[2]: ragged at row 1")


def test_a_long_camera_name_is_cut_in_messages() -> None:
    message = refusal(json.dumps({"ü" * 1000: 1}).encode())
    assert len(message) < 400
    assert message.isascii()


def test_pictures_of_different_size_are_refused_with_both_sizes() -> None:
    message = refusal(RED, png(5, 4, (0, 0, 0)))
    assert message == (
        "INVALID_INPUT: image: wanted pictures of one size, or the input `size`; "
        "came image[0] with 1 x 2 and image[1] with 4 x 5 (height x width)"
    )


def test_cameras_of_different_size_are_refused_by_their_names() -> None:
    element = json.dumps({"wrist": [[1]], "left": [[1, 2]]}).encode()
    assert "came image[0]['wrist'] with 1 x 1 and image[0]['left'] with 1 x 2" in refusal(element)


def test_size_brings_different_pictures_together() -> None:
    pictures = read(RED, png(5, 4, (0, 255, 0)), size=[3, 6])
    assert pictures.pixels.shape == (2, 3, 6, 3)
    assert (pictures.pixels[0] == [255, 0, 0]).all()
    assert (pictures.pixels[1] == [0, 255, 0]).all()


@pytest.mark.parametrize("size", [[0, 5], [5, -1], [5], [1, 2, 3]])
def test_a_size_that_is_none_is_refused(size: list[int]) -> None:
    assert "INVALID_INPUT: size: wanted height and width, both 1 or more" in refusal(RED, size=size)


def test_a_size_over_the_limit_is_refused() -> None:
    assert refusal(RED, size=[2**31 - 1, 2**31 - 1]).startswith("TOO_LARGE: size: wanted at most 16777216 pixels")


def test_a_picture_of_the_wanted_size_is_left_alone() -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (6, 7, 3)).astype(np.uint8)
    assert fit(pixels, 6, 7) is pixels


@pytest.mark.parametrize(
    ("height", "width", "to_height", "to_width", "box"),
    [
        (100, 100, 50, 50, (0, 0, 100, 100)),
        (100, 200, 50, 50, (50, 0, 150, 100)),
        (200, 100, 50, 50, (0, 50, 100, 150)),
        (480, 640, 320, 576, (0, 62.2222222, 640, 417.7777778)),
        (10, 10, 20, 40, (0, 2.5, 10, 7.5)),
    ],
)
def test_the_largest_centred_part_is_taken(height: int, width: int, to_height: int, to_width: int, box: tuple) -> None:
    assert crop_box(height, width, to_height, to_width) == pytest.approx(box)


@given(st.integers(1, 5000), st.integers(1, 5000), st.integers(1, 5000), st.integers(1, 5000))
def test_the_part_never_reaches_beyond_the_picture(height: int, width: int, to_height: int, to_width: int) -> None:
    left, top, right, bottom = crop_box(height, width, to_height, to_width)
    assert 0 <= left < right <= width
    assert 0 <= top < bottom <= height


def test_fitting_crops_the_same_from_both_sides() -> None:
    stripes = np.zeros((2, 8, 3), np.uint8)
    stripes[:, :3] = [255, 0, 0]
    stripes[:, 3:5] = [0, 255, 0]
    stripes[:, 5:] = [0, 0, 255]
    assert fit(stripes, 2, 2).tolist() == [[[0, 255, 0]] * 2] * 2


def test_scaling_down_is_antialiased() -> None:
    checkers = (np.indices((64, 64)).sum(axis=0) % 2 * 255).astype(np.uint8)[:, :, None].repeat(3, axis=2)
    small = fit(checkers, 8, 8)
    assert np.abs(small.astype(int) - 127.5).max() <= 8  # gray, where nearest or bilinear points give black or white


def test_the_digest_is_blake2b_over_shape_and_pixels() -> None:
    wanted = hashlib.blake2b(
        b"\x01\0\0\0\x02\0\0\0\x03\0\0\0" + b"\xff\0\0\xff\0\0",
        digest_size=16,
    ).hexdigest()
    assert read(RED).digests() == [wanted]
    assert len(wanted) == 32


def test_the_digest_tells_shapes_apart() -> None:
    assert read(b"[[1,1]]").digests() != read(b"[[1],[1]]").digests()


def test_the_digest_is_the_same_for_every_form() -> None:
    assert read(RED).digests() == read(b"[[[255,0,0],[255,0,0]]]").digests()


def test_no_elements_give_empty_outputs() -> None:
    pictures = read()
    assert pictures.pixels.shape == (0, 0, 0, 3)
    assert pictures.pixels.dtype == np.uint8
    assert pictures.digests() == []
    assert pictures.camera_names == []


@pytest.mark.parametrize(
    ("limits", "words"),
    [
        (Limits(max_bytes_per_element=10), "image[0]: wanted at most 10 bytes, came"),
        (Limits(max_pixels_per_picture=1), "image[0]: wanted at most 1 pixels, came 1 x 2 (height x width)"),
        (Limits(max_pictures_per_request=1), "image: wanted at most 1 pictures, came more"),
        (Limits(max_pixels_per_request=3), "image: wanted at most 3 pixels in one request, came 2 pictures of 1 x 2"),
    ],
)
def test_each_limit_is_held(limits: Limits, words: str) -> None:
    message = refusal(RED, BLUE, limits=limits)
    assert message.startswith("TOO_LARGE: ")
    assert words in message


def test_cameras_count_as_pictures() -> None:
    element = json.dumps({str(index): [[1]] for index in range(17)}).encode()
    assert refusal(element) == "TOO_LARGE: image: wanted at most 16 pictures, came more"


def test_sixteen_cameras_in_objects_of_their_own_are_read() -> None:
    element = json.dumps({str(index): {"b64_json": RED_BASE64} for index in range(16)}).encode()
    assert len(read(element).digests()) == 16


@pytest.mark.parametrize("start", [b"{", b'{"a": {', b'{"a": {"b": {'])
def test_too_many_names_are_refused_before_the_rest_is_looked_at(start: bytes) -> None:
    # The rest is no JSON: who says so has read it.
    names = b",".join(b'"%d": {"x": [[1]]}' % index for index in range(17))
    assert refusal(start + names + b"!") == "TOO_LARGE: image[0]: wanted at most 32 names in its JSON, came more"


def test_pictures_count_as_sent_however_small_they_become() -> None:
    limits = Limits(max_pixels_per_request=3)
    message = refusal(RED, BLUE, size=[1, 1], limits=limits)
    assert message == (
        "TOO_LARGE: image: wanted at most 3 pixels in one request, came pictures with at least 4 as sent"
    )


def test_deep_objects_are_refused_without_recursion() -> None:
    with pytest.raises(TooLargeError, match="nested less deep"):
        read(b'{"a":' * 100_000)


def test_deep_lists_in_objects_are_refused_without_recursion() -> None:
    assert refusal(b'{"a":' + b"[" * 100_000 + b"]" * 100_000 + b"}").startswith("TOO_LARGE")


def test_limits_are_read_from_parameters_and_tritons_own_are_left_alone() -> None:
    limits = Limits.from_parameters({"max_json_depth": "3", "FORCE_CPU_ONLY_INPUT_TENSORS": "yes"})
    assert limits == Limits(max_json_depth=3)


@pytest.mark.parametrize("parameters", [{"max_pixels": "5"}, {"max_json_depth": "0"}, {"max_json_depth": "many"}])
def test_a_wrong_parameter_stops_the_model(parameters: dict) -> None:
    with pytest.raises(ValueError, match="parameter"):
        Limits.from_parameters(parameters)


@pytest.mark.parametrize(
    ("correlation_id", "has_start_flag", "parameters", "wanted"),
    [
        (7, False, "", True),
        ("robot", False, "{}", True),
        (7, True, "", False),
        (0, False, "", False),
        ("", False, "{}", False),
        (0, False, '{"session": "robot"}', True),
        (0, False, '{"sequence_id": 7}', True),
        (0, False, '{"sequence_id": 7, "sequence_start": true}', False),
        (0, False, '{"session": 7, "session_start": false}', True),
        (0, False, '{"session": "robot", "session_start": true}', False),
        (0, False, '{"session": ""}', False),
        (7, True, '{"session": "robot"}', False),
        (0, True, "{}", False),
    ],
)
def test_only_a_request_with_a_session_and_no_start_continues_one(
    correlation_id: int | str, has_start_flag: bool, parameters: str, wanted: bool
) -> None:
    assert continues_session(correlation_id, has_start_flag, parameters) is wanted


def test_a_session_start_that_is_not_a_boolean_is_refused() -> None:
    with pytest.raises(InvalidInputError, match="session_start: wanted true or false, came str"):
        continues_session(0, False, '{"session": "robot", "session_start": "yes"}')


def test_files_decoded_side_by_side_keep_their_order() -> None:
    colours = [(index, 255 - index, 7) for index in range(16)]
    elements = [png(300 if index % 3 else 2, 40, colour) for index, colour in enumerate(colours)]
    pictures = read(*elements, size=[2, 3])
    assert [tuple(picture[0, 0]) for picture in pictures.pixels] == colours


def test_of_several_wrong_files_the_first_is_named() -> None:
    large = png(900, 700, (1, 2, 3))
    # The second fails at once, the first only at its end.
    assert refusal(RED, large[:-9] + b"?" + large[-8:], RED[:40]).startswith("INVALID_INPUT: image[1]: ")


def test_files_and_lists_of_one_request_keep_their_order() -> None:
    pictures = read(RED, b"[[[0,0,255],[0,0,255]]]", RED, BLUE)
    assert pictures.pixels.tolist() == [RED_PIXELS, BLUE_PIXELS, RED_PIXELS, BLUE_PIXELS]
    assert [first == second for first, second in itertools.pairwise(pictures.digests())] == [False, False, False]
