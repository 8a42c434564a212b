"""What only a GPU can show: its arithmetic, its streams, and inputs that lie in its memory."""

import threading
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.utils.dlpack import to_dlpack
from worldmodel.config import EMBEDDED
from worldmodel.engine import Engine
from worldmodel.inputs import own_copy, read_inputs
from worldmodel.loading import Instance, load_world, settle_cuda
from worldmodel.pixels import picture_digest, to_device
from worldmodel.request import Envelope, parse_request
from worldmodel.serving import ServingConfig
from worldmodel.world import Controls, World

from tests.unit.engines import Recorder, ask, bare_end, go_on, start
from tests.unit.snapshots import load, save
from tests.unit.worlds import TINY, picture, tiny_world

pytestmark = pytest.mark.gpu

CUDA = torch.device("cuda", 0)
BF16 = torch.bfloat16
MOVE = Controls(actions=("w", "l", "w"))


def on_gpu(dtype, **changes):
    settle_cuda(CUDA, dtype)
    cpu = tiny_world(**changes)
    return World(TINY, cpu.transformer, cpu.codec, CUDA, dtype, cpu.conditioner_budget_bytes, 1 << 20)


def stream(world, num_chunks, controls=MOVE, seed=1):
    session, frames = world.start(picture(seed), "day", seed), []
    for _ in range(num_chunks):
        chunk = world.next_chunk(session, controls, lambda: None)
        session.commit(chunk.staged)
        frames.append(chunk.frames.cpu().numpy())
    return np.concatenate(frames)


@pytest.fixture
def engine():
    made = Engine(lambda: on_gpu(BF16), ServingConfig(), lambda _: None)
    made.start()
    yield made
    made.close()


def test_float32_frames_on_the_gpu_are_those_of_the_cpu():
    distance = np.abs(stream(on_gpu(torch.float32), 4).astype(int) - stream(tiny_world(), 4))
    assert distance.max() <= 2  # of 255: other kernels, other rounding


def test_bfloat16_frames_on_the_gpu_are_near_those_of_the_cpu():
    distance = np.abs(stream(on_gpu(BF16), 4).astype(int) - stream(tiny_world(), 4))
    assert distance.mean() < 0.5


@pytest.mark.parametrize("dtype", [torch.float32, BF16])
def test_equal_inputs_give_equal_bytes_past_the_roll(dtype):
    assert np.array_equal(stream(on_gpu(dtype), 6), stream(on_gpu(dtype), 6))


@pytest.mark.parametrize("dtype", [torch.float32, BF16])
@pytest.mark.parametrize("budget", [0, 5000])
def test_frames_are_bit_equal_without_conditioner_reuse(dtype, budget):
    assert np.array_equal(stream(on_gpu(dtype), 4), stream(on_gpu(dtype, conditioner_budget_bytes=budget), 4))


@pytest.mark.parametrize("dtype", [torch.float32, BF16])
def test_the_engine_streams_what_the_world_computes(dtype):
    wanted = stream(on_gpu(dtype), 5, Controls())
    engine = Engine(lambda: on_gpu(dtype), ServingConfig(), lambda _: None)
    assert engine.start().device == CUDA
    replies = [Recorder(), Recorder()]
    for reply in replies:
        engine.submit(start(None, 5, picture=picture(1), seed=1, prompt="day"), reply)
    frames = [reply.frames() for reply in replies]
    engine.close()
    assert np.array_equal(frames[0], wanted)
    assert np.array_equal(frames[1], wanted)


def test_interleaved_sessions_equal_their_solo_runs(engine):
    solo = [ask(engine, start(None, 6, seed=seed)).frames() for seed in range(4)]
    replies = [ask(engine, start(f"s{seed}", 6, seed=seed)) for seed in range(4)]
    for wanted, reply in zip(solo, replies, strict=True):
        assert np.array_equal(reply.frames(), wanted)


def test_sessions_that_end_under_way_do_not_disturb_others(engine):
    """Memory of a session that is gone is given out again: never while somebody still reads it."""
    wanted = ask(engine, start(None, 12, seed=7)).frames()
    steady = ask(engine, start("steady", 12, seed=7))
    for number in range(8):
        ask(engine, start("short", 3, seed=number))
        ask(engine, bare_end("short")).frames()
    assert np.array_equal(steady.frames(), wanted)


def test_a_cancelled_chunk_leaves_the_session_as_it_was(engine):
    wanted = ask(engine, start("twin", 2)).frames()
    ask(engine, start("a", 1)).frames()
    given_up = ask(engine, go_on("a", 8, num_steps=40, actions=("s",) * 24))
    given_up.cancelled.set()
    assert given_up.done.wait(30)
    num_sent = sum(len(batch.frames) for batch in given_up.batches)
    later = ask(engine, go_on("a", 1)).frames()
    if num_sent == 0:  # cancelled before its first chunk was done, as is usual
        assert np.array_equal(later, wanted[9:])


