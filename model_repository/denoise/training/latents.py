"""The data set as the transformer sees it: latents, first-frame conditions, poses and looks, made once by the codec.

A clip becomes several sessions: a session may begin at any of its frames 4 s, and its first latent then stands for one
picture. Letters: L latent frames of a session, h x w latent cells.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from courtyard.dataset import CLIPS_PER_SHARD, ClipStore, DatasetSpec
from numpy.typing import NDArray
from safetensors.torch import load_file, save_file
from torch import Tensor
from worldmodel import camera as cam
from worldmodel.codec import StreamingCodec
from worldmodel.config import MASK_CHANNELS, TIME_STRIDE, WorldConfig

STARTS = (0, 6, 12)  # latent frames of a clip at which its sessions begin
NUM_LATENT_FRAMES = 12  # of every session: one tensor a batch


@dataclass(frozen=True)
class Lesson:
    """One session to learn from."""

    latents: Tensor  # [16, L, h, w]
    condition: Tensor  # [20, L, h, w]
    cam_to_world: NDArray[np.float64]  # [L, 4, 4]
    looks: tuple[str, ...]  # L names


class LessonStore:
    """Every session of the clips on disk, encoded on first use and kept in a file a shard."""

    def __init__(
        self, folder: Path, spec: DatasetSpec, codec: StreamingCodec, config: WorldConfig, digest: str
    ) -> None:
        """Open the store.

        Args:
            digest: names the codec's weights; latents of another codec are never read.
        """
        self._clips = ClipStore(folder, spec)
        self._folder = folder / "latents" / digest / spec.name
        self._folder.mkdir(parents=True, exist_ok=True)
        self._codec, self._config = codec, config
        self._shards: dict[int, dict[str, Tensor]] = {}

    def __len__(self) -> int:
        return len(self._clips) * len(STARTS)

    def lesson(self, index: int) -> Lesson:
        """The index-th session."""
        clip_index, start_index = divmod(index, len(STARTS))
        shard, place = divmod(clip_index, CLIPS_PER_SHARD)
        tensors = self._shards.get(shard) or self._load(shard)
        start = STARTS[start_index]
        clip = self._clips.clip(clip_index)
        frames = slice(start, start + NUM_LATENT_FRAMES)
        row = place * len(STARTS) + start_index
        return Lesson(
            tensors["latents"][row].float(),
            full_condition(tensors["pictures"][row].float(), NUM_LATENT_FRAMES),
            clip.poses()[::TIME_STRIDE][frames],
            clip.variants[frames],
        )

    def _load(self, shard: int) -> dict[str, Tensor]:
        path = self._folder / f"{self._clips.numbers[shard * CLIPS_PER_SHARD] // CLIPS_PER_SHARD:05d}.safetensors"
        if not path.exists():
            rows = [
                self._encode(shard * CLIPS_PER_SHARD + i, start) for i in range(CLIPS_PER_SHARD) for start in STARTS
            ]
            tensors = {
                "latents": torch.stack([latents for latents, _ in rows]).half(),
                "pictures": torch.stack([picture for _, picture in rows]).half(),
            }
            save_file(tensors, path.with_suffix(".part"))
            path.with_suffix(".part").replace(path)
        self._shards[shard] = load_file(path)
        return self._shards[shard]

    @torch.inference_mode()
    def _encode(self, clip_index: int, start: int) -> tuple[Tensor, Tensor]:
        count = 1 + TIME_STRIDE * (NUM_LATENT_FRAMES - 1)
        frames = to_model(self._clips.frames(clip_index, start * TIME_STRIDE, count))
        black = torch.zeros(1 + TIME_STRIDE * (self._config.condition_latent_frames - 1), *frames.shape[1:])
        black[0] = frames[0]
        latents, _ = self._codec.encode(frames[None])
        pictures, _ = self._codec.encode(black[None])
        return latents[0].transpose(0, 1), pictures[0].transpose(0, 1)


def full_condition(picture: Tensor, num_latent_frames: int) -> Tensor:
    """Mask and latents of "the picture, then black": [16, 6, h, w] -> [20, L, h, w]; the last latent repeats."""
    index = torch.arange(num_latent_frames).clamp(max=picture.shape[1] - 1)
    mask = picture.new_zeros(MASK_CHANNELS, num_latent_frames, *picture.shape[2:])
    mask[:, 0] = 1
    return torch.cat([mask, picture[:, index]])


def camera_of(cam_to_world: NDArray[np.float64], config: WorldConfig) -> Tensor:
    """[L, 4, 4] -> [384, L, h, w] float32, as a session computes it."""
    relative = cam.relative_to_previous(cam_to_world, cam_to_world[0])
    relative[:, :3, 3] /= config.translation_scale
    row = cam.default_intrinsics(config.height_px, config.width_px, config.horizontal_fov_deg)
    intrinsics = np.tile(row, (len(relative), 1))
    return torch.from_numpy(cam.camera_latent(cam.ray_map(relative, intrinsics, config.height_px, config.width_px)))


def to_model(frames: NDArray[np.uint8]) -> Tensor:
    """[T, H, W, 3] uint8 -> [T, 3, H, W] in [-1, 1]."""
    return torch.from_numpy(np.array(frames)).permute(0, 3, 1, 2).float() / 127.5 - 1
