"""The streaming codec: 8x smaller in space, 4x in time, with a memory that the caller owns.

Knows nothing of sessions, cameras or diffusion. Letters: B clips, T pixel frames, t latent frames, C latent
channels, H x W pixels, h x w latent cells. Inside, tensors are time-major [time * B, channels, rows, columns]: a
frame's past is then one slice, and the memory format stays channels-last.

The form (memory blocks that see one past feature map, pooling and growing in time, trimming the first frames)
is that of TAEHV, a tiny autoencoder for Wan-style latents; the code and the sizes are ours. `Codec` is what a world
needs of any codec: ours here, TAEHV itself in taehv_codec.py, Wan's in wan_codec.py.
"""

from __future__ import annotations

import itertools
import math
from abc import ABC, abstractmethod
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn import functional

from worldmodel.config import TIME_STRIDE, CodecConfig

Memory = tuple[Tensor, ...]


class Codec(nn.Module, ABC):
    """Pixel frames to latent frames and back, with the statistics that make latents roughly unit normal.

    A clip has 1 + 4k pixel frames and 1 + k latent frames: the first latent stands for one picture alone. Parameters
    have one dtype; the statistics, and what is encoded, are float32 whatever that is.
    """

    latent_mean: Tensor
    latent_std: Tensor

    def __init__(self, latent_channels: int) -> None:
        super().__init__()
        self.register_buffer("latent_mean", torch.zeros(latent_channels))
        self.register_buffer("latent_std", torch.ones(latent_channels))

    @property
    def dtype(self) -> torch.dtype:
        """Of the parameters, and of the memory."""
        return next(self.parameters()).dtype

    def cast(self, dtype: torch.dtype) -> None:
        """Give the parameters another dtype."""
        for parameter in self.parameters():
            parameter.data = parameter.data.to(dtype)

    def place(self, device: torch.device) -> Codec:
        """Move to a device, to serve from it."""
        return self.eval().requires_grad_(False).to(device)

    @abstractmethod
    def encode(self, frames: Tensor) -> tuple[Tensor, Memory]:
        """Encode a clip's beginning.

        Args:
            frames: [B, 1 + 4k, 3, H, W] in [-1, 1], of any float dtype.

        Returns:
            Latents [B, 1 + k, C, h, w], roughly unit normal, and the encoder's memory.
        """

    @abstractmethod
    def decode(self, latents: Tensor, memory: Memory | None = None) -> tuple[Tensor, Memory]:
        """Decode the latents that follow `memory`, or a clip's beginning.

        Args:
            latents: [B, t, C, h, w], roughly unit normal, of any float dtype.
            memory: what the last call returned; None at the beginning.

        Returns:
            Frames [B, T, 3, H, W], roughly in [-1, 1] (not clamped), and the memory for the next call. T = 4t, and
            three less at the beginning. `memory` itself is never written to: a caller that drops the result has
            changed nothing.
        """

    @abstractmethod
    def decoder_memory_shapes(self, height_px: int, width_px: int) -> list[tuple[int, ...]]:
        """The shapes of one session's decoder memory, the same after every chunk."""

    def decoder_memory_bytes(self, height_px: int, width_px: int) -> int:
        """Bytes that one session's decoder memory takes."""
        num_elements = sum(math.prod(shape) for shape in self.decoder_memory_shapes(height_px, width_px))
        return num_elements * self.dtype.itemsize

    def normal(self, z: Tensor) -> Tensor:
        """[..., C, h, w] as the encoder makes them -> roughly unit normal, float32."""
        return (z - self.latent_mean.view(-1, 1, 1)) / self.latent_std.view(-1, 1, 1)

    def raw(self, latents: Tensor) -> Tensor:
        """Latents [..., C, h, w] as the decoder reads them, in its dtype."""
        return (latents * self.latent_std.view(-1, 1, 1) + self.latent_mean.view(-1, 1, 1)).to(self.dtype)


