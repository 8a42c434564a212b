"""Flow-matching noise levels: which ones a chunk visits, and the arithmetic of one step. Stateless.

sigma is the share of noise: x = (1 - sigma) * clean + sigma * noise; the model predicts v = noise - clean, so that
clean = x - sigma * v. The transformer reads t = 1000 * sigma.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from worldmodel.config import WorldConfig
from worldmodel.errors import InvalidInputError

NUM_TIMESTEPS = 1000.0


def shifted_sigmas(timesteps: Sequence[float], shift: float) -> tuple[float, ...]:
    """Move evenly spaced noise levels towards noise, as the model was trained.

    Args:
        timesteps: unshifted, in (0, 1000].
        shift: 1 leaves them as they are; larger spends more of the steps at high noise.

    Returns:
        sigma in (0, 1], one per timestep.

    Source: sglang, SelfForcingFlowMatch; lingbot-world, sample_shift.
    """
    fractions = [timestep / NUM_TIMESTEPS for timestep in timesteps]
    return tuple(shift * u / (1 + (shift - 1) * u) for u in fractions)


def chunk_sigmas(config: WorldConfig, num_steps: int | None) -> tuple[float, ...]:
    """The noise levels of one chunk, falling; the last step lands on the clean latent.

    Raises:
        InvalidInputError: if the world was distilled for another list, or the count is out of range.
    """
    if num_steps is None or num_steps == len(config.timesteps):
        return shifted_sigmas(config.timesteps, config.shift)
    if config.is_distilled:
        raise InvalidInputError(
            f"num_steps: this world is distilled for {len(config.timesteps)} steps and serves no other count, "
            f"got {num_steps}"
        )
    if not 1 <= num_steps <= config.max_steps:
        raise InvalidInputError(f"num_steps: wanted 1 to {config.max_steps}, got {num_steps}")
    even = [NUM_TIMESTEPS * (num_steps - i) / num_steps for i in range(num_steps)]
    return shifted_sigmas(even, config.shift)


def has_fresh_noise(config: WorldConfig, num_steps: int) -> bool:
    """Whether a chunk of so many steps is noised anew after each, or follows the flow.

    Few steps profit from fresh noise: it hides the last step's error. Many steps do not need it, and only along the
    flow do they change little by little, so that a step cache finds something to skip.
    """
    return config.is_distilled or num_steps < config.flow_from_steps


def clean_estimate(x: Tensor, velocity: Tensor, sigma: float) -> Tensor:
    """The clean latent that this velocity points at."""
    return x - sigma * velocity


def noise_estimate(clean: Tensor, velocity: Tensor) -> Tensor:
    """The noise that this velocity points away from."""
    return clean + velocity


def add_noise(clean: Tensor, noise: Tensor, sigma: float) -> Tensor:
    """The clean latent, noised to a level."""
    return (1 - sigma) * clean + sigma * noise
