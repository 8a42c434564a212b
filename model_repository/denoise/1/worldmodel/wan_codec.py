"""Wan 2.1's own VAE by diffusers' AutoencoderKLWan, whose memory the caller owns. Letters as in codec.py.

diffusers keeps what its causal convolutions remember in a list on the module, empties it around every call, and so
takes whole clips only. Here its encoder and decoder are called with a list of ours, one latent frame at a time, as
diffusers itself calls them: how a clip is cut into chunks changes no bit.

What the decoder remembers after a clip's first latent is less than later on: one frame in place of two, and at two
places the mark "Rep" instead of a tensor. Both stand for frames of zeros before the clip, and are replaced by those
here, so that the memory always has the same shapes. diffusers is imported only when such a codec is made.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from worldmodel.checkpoint_files import CheckpointError, Range, named, shown
from worldmodel.codec import Codec, Memory
from worldmodel.config import SPATIAL_STRIDE, TIME_STRIDE

NUM_STAGES = 4  # each but the last halves the picture's sides
KEPT_FRAMES = 2  # of every causal convolution: its kernel is three frames long
# What config.json may say of its size: each makes torch work or allocate.
WIDTH = Range(1, 1 << 12)
RANGES = {
    "base_dim": WIDTH,
    "decoder_base_dim": WIDTH,
    "z_dim": Range(1, 256),
    "num_res_blocks": Range(1, 16),
    "in_channels": Range(3, 3),
    "out_channels": Range(3, 3),
}
MULTIPLE = Range(1, 64)  # each of dim_mult
STATISTICS = {
    "latents_mean": Range(-1e3, 1e3, is_whole=False),
    "latents_std": Range(1e-3, 1e3, is_whole=False),
}
# What makes it Wan 2.1's VAE; 2.2's has another form, 16x smaller in space.
FORM = {
    "is_residual": False,
    "patch_size": None,
    "temperal_downsample": [False, True, True],  # diffusers' spelling
    "scale_factor_spatial": SPATIAL_STRIDE,
    "scale_factor_temporal": TIME_STRIDE,
}


class WanCodec(Codec):
    """An AutoencoderKLWan behind the interface of our codecs."""

    def __init__(self, said: Mapping[str, Any]) -> None:
        """Make the modules, on torch's default device.

        Args:
            said: what its config.json says; an empty one is the published VAE.

        Raises:
            CheckpointError: diffusers is missing, or this is no VAE of Wan 2.1.
        """
        vae = _vae(said)
        super().__init__(vae.config.z_dim)
        self.vae = vae
        # Of no file but config.json. On the CPU first: on "meta" they would have no values.
        for name, values in (("latent_mean", vae.config.latents_mean), ("latent_std", vae.config.latents_std)):
            self.register_buffer(name, torch.tensor(values, dtype=torch.float32, device="cpu"), persistent=False)
        with torch.device("meta"):
            # In a tuple: a module would be one of ours, with weights to load.
            self._shape_decoder = (_vae(said).decoder,)
        self._known_shapes: dict[tuple[int, int], list[tuple[int, ...]]] = {}

    def encode(self, frames: Tensor, memory: Memory | None = None) -> tuple[Tensor, Memory]:
        """Encode the frames that follow `memory`, or a clip's beginning.

        Args:
            frames: [B, T, 3, H, W] in [-1, 1]; T = 1 + 4k at the beginning (memory is None), else 4k.
            memory: what the last call returned.

        Returns:
            Latents [B, t, C, h, w], roughly unit normal: the mean of what diffusers would draw from; and the memory.
        """
        x = frames.transpose(1, 2).to(self.dtype)
        starts = range(0 if memory else 1, x.shape[2], TIME_STRIDE)
        pieces = [] if memory else [x[:, :, :1]]
        pieces += [x[:, :, start : start + TIME_STRIDE] for start in starts]
        latents = []
        for piece in pieces:
            z, memory = _step(self.vae.encoder, piece, memory)
            latents.append(self.vae.quant_conv(z)[:, : len(self.latent_mean)])
        assert memory is not None
        return self.normal(torch.cat(latents, dim=2).transpose(1, 2)), memory

    def decode(self, latents: Tensor, memory: Memory | None = None) -> tuple[Tensor, Memory]:
        """As `Codec.decode`."""
        batch, num_latents, _, rows, columns = latents.shape
        z = self.raw(latents).transpose(1, 2)
        frames = []
        for index in range(num_latents):
            x = self.vae.post_quant_conv(z[:, :, index : index + 1])
            decoded, kept = _step(self.vae.decoder, x, memory)
            memory = kept if memory else _filled(kept, self._shapes(rows, columns), batch, x)
            frames.append(decoded)
        assert memory is not None
        return torch.cat(frames, dim=2).transpose(1, 2), memory

    def decoder_memory_shapes(self, height_px: int, width_px: int) -> list[tuple[int, ...]]:
        """As `Codec.decoder_memory_shapes`."""
        return self._shapes(height_px // SPATIAL_STRIDE, width_px // SPATIAL_STRIDE)

    def _shapes(self, rows: int, columns: int) -> list[tuple[int, ...]]:
        """For one clip, found by decoding two latent frames that have no numbers."""
        if (rows, columns) not in self._known_shapes:
            (decoder,) = self._shape_decoder
            x = torch.empty(1, len(self.latent_mean), 1, rows, columns, device="meta")
            _, first = _step(decoder, x, None)
            _, second = _step(decoder, x, first)
            self._known_shapes[rows, columns] = [tuple(part.shape) for part in second]
        return self._known_shapes[rows, columns]


def _step(module: nn.Module, x: Tensor, memory: tuple[Any, ...] | None) -> tuple[Tensor, tuple[Any, ...]]:
    """One latent frame through diffusers' encoder or decoder; what it remembers is left as diffusers has it.

    diffusers puts new tensors into the list and writes to none that it finds there.
    """
    cache = [None] * _num_convolutions(module) if memory is None else list(memory)
    position = [0]
    y = module(x, feat_cache=cache, feat_idx=position)
    return y, tuple(cache[: position[0]])  # shortcuts remember nothing, and have their places at the end


def _num_convolutions(module: nn.Module) -> int:
    return sum(isinstance(each, nn.Conv3d) for each in module.modules())


def _filled(kept: tuple[Any, ...], shapes: list[tuple[int, ...]], batch: int, like: Tensor) -> Memory:
    """The memory after a clip's first latent, with frames of zeros before it."""
    return tuple(
        functional.pad(part, (0, 0, 0, 0, KEPT_FRAMES - part.shape[2], 0))
        if isinstance(part, Tensor)
        else like.new_zeros(batch, *shape[1:])
        for part, shape in zip(kept, shapes, strict=True)
    )


