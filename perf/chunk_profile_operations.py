"""The operations of one chunk, counted from its shapes: how much arithmetic, and how many bytes at the least.

A multiplication and an addition are two operations; numbers are float32. Bytes are every operand read once and every
result written once, as if nothing stayed in a cache between two operations:

    linear        n rows, i -> o channels     2nio      4(ni + io + no)
    attention     q queries, k keys, H heads  4Hqkd     4Hd(2q + 2k)          the scores are never written
    of d channels
    convolution   c -> o channels, s x s      2fhwcos²  4(fhwc + cos² + fhwo)
    kernel, f frames of h x w cells out

Norms, activations, rotations, modulation and noise are left out, and so is what a prompt costs once.
Knows the world's sizes; measures nothing.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from common import ROOT

sys.path.insert(0, str(ROOT / "model_repository" / "denoise" / "1"))

# isort: split
from worldmodel.config import PATCH, WorldConfig

FLOAT_BYTES = 4
KINDS = ("linear", "attention", "convolution")
STAGES = ("condition", "denoise", "decode")


@dataclass(frozen=True)
class Operation:
    """One operation of a chunk, and how often it runs."""

    kind: str
    flops: int
    num_bytes: int
    times: int = 1

    def repeated(self, times: int) -> Operation:
        return Operation(self.kind, self.flops, self.num_bytes, self.times * times)


def linear(rows: int, channels_in: int, channels_out: int, times: int = 1) -> Operation:
    elements = rows * channels_in + channels_in * channels_out + rows * channels_out
    return Operation("linear", 2 * rows * channels_in * channels_out, FLOAT_BYTES * elements, times)


def attention(num_heads: int, queries: int, keys: int, head_dim: int) -> Operation:
    """Fused: keys and values are read, queries are read and become the result."""
    flops = 4 * num_heads * queries * keys * head_dim
    return Operation("attention", flops, FLOAT_BYTES * num_heads * head_dim * (2 * queries + 2 * keys))


def convolution(frames: int, channels_in: int, channels_out: int, cells: int, kernel: int, times: int = 1) -> Operation:
    """Two-dimensional, with as many cells out as in."""
    weights = channels_in * channels_out * kernel**2
    elements = frames * cells * (channels_in + channels_out) + weights
    return Operation("convolution", 2 * frames * cells * weights, FLOAT_BYTES * elements, times)


def chunk_operations(config: WorldConfig, num_steps: int, visible_tokens: int) -> dict[str, list[Operation]]:
    """All operations of one chunk by stage: `num_steps` passes that denoise, and the context pass."""
    return {
        "condition": condition_operations(config),
        "denoise": [each.repeated(num_steps + 1) for each in pass_operations(config, visible_tokens)],
        "decode": decode_operations(config),
    }


def condition_operations(config: WorldConfig) -> list[Operation]:
    """The camera's embedding, and each layer's scale and shift: two injector layers, and one layer each."""
    dim, tokens = config.transformer.dim, tokens_of(config)
    ray_channels = config.transformer.camera_channels * PATCH**2
    return [
        linear(tokens, ray_channels, dim),
        linear(tokens, dim, dim, times=2),
        linear(tokens, dim, dim, times=4 * config.transformer.num_layers),
    ]


def pass_operations(config: WorldConfig, visible_tokens: int) -> list[Operation]:
    """One pass through the transformer, its camera's scale and shift being there."""
    model, tokens = config.transformer, tokens_of(config)
    layer = [
        linear(tokens, model.dim, model.dim, times=4),  # q, k, v, o of self-attention
        attention(model.num_heads, tokens, visible_tokens, model.head_dim),
        linear(tokens, model.dim, model.dim, times=2),  # q, o of cross-attention; k and v are the prompt's
        attention(model.num_heads, tokens, model.text_len, model.head_dim),
        linear(tokens, model.dim, model.ffn_dim),
        linear(tokens, model.ffn_dim, model.dim),
    ]
    return [
        linear(1, model.freq_dim, model.dim),
        linear(1, model.dim, model.dim),
        linear(1, model.dim, 6 * model.dim),
        patch_embedding(tokens, model.in_channels, model.dim),
        *(each.repeated(model.num_layers) for each in layer),
        linear(tokens, model.dim, model.latent_channels * PATCH**2),
    ]


def patch_embedding(tokens: int, channels_in: int, channels_out: int) -> Operation:
    """A convolution whose patches do not overlap is a linear layer over them."""
    plain = linear(tokens, channels_in * PATCH**2, channels_out)
    return Operation("convolution", plain.flops, plain.num_bytes)


def decode_operations(config: WorldConfig) -> list[Operation]:
    """The decoder's convolutions; each stage after the first has twice the frames, rows and columns."""
    codec, frames, cells = config.codec, config.chunk_latent_frames, config.latent_height * config.latent_width
    before = codec.decoder_widths[0]
    operations = [convolution(frames, codec.latent_channels, before, cells, 3)]
    for number, (width, num_blocks) in enumerate(zip(codec.decoder_widths, codec.decoder_blocks, strict=True)):
        if number:
            operations.append(convolution(frames, before, 2 * before, cells, 1))  # in time
            frames, cells = 2 * frames, 4 * cells
            operations.append(convolution(frames, before, width, cells, 3))
        operations.append(convolution(frames, 2 * width, width, cells, 3, times=num_blocks))
        operations.append(convolution(frames, width, width, cells, 3, times=num_blocks))
        before = width
    return [*operations, convolution(frames, before, 3 * 4, cells, 3)]  # four pixels of three colours a cell


def tokens_of(config: WorldConfig) -> int:
    """Tokens of a chunk."""
    return config.chunk_latent_frames * config.tokens_per_frame


def total_flops(operations: Iterable[Operation]) -> int:
    return sum(each.flops * each.times for each in operations)


def total_bytes(operations: Iterable[Operation]) -> int:
    return sum(each.num_bytes * each.times for each in operations)


def of_kind(operations: Iterable[Operation], kind: str) -> list[Operation]:
    return [each for each in operations if each.kind == kind]


def floor_ms(operations: Sequence[Operation], gflops: float, gb_per_s: float) -> float:
    """What the operations take where each runs as fast as one of the two ceilings lets it (a roofline)."""
    return sum(each.times * max(each.flops / (1e6 * gflops), each.num_bytes / (1e6 * gb_per_s)) for each in operations)
