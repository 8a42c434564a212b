"""What the client refuses before it sends anything."""

import numpy as np
import pytest
from PIL import Image
from worldstream import InvalidInputError

PIXELS = np.arange(2 * 3 * 3, dtype=np.uint8).reshape(2, 3, 3)


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        ({"cam_to_world": np.eye(4)}, r"cam_to_world: wanted \[T, 4, 4\] with T of 1 or more, got \[4, 4\]"),
        ({"cam_to_world": "north"}, "cam_to_world: wanted an array of numbers, got 'north'$"),
        ({"intrinsics": [500, 500, 10**400, 240]}, "intrinsics: wanted an array of numbers, got one that is too"),
        ({"intrinsics": [500, 500, 1e300, 240]}, "intrinsics: wanted an array of numbers, got one that is too large$"),
        ({"cam_to_world": np.zeros((3, 4, 4)), "actions": "www"}, "a request takes one of them, both came"),
        ({"actions": "wq"}, "actions: frame 1: 'q' is no key"),
        ({"intrinsics": [1, 2, 3]}, r"intrinsics: wanted \[4\], \[1, 4\] or \[T, 4\], got \[1, 3\]"),
        ({"num_chunks": 0}, "num_chunks: wanted 1 or more, got 0"),
        ({"num_steps": 0}, "num_steps: wanted 1 or more, got 0"),
        ({"event_id": -1}, "event_id: wanted 0 or more, got -1"),
        ({"num_chunks": 2**31}, "num_chunks: wanted 2147483647 or less, got 2147483648"),
        ({"num_chunks": 2.7}, r"num_chunks: wanted an integer, got 2\.7"),
        ({"num_chunks": True}, "num_chunks: wanted an integer, got True"),
        ({"num_steps": "4"}, "num_steps: wanted an integer, got '4'"),
        ({"num_steps": np.float32(4)}, r"num_steps: wanted an integer, got .*4\.0"),
        ({"event_id": np.array([1])}, r"event_id: wanted an integer, got array\(\[1\]\)"),
        ({"prompt": "\ud800"}, "prompt: wanted text that UTF-8 can carry"),
        ({"actions": ["w", 7]}, "actions: wanted text, got int"),
        ({"actions": 7}, "actions: wanted text or a sequence of texts, got int"),
        ({"recache": True}, "recache: wanted it beside a prompt that a session switches to, came without one"),
        ({"prompt": "night", "recache": 1}, "recache: wanted True or False, got 1"),
        ({"receipt": "yes"}, "receipt: wanted True or False, got 'yes'"),
        # The server reads text up to a NUL, and once took this for webp.
        (
            {"parameters": {"frame_encoding": "webp\0"}},
            r"parameters: wanted text without control characters, got 'webp\\x00'",
        ),
        ({"parameters": {"blocks": 2**63}}, "parameters: 'blocks': wanted 9223372036854775807 or less"),
        ({"parameters": {"fps\n": 16.0}}, "parameters: wanted text without control characters"),
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
        ({"seed": 1.9}, r"seed: wanted an integer, got 1\.9"),
        ({"seed": np.True_}, "seed: wanted an integer, got .*True"),
        ({"num_steps": 3.0}, r"num_steps: wanted an integer, got 3\.0"),
        ({"translation_scale": "2"}, "translation_scale: wanted a number over 0, got '2'"),
        ({"translation_scale": True}, "translation_scale: wanted a number over 0, got True"),
        ({"translation_scale": 1e-60}, "translation_scale: wanted a number over 0, got 1e-60"),
        ({"translation_scale": 1e60}, r"translation_scale: wanted a number over 0, got 1e\+60"),
        ({"translation_scale": 0}, "translation_scale: wanted a number over 0, got 0"),
        ({"translation_scale": float("nan")}, "translation_scale: wanted a number over 0, got nan"),
        ({"size": 96}, "size: wanted height and width, got 96"),
        ({"size": (96, 160.0)}, r"size: wanted an integer, got 160\.0"),
        ({"fit": "pad"}, "fit: wanted crop or stretch, got 'pad'"),
        ({"fps": 0.5}, r"fps: wanted a number from 1 to 1000, got 0\.5"),
        ({"fps": 1001}, "fps: wanted a number from 1 to 1000, got 1001"),
        ({"fps": float("nan")}, "fps: wanted a number from 1 to 1000, got nan"),
        ({"fps": True}, "fps: wanted a number from 1 to 1000, got True"),
        ({"fps": "16"}, "fps: wanted a number from 1 to 1000, got '16'"),
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


@pytest.mark.parametrize(
    ("size", "complaint"),
    [
        ((2.5, 4), r"size: wanted an integer, got 2\.5"),
        ((True, 4), "size: wanted an integer, got True"),
        ((0, 4), "size: wanted 1 or more, got 0"),
        ((4, 2**31), "size: wanted 2147483647 or less, got 2147483648"),
        ((4,), r"size: wanted height and width, got \(4,\)"),
        ((4, 4, 3), r"size: wanted height and width, got \(4, 4, 3\)"),
        (4, "size: wanted height and width, got 4"),
    ],
)
def test_sizes_that_cannot_be_right_are_refused(server, client, size, complaint):
    with pytest.raises(InvalidInputError, match=complaint):
        client.preprocess([b"encoded"], size=size)

    assert server.seen == []
