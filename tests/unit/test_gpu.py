"""The device paths, where there is a GPU."""

import numpy as np
import pytest
import torch
from worldmodel.engine import Engine
from worldmodel.serving import ServingConfig
from worldmodel.world import Controls, World

from tests.unit.engines import Recorder, start
from tests.unit.worlds import TINY, picture, tiny_world

pytestmark = pytest.mark.gpu


def on_gpu(dtype):
    cpu = tiny_world()
    return World(TINY, cpu.transformer, cpu.codec, torch.device("cuda", 0), dtype)


def test_float32_frames_on_the_gpu_are_those_of_the_cpu():
    frames = []
    for world in (tiny_world(), on_gpu(torch.float32)):
        session = world.start(picture(), "day", 1)
        chunk = world.next_chunk(session, Controls(actions=("w", "l", "w")), lambda: None)
        frames.append(chunk.frames.cpu().numpy().astype(int))
    assert np.abs(frames[0] - frames[1]).max() <= 2  # of 255: other kernels, other rounding


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_engine_streams_from_the_gpu(dtype):
    engine = Engine(lambda: on_gpu(dtype), ServingConfig(), lambda _: None)
    world = engine.start()
    assert world.device == torch.device("cuda", 0)
    replies = [Recorder(), Recorder()]
    for reply in replies:
        engine.submit(start(None, 3), reply)
    frames = [reply.frames() for reply in replies]
    engine.close()
    assert frames[0].shape == (33, 32, 48, 3)
    assert np.array_equal(frames[0], frames[1])
