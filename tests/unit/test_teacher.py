"""Training sees what serving sees: one masked pass against a session's cache, chunk by chunk."""

import importlib.util
import sys
from pathlib import Path

import pytest
import torch
from worldmodel.conditioner import condition_chunk
from worldmodel.sampler import predict

from tests.unit.worlds import TINY, tiny_world

TRAINING = Path(__file__).parents[2] / "model_repository" / "denoise" / "training"


@pytest.fixture(scope="module")
def teacher():
    spec = importlib.util.spec_from_file_location("teacher", TRAINING / "teacher.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules["teacher"] = module
    spec.loader.exec_module(module)
    return module


def test_the_past_of_a_chunk_is_what_its_cache_holds(teacher):
    config = TINY.replace(window_latent_frames=9, sink_latent_frames=2)
    assert teacher.visible_past(config, 5) == [
        set(),
        {0, 1, 2},
        {0, 1, 2, 3, 4, 5},
        {0, 1, 5, 6, 7, 8},
        {0, 1, 8, 9, 10, 11},
    ]


@pytest.mark.parametrize("jump", [0, 30])
def test_the_masked_pass_equals_streaming_over_a_clean_past(teacher, jump):
    config, num_chunks, sigma = TINY, 5, 0.7  # the window of 9 rolls
    frames, world = 3 * num_chunks, tiny_world()
    generator = torch.Generator().manual_seed(0)
    clean, noisy = (torch.randn(1, 16, frames, 4, 6, generator=generator) for _ in range(2))
    condition = torch.randn(1, 20, frames, 4, 6, generator=generator)
    camera = torch.randn(1, 384, frames, 4, 6, generator=generator)
    text = torch.randn(1, 2, 3, 16, generator=generator)
    reads = torch.tensor([[0] * 6 + [1] * 9])
    with torch.inference_mode():
        got = teacher.teacher_velocity(
            world.transformer,
            config,
            teacher.teacher_mask(config, frames),
            clean[:, :, :-3],
            noisy,
            condition,
            camera,
            torch.full((1, frames), 1000 * sigma),
            text,
            reads,
            jump,
        )
        world.unbind_chunk()
        session = world.start(torch.zeros(32, 48, 3, dtype=torch.uint8).numpy())
        for chunk in range(num_chunks):
            own = slice(3 * chunk, 3 * chunk + 3)
            session.next_latent_frame = 3 * chunk + (jump if chunk else 0)
            placement = session.cache.stage(session.next_latent_frame, 3)
            prompt = world.prompt_from_vectors(text[0, int(reads[0, own.start])])
            conditioning = condition_chunk(world.transformer, world.blocks, camera[:, :, own], None)
            world.bind_chunk(session.config, session.cache, placement, prompt, conditioning)
            velocity = predict(world.transformer, world.blocks, noisy[:, :, own], condition[:, :, own], sigma)
            torch.testing.assert_close(got[:, :, own], velocity, atol=1e-4, rtol=1e-4)
            predict(world.transformer, world.blocks, clean[:, :, own], condition[:, :, own], 0.0)
            session.cache.commit(placement)
            world.unbind_chunk()
