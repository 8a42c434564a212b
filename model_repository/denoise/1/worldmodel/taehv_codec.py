"""TAEHV for Wan 2.1 (`taew2_1`): a tiny codec in the place of Wan's own, tens of times faster, a little softer.

Knows the published layout, whose key names count the layers of two plain sequences: `encoder.4.conv.0.weight`. Its
pixels are in [0, 1], its latents those of Wan as the transformer has them, roughly unit normal (`lighttaew2_1`, of the
same layout, is made for latents with Wan's means and deviations: it is not known here).

Encoding follows the published code as well: frames are taken in groups of four from the first one on, and the last
group is filled up with the last frame. So a latent sees up to three frames more than Wan's would, and a clip cannot be
encoded piece by piece. Letters as in codec.py.

Source: madebyollin/taehv, taehv.py (2026-07).
"""

from __future__ import annotations

from typing import cast

import torch
from torch import Tensor, nn

from worldmodel.codec import Codec, Memory, MemoryBlock, TimeGrow, TimePool, clip_major, time_major
from worldmodel.config import TIME_STRIDE

PUBLISHED_WIDTH = 64
PUBLISHED_DECODER_WIDTHS = (256, 128, 64, 64)
NUM_BLOCKS = 3  # of each stage
FIRST_GROW = "decoder.7.conv.weight"  # does not grow here, though some files have the weights of two frames


class SoftClamp(nn.Module):
    """One wild latent cannot flood its neighbours."""

    def forward(self, x: Tensor) -> Tensor:
        """Any shape, into (-3, 3)."""
        return torch.tanh(x / 3) * 3


class TaehvCodec(Codec):
    """The published layers, in their order and under their names."""

    def __init__(
        self,
        latent_channels: int = 16,
        width: int = PUBLISHED_WIDTH,
        decoder_widths: tuple[int, int, int, int] = PUBLISHED_DECODER_WIDTHS,
    ) -> None:
        super().__init__(latent_channels)
        # Of no file: the latents are normal already. On the CPU first: on "meta" they would have no values.
        self.register_buffer("latent_mean", torch.zeros(latent_channels, device="cpu"), persistent=False)
        self.register_buffer("latent_std", torch.ones(latent_channels, device="cpu"), persistent=False)
        self.encoder = _encoder(width, latent_channels)
        self.decoder = _decoder(decoder_widths, latent_channels)

    def place(self, device: torch.device) -> Codec:
        """As any codec; convolutions run faster over channels that lie together."""
        return super().place(device).to(memory_format=torch.channels_last)  # type: ignore[call-overload]

    def encode(self, frames: Tensor) -> tuple[Tensor, Memory]:
        """As `Codec.encode`."""
        batch, num_frames, _, height, width = frames.shape
        filling = frames[:, -1:].expand(-1, -num_frames % TIME_STRIDE, -1, -1, -1)
        x = time_major((torch.cat([frames, filling], dim=1).to(self.dtype) + 1) / 2)
        z, memory = _run(self.encoder, x, batch, _zeros(self.encoder, batch, height, width, x))
        return clip_major(self.normal(z), batch), memory

    def decode(self, latents: Tensor, memory: Memory | None = None) -> tuple[Tensor, Memory]:
        """As `Codec.decode`."""
        batch, _, _, rows, columns = latents.shape
        is_first = memory is None
        z = time_major(self.raw(latents))
        x, memory = _run(self.decoder, z, batch, memory or _zeros(self.decoder, batch, rows, columns, z))
        frames = clip_major(x, batch) * 2 - 1
        return (frames[:, TIME_STRIDE - 1 :] if is_first else frames), memory

    def decoder_memory_shapes(self, height_px: int, width_px: int) -> list[tuple[int, ...]]:
        """As `Codec.decoder_memory_shapes`."""
        return _shapes(self.decoder, 1, height_px // 8, width_px // 8)


def _encoder(width: int, latent_channels: int) -> nn.Sequential:
    layers: list[nn.Module] = [_conv(3, width), nn.ReLU()]
    for time_stride in (2, 2, 1):
        layers += [TimePool(width, time_stride), nn.Conv2d(width, width, 3, stride=2, padding=1, bias=False)]
        layers += [MemoryBlock(width, num_convs=3) for _ in range(NUM_BLOCKS)]
    return nn.Sequential(*layers, _conv(width, latent_channels))


def _decoder(widths: tuple[int, int, int, int], latent_channels: int) -> nn.Sequential:
    layers: list[nn.Module] = [SoftClamp(), _conv(latent_channels, widths[0]), nn.ReLU()]
    for width, next_width, time_stride in zip(widths[:3], widths[1:], (1, 2, 2), strict=True):
        layers += [MemoryBlock(width, num_convs=3) for _ in range(NUM_BLOCKS)]
        layers += [nn.Upsample(scale_factor=2), TimeGrow(width, time_stride)]
        layers += [nn.Conv2d(width, next_width, 3, padding=1, bias=False)]
    return nn.Sequential(*layers, nn.ReLU(), _conv(widths[3], 3))


def _conv(channels_in: int, channels_out: int) -> nn.Conv2d:
    return nn.Conv2d(channels_in, channels_out, 3, padding=1)


def _run(layers: nn.Sequential, x: Tensor, batch: int, memory: Memory) -> tuple[Tensor, Memory]:
    """Time-major frames through the layers, and the memory for those that follow."""
    kept: list[Tensor] = []
    for layer in layers:
        if isinstance(layer, MemoryBlock):
            x, last = layer(x, memory[len(kept)])
            kept.append(last)
        elif isinstance(layer, TimePool | TimeGrow):
            x = layer(x, batch)
        else:
            x = layer(x)
    return x, tuple(kept)


def _shapes(layers: nn.Sequential, batch: int, rows: int, columns: int) -> list[tuple[int, ...]]:
    """What each memory block keeps: the size of the frames that come to it."""
    shapes: list[tuple[int, ...]] = []
    for layer in layers:
        if isinstance(layer, MemoryBlock):
            shapes.append((batch, layer.width, rows, columns))
        elif isinstance(layer, nn.Upsample):
            rows, columns = 2 * rows, 2 * columns
        elif isinstance(layer, nn.Conv2d):
            stride = cast(tuple[int, int], layer.stride)[0]
            rows, columns = rows // stride, columns // stride
    return shapes


def _zeros(layers: nn.Sequential, batch: int, rows: int, columns: int, like: Tensor) -> Memory:
    return tuple(
        like.new_zeros(shape).contiguous(memory_format=torch.channels_last)
        for shape in _shapes(layers, batch, rows, columns)
    )
