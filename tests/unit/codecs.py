"""What the tests of every codec need: random latents, and decoding them in pieces, one session's or several."""

from __future__ import annotations

from typing import Any

import torch


def latents(seed, frames=7, batch=1):
    """[batch, frames, 16, 4, 6]."""
    return torch.randn(batch, frames, 16, 4, 6, generator=torch.Generator().manual_seed(seed))


def decoded(codec, clip, sizes):
    """A clip decoded in pieces of these sizes, joined."""
    frames, memory = [], None
    for part in clip.split(sizes, dim=1):
        each, memory = codec.decode(part, memory)
        frames.append(each)
    return torch.cat(frames, dim=1)


def assert_interleaved_sessions_equal_each_alone(codec):
    """Two clips decoded in turn, piece by piece, against each of them by itself, bit by bit."""
    alone = [decoded(codec, latents(seed), [3, 3, 1]) for seed in (1, 2)]
    memories: list[Any] = [None, None]
    parts: list[list[torch.Tensor]] = [[], []]
    for chunk in range(3):
        for session in range(2):
            piece = latents(session + 1).split([3, 3, 1], dim=1)[chunk]
            frames, memories[session] = codec.decode(piece, memories[session])
            parts[session].append(frames)
    for each, wanted in zip(parts, alone, strict=True):
        assert torch.equal(torch.cat(each, dim=1), wanted)
