"""From cameras to the rays that the model is conditioned on, made on the device that reads them.

A chunk's cameras are a few hundred bytes, its rays 29 MB at 480 x 832 (38 MB with LingBot-World v2's four frames):
they are never on the host of a GPU. Computed in float64 like the poses, and then float32; every operation is one that
IEEE 754 rounds alike on all devices.
Letters: T latent frames, H x W pixels of the model's picture, h x w latent cells.
"""

from __future__ import annotations

import torch
from torch import Tensor

from worldmodel.camera import Array, Views, start_ray_poses
from worldmodel.config import RAY_CHANNELS, SPATIAL_STRIDE, WorldConfig
from worldmodel.pixels import to_device


def ray_map(poses: Array, intrinsics: Array, height_px: int, width_px: int, device: torch.device) -> Tensor:
    """Tell the model, for every pixel, where its ray starts and where it points.

    Args:
        poses: [T, 4, 4] of the cameras in those that their rays are told in, such as each in the one before it; in
            the unit that the rays' origins are to have.
        intrinsics: [T, 4]; fx, fy, cx, cy in pixels of a height_px x width_px picture.
        device: where the rays are made.

    Returns:
        [T, H, W, 6] float32: ray origin, then unit direction.

    Source: lingbot-world, get_plucker_embeddings. Upstream says "Plücker" but joins origin and direction (no moment);
    we match its arithmetic, not its name.
    """
    cameras, lenses = to_device(poses, device), to_device(intrinsics, device)
    columns = torch.arange(width_px, dtype=torch.float64, device=device) + 0.5
    rows = torch.arange(height_px, dtype=torch.float64, device=device)[:, None] + 0.5
    fx, fy, cx, cy = (value[:, None, None] for value in lenses.unbind(1))
    x, y = (columns - cx) / fx, (rows - cy) / fy
    length = (x * x + (y * y + 1)).sqrt()
    rays = torch.empty(len(poses), height_px, width_px, RAY_CHANNELS, device=device)
    rays[..., :3] = cameras[:, None, None, :3, 3]
    # A row of the rotation at a time, and by sums that broadcast: this stands before every chunk, and matrix products
    # of vectors of three take ten times as long.
    for axis in range(3):
        right, down, ahead = (value[:, None, None] for value in cameras[:, axis, :3].unbind(1))
        rays[..., 3 + axis] = (right * x + (down * y + ahead)) / length
    return rays


def camera_latent(rays: Tensor) -> Tensor:
    """Fold 8 x 8 pixels into channels: [T, H, W, 6] -> [384, T, h, w], channel order (ray channel, row, column)."""
    cells = rays.unflatten(2, (-1, SPATIAL_STRIDE)).unflatten(1, (-1, SPATIAL_STRIDE))  # [T, h, 8, w, 8, 6]
    return cells.permute(5, 2, 4, 0, 1, 3).flatten(0, 2)


def camera_input(views: Views, config: WorldConfig, device: torch.device) -> Tensor:
    """What the model reads of some cameras: [camera_channels, T, h, w] float32, on the device.

    First their rays in the camera before, as published; where the model has start rays, then those in the session's
    first camera. The former tell no place, but for what the cache remembers of the way there; in the latter, one place
    and direction is told alike whenever the camera comes back to it.
    """
    told = [views.relative]
    if config.transformer.has_start_rays:
        told.append(start_ray_poses(views.cam_to_origin, config.start_ray_scale))
    size = (config.height_px, config.width_px)
    return torch.cat([camera_latent(ray_map(poses, views.intrinsics, *size, device)) for poses in told])
