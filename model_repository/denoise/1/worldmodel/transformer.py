"""The causal diffusion transformer: Wan 2.x blocks plus LingBot-World's camera conditioner.

Modules and parameters carry LingBot-World's own names, so that its checkpoints load strictly. Knows nothing of sessions
or schedules. Letters: B batch, T latent frames, h x w latent cells, L = T * (h / 2) * (w / 2) tokens, H heads, D
channels of a head, S prompt tokens.

A block takes hidden states and nothing else: all that differs from layer to layer, session to session or step to step
is bound to the block as tensor attributes beforehand. A step cache can then run or skip blocks as it likes, and a
compiled block is one graph for all layers (a list indexed by the layer's number would be one graph each).
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional

from worldmodel.config import PATCH, TransformerConfig
from worldmodel.layers import LayerNorm, RMSNorm, join_heads, rotate, sinusoid, split_heads


class Attention(nn.Module):
    """The four projections and two norms that self- and cross-attention share."""

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        self.num_heads = config.num_heads
        self.q = nn.Linear(config.dim, config.dim)
        self.k = nn.Linear(config.dim, config.dim)
        self.v = nn.Linear(config.dim, config.dim)
        self.o = nn.Linear(config.dim, config.dim)
        self.norm_q = RMSNorm(config.dim, config.eps)
        self.norm_k = RMSNorm(config.dim, config.eps)

    def queries(self, x: Tensor) -> Tensor:
        """[B, L, dim] -> [B, H, L, D]."""
        return split_heads(self.norm_q(self.q(x)), self.num_heads)

    def keys_values(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """[B, L, dim] -> two of [B, H, L, D]."""
        return split_heads(self.norm_k(self.k(x)), self.num_heads), split_heads(self.v(x), self.num_heads)

    def output(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None) -> Tensor:
        """Attend and project: [B, H, L, D] -> [B, L, dim]."""
        return self.o(join_heads(functional.scaled_dot_product_attention(q, k, v, attn_mask=mask)))


class Block(nn.Module):
    """One layer. `bind` first, then call it with hidden states alone."""

    # Bound before a call; None switches a part off.
    time_modulation: Tensor  # [B, 1 or L, 6, dim]
    rotary_cos: Tensor | None  # [L, D / 2]
    rotary_sin: Tensor | None
    text_keys: Tensor | None  # [B, H, S, D]
    text_values: Tensor | None
    text_mask: Tensor | None  # [L, S] bool, where tokens read different prompts: only in training
    kv_keys: Tensor | None  # [B, H, visible tokens, D]: written at kv_index, then attended to
    kv_values: Tensor | None
    kv_index: Tensor | None  # [L] int64
    attention_mask: Tensor | None  # [L, L] bool, for passes without a cache
    camera_tokens: Tensor | None  # [B, L, dim]: where scale and shift are not held
    camera_scale: Tensor | None  # [B, L, dim]
    camera_shift: Tensor | None

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        dim = config.dim
        self.norm1 = LayerNorm(dim, config.eps, elementwise_affine=False)
        self.self_attn = Attention(config)
        self.norm3 = LayerNorm(dim, config.eps)
        self.cross_attn = Attention(config)
        self.norm2 = LayerNorm(dim, config.eps, elementwise_affine=False)
        self.ffn = nn.Sequential(
            nn.Linear(dim, config.ffn_dim), nn.GELU(approximate="tanh"), nn.Linear(config.ffn_dim, dim)
        )
        self.modulation = nn.Parameter(torch.randn(1, 6, dim) / math.sqrt(dim))
        self.cam_injector_layer1 = nn.Linear(dim, dim)
        self.cam_injector_layer2 = nn.Linear(dim, dim)
        self.cam_scale_layer = nn.Linear(dim, dim)
        self.cam_shift_layer = nn.Linear(dim, dim)
        self.unbind()

    def bind(self, **inputs: Tensor | None) -> None:
        """Set some of the attributes named above; the others keep their value."""
        for name, value in inputs.items():
            setattr(self, name, value)

    def unbind(self) -> None:
        """Let go of everything bound, so that no chunk's memory outlives it here."""
        for name in Block.__annotations__:
            setattr(self, name, None)

    def camera_modulation(self, camera_tokens: Tensor) -> tuple[Tensor, Tensor]:
        """Scale and shift of this layer, [B, L, dim] each: they depend on the camera alone."""
        hidden = self.cam_injector_layer2(functional.silu(self.cam_injector_layer1(camera_tokens))) + camera_tokens
        return self.cam_scale_layer(hidden), self.cam_shift_layer(hidden)

    def forward(self, hidden_states: Tensor) -> Tensor:
        """[B, L, dim] -> [B, L, dim]."""
        x = hidden_states
        shift1, scale1, gate1, shift2, scale2, gate2 = (self.modulation + self.time_modulation).unbind(-2)
        # Modulation and gates are float32 (see `place`), so each of these lines rounds once.
        x = _add_gated(x, self._self_attention(_modulate(self.norm1(x), shift1, scale1)), gate1)
        x = self._steer(x)
        if self.text_keys is not None and self.text_values is not None:
            q = self.cross_attn.queries(self.norm3(x))
            x = x + self.cross_attn.output(q, self.text_keys, self.text_values, self.text_mask)
        return _add_gated(x, self.ffn(_modulate(self.norm2(x), shift2, scale2)), gate2)

    def _self_attention(self, x: Tensor) -> Tensor:
        q = self.self_attn.queries(x)
        k, v = self.self_attn.keys_values(x)
        if self.rotary_cos is not None and self.rotary_sin is not None:
            # Rotate before caching: a cached key keeps the position that it was written at.
            q, k = rotate(q, self.rotary_cos, self.rotary_sin), rotate(k, self.rotary_cos, self.rotary_sin)
        if self.kv_keys is not None and self.kv_values is not None and self.kv_index is not None:
            k = self.kv_keys.index_copy_(2, self.kv_index, k)
            v = self.kv_values.index_copy_(2, self.kv_index, v)
        return self.self_attn.output(q, k, v, self.attention_mask)

    def _steer(self, x: Tensor) -> Tensor:
        scale, shift = self.camera_scale, self.camera_shift
        if scale is None or shift is None:
            if self.camera_tokens is None:
                return x
            scale, shift = self.camera_modulation(self.camera_tokens)
        # In the model's dtype: 1 + scale, the product and the sum round each, as in the published server.
        return (1.0 + scale) * x + shift


