"""Writes random checkpoints as the published ones are laid out: the transformer in shards, Wan's VAE, TAEHV.

Weights are drawn on the device and written shard by shard, so that the host holds one shard at a time.
"""

from __future__ import annotations

import dataclasses
import itertools
import json
import shutil
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gpu_lab import LINGBOT, TINY, WAN_1_3B, Budget, Lab, NotHereError
from gpu_worlds import drawn

# isort: split
import torch
from safetensors.torch import save_file
from worldmodel.config import MASK_CHANNELS, TransformerConfig, WorldConfig
from worldmodel.layers import seed_parameters
from worldmodel.taehv_codec import TaehvCodec
from worldmodel.transformer import CausalWorldTransformer

STEM = "diffusion_pytorch_model"
ITEM_BYTES = 2  # of bfloat16
CODECS_BYTES = 600 << 20  # both, as published


@dataclass(frozen=True)
class Published:
    """A size in which a published checkpoint is written."""

    config: WorldConfig  # its sizes
    shard_bytes: int
    vae: Mapping[str, Any] = field(default_factory=dict)  # what differs from the published VAE

    @property
    def name(self) -> str:
        return f"{self.config.name} published"


PUBLISHED_TINY = Published(TINY, 32 << 10, {"base_dim": 4})
PUBLISHED_1_3B = Published(WAN_1_3B, 1 << 30)
PUBLISHED_LINGBOT = Published(LINGBOT, 2 << 30)


@dataclass(frozen=True)
class Checkpoint:
    """A folder that has been written, and what is in it."""

    of: Published
    folder: Path
    transformer_bytes: int
    codec_bytes: Mapping[str, int]  # wan and taehv: their files
    vae: Any  # the module that was written, on the host


def write_checkpoint(lab: Lab, size: Published, folder: Path, budget: Budget) -> tuple[Checkpoint, dict[str, Any]]:
    """All that a server loads, and how that went.

    Raises:
        NotHereError: the disk has no room for it, or there is no time; diffusers is missing.
    """
    with torch.device("meta"):
        module = CausalWorldTransformer(size.config.transformer)
    wanted = ITEM_BYTES * sum(each.numel() for each in module.parameters()) + CODECS_BYTES
    free = shutil.disk_usage(folder).free
    if wanted > free:
        raise NotHereError(f"{size.name} takes {wanted / 1e9:.1f} GB of disk, {free / 1e9:.1f} GB are free")
    vae = _write_vae(size, folder)
    taehv = TaehvCodec(size.config.transformer.latent_channels)
    seed_parameters(taehv, 1)
    save_file({key: each.half() for key, each in taehv.state_dict().items()}, folder / "taew2_1.safetensors")
    began = time.monotonic()
    num_shards = _write_transformer(lab, module, size, folder / "transformer", budget)
    took_s = time.monotonic() - began
    parts = [_bytes_of(folder / name) for name in ("transformer", "vae", "taew2_1.safetensors")]
    checkpoint = Checkpoint(size, folder, parts[0], {"wan": parts[1], "taehv": parts[2]}, vae)
    return checkpoint, {
        "parameters": sum(each.numel() for each in module.parameters()),
        "transformer_bytes": parts[0],
        "vae_bytes": parts[1],
        "taehv_bytes": parts[2],
        "shards": num_shards,
        "write_s": round(took_s, 2),
        "write_gb_per_s": round(parts[0] / took_s / 1e9, 2),
    }


def _write_vae(size: Published, folder: Path) -> Any:
    """As diffusers writes it, in float32."""
    try:
        from diffusers import AutoencoderKLWan
    except ImportError as error:
        raise NotHereError(
            f"the Python package diffusers, which has Wan's VAE, cannot be imported ({error})"
        ) from error
    torch.manual_seed(0)
    vae = AutoencoderKLWan(**size.vae).eval().requires_grad_(False)
    vae.save_pretrained(folder / "vae")
    return vae


def _write_transformer(lab: Lab, module: CausalWorldTransformer, size: Published, folder: Path, budget: Budget) -> int:
    """Shards, their index and config.json, under LingBot-World's own key names; returns the number of shards."""
    folder.mkdir()
    sizes = {name: ITEM_BYTES * each.numel() for name, each in module.named_parameters()}
    shards = _shards(sizes, size.shard_bytes)
    drawings = drawn(module, lab.device)
    weight_map: dict[str, str] = {}
    began, written = time.monotonic(), 0
    for number, names in enumerate(shards, 1):
        file = f"{STEM}-{number:05d}-of-{len(shards):05d}.safetensors"
        shard = {name: drawing.cpu() for name, drawing in itertools.islice(drawings, len(names))}
        save_file(shard, folder / file, metadata={"format": "pt"})
        weight_map |= dict.fromkeys(shard, file)
        del shard  # before the next one is drawn
        written += sum(sizes[name] for name in names)
        left_s = (time.monotonic() - began) * (sum(sizes.values()) / written - 1)
        if left_s > budget.left_s():
            raise NotHereError(f"to write the rest would take about {left_s:.0f} s, {budget.left_s():.0f} s are left")
    index = {"metadata": {"total_size": sum(sizes.values())}, "weight_map": weight_map}
    (folder / f"{STEM}.safetensors.index.json").write_text(json.dumps(index), encoding="utf-8")
    (folder / "config.json").write_text(json.dumps(_config_json(size.config.transformer)), encoding="utf-8")
    return len(shards)


def _shards(sizes: Mapping[str, int], shard_bytes: int) -> Sequence[Sequence[str]]:
    """Names in their order, each shard as full as it goes; a larger tensor has one to itself."""
    shards: list[list[str]] = [[]]
    held = 0
    for name, num_bytes in sizes.items():
        if held + num_bytes > shard_bytes and shards[-1]:
            shards.append([])
            held = 0
        shards[-1].append(name)
        held += num_bytes
    return shards


def _config_json(sizes: TransformerConfig) -> dict[str, Any]:
    """As the original layout has it: sizes under its own names, nothing of chunk, window and sink."""
    said = dataclasses.asdict(sizes)
    channels = said.pop("latent_channels")
    del said["rope_theta"]
    return {
        "_class_name": "WanModel",
        "model_type": "i2v",
        "patch_size": [1, 2, 2],
        "qk_norm": True,
        "cross_attn_norm": True,
        "in_dim": 2 * channels + MASK_CHANNELS,
        "out_dim": channels,
        **said,
    }


def _bytes_of(place: Path) -> int:
    files = [place] if place.is_file() else place.iterdir()
    return sum(file.stat().st_size for file in files)
