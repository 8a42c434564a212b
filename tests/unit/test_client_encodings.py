"""Frames that travel as files: what the client asks for, and what it makes of them."""

import io
import struct

import numpy as np
import pytest
from PIL import Image
from worldstream import InvalidInputError, ProtocolError
from worldstream.requests import make_controls
from worldstream.testing import HEIGHT_PX, WIDTH_PX, answer_once, frames_message

PIXELS = np.zeros((2, 3, 3), np.uint8)
FRAMES = np.random.default_rng(0).integers(0, 256, (2, HEIGHT_PX, WIDTH_PX, 3), np.uint8)


def file_of(frame, kind="PNG"):
    file = io.BytesIO()
    Image.fromarray(frame).save(file, kind)
    return file.getvalue()


FILES = [file_of(frame) for frame in FRAMES]


def files_message(files, num_frames=2):
    """One whole chunk whose frames are files, as the server sends it."""
    message = frames_message(0, num_frames, (0, 0, 1), True)
    response = message.infer_response
    place = [output.name for output in response.outputs].index("frames")
    response.outputs[place].shape[0] = 0
    response.raw_output_contents[place] = b""
    response.outputs.add(name="encoded_frames", datatype="BYTES", shape=[len(files)])
    response.raw_output_contents.append(b"".join(struct.pack("<I", len(file)) + file for file in files))
    return message


def batch_of(server, client, files, **options):
    server.script = answer_once(files_message(files))
    with client.session(PIXELS, frame_encoding="png", **options) as session:
        (batch,) = session.generate()
    return batch


def test_a_batch_has_the_files_and_their_pixels(server, client):
    batch = batch_of(server, client, FILES)
    assert batch.encoded == tuple(FILES)
    assert np.array_equal(batch.frames, FRAMES)
    assert not batch.frames.flags.writeable
    assert batch.frame_index.tolist() == [0, 1]
    assert [frame.pixels.tolist() for frame in batch.singles()] == FRAMES.tolist()


def test_files_are_decoded_once_and_only_when_pixels_are_wanted(server, client):
    batch = batch_of(server, client, [b"no picture", FILES[1]])
    assert batch.encoded[0] == b"no picture"  # nobody has looked yet
    with pytest.raises(ProtocolError, match="encoded_frames: wanted PNG, JPEG or WebP files of one size"):
        _ = batch.frames
    whole = batch_of(server, client, FILES)
    assert whole.frames is whole.frames


def test_files_of_two_sizes_are_refused(server, client):
    batch = batch_of(server, client, [FILES[0], file_of(FRAMES[0, :3])])
    with pytest.raises(ProtocolError, match="files of one size"):
        _ = batch.frames


def test_raw_batches_have_no_files(server, client):
    with client.session(PIXELS) as session:
        batches = list(session.generate())
    assert all(batch.encoded is None for batch in batches)
    assert all("frame_encoding" not in seen.parameters for seen in server.seen)


def test_fewer_files_than_frames_break_the_contract(server, client):
    server.script = answer_once(files_message(FILES[:1]))
    with client.session(PIXELS) as session, pytest.raises(ProtocolError, match="frame_index: wanted 1 numbers, got 2"):
        list(session.generate())


def test_a_session_asks_for_its_encoding_in_every_request_but_the_bare_end(server, client):
    with client.session(PIXELS, frame_encoding="jpeg", frame_quality=np.int64(75)) as session:
        list(session.generate())
        list(session.ask(make_controls(frame_encoding="raw")))
        list(session.generate())
    asked = [(seen.parameters.get("frame_encoding"), seen.parameters.get("frame_quality")) for seen in server.seen]
    assert asked == [("jpeg", 75), ("raw", None), ("jpeg", 75), (None, None)]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"frame_encoding": "gif"}, "frame_encoding: wanted raw, png, jpeg or webp, got 'gif'"),
        ({"frame_encoding": "webp\0"}, r"frame_encoding: wanted raw, png, jpeg or webp, got 'webp\\x00'"),
        ({"frame_encoding": "png_base64"}, "frame_encoding: wanted raw, png, jpeg or webp, got 'png_base64'"),
        ({"frame_encoding": "png", "frame_quality": 50}, "frame_quality: wanted it with jpeg or webp, came with png"),
        ({"frame_quality": 50}, "frame_quality: wanted it with jpeg or webp, came with raw"),
        ({"frame_encoding": "jpeg", "frame_quality": 0}, "frame_quality: wanted 1 or more, got 0"),
        ({"frame_encoding": "jpeg", "frame_quality": 101}, "frame_quality: wanted 100 or less, got 101"),
        ({"frame_encoding": "jpeg", "frame_quality": 1.5}, "frame_quality: wanted an integer"),
    ],
)
def test_what_is_no_encoding_is_refused_before_anything_is_sent(server, client, options, words):
    with pytest.raises(InvalidInputError, match=words):
        client.session(PIXELS, **options)
    assert server.seen == []
