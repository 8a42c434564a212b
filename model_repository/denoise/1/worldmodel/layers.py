"""Small parts of the transformer: norms, rotary positions, the time embedding. No state.

Letters: B batch, L tokens, H heads, D channels of a head.
"""

from __future__ import annotations

import math

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
    first_frame: int, num_frames: int, rows: int, columns: int, head_dim: int, theta: float
) -> tuple[Tensor, Tensor]:
    """Angles of the three-dimensional rotary position, one per token, frames outermost.

    There is no table that ends: the angle of any latent frame is computed, in float64.

    Args:
        first_frame: the absolute latent frame of the first token, in its session.
        rows, columns: of the token grid.
        head_dim: D; split into time, row and column channels as Wan does (44, 42, 42 of 128).

    Returns:
        cos and sin, each [num_frames * rows * columns, D / 2] float32.
    """
    spatial = 2 * (head_dim // 6)
    sizes = (head_dim - 2 * spatial, spatial, spatial)
    positions = torch.meshgrid(
        torch.arange(first_frame, first_frame + num_frames, dtype=torch.float64),
        torch.arange(rows, dtype=torch.float64),
        torch.arange(columns, dtype=torch.float64),
        indexing="ij",
    )
    angles = torch.cat(
        [
            position.reshape(-1, 1) * torch.pow(theta, -torch.arange(0, size, 2, dtype=torch.float64) / size)
            for position, size in zip(positions, sizes, strict=True)
        ],
        dim=-1,
    )
    return angles.cos().float(), angles.sin().float()


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
