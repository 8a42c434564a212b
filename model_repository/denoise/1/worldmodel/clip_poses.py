"""The published whole-clip rule for relative poses, in the published arithmetic. Sessions do not use it.

It needs the whole clip, and it works in float32: far from its world's origin (the published paths are hundreds of
units away) cancellation costs it up to a percent of a small step. To agree with it within 1e-5 one has to round where
it rounds, so these few lines are torch in float32, product by product. camera.py does the same in float64, frame by
frame.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from worldmodel.camera import every_fourth


def latent_frame_poses(poses_full_rate: NDArray[np.float64]) -> Tensor:
    """One pose per latent frame, rotations made exactly orthonormal: [1 + 4k, 4, 4] -> [1 + k, 4, 4].

    Source: lingbot-world, interpolate_camera_poses, which lands on every fourth pose exactly; its rotation library
    replaces each matrix by the nearest rotation.
    """
    poses = every_fourth(poses_full_rate).copy()
    left, _, right = np.linalg.svd(poses[:, :3, :3])
    poses[:, :3, :3] = left @ right
    return torch.from_numpy(poses).float()


def published_relative_poses(cam_to_world: Tensor) -> Tensor:
    """Frame-to-frame poses whose longest translation is 1.

    Args:
        cam_to_world: [T, 4, 4] float32, one per latent frame.

    Returns:
        [T, 4, 4] float32; the first is the identity. A clip that stands still keeps its zeros.

    Source: lingbot-world, compute_relative_poses(framewise=True, normalize_trans=True).
    """
    relative = torch.matmul(_inverse(cam_to_world[:1]), cam_to_world)
    relative[0] = torch.eye(4)
    relative[1:] = torch.bmm(_inverse(relative[:-1]), relative[1:])
    longest = torch.norm(relative[:, :3, 3], dim=-1).max()
    if longest > 0:
        relative[:, :3, 3] /= longest
    return relative


def _inverse(poses: Tensor) -> Tensor:
    rotation = poses[:, :3, :3].transpose(-1, -2)
    inverse = torch.eye(4).repeat(len(poses), 1, 1)
    inverse[:, :3, :3] = rotation
    inverse[:, :3, 3:] = -torch.bmm(rotation, poses[:, :3, 3:])
    return inverse
