"""Causal teacher forcing: one pass over [clean past | noisy chunks] under a block-causal mask.

Every noisy chunk sees the clean chunks before it, as far as window and sink of a session reach, and itself: what it
will see when it is served. Nothing sees the last clean chunk, so the clean half ends before it. Letters: B sessions, L
latent frames, P of them clean, N = (P + L) * tokens_per_frame tokens, S prompt tokens, H heads, D channels of a head.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional
from worldmodel.config import PATCH, WorldConfig
from worldmodel.kv_cache import place
from worldmodel.layers import join_heads, rotary_table
from worldmodel.transformer import Attention, Block, CausalWorldTransformer


def num_clean_frames(config: WorldConfig, num_latent_frames: int) -> int:
    """P: every latent frame but those of the last chunk."""
    return num_latent_frames - config.chunk_latent_frames


def visible_past(config: WorldConfig, num_chunks: int) -> list[set[int]]:
    """For each chunk, the earlier latent frames that its session's cache still holds."""
    size, slots = config.chunk_latent_frames, (None,) * config.window_latent_frames
    held: tuple[int | None, ...] = slots
    past = []
    for chunk in range(num_chunks):
        new = range(chunk * size, (chunk + 1) * size)
        held = place(held, new, config.sink_latent_frames).frames_after
        past.append({frame for frame in held if frame is not None and frame < new.start})
    return past