class MemoryBlock(nn.Module):
    """A residual block that also sees the frame before."""

    def __init__(self, width: int, num_convs: int = 2) -> None:
        super().__init__()
        self.width = width
        self.conv = nn.Sequential(nn.Conv2d(2 * width, width, 3, padding=1))
        for _ in range(num_convs - 1):
            self.conv.extend([nn.ReLU(), nn.Conv2d(width, width, 3, padding=1)])

    def forward(self, x: Tensor, last: Tensor) -> tuple[Tensor, Tensor]:
        """Run [time * B, width, rows, columns] after its `last` frame [B, ...]; return it and the new last frame."""
        past = torch.cat([last, x[: -last.shape[0]]])
        # A copy: a view would keep the activations of the whole chunk alive with the session.
        return functional.relu(x + self.conv(torch.cat([x, past], dim=1))), x[-last.shape[0] :].clone()


class TimePool(nn.Module):
    """Join each two frames into one; or, with a stride of 1, look at each alone."""

    def __init__(self, width: int, stride: int = 2) -> None:
        super().__init__()
        self.stride = stride
        self.conv = nn.Conv2d(stride * width, width, 1, bias=False)

    def forward(self, x: Tensor, batch: int) -> Tensor:
        """[stride * time * B, width, ...] -> [time * B, width, ...]."""
        _, width, rows, columns = x.shape
        groups = x.reshape(-1, self.stride, batch, width, rows, columns).transpose(1, 2)
        return self.conv(groups.reshape(-1, self.stride * width, rows, columns))


class TimeGrow(nn.Module):
    """Split each frame into two; or, with a stride of 1, into one."""

    def __init__(self, width: int, stride: int = 2) -> None:
        super().__init__()
        self.stride = stride
        self.conv = nn.Conv2d(width, stride * width, 1, bias=False)

    def forward(self, x: Tensor, batch: int) -> Tensor:
        """[time * B, width, ...] -> [stride * time * B, width, ...]."""
        _, width, rows, columns = x.shape
        groups = self.conv(x).reshape(-1, batch, self.stride, width, rows, columns).transpose(1, 2)
        return groups.reshape(-1, width, rows, columns)


class Encoder(nn.Module):
    """Pixel frames -> latent frames."""

    def __init__(self, config: CodecConfig) -> None:
        super().__init__()
        widths = config.encoder_widths
        self.inlet = nn.Conv2d(3 * 4, widths[0], 3, padding=1)  # after a 2x2 pixel-unshuffle
        self.stages = nn.ModuleList(
            nn.ModuleList(MemoryBlock(width) for _ in range(count))
            for width, count in zip(widths, config.encoder_blocks, strict=True)
        )
        self.pools = nn.ModuleList(TimePool(width) for width in widths[:2])
        self.downs = nn.ModuleList(nn.Conv2d(a, b, 3, stride=2, padding=1) for a, b in itertools.pairwise(widths))
        self.outlet = nn.Conv2d(widths[2], config.latent_channels, 3, padding=1)

    def forward(self, x: Tensor, batch: int, memory: Memory) -> tuple[Tensor, Memory]:
        """[4 * t * B, 3, H, W] -> [t * B, C, h, w], and the memory for the frames that follow."""
        x = functional.relu(self.inlet(functional.pixel_unshuffle(x, 2)))
        kept: list[Tensor] = []
        for index, stage in enumerate(self.stages):
            if index:
                x = functional.relu(self.downs[index - 1](self.pools[index - 1](x, batch)))
            for block in cast(nn.ModuleList, stage):
                x, last = block(x, memory[len(kept)])
                kept.append(last)
        return self.outlet(x), tuple(kept)

    def fresh_memory(self, batch: int, height: int, width: int, like: Tensor) -> Memory:
        """Memory of a clip that has not begun; height and width are those of the latent grid."""
        return _zeros(self.stages, (4, 2, 1), batch, height, width, like)


