"""Walks streamed through a loaded world as a session does it, and how near they come to the truth.

Letters: T pixel frames, L latent frames, H x W pixels.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from worldmodel.config import WorldConfig, frames_of_chunk
from worldmodel.pixels import Pixels
from worldmodel.world import Controls, World

BEST_DB = 100.0  # of equal pictures: an infinity would swallow every mean


def stream_walk(
    world: World, picture: Pixels, cam_to_world: NDArray[np.float64], looks: Sequence[str], seed: int
) -> Pixels:
    """Stream whole chunks along poses.

    Args:
        picture: [H, W, 3], where the session begins.
        cam_to_world: [L, 4, 4]; a rest that fills no chunk is not shown.
        looks: the prompt at each of L latent frames; it is switched where it changes between two chunks.

    Returns:
        [T, H, W, 3].
    """
    size, look, frames = world.config.chunk_latent_frames, looks[0], []
    session = world.start(picture, look, seed=seed)
    for first in range(0, len(cam_to_world) - size + 1, size):
        prompt = looks[first] if looks[first] != look else None
        look = looks[first]
        controls = Controls(cam_to_world=cam_to_world[first : first + size], prompt=prompt)
        done = world.next_chunk(session, controls, lambda: None)
        session.commit(done.staged)
        frames.append(done.frames.cpu().numpy())
    return np.concatenate(frames)


def chunks_of(frames: Pixels, config: WorldConfig) -> list[Pixels]:
    """The frames of each whole chunk."""
    chunks: list[Pixels] = []
    first = 0
    while first + (count := frames_of_chunk(config.chunk_latent_frames, len(chunks))) <= len(frames):
        chunks.append(frames[first : first + count])
        first += count
    return chunks


def psnr_db(frames: Pixels, truth: Pixels) -> float:
    """Peak signal to noise of uint8 pictures, BEST_DB for equal ones."""
    error = np.square(frames.astype(np.float32) - truth).mean() / 255**2
    return BEST_DB if error == 0 else float(min(BEST_DB, -10 * np.log10(error)))


def chunk_psnr(frames: Pixels, truth: Pixels, config: WorldConfig) -> list[float]:
    """PSNR of each whole chunk of `frames`; the truth may be longer."""
    pairs = zip(chunks_of(frames, config), chunks_of(truth, config), strict=False)
    return [psnr_db(*pair) for pair in pairs]