def _vae(said: Mapping[str, Any]) -> Any:
    try:
        from diffusers import AutoencoderKLWan
    except ImportError as error:
        raise CheckpointError(
            "wanted the Python package diffusers, which has Wan's VAE; it is not installed"
        ) from error
    with named("config.json"):
        _check_form(said)
        try:
            vae = AutoencoderKLWan.from_config({key: value for key, value in said.items() if not key.startswith("_")})
        except Exception as error:  # diffusers and torch have many, as the numbers are wrong
            raise CheckpointError(f"no VAE can be made of it ({type(error).__name__}: {error})") from error
        for key in STATISTICS:
            if len(vae.config[key]) != vae.config.z_dim:
                raise CheckpointError(f"{key}: wanted {vae.config.z_dim} numbers, got {len(vae.config[key])}")
    return vae


def _check_form(said: Mapping[str, Any]) -> None:
    """Before anything is made of it; what it does not say is as published."""
    if said.get("_class_name", "AutoencoderKLWan") != "AutoencoderKLWan":
        raise CheckpointError(f"wanted the class AutoencoderKLWan, got {shown(said['_class_name'])}")
    for key, wanted in FORM.items():
        if said.get(key, wanted) != wanted:
            raise CheckpointError(f"{key}: wanted {wanted}, as in Wan 2.1, got {shown(said[key])}")
    for key, kind in RANGES.items():
        if said.get(key) is not None:
            kind.check(key, said[key])
    multiples = said.get("dim_mult", [1] * NUM_STAGES)
    if not isinstance(multiples, list | tuple) or len(multiples) != NUM_STAGES:
        raise CheckpointError(f"dim_mult: wanted {NUM_STAGES} numbers, got {shown(multiples)}")
    for multiple in multiples:
        MULTIPLE.check("dim_mult", multiple)
    for key, kind in STATISTICS.items():
        values = said.get(key, [1.0])
        if not isinstance(values, list | tuple):
            raise CheckpointError(f"{key}: wanted numbers, got {shown(values)}")
        for value in values:
            kind.check(key, value)