class Decoder(nn.Module):
    """Latent frames -> pixel frames."""

    def __init__(self, config: CodecConfig) -> None:
        super().__init__()
        widths = config.decoder_widths
        self.inlet = nn.Conv2d(config.latent_channels, widths[0], 3, padding=1)
        self.stages = nn.ModuleList(
            nn.ModuleList(MemoryBlock(width) for _ in range(count))
            for width, count in zip(widths, config.decoder_blocks, strict=True)
        )
        self.grows = nn.ModuleList(TimeGrow(width) for width in widths[:2])
        self.ups = nn.ModuleList(nn.Conv2d(a, b, 3, padding=1, bias=False) for a, b in itertools.pairwise(widths))
        self.outlet = nn.Conv2d(widths[2], 3 * 4, 3, padding=1)  # before a 2x2 pixel-shuffle

    def forward(self, z: Tensor, batch: int, memory: Memory) -> tuple[Tensor, Memory]:
        """[t * B, C, h, w] -> [4 * t * B, 3, H, W], and the memory for the latents that follow."""
        # A soft clamp: one wild latent cannot flood its neighbours.
        x = functional.relu(self.inlet(torch.tanh(z / 3) * 3))
        kept: list[Tensor] = []
        for index, stage in enumerate(self.stages):
            if index:
                x = functional.interpolate(self.grows[index - 1](x, batch), scale_factor=2, mode="nearest")
                x = self.ups[index - 1](x)
            for block in cast(nn.ModuleList, stage):
                x, last = block(x, memory[len(kept)])
                kept.append(last)
        return functional.pixel_shuffle(self.outlet(x), 2), tuple(kept)

    def fresh_memory(self, batch: int, height: int, width: int, like: Tensor) -> Memory:
        """Memory of a clip that has not begun; height and width are those of the latent grid."""
        return _zeros(self.stages, (1, 2, 4), batch, height, width, like)


class StreamingCodec(Codec):
    """Encoder and decoder of the sizes that a configuration names.

    The codec repeats a clip's first picture to fill its group of four, and drops the three surplus frames after
    decoding.
    """

    def __init__(self, config: CodecConfig) -> None:
        super().__init__(config.latent_channels)
        self.config = config
        self.encoder = Encoder(config)
        self.decoder = Decoder(config)

    def place(self, device: torch.device) -> Codec:
        """As any codec; convolutions run a third faster over channels that lie together."""
        return super().place(device).to(memory_format=torch.channels_last)  # type: ignore[call-overload]

    def encode(self, frames: Tensor, memory: Memory | None = None) -> tuple[Tensor, Memory]:
        """Encode the frames that follow `memory`, or a clip's beginning.

        Args:
            frames: [B, T, 3, H, W] in [-1, 1]; T = 1 + 4k at the beginning (memory is None), else 4k.
            memory: what the last call returned.

        Returns:
            Latents [B, t, C, h, w], roughly unit normal, and the memory for the next call.
        """
        batch, _, _, height, width = frames.shape
        frames = frames.to(self.dtype)
        if memory is None:
            frames = torch.cat([frames[:, :1].expand(-1, TIME_STRIDE - 1, -1, -1, -1), frames], dim=1)
            memory = self.encoder.fresh_memory(batch, height // 8, width // 8, frames)
        z, memory = self.encoder(time_major(frames), batch, memory)
        return clip_major(self.normal(z), batch), memory

    def decode(self, latents: Tensor, memory: Memory | None = None) -> tuple[Tensor, Memory]:
        """As `Codec.decode`."""
        batch, _, _, rows, columns = latents.shape
        is_first = memory is None
        z = time_major(self.raw(latents))
        if memory is None:
            memory = self.decoder.fresh_memory(batch, rows, columns, z)
        x, memory = self.decoder(z, batch, memory)
        frames = clip_major(x, batch)
        return (frames[:, TIME_STRIDE - 1 :] if is_first else frames), memory

    def decoder_memory_shapes(self, height_px: int, width_px: int) -> list[tuple[int, ...]]:
        """As `Codec.decoder_memory_shapes`."""
        like = torch.empty(0, device="meta")
        return [tuple(part.shape) for part in self.decoder.fresh_memory(1, height_px // 8, width_px // 8, like)]


def _zeros(stages: nn.ModuleList, scales: tuple[int, ...], batch: int, rows: int, columns: int, like: Tensor) -> Memory:
    sizes = [
        (batch, cast(MemoryBlock, block).width, rows * scale, columns * scale)
        for stage, scale in zip(stages, scales, strict=True)
        for block in cast(nn.ModuleList, stage)
    ]
    return tuple(like.new_zeros(size).contiguous(memory_format=torch.channels_last) for size in sizes)


def time_major(clips: Tensor) -> Tensor:
    """[B, T, ...] -> [T * B, ...], channels last."""
    return clips.transpose(0, 1).flatten(0, 1).contiguous(memory_format=torch.channels_last)


def clip_major(frames: Tensor, batch: int) -> Tensor:
    """[T * B, ...] -> [B, T, ...]."""
    return frames.unflatten(0, (-1, batch)).transpose(0, 1)
