"""Which way a camera moved between two pictures, told from the pictures alone. Knows no model and no world.

The first picture is warped as if the camera had turned or walked by several amounts one way and the other way; the way
whose best warp looks more like the last picture wins. Letters: H x W pixels, N pixels in all.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

Pixels = NDArray[np.uint8]

TURNS_DEG = (3.0, 5.0, 7.0, 9.0, 11.0, 13.0, 15.0, 17.0)
ZOOMS = (1.04, 1.08, 1.13, 1.19, 1.26, 1.34, 1.45)
LEAST_OVERLAP = 0.25  # of the picture: a warp that leaves less says nothing
NOISE = 1e-4  # squared error that no warp goes below: keeps a ratio of two tiny errors from counting


def turned_right(first: Pixels, last: Pixels, horizontal_fov_deg: float) -> float:
    """Tell a turn to the right from one to the left.

    Args:
        first, last: [H, W, 3].

    Returns:
        More than 0 for right, less for left: the log of how much better the better way explains the last picture.
    """
    rays = _rays(first.shape[0], first.shape[1], horizontal_fov_deg)
    right, left = ([_turn(rays, sign * deg) for deg in TURNS_DEG] for sign in (1, -1))
    return _preference(first, last, right, left, horizontal_fov_deg)


def walked_forward(first: Pixels, last: Pixels, horizontal_fov_deg: float) -> float:
    """Tell a walk forward (the picture grows) from one backward (it shrinks): more than 0 for forward."""
    rays = _rays(first.shape[0], first.shape[1], horizontal_fov_deg)
    forward, backward = ([_zoom(rays, zoom**sign) for zoom in ZOOMS] for sign in (1, -1))
    return _preference(first, last, forward, backward, horizontal_fov_deg)


def _rays(height_px: int, width_px: int, horizontal_fov_deg: float) -> Tensor:
    """[H, W, 3]: where each pixel looks, z forward."""
    focal = width_px / 2 / math.tan(math.radians(horizontal_fov_deg) / 2)
    x, y = torch.arange(width_px) + 0.5 - width_px / 2, torch.arange(height_px) + 0.5 - height_px / 2
    grid = torch.meshgrid(y / focal, x / focal, indexing="ij")
    return torch.stack([grid[1], grid[0], torch.ones(height_px, width_px)], -1)


def _turn(rays: Tensor, yaw_deg: float) -> Tensor:
    """The last picture's rays in the first one's camera, after a turn to the right by yaw_deg."""
    sin, cos = math.sin(math.radians(yaw_deg)), math.cos(math.radians(yaw_deg))
    return rays @ torch.tensor([[cos, 0.0, sin], [0.0, 1.0, 0.0], [-sin, 0.0, cos]]).T


def _zoom(rays: Tensor, zoom: float) -> Tensor:
    """The same after a walk towards a wall ahead, which then looks `zoom` times as large."""
    return rays * torch.tensor([1 / zoom, 1 / zoom, 1.0])


def _preference(
    first: Pixels, last: Pixels, one: Sequence[Tensor], other: Sequence[Tensor], horizontal_fov_deg: float
) -> float:
    before, after = _smooth(first), _smooth(last)
    errors = [min(_error(before, after, rays, horizontal_fov_deg) for rays in way) for way in (one, other)]
    return math.log((errors[1] + NOISE) / (errors[0] + NOISE))


def _smooth(picture: Pixels) -> Tensor:
    """[1, 3, H, W] in [0, 1], blurred a little: soft pictures are compared with sharp ones."""
    x = torch.from_numpy(np.array(picture)).permute(2, 0, 1)[None].float() / 255
    return functional.avg_pool2d(x, 5, 1, 2, count_include_pad=False)


def _error(before: Tensor, after: Tensor, rays: Tensor, horizontal_fov_deg: float) -> float:
    """Mean squared error where the warped first picture and the last one overlap."""
    height, width = before.shape[2:]
    half = math.tan(math.radians(horizontal_fov_deg) / 2)
    at = rays[..., :2] / rays[..., 2:] / torch.tensor([half, half * height / width])
    inside = (at.abs() <= 1).all(-1)
    if inside.float().mean() < LEAST_OVERLAP:
        return math.inf
    warped = functional.grid_sample(before, at[None], align_corners=False, padding_mode="border")
    return float((warped - after).square().mean(1)[0][inside].mean())
