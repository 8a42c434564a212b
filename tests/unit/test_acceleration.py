"""Mount, compile, warm up: afterwards nothing that requests do makes another graph. With a quick compiler backend."""

import dataclasses

import numpy as np
import pytest
import torch
from worldmodel.compilation import Compilation
from worldmodel.step_cache_settings import StepCacheSettings
from worldmodel.world import Controls

from tests.unit.worlds import TINY, accelerated_world, picture, tiny_world


@pytest.fixture(scope="module")
def compiled():
    torch._dynamo.reset()
    return accelerated_world(compile="on", compile_backend="eager", step_cache="off")


def stream(world, moves, seed=0):
    session, frames = world.start(picture(seed), "day", seed), []
    for move in moves:
        chunk = world.next_chunk(session, move, lambda: None)
        session.commit(chunk.staged)
        frames.append(chunk.frames.numpy())
    return np.concatenate(frames)


MIXTURE = [
    Controls(),
    Controls(actions=("w", "l", "")),
    Controls(num_steps=2),
    Controls(prompt="night"),
    Controls(step_cache=StepCacheSettings("1011")),
    Controls(num_steps=9, step_cache=StepCacheSettings("dynamic", threshold=0.9)),
    Controls(cam_to_world=np.tile(np.eye(4), (3, 1, 1))),
]


def test_nothing_is_recompiled_after_warming_up(compiled):
    for seed in range(3):
        stream(compiled, MIXTURE, seed)
    assert compiled.compilation.recompiles() == 0
    assert compiled.compilation.num_graphs() > 0


def test_a_block_that_was_not_warmed_up_would_be_counted(compiled):
    compiled.compilation.mark_ready()
    torch.compile(lambda x: x * 3 + 1, backend="eager")(torch.ones(3))
    assert compiled.compilation.recompiles() == 1
    compiled.compilation.mark_ready()


def test_compiled_frames_are_those_of_the_plain_world(compiled):
    moves = MIXTURE[:4]
    difference = np.abs(stream(compiled, moves).astype(int) - stream(tiny_world(), moves)).max()
    assert difference <= 1


def test_warming_up_is_nobodys_work():
    world = accelerated_world()
    assert world.counters.denoising_steps == 0
    world.start(np.zeros((32, 48, 3), np.uint8))
    assert (world.counters.pictures_encoded, world.counters.picture_cache_hits) == (1, 0)


def graphs_of(num_layers):
    config = TINY.replace(transformer=dataclasses.replace(TINY.transformer, num_layers=num_layers))
    torch._dynamo.reset()
    before = Compilation.num_graphs()
    accelerated_world(config, compile="on", compile_backend="eager")
    return Compilation.num_graphs() - before


def test_more_layers_are_not_more_graphs():
    assert 0 < graphs_of(num_layers=12) == graphs_of(num_layers=1)
