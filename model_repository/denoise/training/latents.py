"""The data set as the transformer sees it: latents, first-frame conditions, poses and looks, made once by the codec.

A clip becomes several sessions: a session may begin at any of its frames 4 s, and its first latent then stands for one
picture. Letters: L latent frames of a session, n of a lesson, h x w latent cells.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from courtyard.dataset import CLIPS_PER_SHARD, Clip, ClipStore, DatasetSpec
from courtyard.files import damaged, write_whole
from numpy.typing import NDArray
from rich.progress import track
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor
from workbench import to_model
from worldmodel import camera as cam
from worldmodel.codec import StreamingCodec
from worldmodel.config import MASK_CHANNELS, RAY_CHANNELS, SPATIAL_STRIDE, TIME_STRIDE, WorldConfig
from worldmodel.rays import camera_latent, ray_map

RECIPE = "v1"  # of what follows: files of another recipe are never read


class SessionPlan(NamedTuple):
    """Where in a clip a session begins, and whether it begins in haste.

    A key that is pressed with the very first picture takes effect one latent frame late, together with the next one:
    served sessions often begin with a step of double length. A hasty session skips every second frame there.
    """

    start: int  # latent frame of the clip
    is_hasty: bool = False

    def latent_frames(self, num_in_clip: int) -> NDArray[np.intp]:
        """[L]: the clip's latent frames that the session sees."""
        frames = np.arange(self.start, num_in_clip)
        return np.delete(frames, 1) if self.is_hasty else frames

    def frames(self, num_in_clip: int) -> NDArray[np.intp]:
        """[1 + 4 (L - 1)]: the same in pixel frames."""
        last = TIME_STRIDE * (num_in_clip - 1)
        first = TIME_STRIDE * self.start
        if not self.is_hasty:
            return np.arange(first, last + 1)
        return np.concatenate(
            [np.arange(first, first + 2 * TIME_STRIDE, 2), np.arange(first + 2 * TIME_STRIDE, last + 1)]
        )


# A look changes where a chunk of three begins. A hasty session's chunks begin one latent frame later in the clip.
SESSIONS = (SessionPlan(0), SessionPlan(6), SessionPlan(12), SessionPlan(11, is_hasty=True))


@dataclass(frozen=True)
class Lesson:
    """Some latent frames of one session to learn from."""

    latents: Tensor  # [16, n, h, w]
    condition: Tensor  # [20, n, h, w]
    relative: NDArray[np.float64]  # [n, 4, 4] each latent frame's camera in that of the one before it
    cam_to_origin: NDArray[np.float64]  # [n, 4, 4] each in the session's first one; both in metres
    looks: tuple[str, ...]  # n names


