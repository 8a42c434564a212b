"""The rolling window of keys and values of one session. Knows latent frames and slots, and no model.

A slot holds one latent frame. Keys carry their position already (they are rotated before they are written), so
attention does not care in which slot a frame sits: nothing is ever shifted, a new frame takes an evicted one's slot.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

# A token that nothing is written to. What is visible is then never the whole buffer, so never contiguous: a compiler
# that tells the two apart needs no second graph for the full window.
SPARE = 1


@dataclass(frozen=True)
class Placement:
    """Where one chunk's frames go, before they are committed."""

    slots: tuple[int, ...]  # one per new frame
    num_visible_slots: int  # the chunk attends to slots 0 .. num_visible_slots - 1, its own included
    frames_after: tuple[int | None, ...]  # what each slot holds once committed

    @property
    def first_frame(self) -> int:
        """The absolute latent frame that the chunk begins with."""
        frame = self.frames_after[self.slots[0]]
        assert frame is not None
        return frame


def place(frames: tuple[int | None, ...], new: range, sink: int) -> Placement:
    """Choose slots for new frames: free ones first, then those of the oldest frames behind the sink.

    Args:
        frames: the absolute latent frame that each slot holds, None where free.
        new: consecutive absolute latent frames, later than all held.
        sink: how many of the first frames are never evicted.

    Returns:
        The placement; `frames` is not changed, and frames that stay keep their slots.
    """
    free = [slot for slot, frame in enumerate(frames) if frame is None]
    evictable = sorted((frame, slot) for slot, frame in enumerate(frames) if frame is not None and frame >= sink)
    num_evicted = max(0, len(new) - len(free))
    if num_evicted > len(evictable):
        raise ValueError(f"{len(new)} frames do not fit {len(frames)} slots with a sink of {sink}")
    slots = sorted(free[: len(new)] + [slot for _, slot in evictable[:num_evicted]])
    after = list(frames)
    for slot, frame in zip(slots, new, strict=True):
        after[slot] = frame
    return Placement(tuple(slots), max(slot for slot, frame in enumerate(after) if frame is not None) + 1, tuple(after))


class KVCache:
    """Keys and values of all layers, allocated once: [1, H, window * tokens_per_frame + SPARE, D] a layer.

    Staging is safe without a copy. A chunk writes only into free slots and into those of the frames that it evicts,
    and no later chunk of that size could see those frames: an abandoned chunk leaves nothing behind that is ever read.
    """

    def __init__(
        self,
        num_layers: int,
        num_heads: int,
        head_dim: int,
        tokens_per_frame: int,
        window: int,
        sink: int,
        device: torch.device,
        dtype: torch.dtype,
    ) -> None:
        shape = (1, num_heads, window * tokens_per_frame + SPARE, head_dim)
        self.keys = [torch.zeros(shape, device=device, dtype=dtype) for _ in range(num_layers)]
        self.values = [torch.zeros(shape, device=device, dtype=dtype) for _ in range(num_layers)]
        self.frames: tuple[int | None, ...] = (None,) * window
        self.sink = sink
        self.tokens_per_frame = tokens_per_frame

    def stage(self, first_frame: int, num_frames: int) -> Placement:
        """Where the next chunk goes; the same answer until `commit`."""
        return place(self.frames, range(first_frame, first_frame + num_frames), self.sink)

    def commit(self, placement: Placement) -> None:
        """Make a chunk's frames part of the past."""
        self.frames = placement.frames_after

    def token_index(self, placement: Placement) -> Tensor:
        """Where the chunk's tokens are written, [L] int64: data, so that another place is never another graph."""
        device = self.keys[0].device
        # By way of the host: a tensor made from a list on a GPU waits for all that has been queued there.
        starts = torch.tensor(placement.slots).to(device, non_blocking=True) * self.tokens_per_frame
        return (starts[:, None] + torch.arange(self.tokens_per_frame, device=device)).flatten()

    def visible(self, layer: int, placement: Placement) -> tuple[Tensor, Tensor]:
        """Views of a layer's keys and values that the chunk may see, [1, H, visible tokens, D]."""
        end = placement.num_visible_slots * self.tokens_per_frame
        return self.keys[layer][:, :, :end], self.values[layer][:, :, :end]

    @staticmethod
    def size_bytes(num_layers: int, num_heads: int, head_dim: int, num_tokens: int, dtype: torch.dtype) -> int:
        """Bytes that keys and values of so many tokens take."""
        return 2 * num_layers * num_heads * head_dim * num_tokens * dtype.itemsize