# Streams


def test_the_compute_thread_does_not_wait_for_the_decode():
    """A decode that is made slow on purpose: the next chunk's work is queued, and done, before it ends."""
    world = on_gpu(BF16)
    decode = world.codec.decode

    def slow_decode(latents, memory):
        torch.cuda._sleep(2_000_000_000)  # about a second of a GPU's clock, on the decode's stream
        return decode(latents, memory)

    world.codec.decode = slow_decode
    session = world.start(picture(), "day")
    stream(world, 3)  # so that nothing is loaded lazily in what is timed: that would wait for the device
    began = time.perf_counter()
    first = world.next_chunk(session, MOVE, lambda: None)
    session.commit(first.staged)
    second = world.next_chunk(session, MOVE, lambda: None)
    denoised_s = time.perf_counter() - began
    assert not first.decoding.decoded.query()
    first.frames  # noqa: B018 - waits
    first_s = time.perf_counter() - began
    second.frames  # noqa: B018
    second_s = time.perf_counter() - began
    assert denoised_s < 0.5 * first_s
    assert second_s > 1.5 * first_s  # decodes follow each other: each needs the memory of the one before
    assert first.timings.decode_ms > 500 * first_s
    assert first.timings.denoise_ms < 500 * first_s


def test_frames_of_overlapped_chunks_are_those_of_chunks_that_waited():
    world = on_gpu(BF16)
    wanted = stream(world, 8)
    session, chunks = world.start(picture(1), "day", 1), []
    for _ in range(8):
        chunks.append(world.next_chunk(session, MOVE, lambda: None))
        session.commit(chunks[-1].staged)
    assert np.array_equal(np.concatenate([chunk.frames.cpu().numpy() for chunk in chunks]), wanted)


def test_chunks_that_nobody_waits_for_do_not_disturb_the_next():
    world = on_gpu(BF16)
    wanted = stream(world, 6)
    session, frames = world.start(picture(1), "day", 1), []
    for _ in range(6):
        world.next_chunk(session, Controls(actions=("s",) * 3, prompt="night"), lambda: None)  # dropped at once
        chunk = world.next_chunk(session, MOVE, lambda: None)
        session.commit(chunk.staged)
        frames.append(chunk.frames.cpu().numpy())
    assert np.array_equal(np.concatenate(frames), wanted)


def test_frames_come_to_the_host_through_pinned_memory_that_is_used_again():
    world = on_gpu(BF16)
    chunk = world.next_chunk(world.start(picture()), MOVE, lambda: None)
    host = world.streams.to_host(chunk.frames)
    assert np.array_equal(host, chunk.frames.cpu().numpy())
    assert torch.from_numpy(host).is_pinned()
    kept = host.copy()
    other = world.streams.to_host(torch.zeros_like(chunk.frames))  # while the first is still looked at
    assert np.array_equal(host, kept)
    place = other.__array_interface__["data"][0]
    del other
    assert world.streams.to_host(chunk.frames).__array_interface__["data"][0] == place


def test_timings_of_a_streamed_chunk_are_whole_and_add_up(engine):
    reply = ask(engine, start(None, 4))
    reply.frames()
    for batch in reply.batches:
        queued, condition, denoise, decode, transfer, total = batch.timings_ms
        assert min(queued, condition, denoise, decode, transfer) >= 0
        assert min(condition, denoise, decode) > 0
        assert total >= 0.95 * (condition + denoise + decode + transfer)  # two clocks: the device's and the host's


# Inputs in GPU memory


class InGpuMemory:
    """As pb_utils.Tensor with FORCE_CPU_ONLY_INPUT_TENSORS "no"."""

    def __init__(self, name, values):
        self._name, self._values = name, values

    def name(self):
        return self._name

    def is_cpu(self):
        return False

    def as_numpy(self):
        raise RuntimeError("Tensor is stored in GPU and cannot be converted to NumPy.")

    def to_dlpack(self):
        return to_dlpack(self._values)


def test_a_picture_in_gpu_memory_stays_there_and_outlives_its_request():
    memory = torch.from_numpy(picture()[None]).to(CUDA)
    inputs = [InGpuMemory("pixels", memory), InGpuMemory("seed", torch.tensor([5], device=CUDA))]
    request = parse_request(read_inputs(inputs), Envelope(), TINY, ServingConfig())
    memory.zero_()  # another request's now
    torch.cuda.synchronize()
    assert request.picture.device == CUDA
    assert to_device(request.picture, CUDA).data_ptr() == request.picture.data_ptr()
    assert np.array_equal(request.picture.cpu().numpy(), picture())
    assert picture_digest(request.picture, "crop") == picture_digest(picture(), "crop")
    assert request.seed == 5