class Head(nn.Module):
    """Tokens -> latent patches."""

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        self.norm = LayerNorm(config.dim, config.eps, elementwise_affine=False)
        self.head = nn.Linear(config.dim, config.latent_channels * PATCH * PATCH)
        self.modulation = nn.Parameter(torch.randn(1, 2, config.dim) / math.sqrt(config.dim))

    def forward(self, x: Tensor, time: Tensor) -> Tensor:
        """[B, L, dim], time [B, 1 or L, dim] -> [B, L, 4 * latent channels]."""
        shift, scale = (self.modulation + time[..., None, :]).unbind(-2)
        return self.head(_modulate(self.norm(x), shift, scale))


class CausalWorldTransformer(nn.Module):
    """Noisy latents in, velocity out, under whatever has been bound to the blocks."""

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        self.config = config
        dim, patch = config.dim, (1, PATCH, PATCH)
        self.patch_embedding = nn.Conv3d(config.in_channels, dim, patch, stride=patch)
        self.patch_embedding_wancamctrl = nn.Linear(config.camera_channels * PATCH * PATCH, dim)
        self.c2ws_hidden_states_layer1 = nn.Linear(dim, dim)
        self.c2ws_hidden_states_layer2 = nn.Linear(dim, dim)
        self.text_embedding = nn.Sequential(
            nn.Linear(config.text_dim, dim), nn.GELU(approximate="tanh"), nn.Linear(dim, dim)
        )
        self.time_embedding = nn.Sequential(nn.Linear(config.freq_dim, dim), nn.SiLU(), nn.Linear(dim, dim))
        self.time_projection = nn.Sequential(nn.SiLU(), nn.Linear(dim, 6 * dim))
        self.blocks = nn.ModuleList(Block(config) for _ in range(config.num_layers))
        self.head = Head(config)

    def place(self, device: torch.device, dtype: torch.dtype) -> CausalWorldTransformer:
        """Move to a device and cast; what Wan computes in float32 stays float32: time embedding and modulations.

        They are a few numbers a pass that every token takes: what bfloat16 rounds off here is off everywhere.
        """
        for name, parameter in self.named_parameters():
            parameter.data = parameter.data.to(device, dtype_of(name, dtype))
        return self

    def embed_time(self, timesteps: Tensor) -> tuple[Tensor, Tensor]:
        """[B] or [B, L] in [0, 1000] -> for the head [B, 1 or L, dim], and for the blocks [B, 1 or L, 6, dim]."""
        waves = sinusoid(timesteps if timesteps.dim() == 2 else timesteps[:, None], self.config.freq_dim)
        time = self.time_embedding(waves)
        return time, self.time_projection(time).unflatten(-1, (6, -1))

    def embed_text(self, text: Tensor) -> Tensor:
        """[B, n, text_dim], n <= text_len -> [B, text_len, dim]; padding is embedded and attended to, as in Wan."""
        return self.text_embedding(functional.pad(text, (0, 0, 0, self.config.text_len - text.shape[1])))

    def embed_camera(self, camera_latent: Tensor) -> Tensor:
        """[B, camera_channels, T, h, w] -> camera tokens [B, L, dim]."""
        patches = camera_latent.unflatten(-1, (-1, PATCH)).unflatten(3, (-1, PATCH))  # [B, C, T, h/2, 2, w/2, 2]
        tokens = self.patch_embedding_wancamctrl(patches.permute(0, 2, 3, 5, 1, 4, 6).flatten(4).flatten(1, 3))
        return tokens + self.c2ws_hidden_states_layer2(functional.silu(self.c2ws_hidden_states_layer1(tokens)))

    def forward(self, latent: Tensor, condition: Tensor, time: Tensor) -> Tensor:
        """Predict the velocity of bound noise levels.

        Args:
            latent: [B, C, T, h, w], noisy.
            condition: [B, 4 + C, T, h, w]: first-frame mask, then the picture's latent.
            time: [B, 1 or L, dim], the first of what `embed_time` returned; the second has been bound to the blocks.

        Returns:
            [B, C, T, h, w], noise - clean.
        """
        grid = self.patch_embedding(torch.cat([latent, condition], dim=1))  # [B, dim, T, h/2, w/2]
        # Contiguous, as every block leaves it: else the first block would be compiled apart from the others.
        hidden_states = grid.flatten(2).transpose(1, 2).contiguous()
        for block in self.blocks:
            hidden_states = block(hidden_states)
        return _unpatchify(self.head(hidden_states, time), grid.shape[2:])


