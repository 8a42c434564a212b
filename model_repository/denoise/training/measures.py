"""What there is to measure of a world that claims to be the courtyard. Each measure gives numbers and rows of pictures.

Everything is drawn from fixed seeds. Truth is rendered; nothing that is measured decides what it is compared with.
Letters: T pixel frames, L latent frames, H x W pixels.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import permutations

import numpy as np
import torch
from courtyard.dataset import VARIANT_NAMES, ClipStore
from courtyard.paths import Motion, Stance, is_free, move, pose, sample_start
from courtyard.renderer import default_intrinsics, render
from motion import turned_right, walked_forward
from numpy.typing import NDArray
from streaming import chunk_psnr, chunks_of, psnr_db, stream_walk
from workbench import to_model
from worldmodel.config import TIME_STRIDE, WorldConfig
from worldmodel.pixels import Pixels, to_uint8
from worldmodel.world import World

MOVES = {  # what each one-chunk test does in a latent frame
    "left": Motion(yaw_deg=-6.0),
    "right": Motion(yaw_deg=6.0),
    "forward": Motion(forward_m=0.25),
    "back": Motion(forward_m=-0.25),
}
ROUNDING = 1e-6  # pictures that say nothing are told apart by less
Row = Pixels  # [n, H, W, 3]


@dataclass(frozen=True)
class Walked:
    """One held-out walk: PSNR in dB of each chunk, of the model and of its two controls."""

    model_db: list[float]
    still_db: list[float]  # the first frame, repeated
    mirrored_db: list[float]  # the same model, steered left where the walk goes right
    has_moved: list[bool]  # from the second moving chunk on
    is_mirrored_apart: list[bool]  # whether the mirrored path is elsewhere by then
    rows: list[Row]  # truth, model, mirrored: the start and the last frame of each chunk


def walk(world: World, clips: ClipStore, index: int, num_chunks: int) -> Walked:
    """Stream a held-out walk, and its mirror image, beside the truth."""
    config, clip = world.config, clips.clip(index)
    poses = clip.poses()[::TIME_STRIDE][: num_chunks * config.chunk_latent_frames]
    mirrored = mirrored_poses(poses)
    truth = np.array(clips.frames(index, 0, 1 + TIME_STRIDE * (len(poses) - 1)))
    model, control = (stream_walk(world, truth[0], path, clip.variants, index) for path in (poses, mirrored))
    last = [0, *(np.cumsum([len(chunk) for chunk in chunks_of(truth, config)]) - 1)]
    return Walked(
        chunk_psnr(model, truth, config),
        chunk_psnr(np.repeat(truth[:1], len(truth), 0), truth, config),
        chunk_psnr(control, truth, config),
        from_second_moving_chunk(poses, config),
        [bool(np.abs(a[-1] - b[-1]).max() > 0.05) for a, b in _by_chunk(config, poses, mirrored)],
        [truth[last], model[last], control[last]],
    )


def codec_db(world: World, clips: ClipStore, index: int) -> float:
    """PSNR of a held-out walk that is only encoded and decoded."""
    frames = clips.frames(index)
    with torch.inference_mode():
        latents, _ = world.codec.encode(to_model(frames)[None].to(world.device))
        decoded, _ = world.codec.decode(latents)
    return psnr_db(to_uint8(decoded[0]).cpu().numpy(), frames)


def mirrored_poses(cam_to_world: NDArray[np.float64]) -> NDArray[np.float64]:
    """The path in a mirror that the first camera holds upright: yaw and sideways motion negated."""
    flip = np.diag([-1.0, 1.0, 1.0, 1.0])
    return cam_to_world[0] @ flip @ np.linalg.inv(cam_to_world[0]) @ cam_to_world @ flip


def from_second_moving_chunk(cam_to_world: NDArray[np.float64], config: WorldConfig) -> list[bool]:
    """For each chunk, whether it and at least one before it have moved, or two before it have."""
    steps = np.abs(np.diff(cam_to_world, axis=0, prepend=cam_to_world[:1])).max((1, 2))
    moves = [bool((chunk > 0.02).any()) for (chunk,) in _by_chunk(config, steps)]
    return [sum(moves[: number + 1]) >= 2 for number in range(len(moves))]


def _by_chunk(config: WorldConfig, *arrays: NDArray[np.float64]) -> Iterable[tuple[NDArray[np.float64], ...]]:
    size = config.chunk_latent_frames
    for first in range(0, len(arrays[0]) - size + 1, size):
        yield tuple(array[first : first + size] for array in arrays)


def sample_open_starts(count: int, seed: int = 0) -> list[Stance]:
    """Places from which half a metre ahead and behind is free."""
    rng = np.random.default_rng([7, seed])
    starts: list[Stance] = []
    while len(starts) < count:
        start = sample_start(rng)
        ends = [move(start, Motion(forward_m=metres)) for metres in (0.5, -0.5)]
        if all(is_free(end.x, end.z) for end in ends):
            starts.append(start)
    return starts


def picture_of(stance: Stance, look: str, config: WorldConfig) -> Pixels:
    """[H, W, 3]: the truth."""
    size = (config.height_px, config.width_px)
    return render(torch.from_numpy(pose(stance))[None], default_intrinsics(1, *size), *size, look)[0].numpy()


def motion_test(world: World, start: Stance, look: str, seed: int) -> tuple[dict[str, tuple[bool, bool]], list[Row]]:
    """Stream one chunk for each of MOVES.

    Returns:
        For each move, whether it is recognised in the model's frames and in rendered ones; rows truth, model: the
        start, then the last frame of each move.
    """
    config = world.config
    first = picture_of(start, look, config)
    told: dict[str, tuple[bool, bool]] = {}
    truths, streamed = [first], [first]
    for name, motion in MOVES.items():
        stances = [start]
        while len(stances) < config.chunk_latent_frames:
            stances.append(move(stances[-1], motion))
        truths.append(picture_of(stances[-1], look, config))
        poses = np.stack([pose(stance) for stance in stances])
        streamed.append(stream_walk(world, first, poses, [look] * len(poses), seed)[-1])
        told[name] = (is_recognised(name, first, streamed[-1], config), is_recognised(name, first, truths[-1], config))
    return told, [np.stack(truths), np.stack(streamed)]


def is_recognised(name: str, first: Pixels, last: Pixels, config: WorldConfig) -> bool:
    """Whether the pictures alone say that the camera moved this way (a key of MOVES) and not the other, or neither."""
    tell = turned_right if name in ("left", "right") else walked_forward
    told = tell(first, last, config.horizontal_fov_deg)
    return (told if name in ("right", "forward") else -told) > ROUNDING


def standing_drift(world: World, start: Stance, look: str, num_chunks: int, seed: int) -> tuple[float, list[Row]]:
    """Stand still.

    Returns:
        The farthest that a chunk's mean colour is from the picture's, of 255 and in the worst channel; one row: the
        picture, and the last frame of every second chunk.
    """
    picture = picture_of(start, look, world.config)
    latent_frames = num_chunks * world.config.chunk_latent_frames
    poses = np.tile(pose(start), (latent_frames, 1, 1))
    chunks = chunks_of(stream_walk(world, picture, poses, [look] * latent_frames, seed), world.config)
    farthest = max(float(np.abs(_mean_colour(chunk) - _mean_colour(picture)).max()) for chunk in chunks)
    return farthest, [np.stack([picture, *(chunk[-1] for chunk in chunks[1::2])])]


def prompt_switch(world: World, start: Stance, looks: tuple[str, str], seed: int) -> tuple[bool, float, list[Row]]:
    """Stand still for one chunk in one look and for three in another.

    Returns:
        Whether the mean colour ends nearest to the named look's, of all looks as they are rendered here; the share
        of the way to it that was made; one row: the last frame of each chunk, then the truth.
    """
    config = world.config
    truth = {look: picture_of(start, look, config) for look in VARIANT_NAMES}
    size = config.chunk_latent_frames
    names = [looks[0]] * size + [looks[1]] * (3 * size)
    streamed = stream_walk(world, truth[looks[0]], np.tile(pose(start), (4 * size, 1, 1)), names, seed)
    chunks = chunks_of(streamed, config)
    before, after = _mean_colour(chunks[0]), _mean_colour(chunks[-1][-1])
    distance = {look: float(np.linalg.norm(after - _mean_colour(picture))) for look, picture in truth.items()}
    way = _mean_colour(truth[looks[1]]) - _mean_colour(truth[looks[0]])
    share = float((after - before) @ way / (way @ way))
    row = np.stack([*(chunk[-1] for chunk in chunks), truth[looks[1]]])
    return min(distance, key=lambda look: distance[look]) == looks[1], share, [row]


LOOK_PAIRS = list(permutations(VARIANT_NAMES, 2))


def _mean_colour(frames: Pixels) -> NDArray[np.float64]:
    """[3], of 255."""
    return np.asarray(frames.reshape(-1, 3).mean(0, dtype=np.float64))
