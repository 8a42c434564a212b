"""Whether what a client steers with can be meant: poses, intrinsics, key presses. NumPy only.

A message names the frame, what was wanted and what came. It names a likely mistake only where the numbers show it:
a transposed, scaled or mirrored matrix does. OpenGL's axes and world-to-camera matrices do not: they are rotations as
good as any, so nothing here speaks of them. Letters: T latent frames.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from worldmodel.camera import KEYS, Array, nearest_rigid
from worldmodel.errors import InvalidInputError

TOLERANCE = 1e-3  # of rotations and bottom rows: float32 and printed matrices pass, scaled ones do not
LEAST_SCALE = 0.009  # off 1: printing two digits does less
BOTTOM = (0.0, 0.0, 0.0, 1.0)
# Intrinsics in parts of the picture: no lens is so wide in pixels, nor centred on the first pixel of a picture.
MAX_NORMALISED_FOCAL = 4.0


def checked_poses(poses: Array) -> Array:
    """Refuse what is not a camera pose, naming the first frame that is none.

    Args:
        poses: [T, 4, 4].

    Returns:
        The same, [T, 4, 4], made exactly rigid: what the tolerance lets pass must not add up over a session.

    Raises:
        InvalidInputError: not finite, not a rotation within 1e-3, mirrored, or a bottom row that is not 0 0 0 1.
    """
    for frame, row, column in np.argwhere(~np.isfinite(poses))[:1]:
        raise InvalidInputError(
            f"cam_to_world: frame {frame} has a number that is not finite: {poses[frame, row, column]} in row {row}, "
            f"column {column}"
        )
    rotation = poses[:, :3, :3]
    is_wrong = (_off_bottom(poses) > TOLERANCE) | (_skew(rotation) > TOLERANCE) | (np.linalg.det(rotation) < 0)
    for frame in np.flatnonzero(is_wrong)[:1]:
        raise InvalidInputError(f"cam_to_world: frame {frame}{_fault(poses[frame])}")
    return nearest_rigid(poses)


def _off_bottom(poses: Array) -> Array:
    """How far bottom rows are from 0 0 0 1: [..., 4, 4] -> [...]."""
    return np.abs(poses[..., 3, :] - BOTTOM).max(axis=-1)


def _skew(rotation: Array) -> Array:
    """How far R R^T is from the identity, [..., 3, 3] -> [...]."""
    return np.abs(rotation @ np.swapaxes(rotation, -1, -2) - np.eye(3)).max(axis=(-2, -1))


def _is_pose(matrix: Array) -> bool:
    rotation = matrix[:3, :3]
    return bool(_off_bottom(matrix) <= TOLERANCE and _skew(rotation) <= TOLERANCE and np.linalg.det(rotation) > 0)


def _fault(pose: Array) -> str:
    if _off_bottom(pose) > TOLERANCE:
        return f": wanted the bottom row 0 0 0 1, got {_numbers(pose[3])}{_bottom_hint(pose)}"
    rotation = pose[:3, :3]
    skew, determinant = _skew(rotation), np.linalg.det(rotation)
    if skew <= TOLERANCE:
        return (
            f" is not a rotation (det = {determinant:.3f}): an axis is mirrored, as where only the world's or only the "
            "camera's axes were turned from left-handed to right-handed; wanted OpenCV axes, x right, y down, z forward"
        )
    return (
        f" is not a rotation (R R^T is {skew:.4g} from the identity, det = {determinant:.3f}): "
        f"wanted orthonormal within {TOLERANCE}{_rotation_hint(rotation)}"
    )


def _bottom_hint(pose: Array) -> str:
    if _is_pose(pose.T):
        return "; the matrix looks transposed, with its translation in the bottom row"
    if np.abs(np.abs(pose[3]) - (0, 0, 1, 0)).max() <= TOLERANCE:
        return "; the matrix looks like a projection, not a pose"
    if abs(pose[3, 3]) > TOLERANCE and _is_pose(pose / pose[3, 3]):
        return f"; the matrix looks scaled as a whole by {pose[3, 3]:.4g}"
    return ""


def _rotation_hint(rotation: Array) -> str:
    if not rotation.any():
        return "; it is all zeros"
    if np.array_equal(rotation[[1, 2, 2, 2], [0, 0, 1, 2]], (0, 0, 0, 1)) and rotation[:2, 2].min() > 1:
        return "; it looks like intrinsics"
    for axes, lengths in (("axes", np.linalg.norm(rotation, axis=0)), ("rows", np.linalg.norm(rotation, axis=1))):
        if lengths.min() < 1e-12 or np.abs(lengths - 1).max() < LEAST_SCALE:
            continue
        unit = rotation / (lengths if axes == "axes" else lengths[:, None])
        if _skew(unit) > TOLERANCE:
            continue
        is_mirrored = " and mirrored" if np.linalg.det(unit) < 0 else ""
        if np.ptp(lengths) <= TOLERANCE * lengths.max():
            return f"; it looks scaled by {lengths.mean():.4g}{is_mirrored}"
        return f"; its {axes} look scaled by {_numbers(lengths)}{is_mirrored}"
    return ""


def _numbers(values: Array) -> str:
    return " ".join(f"{value:.4g}" for value in values)


def check_intrinsics(intrinsics: Array) -> None:
    """Refuse what are no intrinsics in pixels, naming the row.

    Args:
        intrinsics: [1 or T, 4]; fx, fy, cx, cy. The principal point may lie anywhere, as that of a crop does.

    Raises:
        InvalidInputError: numbers that are not finite, focal lengths that are not positive, or numbers that look
            normalised to the picture's size (so the intrinsics of a picture of two pixels are refused as well).
    """
    for row, values in enumerate(intrinsics):
        if not np.isfinite(values).all():
            name = ("fx", "fy", "cx", "cy")[int(np.flatnonzero(~np.isfinite(values))[0])]
            raise InvalidInputError(f"intrinsics: row {row} has a number that is not finite: {name}")
        if values[:2].min() <= 0:
            raise InvalidInputError(
                f"intrinsics: row {row}: wanted positive focal lengths fx, fy, got {values[0]:.4g}, {values[1]:.4g}"
            )
        if values[:2].max() < MAX_NORMALISED_FOCAL and values[2:].min() >= 0 and values[2:].max() <= 1:
            raise InvalidInputError(
                f"intrinsics: row {row}: wanted fx, fy, cx, cy in pixels of the sent picture, got {_numbers(values)}; "
                "they look normalised to the picture's size"
            )


def check_actions(actions: Sequence[str]) -> None:
    """Refuse unknown keys by name. One string a latent frame: "w", "wl", "" (nothing pressed); lower case only.

    Raises:
        InvalidInputError: naming the frame and the key, also where one comes twice in an entry.
    """
    for frame, pressed in enumerate(actions):
        for key in pressed:
            if key not in KEYS:
                hint = f"; keys are lower case: {key.lower()}" if key.lower() in KEYS else ""
                hint = "; keys held together are written without a space" if key.isspace() else hint
                raise InvalidInputError(
                    f"actions: frame {frame}: key {key!a} is unknown; wanted w a s d to move, i j k l to look{hint}"
                )
            if pressed.count(key) > 1:
                raise InvalidInputError(
                    f"actions: frame {frame}: key {key!a} comes twice; wanted one entry a latent frame"
                )
