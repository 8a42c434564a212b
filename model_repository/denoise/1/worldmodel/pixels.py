"""Pictures between the client's uint8 and the model's floats, each put on the device once."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

Pixels = NDArray[np.uint8]


def to_device(data: Tensor | NDArray[np.generic], device: torch.device) -> Tensor:
    """Put data on an explicit device, once: no staging copy where it is there already."""
    tensor = data if isinstance(data, Tensor) else torch.from_numpy(data)
    return tensor.to(device, non_blocking=True)


def fit_picture(picture: Tensor, height_px: int, width_px: int, fit: str) -> Tensor:
    """Scale a picture to the model's size, antialiased.

    Args:
        picture: [H, W, 3] uint8.
        fit: "crop" covers both sides and cuts the centre; "stretch" scales each side by itself.

    Returns:
        [3, height_px, width_px] float32 in [-1, 1].
    """
    x = picture.permute(2, 0, 1)[None].float()
    if fit == "crop":
        scale = max(height_px / x.shape[2], width_px / x.shape[3])
        # The part of the picture that is kept; a centre crop before scaling equals one after it.
        keep_height, keep_width = (max(1, round(side / scale)) for side in (height_px, width_px))
        top, left = (x.shape[2] - keep_height) // 2, (x.shape[3] - keep_width) // 2
        x = x[:, :, top : top + keep_height, left : left + keep_width]
    if x.shape[2:] != (height_px, width_px):
        x = functional.interpolate(x, (height_px, width_px), mode="bilinear", antialias=True, align_corners=False)
    return (x[0] / 127.5 - 1).clamp(-1, 1)


def to_uint8(frames: Tensor) -> Tensor:
    """[n, 3, H, W] in [-1, 1] -> [n, H, W, 3] uint8, rounded, on the same device."""
    return ((frames + 1) * 127.5).round().clamp(0, 255).to(torch.uint8).permute(0, 2, 3, 1).contiguous()
