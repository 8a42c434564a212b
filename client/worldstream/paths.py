"""Camera paths, intrinsics and key presses, made or read from files. Pure NumPy; knows nothing of the server.

A path is cam_to_world, float32 [T, 4, 4]: absolute camera-to-world poses, one a latent frame, in OpenCV axes (x right,
y down, z forward). Made paths begin at the identity. Positive yaw turns right, positive pitch looks up.
"""

import os
import re
from pathlib import Path
from typing import Any, Literal, TypeAlias

import numpy as np
import numpy.typing as npt

from worldstream.chunks import FRAMES_PER_LATENT
from worldstream.conventions import Convention, read_colmap_images, to_opencv
from worldstream.errors import InvalidInputError
from worldstream.npy import open_npy

Float32: TypeAlias = npt.NDArray[np.float32]
Float64: TypeAlias = npt.NDArray[np.float64]
PoseRate: TypeAlias = Literal["latent", "frame"]

KEYS = "wasdijkl"
STAND = "."
# A held key's step in the embedded world, in its default client units.
DEFAULT_STEP = 0.25


def stand(num: int) -> Float32:
    """Stand still."""
    return _path(np.zeros(_count(num)), np.zeros(num), np.zeros((num, 3)))


def walk(num: int, step: float = DEFAULT_STEP, turn_deg: float = 0.0) -> Float32:
    """Walk ahead by `step` client units a latent frame; after each step turn right by `turn_deg`."""
    yaw_deg = turn_deg * np.arange(_count(num), dtype=np.float64)
    steps = step * _forward(yaw_deg)
    positions = np.concatenate([np.zeros((1, 3)), np.cumsum(steps[:-1], axis=0)])
    return _path(yaw_deg, np.zeros(num), positions)


def pan(num: int, deg_per_frame: float, pitch_deg_per_frame: float = 0.0) -> Float32:
    """Turn on the spot, right and up, by so many degrees a latent frame."""
    steps = np.arange(_count(num))
    return _path(deg_per_frame * steps, pitch_deg_per_frame * steps, np.zeros((num, 3)))


def orbit(num: int, radius: float, deg_per_frame: float) -> Float32:
    """Circle the point `radius` client units ahead, facing it; a positive angle turns right and so travels left."""
    yaw_deg = deg_per_frame * np.arange(_count(num), dtype=np.float64)
    centre = np.array([0.0, 0.0, radius])
    return _path(yaw_deg, np.zeros(num), centre - radius * _forward(yaw_deg))


def load_poses(path: str | os.PathLike[str], rate: PoseRate = "latent", convention: Convention = "opencv") -> Float64:
    """Read a path from a .npy file of shape [N, 4, 4], or from COLMAP's images.txt (in the order of the names).

    Args:
        path: the file.
        rate: "latent" when it holds one pose a latent frame; "frame" when it holds one a frame, of which every fourth
            is taken.
        convention: what its poses are written in, as `conventions.to_opencv` has it.

    Returns:
        [T, 4, 4] with OpenCV's axes; float64, so that `conventions.seen_from_first` can come before float32.

    Raises:
        InvalidInputError: if the file cannot be read or does not hold poses, naming the first that is none.
    """
    is_text = convention == "colmap" and Path(path).suffix != ".npy"
    poses = read_colmap_images(path)[0] if is_text else _load(path, (4, 4))
    try:
        return to_opencv(poses, convention)[:: _stride(rate)]
    except InvalidInputError as error:
        raise InvalidInputError(f"{Path(path).name}: {error}") from error


def load_intrinsics(path: str | os.PathLike[str], rate: PoseRate = "latent") -> Float32:
    """Read fx, fy, cx, cy from a .npy file of shape [4] or [N, 4]; `rate` is as in `load_poses`.

    Returns:
        [1 or T, 4] float32.

    Raises:
        InvalidInputError: if the file cannot be read or does not hold finite numbers of that shape.
    """
    intrinsics = _load(path, (4,))
    return intrinsics[:: _stride(rate)].astype(np.float32)


def longest_step(cam_to_world: npt.NDArray[np.floating[Any]]) -> float:
    """The longest distance between neighbouring poses, [T, 4, 4]; 1 where nothing moves."""
    steps = np.diff(cam_to_world[:, :3, 3].astype(np.float64), axis=0)
    return float(np.linalg.norm(steps, axis=1).max(initial=0.0)) or 1.0


