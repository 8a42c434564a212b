"""Camera tokens -> scale and shift of every layer, once a chunk.

They depend on the camera alone, not on the noise level, the latent or the prompt, so one immutable object serves all
denoising steps of a chunk and its context pass. There is no key and no look-up that could go stale: the chunk makes the
object, holds it, and drops it. (A key of address, shape and version was measured unsound: allocators give addresses
back.)
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from worldmodel.transformer import Block, CausalWorldTransformer


@dataclass(frozen=True)
class ChunkConditioning:
    """What one chunk's camera does to each layer; a layer beyond the byte budget holds None, each pass computes it."""

    camera_tokens: Tensor  # [1, L, dim]
    held: tuple[tuple[Tensor, Tensor] | None, ...]  # scale and shift [1, L, dim] a layer

    @property
    def num_held(self) -> int:
        """Layers whose scale and shift are held."""
        return sum(pair is not None for pair in self.held)

    @property
    def held_bytes(self) -> int:
        """Bytes of everything held for the layers."""
        return sum(part.numel() * part.element_size() for pair in self.held if pair is not None for part in pair)

    def misses_in_pass(self, number: int) -> int:
        """How often a layer's conditioner runs for this pass of the chunk; what is held was computed for the first."""
        return len(self.held) - self.hits_in_pass(number)

    def hits_in_pass(self, number: int) -> int:
        """In how many layers this pass takes what an earlier one of the chunk had computed."""
        return self.num_held if number else 0

    def bind(self, blocks: tuple[Block, ...]) -> None:
        """Give each layer its part."""
        for block, pair in zip(blocks, self.held, strict=True):
            if pair is None:
                block.bind(camera_tokens=self.camera_tokens, camera_scale=None, camera_shift=None)
            else:
                block.bind(camera_tokens=None, camera_scale=pair[0], camera_shift=pair[1])


def condition_chunk(
    transformer: CausalWorldTransformer, blocks: tuple[Block, ...], camera: Tensor, budget_bytes: int | None
) -> ChunkConditioning:
    """Evaluate the conditioner of as many layers as the budget holds.

    Args:
        blocks: the transformer's own, taken before anything was mounted on it.
        camera: [1, camera_channels, T, h, w], the model's dtype.
        budget_bytes: None holds all layers; 0 holds none, and every pass computes its own.
    """
    tokens = transformer.embed_camera(camera)
    bytes_per_layer = 2 * tokens.numel() * tokens.element_size()
    num_held = len(blocks) if budget_bytes is None else min(len(blocks), budget_bytes // bytes_per_layer)
    held = tuple(block.camera_modulation(tokens) if i < num_held else None for i, block in enumerate(blocks))
    return ChunkConditioning(tokens, held)