def test_a_picture_gives_the_same_frames_from_either_side(engine):
    wanted = ask(engine, start(None, 2)).frames()
    on_device = own_copy(torch.from_numpy(picture()).to(CUDA))
    assert np.array_equal(ask(engine, start(None, 2, picture=on_device)).frames(), wanted)


def test_a_picture_is_taken_while_the_gpu_computes():
    """Else `execute` would stand still for a chunk whenever a picture comes in GPU memory."""
    memory = torch.from_numpy(picture()).to(CUDA)
    own_copy(memory)  # makes the stream
    torch.cuda._sleep(2_000_000_000)  # on the default stream: the compute thread's
    busy = torch.cuda.Event()
    busy.record()
    copies = []
    thread = threading.Thread(target=lambda: copies.append(own_copy(memory)))
    thread.start()
    thread.join()
    assert not busy.query()
    torch.cuda.synchronize()
    assert np.array_equal(copies[0].cpu().numpy(), picture())


def test_a_picture_on_another_gpu_goes_from_device_to_device():
    if torch.cuda.device_count() < 2:
        pytest.skip("this machine has one GPU")
    other = torch.from_numpy(picture()).to(torch.device("cuda", 1))
    assert np.array_equal(to_device(own_copy(other), CUDA).cpu().numpy(), picture())


# As it is served


def test_attention_on_the_served_path_takes_a_flash_kernel():
    """With the head sizes that are served; were it impossible, this context would raise."""
    wanted_by = torch.nn.attention.SDPBackend.FLASH_ATTENTION
    world = load_world(EMBEDDED, ServingConfig(compile="off", dtype="bfloat16"), Path(), Instance("GPU", 0))
    with torch.nn.attention.sdpa_kernel(wanted_by):
        stream(world, 2)


@pytest.mark.parametrize("mode", ["default", "reduce-overhead"])
def test_compiled_blocks_stream_near_the_eager_frames_and_never_recompile(mode):
    serving = ServingConfig(compile="on", compile_mode=mode, compile_cache="none", device="cuda:0")
    engine = Engine(lambda: load_world(TINY, serving, Path(), Instance("GPU", 0)), serving, lambda _: None)
    world = engine.start()
    first = ask(engine, start(None, 6, picture=picture(1), seed=1, prompt="day")).frames()
    again = ask(engine, start(None, 6, picture=picture(1), seed=1, prompt="day")).frames()
    recompiles = world.compilation.recompiles()
    engine.close()
    torch._dynamo.reset()
    assert recompiles == 0
    assert np.array_equal(first, again)
    eager = load_world(TINY, ServingConfig(compile="off", device="cuda:0"), Path(), Instance("GPU", 0))
    distance = np.abs(stream(eager, 6, Controls()).astype(int) - first)
    assert distance.mean() < 0.5  # fused kernels round less often


def test_the_device_of_an_instance_is_that_of_its_thread():
    last = torch.cuda.device_count() - 1
    world = load_world(TINY, ServingConfig(compile="off"), Path(), Instance("GPU", last))
    assert world.device == torch.device("cuda", last)
    assert torch.cuda.current_device() == last
    settle_cuda(CUDA, BF16)


@pytest.mark.parametrize("dtype", [torch.float32, BF16])
@pytest.mark.parametrize("num_chunks", [1, 2, 5])
def test_a_session_is_restored_bit_for_bit(dtype, num_chunks):
    """Saved at once behind a chunk: its decode is still under way on a stream of its own then."""
    world, other = on_gpu(dtype), on_gpu(dtype)
    session = world.start(picture(1), "day", 1)
    for _ in range(num_chunks):
        session.commit(world.next_chunk(session, MOVE, lambda: None).staged)
    restored = load(save(session, world), other)
    for controls in (MOVE, Controls(prompt="night"), Controls(prompt="dusk", is_recached=True)):
        frames = []
        for each, where in ((session, world), (restored, other)):
            chunk = where.next_chunk(each, controls, lambda: None)
            each.commit(chunk.staged)
            frames.append(chunk.frames.cpu().numpy())
        assert np.array_equal(*frames)


@pytest.mark.parametrize("to_gpu", [True, False])
def test_a_session_moves_between_cpu_and_gpu_of_one_dtype(to_gpu):
    worlds = (tiny_world(), on_gpu(torch.float32))
    world, other = worlds if to_gpu else worlds[::-1]
    session = world.start(picture(1), "day", 1)
    session.commit(world.next_chunk(session, MOVE, lambda: None).staged)
    restored = load(save(session, world), other)
    chunks = [where.next_chunk(each, MOVE, lambda: None) for each, where in ((session, world), (restored, other))]
    frames = [chunk.frames.cpu().numpy().astype(int) for chunk in chunks]
    assert np.abs(frames[0] - frames[1]).max() <= 2  # of 255: other kernels, other rounding
