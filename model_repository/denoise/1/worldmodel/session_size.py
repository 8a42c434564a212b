"""How many bytes a session takes, known before anything of it is made."""

from __future__ import annotations

import torch

from worldmodel.codec import Codec
from worldmodel.config import MASK_CHANNELS, WorldConfig
from worldmodel.kv_cache import SPARE, KVCache


def session_bytes(config: WorldConfig, codec: Codec, dtype: torch.dtype) -> int:
    """Bytes of the tensors of one session, its window full.

    Args:
        dtype: of the transformer.
    """
    transformer = config.transformer
    layers, heads, width = transformer.num_layers, transformer.num_heads, transformer.head_dim
    num_tokens = config.window_latent_frames * config.tokens_per_frame + SPARE
    cache = KVCache.size_bytes(layers, heads, width, num_tokens, dtype)
    text = KVCache.size_bytes(layers, heads, width, transformer.text_len, dtype)
    cells = config.latent_height * config.latent_width * config.condition_latent_frames
    condition = (MASK_CHANNELS + transformer.latent_channels) * cells * dtype.itemsize
    decoder = codec.decoder_memory_bytes(config.height_px, config.width_px)
    return cache + text + condition + decoder + _history_bytes(config)


def _history_bytes(config: WorldConfig) -> int:
    """Bytes of the past chunks of a full window; where it does not end with a chunk, of one more at either end."""
    size = config.chunk_latent_frames
    behind_sink = config.window_latent_frames - config.sink_latent_frames
    num_frames = size * (-(-config.sink_latent_frames // size) - (-behind_sink // size))
    cells = config.latent_height * config.latent_width
    return num_frames * config.transformer.latent_channels * cells * torch.float32.itemsize