def teacher_mask(config: WorldConfig, num_latent_frames: int) -> Tensor:
    """[N, N] bool: which token may look at which; the clean half comes first."""
    frames, size = num_latent_frames, config.chunk_latent_frames
    num_clean = num_clean_frames(config, frames)
    mask = torch.zeros(num_clean + frames, num_clean + frames, dtype=torch.bool)
    for chunk, past in enumerate(visible_past(config, frames // size)):
        own = slice(chunk * size, min((chunk + 1) * size, num_clean))
        noisy = slice(num_clean + chunk * size, num_clean + (chunk + 1) * size)
        for frame in past:
            mask[own, frame] = mask[noisy, frame] = True
        mask[own, own] = True
        mask[noisy, noisy] = True
    tokens = config.tokens_per_frame
    return mask.repeat_interleave(tokens, 0).repeat_interleave(tokens, 1)


class ChunkwiseAttention(Attention):
    """Attention under `teacher_mask` without the mask: each chunk looks at what it may see, and at nothing else.

    Two thirds of the mask are closed; computing them only to hide them takes a fifth of a training step.
    """

    def __init__(self, config: WorldConfig, num_latent_frames: int) -> None:
        super().__init__(config.transformer)
        size = config.chunk_latent_frames
        # For each chunk the latent frames that look, and those that they look at besides themselves.
        self.chunks = tuple(
            (tuple(range(chunk * size, (chunk + 1) * size)), tuple(sorted(past)))
            for chunk, past in enumerate(visible_past(config, num_latent_frames // size))
        )
        self.num_clean, self.tokens_per_frame = num_clean_frames(config, num_latent_frames), config.tokens_per_frame

    def output(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None) -> Tensor:
        """Attend and project: [B, H, N, D] -> [B, N, dim]."""
        # Cut up and joined, not sliced: a slice's gradient is as large as what it was cut from.
        q_frames, k_frames, v_frames = (x.split(self.tokens_per_frame, 2) for x in (q, k, v))
        seen = []
        for half, chunks in ((0, self.chunks[:-1]), (self.num_clean, self.chunks)):
            for own, past in chunks:
                rows = [half + frame for frame in own]
                columns = [*past, *rows]
                k_seen, v_seen = _joined(k_frames, columns), _joined(v_frames, columns)
                seen.append(functional.scaled_dot_product_attention(_joined(q_frames, rows), k_seen, v_seen))
        return self.o(join_heads(torch.cat(seen, 2)))


def attend_chunkwise(transformer: CausalWorldTransformer, config: WorldConfig, num_latent_frames: int) -> None:
    """Give every block a `ChunkwiseAttention` with the weights of its own; names of parameters stay as they are."""
    for each in transformer.blocks:
        block: Block = each  # type: ignore[assignment]
        attention = ChunkwiseAttention(config, num_latent_frames)
        attention.load_state_dict(block.self_attn.state_dict())
        block.self_attn = attention.to(block.modulation.device)


def teacher_velocity(
    transformer: CausalWorldTransformer,
    config: WorldConfig,
    mask: Tensor | None,
    clean: Tensor,
    noisy: Tensor,
    condition: Tensor,
    camera: Tensor,
    timesteps: Tensor,
    text: Tensor,
    prompt_of_frame: Tensor,
    jump: int,
) -> Tensor:
    """Predict the velocity of every noisy chunk at once.

    Args:
        mask: of `teacher_mask`; None for a transformer that attends chunkwise.
        clean: [B, 16, P, h, w], the past as the chunks see it.
        noisy: [B, 16, L, h, w].
        condition: [B, 20, L, h, w].
        camera: [B, camera_channels, L, h, w].
        timesteps: [B, L] of the noisy half; the clean half is at 0, as after a context pass.
        text: [B, P, n, text_dim], P prompts of a session.
        prompt_of_frame: [B, L] int64, which of them a latent frame reads.
        jump: latent frames by which everything behind the sink is later: the sink of a long session is far away.

    Returns:
        [B, 16, L, h, w].
    """
    tokens = config.tokens_per_frame
    # Once a latent frame, then for each of its tokens: the embedding is as dear as a block.
    num_clean = clean.shape[2]
    both = torch.cat([torch.zeros_like(timesteps[:, :num_clean]), timesteps], 1)
    time, modulation = (part.repeat_interleave(tokens, 1) for part in transformer.embed_time(both))
    cos, sin = (_past_and_all(x, num_clean * tokens, 0) for x in _rotation(config, noisy.shape[2], jump, noisy.device))
    camera_tokens = transformer.embed_camera(camera)
    prompts = torch.cat([transformer.embed_text(text[:, index]) for index in range(text.shape[1])], 1)
    reads = _past_and_all(prompt_of_frame, num_clean, 1).repeat_interleave(tokens, 1)[:, None, :, None]  # [B, 1, N, 1]
    owner = torch.arange(text.shape[1], device=text.device).repeat_interleave(config.transformer.text_len)
    text_mask = reads == owner
    for each in transformer.blocks:
        block: Block = each  # type: ignore[assignment]
        scale, shift = block.camera_modulation(camera_tokens)
        keys, values = block.cross_attn.keys_values(prompts)
        block.bind(time_modulation=modulation, rotary_cos=cos, rotary_sin=sin, attention_mask=mask)
        scale, shift = (_past_and_all(x, num_clean * tokens, 1) for x in (scale, shift))
        block.bind(camera_scale=scale, camera_shift=shift)
        block.bind(text_keys=keys, text_values=values, text_mask=text_mask)
    velocity = transformer(torch.cat([clean, noisy], 2), _past_and_all(condition, num_clean, 2), time)
    return velocity[:, :, num_clean:]


def _past_and_all(x: Tensor, num_past: int, axis: int) -> Tensor:
    """What the clean half reads and what the noisy half reads, behind each other."""
    return torch.cat([x.narrow(axis, 0, num_past), x], axis)


def _rotation(config: WorldConfig, frames: int, jump: int, device: torch.device) -> tuple[Tensor, Tensor]:
    grid = (config.latent_height // PATCH, config.latent_width // PATCH)
    sizes, sink = config.transformer, config.sink_latent_frames
    parts = [
        rotary_table(0, sink, *grid, sizes.head_dim, sizes.rope_theta),
        rotary_table(sink + jump, frames - sink, *grid, sizes.head_dim, sizes.rope_theta),
    ]
    cos, sin = (torch.cat(both).to(device) for both in zip(*parts, strict=True))
    return cos, sin


def _joined(frames: tuple[Tensor, ...], wanted: list[int]) -> Tensor:
    return torch.cat([frames[frame] for frame in wanted], 2)
