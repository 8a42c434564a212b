"""Small checkpoints of other people's models, written by their own code, and what those models make of them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from worldmodel.config import LINGBOT_WORLD_FAST
from worldmodel.published import checkpoint_config
from worldmodel.transformer import CausalWorldTransformer

HEADS, HEAD_DIM, TEXT_DIM, TEXT_LEN = 2, 24, 16, 8
PRESET = LINGBOT_WORLD_FAST.replace(height_px=32, width_px=48)


def tiny_transformer() -> Any:
    """A small transformer of diffusers with every number at random, norms and tables included."""
    diffusers = pytest.importorskip("diffusers")
    torch.manual_seed(0)
    model = diffusers.WanTransformer3DModel(
        patch_size=(1, 2, 2),
        num_attention_heads=HEADS,
        attention_head_dim=HEAD_DIM,
        in_channels=36,
        out_channels=16,
        text_dim=TEXT_DIM,
        freq_dim=32,
        ffn_dim=96,
        num_layers=3,
    )
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.add_(0.05 * torch.randn_like(parameter) if ".norm" in name else 0)
    return model.eval()


def camera_tensors(config: Any) -> dict[str, torch.Tensor]:
    """The parts that diffusers does not know, such that the camera moves nothing: scale and shift are zero."""
    module = CausalWorldTransformer(config.transformer)
    names = ("cam_", "c2ws_", "patch_embedding_wancamctrl")
    parts = {name: value for name, value in module.state_dict().items() if any(each in name for each in names)}
    return {name: value * (0 if "scale_layer" in name or "shift_layer" in name else 1) for name, value in parts.items()}


def write_transformer(model: Any, folder: Path) -> None:
    """What diffusers writes, in several shards, with one more for the camera's parts."""
    inner = folder / "transformer"
    model.save_pretrained(inner, max_shard_size="100KB")
    config = inner / "config.json"
    said = json.loads(config.read_text()) | {"num_frames_per_block": 3, "sink_size": 6, "text_len": TEXT_LEN}
    config.write_text(json.dumps(said | {"sliding_window_num_frames": 12, "local_attn_size": -1}))
    camera = camera_tensors(checkpoint_config(PRESET, folder))
    save_file({name: value.contiguous() for name, value in camera.items()}, inner / "camera.safetensors")
    (index,) = inner.glob("*.index.json")
    listed = json.loads(index.read_text())
    listed["weight_map"] |= dict.fromkeys(camera, "camera.safetensors")
    index.write_text(json.dumps(listed))


def tiny_vae() -> Any:
    """A VAE of Wan 2.1's whole structure with narrow layers, at random, whose frames use the greys."""
    diffusers = pytest.importorskip("diffusers")
    torch.manual_seed(0)
    vae = diffusers.AutoencoderKLWan(base_dim=4)
    with torch.no_grad():
        for name, parameter in vae.named_parameters():
            if name.endswith("gamma"):
                parameter.add_(0.1 * torch.randn_like(parameter))
        vae.decoder.conv_out.weight.mul_(4)
        vae.quant_conv.weight.mul_(8)
    return vae.eval().requires_grad_(False)


def write_vae(vae: Any, folder: Path) -> None:
    """What diffusers writes."""
    vae.save_pretrained(folder / "vae")


def whole_latents(vae: Any, frames: torch.Tensor) -> torch.Tensor:
    """[B, T, 3, H, W] -> [B, t, C, h, w], by diffusers, normalised as its pipelines do."""
    mean, std = (
        torch.tensor(values).view(1, -1, 1, 1, 1) for values in (vae.config.latents_mean, vae.config.latents_std)
    )
    z = vae.encode(frames.transpose(1, 2)).latent_dist.mode()
    return ((z - mean) * (1 / std)).transpose(1, 2)


def whole_frames(vae: Any, latents: torch.Tensor) -> torch.Tensor:
    """[B, t, C, h, w] -> [B, T, 3, H, W] in [-1, 1], clamped."""
    mean, std = (
        torch.tensor(values).view(1, -1, 1, 1, 1) for values in (vae.config.latents_mean, vae.config.latents_std)
    )
    return vae.decode(latents.transpose(1, 2) * std + mean).sample.transpose(1, 2)


SIGMAS = tuple(10 * u / (1 + 9 * u) for u in (1.0, 0.821, 0.642, 0.321))  # of lingbot_world_fast: its list, shift 10


@torch.inference_mode()
def first_chunk(transformer: Any, vae: Any, picture: np.ndarray, seed: int) -> np.ndarray:
    """A session's first nine frames by diffusers' modules alone, without a prompt, while the camera stands still.

    Args:
        picture: [H, W, 3] uint8, of the model's size.

    Returns:
        [9, H, W, 3] uint8.
    """
    height, width, _ = picture.shape
    generator = np.random.Generator(np.random.PCG64(seed))
    shape = (1, 16, 3, height // 8, width // 8)

    def draw() -> torch.Tensor:
        return torch.from_numpy(generator.standard_normal(shape, dtype=np.float32))

    clip = torch.zeros(1, 9, 3, height, width)
    clip[0, 0] = torch.from_numpy(picture).permute(2, 0, 1) / 127.5 - 1
    mask = torch.zeros(1, 4, *shape[2:])
    mask[:, :, 0] = 1
    condition = torch.cat([mask, whole_latents(vae, clip).transpose(1, 2)], dim=1)
    text = torch.zeros(1, TEXT_LEN, TEXT_DIM)
    x = draw()
    for step, sigma in enumerate(SIGMAS):
        velocity = transformer(torch.cat([x, condition], dim=1), torch.tensor([1000 * sigma]), text).sample
        clean = x - sigma * velocity
        if step + 1 < len(SIGMAS):
            x = (1 - SIGMAS[step + 1]) * clean + SIGMAS[step + 1] * draw()
    frames = whole_frames(vae, clean.transpose(1, 2))
    return ((frames[0] + 1) * 127.5).round().to(torch.uint8).permute(0, 2, 3, 1).numpy()
