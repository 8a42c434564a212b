"""What runs beside what, with a fake device on the CPU that decodes only when it is let."""

import contextlib
import threading

import numpy as np
import pytest
from worldmodel.engine import Engine
from worldmodel.serving import ServingConfig
from worldmodel.streams import CpuStreams, Decoding, Moment

from tests.unit.engines import WAIT_S, ask, bare_end, go_on, start
from tests.unit.worlds import tiny_world
from tests.waiting import wait_for


class DecodeMark(Moment):
    """A moment that lies ahead until the device is let."""

    def __init__(self, device):
        super().__init__()
        self.device = device

    def synchronize(self):
        self.device.journal.append("wait for decode")
        assert self.device.may_decode.wait(WAIT_S)

    def elapsed_time(self, end_event):
        assert self.device.may_decode.is_set()  # times are read after the wait only
        return 7.0


class FakeDevice(CpuStreams):
    """Decodes beside the compute thread, as a GPU does, and writes down the order of things."""

    def __init__(self, world):
        self.journal = []
        self.may_decode = threading.Event()
        self._is_beside = False
        world.streams = self
        inner = world.transformer.forward

        def forward(*inputs):
            self.journal.append("denoise")
            return inner(*inputs)

        world.transformer.forward = forward

    def mark(self):
        return DecodeMark(self) if self._is_beside else Moment()

    @contextlib.contextmanager
    def beside(self, *inputs):
        self.journal.append("queue decode")
        self._is_beside = True
        yield
        self._is_beside = False

    def to_host(self, frames):
        self.journal.append("copy")
        return frames.numpy().copy()


@pytest.fixture
def slow():
    world = tiny_world()
    device = FakeDevice(world)
    engine = Engine(lambda: world, ServingConfig(), lambda _: None)
    engine.start()
    yield engine, device
    device.may_decode.set()
    engine.close()


def test_the_next_chunk_is_denoised_while_the_last_one_is_decoded(slow):
    engine, device = slow
    reply = ask(engine, start(None, 3))
    wait_for(lambda: device.journal.count("queue decode") == 3)
    assert device.journal.count("denoise") == 15  # three chunks of four steps and a context pass: nothing waited
    assert "copy" not in device.journal
    assert reply.batches == []
    device.may_decode.set()
    assert np.array_equal(reply.frames(), solo(3))
    assert [batch.frame_index[0] for batch in reply.batches] == [0, 9, 21]


def test_only_so_many_decodes_are_under_way(slow):
    engine, device = slow
    reply = ask(engine, start(None, 12))
    wait_for(lambda: device.journal.count("queue decode") == 5)  # one is waited for, three are queued, one waits
    assert len(device.journal) == 6 * 5 + 1
    device.may_decode.set()
    assert len(reply.frames()) == 9 + 11 * 12


def test_times_are_the_devices_own(slow):
    engine, device = slow
    reply = ask(engine, start(None, 1))
    wait_for(lambda: "wait for decode" in device.journal)
    device.may_decode.set()
    reply.frames()
    _, _, _, decode, transfer, total = reply.batches[-1].timings_ms
    assert decode == 7.0
    assert transfer < total


def test_a_session_that_ends_while_its_last_chunk_is_decoded_still_gets_it(slow):
    engine, device = slow
    reply = ask(engine, start("a", 1))
    wait_for(lambda: "queue decode" in device.journal)
    end = ask(engine, bare_end("a"))
    wait_for(lambda: engine.stats().active_sessions == 0)
    assert reply.batches == []
    device.may_decode.set()
    assert np.array_equal(reply.frames(), solo(1))
    assert len(end.frames()) == 0


def test_a_chunk_builds_on_a_decode_that_is_still_under_way(slow):
    engine, device = slow
    first, second = ask(engine, start("a", 1)), ask(engine, go_on("a", 1))
    wait_for(lambda: device.journal.count("queue decode") == 2)
    device.may_decode.set()
    assert np.array_equal(np.concatenate([first.frames(), second.frames()]), solo(2))


def test_a_decode_that_fails_fails_its_request_alone(slow):
    engine, device = slow
    failed = ask(engine, start("a", 1))
    wait_for(lambda: "wait for decode" in device.journal)
    device.to_host = raise_once(device.to_host)
    device.may_decode.set()
    with pytest.raises(Exception, match="an answer could not be sent"):
        failed.frames()
    assert len(ask(engine, start("b", 1)).frames()) == 9


def raise_once(inner):
    calls = iter([RuntimeError("the device failed")])

    def to_host(frames):
        for error in calls:
            raise error
        return inner(frames)

    return to_host


def solo(num_chunks):
    """The frames of an engine without a device beside it."""
    world = tiny_world()
    engine = Engine(lambda: world, ServingConfig(), lambda _: None)
    engine.start()
    frames = ask(engine, start(None, num_chunks)).frames()
    engine.close()
    return frames


def test_on_a_cpu_a_stage_is_over_when_the_next_begins():
    streams = CpuStreams()
    frames = tiny_world().start(np.zeros((32, 48, 3), np.uint8)).condition
    with streams.beside(frames):
        marks = [streams.mark() for _ in range(5)]
    timings = Decoding(frames, *marks).timings()
    assert 0 <= timings.condition_ms < 100
    assert 0 <= timings.decode_ms < 100
    assert streams.to_host(frames).__array_interface__["data"][0] == frames.data_ptr()  # no copy