def dtype_of(name: str, dtype: torch.dtype) -> torch.dtype:
    """What a parameter of this name is in a transformer of this dtype, as `CausalWorldTransformer.place` says."""
    is_wide = name.startswith(("time_embedding.", "time_projection.")) or name.endswith("modulation")
    return torch.float32 if is_wide else dtype


def _modulate(x: Tensor, shift: Tensor, scale: Tensor) -> Tensor:
    if x.dtype == torch.float32:  # one pass over memory instead of two
        return torch.addcmul(shift, x, 1 + scale)
    return (x * (1 + scale) + shift).type_as(x)


def _add_gated(x: Tensor, change: Tensor, gate: Tensor) -> Tensor:
    if x.dtype == torch.float32:
        return torch.addcmul(x, change, gate)
    return (x + change * gate).type_as(x)


def _unpatchify(patches: Tensor, grid: torch.Size) -> Tensor:
    """[B, L, 4 * C] -> [B, C, T, h, w]; a patch lists its cells first, channels last."""
    cells = patches.unflatten(-1, (PATCH, PATCH, -1)).unflatten(1, grid)  # [B, T, h/2, w/2, 2, 2, C]
    return cells.permute(0, 6, 1, 2, 4, 3, 5).flatten(5, 6).flatten(3, 4)
