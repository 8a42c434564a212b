"""One chunk: noise -> steps -> context pass. A pure loop over what has been bound; knows no sessions.

Letters as in transformer.py.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from worldmodel.schedule import NUM_TIMESTEPS, add_noise, clean_estimate, noise_estimate
from worldmodel.transformer import Block, CausalWorldTransformer

# (latent, condition, time) -> velocity, under what has been bound.
Forward = Callable[[Tensor, Tensor, Tensor], Tensor]
# Called with the velocity after each step: (step, velocity).
Watch = Callable[[int, Tensor], None]


def sample_chunk(
    transformer: CausalWorldTransformer,
    blocks: tuple[Block, ...],
    condition: Tensor,
    sigmas: Sequence[float],
    draw_noise: Callable[[], Tensor],
    before_step: Callable[[], None],
    watch: Watch | None = None,
    forwards: tuple[Forward, Forward] | None = None,
    has_fresh_noise: bool = True,
) -> Tensor:
    """Denoise one chunk and write its clean keys and values.

    Args:
        blocks: the transformer's own, with cache, rotation, prompt and camera bound.
        condition: [1, 4 + C, T, h, w].
        sigmas: falling noise levels.
        draw_noise: the next [1, C, T, h, w] of the session's generator.
        before_step: called before every pass; raises to give the chunk up.
        watch: sees each step's velocity.
        forwards: of the steps and of the context pass, where a step cache tells them apart; else the transformer's own.
        has_fresh_noise: each step noises its clean estimate anew, as few-step models are distilled; else it keeps the
            noise that the velocity points away from, which is an Euler step along the flow.

    Returns:
        The clean latent [1, C, T, h, w]. The last pass, at t = 0, has overwritten the keys and values of the noisy
        steps.
    """
    step_forward, context_forward = forwards or (transformer, transformer)
    x = draw_noise()
    for step, sigma in enumerate(sigmas):
        before_step()
        velocity = predict(transformer, blocks, x, condition, sigma, step_forward)
        if watch is not None:
            watch(step, velocity)
        clean = clean_estimate(x, velocity, sigma)
        if step + 1 < len(sigmas):
            noise = draw_noise() if has_fresh_noise else noise_estimate(clean, velocity)
            x = add_noise(clean, noise, sigmas[step + 1])
    before_step()
    predict(transformer, blocks, clean, condition, 0.0, context_forward)
    return clean


def predict(
    transformer: CausalWorldTransformer,
    blocks: tuple[Block, ...],
    x: Tensor,
    condition: Tensor,
    sigma: float,
    forward: Forward | None = None,
) -> Tensor:
    """One pass at one noise level: the velocity, [1, C, T, h, w] in x's dtype."""
    dtype = condition.dtype
    timesteps = torch.full((1,), NUM_TIMESTEPS * sigma, device=x.device, dtype=torch.float64)
    time, modulation = transformer.embed_time(timesteps)
    for block in blocks:
        block.bind(time_modulation=modulation)
    return (forward or transformer)(x.to(dtype), condition, time).type_as(x)
