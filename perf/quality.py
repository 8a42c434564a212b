"""What benchmarks of quality share: held-out walks with their rendered truth, and how near pictures come to others.

Knows the renderer; knows nothing of what is measured. Letters: L latent frames, n frames of a chunk, H x W pixels.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from common import ROOT
from numpy.typing import NDArray

sys.path.insert(0, str(ROOT / "model_repository" / "denoise" / "1"))
sys.path.append(str(ROOT / "model_repository" / "denoise" / "training"))

# isort: split
from courtyard.dataset import VARIANT_NAMES, Clip, ClipStore, DatasetSpec, cache_folder
from courtyard.paths import FRAMES_PER_LATENT
from worldmodel.config import WorldConfig, frames_of_chunk

Pixels = NDArray[np.uint8]  # [n, H, W, 3]
LOOKS = VARIANT_NAMES  # the words that the embedded world is trained with
HELD_OUT_SEED = 0  # of the clips that training holds out


@dataclass(frozen=True)
class Walk:
    """A walk that no training has seen: where the camera goes, chunk by chunk, and what it then sees."""

    cam_to_world: list[NDArray[np.float64]]  # of each chunk [L, 4, 4]
    looks: list[str]  # of each chunk: its prompt
    truth: list[Pixels]  # of each chunk

    @property
    def picture(self) -> Pixels:
        """[H, W, 3], where a session begins."""
        return self.truth[0][0]


def held_out_walks(config: WorldConfig, count: int, num_chunks: int) -> list[Walk]:
    """The first held-out clips, as far as so many chunks go: always the same, from training's cache or rendered."""
    spec = DatasetSpec("held_out", HELD_OUT_SEED, height_px=config.height_px, width_px=config.width_px)
    store = ClipStore(cache_folder(), spec)
    return [_walk(config, spec, store, number, num_chunks) for number in range(count)]


def _walk(config: WorldConfig, spec: DatasetSpec, store: ClipStore, number: int, num_chunks: int) -> Walk:
    size = config.chunk_latent_frames
    whole = spec.clip(number)
    clip = Clip(whole.walk[: num_chunks * size], whole.variants[: num_chunks * size])
    poses = clip.poses()[::FRAMES_PER_LATENT]
    if number in store.numbers:
        frames = np.array(store.frames(store.numbers.index(number), 0, 1 + FRAMES_PER_LATENT * (len(poses) - 1)))
    else:
        frames = clip.render(spec.height_px, spec.width_px)
    ends = np.cumsum([frames_of_chunk(size, chunk) for chunk in range(num_chunks)])
    return Walk(np.split(poses, num_chunks), list(clip.variants[::size]), np.split(frames, ends[:-1]))


def psnr_db(mean_square: float) -> float | None:
    """Peak signal to noise of a mean squared error of uint8 pictures; None where there is no error."""
    return None if mean_square == 0 else round(10 * math.log10(255**2 / mean_square), 3)


def nearness(clips: Sequence[Sequence[Pixels]], references: Sequence[Sequence[Pixels]]) -> dict[str, Any]:
    """PSNR of clips, each a list of chunks, to others of the same shape. None stands for equal pictures.

    Returns:
        all_frames_db: of one error over all frames of all clips, never more than a mean of chunks or clips;
        worst_clip_db: of the clip with the largest error;
        chunk_db: of each chunk number, one error over all clips;
        chunk_mean_db: the mean of the dB of all chunks that differ.
    """
    pairs = zip(clips, references, strict=True)
    errors = np.array([[_mean_square(*chunks) for chunks in zip(*pair, strict=True)] for pair in pairs])
    weights = np.array([len(chunk) for chunk in clips[0]])
    of_clips = np.average(errors, axis=1, weights=weights)
    each = [db for error in errors.flat if (db := psnr_db(error)) is not None]
    return {
        "all_frames_db": psnr_db(of_clips.mean()),
        "worst_clip_db": psnr_db(of_clips.max()),
        "chunk_db": [psnr_db(error) for error in errors.mean(0)],
        "chunk_mean_db": round(float(np.mean(each)), 3) if each else None,
    }


def _mean_square(frames: Pixels, reference: Pixels) -> float:
    if frames.shape != reference.shape:
        raise ValueError(f"wanted frames of one shape, got {frames.shape} and {reference.shape}")
    return float(np.square(frames.astype(np.float32) - reference).mean(dtype=np.float64))
