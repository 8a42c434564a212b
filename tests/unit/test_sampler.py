"""How a chunk's steps follow each other, against the textbook's formulas; the model is a made-up velocity field."""

import pytest
import torch
from worldmodel.layers import seed_parameters
from worldmodel.sampler import sample_chunk
from worldmodel.transformer import CausalWorldTransformer

from tests.unit.worlds import TINY

SIGMAS = (1.0, 0.8, 0.5, 0.2)
SHAPE = (1, 16, 3, 4, 6)


@pytest.fixture(scope="module")
def transformer():
    transformer = CausalWorldTransformer(TINY.transformer)
    seed_parameters(transformer, 0)
    return transformer.eval().requires_grad_(False)


def bent(latent, condition, time):
    """A velocity that depends on where one is."""
    return torch.sin(3 * latent) + 0.5 * latent


def sample(transformer, has_fresh_noise):
    generator, drawn = torch.Generator().manual_seed(3), []

    def draw():
        drawn.append(torch.randn(SHAPE, generator=generator))
        return drawn[-1]

    clean = sample_chunk(
        transformer,
        tuple(transformer.blocks),
        torch.zeros(1, 20, *SHAPE[2:]),
        SIGMAS,
        draw,
        lambda: None,
        forwards=(bent, lambda latent, condition, time: latent),
        has_fresh_noise=has_fresh_noise,
    )
    return clean, drawn


def test_following_the_flow_is_euler_integration_of_one_noise(transformer):
    clean, drawn = sample(transformer, has_fresh_noise=False)
    x = drawn[0].double()
    for here, there in zip(SIGMAS, (*SIGMAS[1:], 0.0), strict=True):
        x = x + (there - here) * bent(x, None, None)
    assert len(drawn) == 1
    torch.testing.assert_close(clean, x.float(), atol=1e-5, rtol=1e-5)


def test_fresh_noise_replaces_all_of_the_old(transformer):
    clean, drawn = sample(transformer, has_fresh_noise=True)
    x = drawn[0].double()
    for step, sigma in enumerate(SIGMAS):
        estimate = x - sigma * bent(x, None, None)
        if step < 3:
            x = (1 - SIGMAS[step + 1]) * estimate + SIGMAS[step + 1] * drawn[step + 1]
    assert len(drawn) == len(SIGMAS)
    torch.testing.assert_close(clean, estimate.float(), atol=1e-5, rtol=1e-5)
