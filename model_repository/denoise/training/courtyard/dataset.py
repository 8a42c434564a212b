"""Data sets of walks: drawn from a seed, rendered into shards of uint8 frames in a cache folder, read back at random.

A clip is one walk of L latent frames, T = 1 + 4 (L - 1) pixel frames, and one look (scene.VARIANTS) or two: the look
may switch once, at the start of a chunk, as a prompt does. Clip number i of a split is always the same clip: what is
drawn depends on (split, seed, i) alone, so a broken run goes on where it stopped and held-out clips can be made anew.
"""

import os
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from . import scene
from .files import damaged, write_whole
from .paths import FRAMES_PER_LATENT, Stance, frame_poses, sample_walk
from .renderer import default_intrinsics, render

VARIANT_NAMES = tuple(scene.VARIANTS)
SPLITS = ("train", "held_out")
CLIPS_PER_SHARD = 8
SWITCH_SHARE = 0.25
STANDING_EVERY = 12  # one in so many walks to learn from stands still, besides those drawn so
RECIPE = "v3"  # of walks and pictures, to be raised when they change: clips of another recipe are never read


@dataclass(frozen=True)
class Clip:
    """What there is to know of a clip before it is rendered."""

    walk: list[Stance]  # L
    variants: tuple[str, ...]  # L: the look at each latent frame

    def poses(self) -> NDArray[np.float64]:
        """[T, 4, 4] camera to world, one for each pixel frame; every fourth is a latent frame's."""
        return frame_poses(self.walk)

    def frame_variants(self) -> list[str]:
        """T names. The four frames of a latent frame (one, for the first) share its look."""
        return [self.variants[0]] + [name for name in self.variants[1:] for _ in range(FRAMES_PER_LATENT)]

    def render(self, height_px: int, width_px: int, device: str = "cpu") -> NDArray[np.uint8]:
        """[T, H, W, 3] RGB."""
        poses = torch.from_numpy(self.poses()).to(device)
        intrinsics = default_intrinsics(1, height_px, width_px)
        return render(poses, intrinsics, height_px, width_px, self.frame_variants()).cpu().numpy()


def clip_generator(split: str, seed: int, number: int) -> np.random.Generator:
    """The generator from which everything in a clip is drawn; no two splits share one."""
    return np.random.default_rng([SPLITS.index(split), seed, number])


def draw_clip(
    split: str, seed: int, number: int, num_latent_frames: int, chunk_latent_frames: int = 3, style: str | None = None
) -> Clip:
    """Draw clip `number` of a split. A quarter of the clips switch their look, always between two chunks.

    Among the walks to learn from, more stand still than chance would have: only a long stay shows colours that drift.
    """
    rng = clip_generator(split, seed, number)
    first, second = rng.choice(VARIANT_NAMES, size=2, replace=False)
    starts = list(range(chunk_latent_frames, num_latent_frames, chunk_latent_frames))
    switch_at = int(rng.choice(starts)) if starts and rng.random() < SWITCH_SHARE else num_latent_frames
    if style is None and split == "train" and number % STANDING_EVERY == 0:
        style = "standing"
    walk = sample_walk(rng, num_latent_frames, style)
    variants = tuple(str(first if frame < switch_at else second) for frame in range(num_latent_frames))
    return Clip(walk, variants)


@dataclass(frozen=True)
class DatasetSpec:
    """Everything that the bytes of a data set depend on."""

    split: str
    seed: int
    num_latent_frames: int = 24
    height_px: int = 96
    width_px: int = 160

    @property
    def num_frames(self) -> int:
        return 1 + FRAMES_PER_LATENT * (self.num_latent_frames - 1)

    @property
    def name(self) -> str:
        return f"{self.split}-{self.seed}-{self.num_latent_frames}x{self.height_px}x{self.width_px}-{RECIPE}"

    def clip(self, number: int) -> Clip:
        return draw_clip(self.split, self.seed, number, self.num_latent_frames)


def cache_folder() -> Path:
    """Where data sets, checkpoints and plots go: $WORLDSTREAM_CACHE, else ~/.cache/worldstream/training."""
    return Path(os.environ.get("WORLDSTREAM_CACHE") or Path.home() / ".cache" / "worldstream" / "training")


def shard_path(folder: Path, spec: DatasetSpec, shard: int) -> Path:
    return folder / "clips" / spec.name / f"{shard:05d}.npy"


def write_shard(folder: Path, spec: DatasetSpec, shard: int, device: str = "cpu") -> Path:
    """Render clips [8 * shard, 8 * shard + 8) as [8, T, H, W, 3] uint8, unless they are there already."""
    path = shard_path(folder, spec, shard)
    if path.exists():
        return path
    path.parent.mkdir(parents=True, exist_ok=True)
    numbers = range(shard * CLIPS_PER_SHARD, (shard + 1) * CLIPS_PER_SHARD)
    frames = np.stack([spec.clip(number).render(spec.height_px, spec.width_px, device) for number in numbers])
    write_whole(path, partial(_save, frames))
    return path


def _save(frames: NDArray[np.uint8], path: Path) -> None:
    with path.open("wb") as file:  # a path would get another suffix
        np.save(file, frames)


class ClipStore:
    """The shards of a data set that are on disk, as one list of clips. Frames are read when asked for."""

    def __init__(self, folder: Path, spec: DatasetSpec) -> None:
        """Open every shard.

        Raises:
            OSError: one is damaged.
        """
        paths = sorted((folder / "clips" / spec.name).glob("*.npy"))
        self.spec = spec
        self.numbers = [int(path.stem) * CLIPS_PER_SHARD + i for path in paths for i in range(CLIPS_PER_SHARD)]
        self._shards = [_opened(path, spec) for path in paths]

    def __len__(self) -> int:
        return len(self.numbers)

    def frames(self, index: int, start: int = 0, num_frames: int | None = None) -> NDArray[np.uint8]:
        """[n, H, W, 3] frames of the index-th clip on disk."""
        shard, clip = divmod(index, CLIPS_PER_SHARD)
        stop = None if num_frames is None else start + num_frames
        return np.asarray(self._shards[shard][clip, start:stop])

    def clip(self, index: int) -> Clip:
        """Its walk and its looks."""
        return self.spec.clip(self.numbers[index])


def _opened(path: Path, spec: DatasetSpec) -> NDArray[np.uint8]:
    what = f"a shard of {spec.name}"
    try:
        shard: NDArray[np.uint8] = np.load(path, mmap_mode="r")
    except (ValueError, EOFError) as error:  # not whole, or something else
        raise damaged(path, what) from error
    if shard.dtype != np.uint8 or shard.shape != (CLIPS_PER_SHARD, spec.num_frames, spec.height_px, spec.width_px, 3):
        raise damaged(path, what)
    return shard