class LessonStore:
    """Every session of the clips on disk, encoded once and kept in a file a shard."""

    def __init__(
        self,
        folder: Path,
        spec: DatasetSpec,
        codec: StreamingCodec,
        config: WorldConfig,
        most_clips: int | None = None,
    ) -> None:
        """Open the store.

        Args:
            most_clips: of those on disk; None takes all.
            codec: on the device that is to encode. Latents of another encoder are never read; a decoder may change.
        """
        self._clips = ClipStore(folder, spec)
        self._spec = spec
        self._folder = folder / "latents" / f"{encoder_digest(codec)}-{RECIPE}" / spec.name
        self._folder.mkdir(parents=True, exist_ok=True)
        self._codec, self._config = codec, config
        self._most_clips = most_clips
        self._shards: dict[int, dict[str, Tensor]] = {}
        self._drawn: dict[int, Clip] = {}

    @property
    def num_clips(self) -> int:
        """Clips on disk when the store was opened, as far as they are wanted."""
        return len(self._clips) if self._most_clips is None else min(len(self._clips), self._most_clips)

    def prepare(self) -> None:
        """Encode what has not been encoded yet."""
        for shard in track(range(-(-self.num_clips // CLIPS_PER_SHARD)), "encoding"):
            if not self._path(shard).exists():
                self._encode_shard(shard)

    def lesson(self, clip_index: int, session: int, frames: Sequence[int]) -> Lesson:
        """These latent frames of the clip's session number `session` (of SESSIONS)."""
        shard, place = divmod(clip_index, CLIPS_PER_SHARD)
        tensors = self._shards.get(shard) or self._load(shard)
        if clip_index not in self._drawn:
            self._drawn[clip_index] = self._clips.clip(clip_index)
        clip, index = self._drawn[clip_index], list(frames)
        own = SESSIONS[session].latent_frames(self._spec.num_latent_frames)
        poses = clip.poses()[::TIME_STRIDE][own]
        looks = [clip.variants[frame] for frame in own]
        # A prompt holds for whole chunks: where the look changes under a hasty session's picture, the prompt is new.
        looks[0] = looks[1]
        return Lesson(
            tensors[f"latents{session}"][place][:, index].float(),
            full_condition(tensors["pictures"][place, session].float(), index),
            cam.relative_to_previous(poses, poses[0])[index],
            (cam.invert_rigid(poses[0]) @ poses)[index],
            tuple(looks[frame] for frame in index),
        )

    def _path(self, shard: int) -> Path:
        return self._folder / f"{self._clips.numbers[shard * CLIPS_PER_SHARD] // CLIPS_PER_SHARD:05d}.safetensors"

    def _load(self, shard: int) -> dict[str, Tensor]:
        if not self._path(shard).exists():
            self._encode_shard(shard)
        try:
            self._shards[shard] = load_file(self._path(shard))
        except SafetensorError as error:
            raise damaged(self._path(shard), "latents") from error
        return self._shards[shard]

    def _encode_shard(self, shard: int) -> None:
        clips = [self._encode(shard * CLIPS_PER_SHARD + place) for place in range(CLIPS_PER_SHARD)]
        tensors = {name: torch.stack([clip[name] for clip in clips]).half() for name in clips[0]}
        write_whole(self._path(shard), partial(save_file, tensors))

    @torch.inference_mode()
    def _encode(self, clip_index: int) -> dict[str, Tensor]:
        """Latents [16, L, h, w] of each session, and of their pictures [sessions, 16, 6, h, w]."""
        frames = np.asarray(self._clips.frames(clip_index))
        device = self._codec.latent_mean.device
        encoded, pictures = {}, []
        for number, session in enumerate(SESSIONS):
            own = to_model(frames[session.frames(self._spec.num_latent_frames)])
            latents, _ = self._codec.encode(own[None].to(device))
            encoded[f"latents{number}"] = latents[0].transpose(0, 1).cpu().contiguous()
            pictures.append(own[0])
        black = torch.zeros(1 + TIME_STRIDE * (self._config.condition_latent_frames - 1), *pictures[0].shape)
        batch = black.repeat(len(pictures), 1, 1, 1, 1)
        batch[:, 0] = torch.stack(pictures)
        latents, _ = self._codec.encode(batch.to(device))
        encoded["pictures"] = latents.transpose(1, 2).cpu().contiguous()
        return encoded


def encoder_digest(codec: StreamingCodec) -> str:
    """16 hex digits that stand for everything that latents depend on."""
    digest = hashlib.sha256()
    for name, value in sorted(codec.state_dict().items()):
        if not name.startswith("decoder."):
            digest.update(name.encode())
            digest.update(value.detach().cpu().contiguous().numpy().tobytes())
    return digest.hexdigest()[:16]


def full_condition(picture: Tensor, frames: Sequence[int]) -> Tensor:
    """Mask and latents of "the picture, then black": [16, 6, h, w] -> [20, n, h, w]; the last latent repeats."""
    index = torch.tensor(frames)
    mask = picture.new_zeros(MASK_CHANNELS, len(index), *picture.shape[2:])
    mask[:, index == 0] = 1
    return torch.cat([mask, picture[:, index.clamp(max=picture.shape[1] - 1)]])


def camera_of(lesson: Lesson, config: WorldConfig) -> Tensor:
    """[camera_channels, n, h, w] float32, as a session computes it from poses in metres.

    The rays of a camera that stands still, turned by matrices: a session's own way, pixel by pixel in float64, would
    take a tenth of the training.
    """
    told = [_in_model_units(lesson.relative, config)]
    if config.transformer.has_start_rays:
        told.append(cam.start_ray_poses(_in_model_units(lesson.cam_to_origin, config), config.start_ray_scale))
    return torch.cat([_rays_of(torch.from_numpy(poses).float(), config) for poses in told])


def _in_model_units(poses: NDArray[np.float64], config: WorldConfig) -> NDArray[np.float64]:
    scaled = poses.copy()
    scaled[:, :3, 3] /= config.translation_scale
    return scaled


def _rays_of(poses: Tensor, config: WorldConfig) -> Tensor:
    """[n, 4, 4] -> [384, n, h, w]."""
    still = _rays_at_rest(config.height_px, config.width_px, config.horizontal_fov_deg)  # [3, 64, h, w]
    turned = torch.einsum("tij,jphw->ipthw", poses[:, :3, :3], still)  # [3, 64, n, h, w]
    origins = poses[:, :3, 3].T[:, None, :, None, None].expand_as(turned)
    return torch.cat([origins, turned]).flatten(0, 1)


@lru_cache
def _rays_at_rest(height_px: int, width_px: int, horizontal_fov_deg: float) -> Tensor:
    lens = cam.default_intrinsics(height_px, width_px, horizontal_fov_deg)[None]
    latent = camera_latent(ray_map(np.eye(4)[None], lens, height_px, width_px, torch.device("cpu")))
    return latent[:, 0].unflatten(0, (RAY_CHANNELS, SPATIAL_STRIDE**2))[3:]  # directions only
