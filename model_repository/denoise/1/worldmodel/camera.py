"""From poses, intrinsics and key presses to the cameras whose rays the model is conditioned on. NumPy only, float64.

Letters: T latent frames, H x W pixels of the model's picture. A pose is cam_to_world, [4, 4], OpenCV axes (x right, y
down, z forward). A session's own world is the camera of its first latent frame; its unit is the client's.

The state of a session's camera is O(1): the last pose, how the client's world lies in the session's, the last
intrinsics.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from worldmodel.config import WorldConfig
from worldmodel.errors import InvalidInputError

Array = NDArray[np.float64]

MAX_STEP = 1e3  # model units in one latent frame; beyond, the model's numbers run over
FARTHEST = 3.0  # start_ray_scales from a session's first camera: farther was never learnt, and is told as this far
LEAST_STEP = 0.01  # of the configured translation scale: less is jitter, and sets no scale

MOVE_KEYS = {"w": (0.0, 1.0), "s": (0.0, -1.0), "d": (1.0, 0.0), "a": (-1.0, 0.0)}  # right, forward
LOOK_KEYS = {"l": (1.0, 0.0), "j": (-1.0, 0.0), "i": (0.0, 1.0), "k": (0.0, -1.0)}  # yaw to the right, pitch up
KEYS = "wasdijkl"


@dataclass(frozen=True)
class CameraState:
    """Where a session's camera is, and what later requests are measured against."""

    cam_to_origin: Array  # [4, 4], in the session's world
    intrinsics: Array  # [4], of the model's picture
    scale: float | None  # client units per model unit; None until a moving chunk has set it
    alignment: Array | None = None  # [4, 4], client's world -> session's world; None until poses have come
    pending: Array | None = None  # [4, 4], motion asked for at the first latent frame, which cannot move


def start_camera(intrinsics: Array, scale: float | None) -> CameraState:
    """A camera at its session's origin."""
    return CameraState(np.eye(4), intrinsics, scale)


def invert_rigid(pose: Array) -> Array:
    """The inverse of rotation-and-translation matrices, [..., 4, 4]."""
    inverse = np.zeros_like(pose)
    rotation = np.swapaxes(pose[..., :3, :3], -1, -2)
    inverse[..., :3, :3] = rotation
    inverse[..., :3, 3] = -np.einsum("...ij,...j->...i", rotation, pose[..., :3, 3])
    inverse[..., 3, 3] = 1.0
    return inverse


def nearest_rigid(poses: Array) -> Array:
    """The rigid poses next to nearly rigid ones, [..., 4, 4]; an exact one stays as it is, bit for bit.

    Newton's iteration towards the nearest rotation: each round squares the error, so three take 1e-3 below rounding.
    """
    rigid = np.zeros_like(poses)
    rotation = poses[..., :3, :3]
    for _ in range(3):
        rotation = rotation @ (1.5 * np.eye(3) - 0.5 * np.swapaxes(rotation, -1, -2) @ rotation)
    rigid[..., :3, :3], rigid[..., :3, 3], rigid[..., 3, 3] = rotation, poses[..., :3, 3], 1.0
    return rigid


def relative_to_previous(poses: Array, previous: Array) -> Array:
    """Each pose in the camera before it, [T, 4, 4]; the first in `previous`."""
    return invert_rigid(np.concatenate([previous[None], poses[:-1]])) @ poses