def scale_intrinsics(intrinsics: npt.ArrayLike, from_size: tuple[int, int], to_size: tuple[int, int]) -> Float32:
    """Carry intrinsics along when their picture is resized straight, without a crop.

    Args:
        intrinsics: [..., 4]; fx, fy, cx, cy in pixels of a picture of `from_size`.
        from_size: width, height.
        to_size: width, height.

    Returns:
        [..., 4] float32, in pixels of a picture of `to_size`.
    """
    if min(*from_size, *to_size) < 1:
        raise InvalidInputError(f"intrinsics size: wanted 1 or more pixels each way, got {from_size} and {to_size}")
    across, down = to_size[0] / from_size[0], to_size[1] / from_size[1]
    return (np.asarray(intrinsics, dtype=np.float64) * [across, down, across, down]).astype(np.float32)


def actions_from_text(text: str) -> list[str]:
    """Read key presses, one entry a latent frame.

    "wwl." is four latent frames of one key each, "." standing still; "w[wl]l" presses w and l together in the second.
    With commas, each part between them is one latent frame: "w,wl,,l". Keys: w a s d move, i j k l look, in lower case.
    Spaces mean nothing.

    Raises:
        InvalidInputError: naming the first key that does not exist, or comes twice in an entry, and its latent frame.
    """
    text = "".join(text.split())
    if "," in text:
        entries = text.split(",")
    else:
        entries = [part[1:-1] if len(part) > 1 else part for part in re.findall(r"\[[^\[\]]*\]|.", text)]
    return [checked_keys(frame, keys) for frame, keys in enumerate(entries)]


def checked_keys(frame: int, keys: str) -> str:
    """Return the keys of latent frame number `frame` as the server takes them: "" for a full stop.

    Raises:
        InvalidInputError: if a key does not exist, or comes twice.
    """
    if keys == STAND:
        return ""
    for key in keys:
        if key not in KEYS:
            raise InvalidInputError(
                f"actions: frame {frame}: {key!r} is no key; w a s d move, i j k l look, . stands still"
            )
        if keys.count(key) > 1:
            raise InvalidInputError(f"actions: frame {frame}: {key!r} comes twice in one latent frame")
    return keys


def _count(num: int) -> int:
    if num < 1:
        raise InvalidInputError(f"path: wanted 1 or more latent frames, got {num}")
    return num


def _stride(rate: PoseRate) -> int:
    if rate not in ("latent", "frame"):
        raise InvalidInputError(f"pose rate: wanted latent or frame, got {rate!r}")
    return FRAMES_PER_LATENT if rate == "frame" else 1


def _load(path: str | os.PathLike[str], row_shape: tuple[int, ...]) -> Float64:
    name = Path(path).name
    try:
        array = open_npy(path)
    except OSError as error:
        raise InvalidInputError(f"{name}: cannot read it: {error.strerror}") from error
    except ValueError as error:
        raise InvalidInputError(f"{name}: wanted a .npy file of numbers") from error
    return _checked_rows(name, array, row_shape)


def _checked_rows(name: str, array: npt.NDArray[Any], row_shape: tuple[int, ...]) -> Float64:
    if array.dtype.kind not in "fiu":
        raise InvalidInputError(f"{name}: wanted a .npy file of numbers")
    rows = array[np.newaxis] if array.shape == row_shape else array
    if rows.shape[1:] != row_shape or len(rows) == 0:
        raise InvalidInputError(f"{name}: wanted {['N', *row_shape]}, got {list(array.shape)}".replace("'", ""))
    if not np.isfinite(rows).all():
        raise InvalidInputError(
            f"{name}: row {int(np.argwhere(~np.isfinite(rows))[0][0])} holds a number that is not finite"
        )
    return rows.astype(np.float64)


def _forward(yaw_deg: npt.NDArray[np.floating[Any]]) -> Float64:
    """Where cameras of these headings look: [T] -> [T, 3]."""
    yaw = np.deg2rad(yaw_deg)
    return np.stack([np.sin(yaw), np.zeros_like(yaw), np.cos(yaw)], axis=-1)


def _path(yaw_deg: npt.ArrayLike, pitch_deg: npt.ArrayLike, positions: Float64) -> Float32:
    """Poses from headings [T], elevations [T] and positions [T, 3]; y is down, so looking up is a turn towards -y."""
    yaw, pitch = np.deg2rad(yaw_deg), np.deg2rad(pitch_deg)
    poses = np.tile(np.eye(4), (len(positions), 1, 1))
    poses[:, 0, 0], poses[:, 0, 2] = np.cos(yaw), np.sin(yaw)
    poses[:, 2, 0], poses[:, 2, 2] = -np.sin(yaw), np.cos(yaw)
    tilt = np.tile(np.eye(4), (len(positions), 1, 1))
    tilt[:, 1, 1], tilt[:, 1, 2] = np.cos(pitch), -np.sin(pitch)
    tilt[:, 2, 1], tilt[:, 2, 2] = np.sin(pitch), np.cos(pitch)
    poses = poses @ tilt
    poses[:, :3, 3] = positions
    return poses.astype(np.float32)
