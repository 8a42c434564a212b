"""What benchmarks in this process share: a picture to start from, a session whose window is full, chunks of it.

Knows the world's own interface; knows nothing of what is measured.
"""

from __future__ import annotations

import sys
from typing import Any

from common import ROOT

sys.path.insert(0, str(ROOT / "model_repository" / "denoise" / "1"))

# isort: split
import numpy as np
import torch
from worldmodel.config import WorldConfig
from worldmodel.session import Session
from worldmodel.world import Chunk, Controls, World

MOVES = ("w", "l", "")


def with_window(config: WorldConfig, window: int) -> WorldConfig:
    """The same world with another window; a sink that does not fit beside the chunk is left out."""
    sink = min(config.sink_latent_frames, max(0, window - config.chunk_latent_frames))
    return config.replace(window_latent_frames=window, sink_latent_frames=sink)


def picture_of(config: WorldConfig, seed: int = 0) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """[H, W, 3] of noise, at the world's size."""
    shape = (config.height_px, config.width_px, 3)
    return np.random.default_rng(seed).integers(0, 256, shape, dtype=np.uint8)


def take(world: World, session: Session, controls: Controls, commit: bool = True) -> Chunk:
    """The session's next chunk, all of it computed; without `commit` it can be taken again."""
    chunk = world.next_chunk(session, controls, go_on)
    chunk.frames  # noqa: B018 - waits for the decode, so that stages do not overlap
    if commit:
        session.commit(chunk.staged)
    return chunk


def full_session(world: World) -> Session:
    """A session whose window is full; one step a chunk is enough for that."""
    session = world.start(picture_of(world.config), "day")
    while session.next_latent_frame < world.config.window_latent_frames:
        take(world, session, Controls(num_steps=1))
    return session


def fingerprint(chunk: Chunk, session: Session) -> bytes:
    """The frames and the last layer's clean keys and values of a chunk: equal ones mean equal bits all the way."""
    cache, index = session.cache, session.cache.token_index(chunk.staged.placement)
    clean = [part[-1].index_select(2, index) for part in (cache.keys, cache.values)]
    return b"".join(each.contiguous().view(torch.uint8).cpu().numpy().tobytes() for each in (chunk.frames, *clean))


def go_on() -> None:
    """Nobody gives a benchmark's chunk up."""