def every_fourth(poses_full_rate: Array) -> Array:
    """One pose per latent frame, from one per pixel frame: [1 + 4k, 4, 4] -> [1 + k, 4, 4]; a rest is cut off."""
    return poses_full_rate[: (len(poses_full_rate) - 1) // 4 * 4 + 1 : 4]


def largest_step(relative: Array) -> float:
    """The longest frame-to-frame translation, in the poses' unit."""
    return float(np.linalg.norm(relative[:, :3, 3], axis=-1).max(initial=0.0))


@dataclass(frozen=True)
class Views:
    """What the cameras of some latent frames see by, in the model's units and pixels."""

    relative: Array  # [T, 4, 4], each camera in that of the frame before it
    cam_to_origin: Array  # [T, 4, 4], each in the session's first one
    intrinsics: Array  # [T, 4]


def default_intrinsics(height_px: int, width_px: int, horizontal_fov_deg: float) -> Array:
    """Square pixels and a centred axis: fx, fy, cx, cy."""
    focal = width_px / 2 / math.tan(math.radians(horizontal_fov_deg) / 2)
    return np.array([focal, focal, width_px / 2, height_px / 2])


def fit_intrinsics(intrinsics: Array, picture_px: tuple[int, int], model_px: tuple[int, int], fit: str) -> Array:
    """Carry intrinsics along when a picture is fitted to the model's size.

    Args:
        intrinsics: [T, 4], in pixels of the picture.
        picture_px, model_px: height and width.
        fit: "crop" scales until both sides are covered and cuts the centre; "stretch" scales each side by itself.

    Returns:
        [T, 4], in pixels of the model's picture.
    """
    scale_y, scale_x = model_px[0] / picture_px[0], model_px[1] / picture_px[1]
    if fit == "crop":
        scale_y = scale_x = max(scale_y, scale_x)
    offset_x = (picture_px[1] * scale_x - model_px[1]) / 2
    offset_y = (picture_px[0] * scale_y - model_px[0]) / 2
    return intrinsics * (scale_x, scale_y, scale_x, scale_y) - (0, 0, offset_x, offset_y)


def start_ray_poses(cam_to_origin: Array, scale: float) -> Array:
    """Divide the translations of poses [..., 4, 4] by `scale` (in their unit), and shorten them to FARTHEST at most."""
    scaled = cam_to_origin.copy()
    scaled[..., :3, 3] /= scale
    distance = np.linalg.norm(scaled[..., :3, 3], axis=-1, keepdims=True)
    scaled[..., :3, 3] /= np.maximum(distance / FARTHEST, 1.0)
    return scaled


def follow_poses(state: CameraState, poses: Array, is_first: bool) -> tuple[Array, CameraState]:
    """Move along absolute poses in the client's world.

    Args:
        poses: [T, 4, 4]. The session's first pose is its origin; after actions, the first pose is where the camera now
            is.
        is_first: whether the session has no latent frame yet.

    Returns:
        Relative poses [T, 4, 4] in client units, and the state after them.
    """
    alignment = state.alignment
    if alignment is None:
        here = state.cam_to_origin if state.pending is None else state.cam_to_origin @ state.pending
        alignment = here @ invert_rigid(poses[0])
    placed = alignment @ poses
    relative = relative_to_previous(placed, placed[0] if is_first else state.cam_to_origin)
    return relative, dataclasses.replace(
        state, cam_to_origin=nearest_rigid(placed[-1]), alignment=alignment, pending=None
    )


def follow_actions(
    state: CameraState, actions: Sequence[str], config: WorldConfig, is_first: bool
) -> tuple[Array, CameraState]:
    """Move as the keys say, one entry a latent frame.

    The session's first latent frame is the picture and cannot move: motion that was asked for there is made up for in
    the next frame, so that no key press is lost.

    Returns:
        Relative poses [T, 4, 4] in client units, and the state after them.
    """
    pose, pending, steps = state.cam_to_origin, state.pending, []
    for frame, pressed in enumerate(actions):
        target = _act(pose if pending is None else pose @ pending, pressed, config, state.scale)
        if is_first and frame == 0:
            pending = invert_rigid(pose) @ target
            steps.append(np.eye(4))
            continue
        steps.append(invert_rigid(pose) @ target)
        pose, pending = target, None
    # The client's poses no longer say where the camera is, unless nothing moved.
    moved = any(actions) or state.pending is not None
    alignment = None if moved else state.alignment
    # Rounding must not add up over a session without end, so that a rotation stays one.
    pose = nearest_rigid(pose)
    return np.stack(steps), dataclasses.replace(state, cam_to_origin=pose, pending=pending, alignment=alignment)


def _act(pose: Array, pressed: str, config: WorldConfig, scale: float | None) -> Array:
    """One latent frame of held keys: look first, then walk on the ground plane of the session's first camera."""
    yaw, pitch = (sum(LOOK_KEYS[key][axis] for key in set(pressed) if key in LOOK_KEYS) for axis in (0, 1))
    right, forward = (sum(MOVE_KEYS[key][axis] for key in set(pressed) if key in MOVE_KEYS) for axis in (0, 1))
    rotation = _look(pose[:3, :3], yaw, pitch, config)
    moved = np.eye(4)
    moved[:3, :3], moved[:3, 3] = rotation, pose[:3, 3]
    length = math.hypot(right, forward)
    if length > 0:
        distance = config.move_per_frame * (scale or config.translation_scale)
        x, z = _heading(rotation)
        direction = np.array([right * z + forward * x, 0.0, forward * z - right * x])
        moved[:3, 3] += direction / length * distance  # two keys are not faster than one
    return moved


def _look(rotation: Array, yaw: float, pitch: float, config: WorldConfig) -> Array:
    """Turn about the world's vertical, then tilt, within the pitch limit."""
    yaw_rad = math.radians(yaw * config.yaw_deg_per_frame)
    now = math.degrees(math.asin(max(-1.0, min(1.0, -rotation[1, 2]))))
    limit = max(config.pitch_limit_deg, abs(now))  # poses may have gone beyond: keys do not jerk it back
    wanted = max(-limit, min(limit, now + pitch * config.pitch_deg_per_frame))
    pitch_rad = math.radians(wanted - now)
    turn = np.array([[math.cos(yaw_rad), 0, math.sin(yaw_rad)], [0, 1, 0], [-math.sin(yaw_rad), 0, math.cos(yaw_rad)]])
    tilt = np.array(
        [[1, 0, 0], [0, math.cos(pitch_rad), -math.sin(pitch_rad)], [0, math.sin(pitch_rad), math.cos(pitch_rad)]]
    )
    return turn @ rotation @ tilt


def _heading(rotation: Array) -> tuple[float, float]:
    """Where a camera faces on the ground, x and z of a unit vector; where it looks straight down, the picture's top."""
    axis = rotation[:, 2]
    if math.hypot(axis[0], axis[2]) < 1e-6:
        axis = -math.copysign(1.0, axis[1]) * rotation[:, 1]
    length = math.hypot(axis[0], axis[2])
    return float(axis[0]) / length, float(axis[2]) / length


def to_model_units(
    relative: Array, state: CameraState, config: WorldConfig, clip_step: float | None
) -> tuple[Array, CameraState]:
    """Divide translations by the session's scale, fixing the scale by the configured rule when it is still open.

    Keys move in model units, so they neither need a scale nor set one.

    Args:
        relative: [T, 4, 4], in client units, as the follow functions return them.
        clip_step: the longest step among all poses of the request, for the whole-clip rule; None while keys steer.

    Returns:
        [T, 4, 4] in model units, and the state; the first poses that really move set its scale, which then stays.

    Raises:
        InvalidInputError: a step so long that the model's numbers would run over.
    """
    scale = state.scale
    if scale is None and clip_step is not None:
        step = clip_step if config.translation_rule == "clip_max" else largest_step(relative)
        scale = step if step > LEAST_STEP * config.translation_scale else None
    scaled = relative.copy()
    scaled[:, :3, 3] /= scale or config.translation_scale
    if largest_step(scaled) > MAX_STEP:
        frame = int(np.linalg.norm(scaled[:, :3, 3], axis=-1).argmax())
        raise InvalidInputError(
            f"cam_to_world: a step of {largest_step(relative):.4g} to frame {frame} of a chunk is "
            f"{largest_step(scaled):.4g} model units, wanted at most {MAX_STEP:.0f}; is translation_scale right?"
        )
    return scaled, dataclasses.replace(state, scale=scale)


def followed(last: Array, relative: Array) -> Array:
    """Where steps lead from the last camera: [4, 4] in some frame and [T, 4, 4] -> [T, 4, 4] in that frame."""
    # Rounding must not add up over a session without end.
    return nearest_rigid(np.stack(list(itertools.accumulate(relative, np.matmul, initial=last))[1:]))


def with_intrinsics(state: CameraState, intrinsics: Array) -> CameraState:
    """The state with the intrinsics that the next chunk starts from ([4], of the model's picture)."""
    return dataclasses.replace(state, intrinsics=intrinsics)
