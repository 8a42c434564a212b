"""Encoded frames through the engine: the same frames in files, and answers that have none."""

import io
import time

import numpy as np
import pytest
from PIL import Image
from worldmodel.encoding import FrameEncoding

from tests.unit.engines import WAIT_S, ask, bare_end, go_on, start

PNG = FrameEncoding("png")
SLOW_S = 0.05


def slow_encode(frame):
    time.sleep(SLOW_S)
    return b"file"


def pixels_of(reply):
    """Every file of a reply as pixels, [n, H, W, 3]."""
    files = [file for batch in reply.batches for file in batch.encoded]
    return np.stack([np.asarray(Image.open(io.BytesIO(file))) for file in files])


def test_files_hold_the_frames_that_would_have_come_raw(make_engine):
    engine, _ = make_engine()
    raw, encoded = ask(engine, start("a", 2)), ask(engine, start("b", 2, encoding=PNG))
    frames = raw.frames()
    assert encoded.frames().shape == (0, 32, 48, 3)
    assert np.array_equal(pixels_of(encoded), frames)
    assert [batch.frame_index.tolist() for batch in encoded.batches] == [[*range(9)], [*range(9, 21)]]
    assert [len(batch.encoded) for batch in encoded.batches] == [9, 12]
    assert all(batch.encoded is None for batch in raw.batches)


def test_requests_of_one_session_may_differ_in_their_encoding(make_engine):
    engine, _ = make_engine()
    alone = ask(engine, start("a", 3)).frames()
    replies = [ask(engine, start("b", 1)), ask(engine, go_on("b", 1, encoding=PNG)), ask(engine, go_on("b", 1))]
    frames = [reply.frames() for reply in replies]
    assert np.array_equal(np.concatenate([frames[0], pixels_of(replies[1]), frames[2]]), alone)


def test_a_response_holds_what_fits_of_the_files_not_of_the_frames(make_engine):
    engine, _ = make_engine()
    whole = ask(engine, start("a", 1, encoding=PNG))
    whole.frames()
    [batch] = whole.batches
    most = sum(map(len, batch.encoded[:4]))
    small, _ = make_engine(response_bytes=most)
    reply = ask(small, start("a", 1, encoding=PNG))
    reply.frames()
    assert len(reply.batches[0].encoded) == 4
    assert all(sum(map(len, each.encoded)) <= most for each in reply.batches)
    assert [file for each in reply.batches for file in each.encoded] == list(batch.encoded)
    assert np.concatenate([each.frame_index for each in reply.batches]).tolist() == list(range(9))
    num_parts = len(reply.batches)
    assert [each.chunk for each in reply.batches] == [(0, part, num_parts) for part in range(num_parts)]
    assert [each.is_last for each in reply.batches] == [False] * (num_parts - 1) + [True]


def test_a_file_over_the_bound_comes_alone(make_engine):
    engine, _ = make_engine(response_bytes=1)
    reply = ask(engine, start("a", 1, encoding=PNG))
    reply.frames()
    assert [len(batch.encoded) for batch in reply.batches] == [1] * 9


def test_receipts_and_bare_ends_have_no_files(make_engine):
    engine, _ = make_engine()
    reply = ask(engine, start("a", 1, encoding=PNG, wants_receipt=True))
    reply.frames()
    receipt, frames = reply.batches
    assert (receipt.encoded, receipt.frames.shape, receipt.chunk[1]) == ((), (0, 32, 48, 3), -1)
    assert len(frames.encoded) == 9
    end = bare_end("a")
    ended = ask(engine, type(end)(**{**vars(end), "encoding": PNG}))
    assert ended.done.wait(WAIT_S)
    assert [(batch.encoded, len(batch.frames)) for batch in ended.batches] == [((), 0)]


def test_encoding_counts_as_transfer(make_engine, monkeypatch):
    engine, _ = make_engine()
    monkeypatch.setattr(FrameEncoding, "make", lambda self: slow_encode)
    reply = ask(engine, start("a", 1, encoding=PNG))
    reply.frames()
    transfer_ms, total_ms = reply.batches[0].timings_ms[4:]
    assert 1e3 * SLOW_S <= transfer_ms <= total_ms


@pytest.mark.parametrize("encoding", [None, PNG])
def test_an_encoder_that_fails_fails_its_request_alone(make_engine, monkeypatch, encoding):
    engine, _ = make_engine()

    def broken(self):
        raise ValueError("no such frame")

    with monkeypatch.context() as patch:
        patch.setattr(FrameEncoding, "make", broken)
        failed = ask(engine, start("a", 1, encoding=PNG))
        assert failed.done.wait(WAIT_S)
    assert failed.error.code == "INTERNAL"
    assert "no such frame" not in str(failed.error)
    well = ask(engine, start("b", 1, encoding=encoding))
    assert well.done.wait(WAIT_S)
    assert well.error is None
