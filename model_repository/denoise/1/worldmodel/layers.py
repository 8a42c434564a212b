"""Small parts of the transformer: norms, rotary positions, the time embedding. No state.

Letters: B batch, L tokens, H heads, D channels of a head.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional


class RMSNorm(nn.Module):
    """Root-mean-square norm over all heads at once, computed in float32."""

    def __init__(self, dim: int, eps: float) -> None:
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(dim))

    def forward(self, x: Tensor) -> Tensor:
        """[..., dim], same dtype out."""
        wide = x.float()
        return (wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + self.eps)).type_as(x) * self.weight


class LayerNorm(nn.LayerNorm):
    """Layer norm computed in float32, whatever comes in."""

    def forward(self, x: Tensor) -> Tensor:
        """[..., dim], same dtype out."""
        weight = None if self.weight is None else self.weight.float()
        bias = None if self.bias is None else self.bias.float()
        return functional.layer_norm(x.float(), self.normalized_shape, weight, bias, self.eps).type_as(x)


def sinusoid(timesteps: Tensor, dim: int) -> Tensor:
    """Turn timesteps in [0, 1000] into waves, cosines first.

    Args:
        timesteps: any shape, any real dtype.
        dim: even.

    Returns:
        [..., dim] float32, computed in float64.
    """
    half = dim // 2
    rates = torch.pow(10000.0, -torch.arange(half, dtype=torch.float64, device=timesteps.device) / half)
    angles = timesteps.double()[..., None] * rates
    return torch.cat([angles.cos(), angles.sin()], dim=-1).float()


def rotary_table(
    first_frame: int,
    num_frames: int,
    rows: int,
    columns: int,
    head_dim: int,
    theta: float,
    device: torch.device | None = None,
) -> tuple[Tensor, Tensor]:
    """Angles of the three-dimensional rotary position, one per token, frames outermost.

    There is no table that ends: the angle of any latent frame is computed, in float64, and on the host whatever the
    device, so that all devices have the same bits.

    Args:
        first_frame: the absolute latent frame of the first token, in its session.
        rows, columns: of the token grid.
        head_dim: D; split into time, row and column channels as Wan does (44, 42, 42 of 128).
        device: where the table is laid out; None is the host.

    Returns:
        cos and sin, each [num_frames * rows * columns, D / 2] float32.
    """
    spatial = 2 * (head_dim // 6)
    sizes = (head_dim - 2 * spatial, spatial, spatial)
    starts, counts = (first_frame, 0, 0), (num_frames, rows, columns)
    angles = [
        torch.arange(start, start + count, dtype=torch.float64)[:, None]
        * torch.pow(theta, -torch.arange(0, size, 2, dtype=torch.float64) / size)
        for start, count, size in zip(starts, counts, sizes, strict=True)
    ]
    return _of_tokens([angle.cos() for angle in angles], device), _of_tokens([angle.sin() for angle in angles], device)


def _of_tokens(axes: Sequence[Tensor], device: torch.device | None) -> Tensor:
    """What the positions of three axes have, [positions, channels], joined for each token: [tokens, D / 2] float32.

    An axis has few positions, the grid has many: the device repeats what the host has computed.
    """
    frames, rows, columns = (axis.float().to(device, non_blocking=True) for axis in axes)
    grid = (len(frames), len(rows), len(columns), -1)
    parts = (frames[:, None, None], rows[:, None], columns)
    return torch.cat([part.expand(grid) for part in parts], dim=-1).flatten(0, 2)


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Turn neighbouring channel pairs by their token's angles.

    Args:
        x: [B, H, L, D].
        cos, sin: [L, D / 2] float32.
    """
    pairs = x.float().unflatten(-1, (-1, 2))
    if torch.compiler.is_compiling():  # it knows no complex numbers, and fuses instead
        real, imaginary = pairs.unbind(-1)
        turned = torch.stack([real * cos - imaginary * sin, real * sin + imaginary * cos], dim=-1)
    else:  # one pass over memory instead of eight
        turned = torch.view_as_real(torch.view_as_complex(pairs) * torch.complex(cos, sin))
    return turned.flatten(-2).type_as(x)


def split_heads(x: Tensor, num_heads: int) -> Tensor:
    """[B, L, H * D] -> [B, H, L, D]."""
    return x.unflatten(-1, (num_heads, -1)).transpose(1, 2)


def join_heads(x: Tensor) -> Tensor:
    """[B, H, L, D] -> [B, L, H * D]."""
    return x.transpose(1, 2).flatten(-2)


def seed_parameters(module: nn.Module, seed: int) -> None:
    """Fill every parameter from one seed: weights by fan-in, vectors small, norms near one.

    For worlds without a checkpoint. Nothing is zero, so that each input reaches the output.
    """
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in module.named_parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            if parameter.dim() > 1 and not name.endswith("modulation"):
                parameter.copy_(noise / math.sqrt(parameter[0].numel()))
            elif ".norm" in name and name.endswith("weight"):
                parameter.copy_(1 + 0.1 * noise)
            else:
                parameter.copy_(0.1 * noise)
