"""Small worlds for tests: the real code at sizes that compute in milliseconds."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import torch
from worldmodel.codec import StreamingCodec
from worldmodel.config import CodecConfig, TransformerConfig, WorldConfig
from worldmodel.layers import seed_parameters
from worldmodel.loading import Instance, load_world
from worldmodel.serving import ServingConfig
from worldmodel.transformer import CausalWorldTransformer
from worldmodel.world import World

TINY = WorldConfig(
    name="tiny",
    transformer=TransformerConfig(dim=48, ffn_dim=64, num_heads=2, num_layers=3, freq_dim=32, text_dim=16, text_len=4),
    codec=CodecConfig(
        decoder_widths=(16, 8, 8), decoder_blocks=(1, 1, 1), encoder_widths=(8, 8, 8), encoder_blocks=(1, 1, 1)
    ),
    height_px=32,
    width_px=48,
    window_latent_frames=9,
    sink_latent_frames=3,
)
START_RAYS = TINY.replace(transformer=dataclasses.replace(TINY.transformer, has_start_rays=True))  # as the embedded one


def tiny_world(
    config: WorldConfig = TINY,
    seed: int = 0,
    conditioner_budget_bytes: int | None = None,
    picture_cache_bytes: int = 1 << 20,
) -> World:
    transformer, codec = CausalWorldTransformer(config.transformer), StreamingCodec(config.codec)
    seed_parameters(transformer, seed)
    seed_parameters(codec, seed + 1)
    cpu = torch.device("cpu")
    return World(config, transformer, codec, cpu, torch.float32, conditioner_budget_bytes, picture_cache_bytes)


def accelerated_world(config: WorldConfig = TINY, seed: int = 0, **serving: object) -> World:
    """The same through the loader: mounted, compiled and warmed up as the serving configuration says."""
    return load_world(config, ServingConfig(weights_seed=seed, **serving), Path(), Instance("CPU", 0))  # type: ignore[arg-type]


def picture(seed: int = 0, height: int = 32, width: int = 48) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)
