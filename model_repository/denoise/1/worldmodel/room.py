"""Whether what is configured fits its device: told when the model is loaded, not in the middle of a session."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from pathlib import Path

import torch

from worldmodel.codec import Codec, StreamingCodec
from worldmodel.config import WorldConfig
from worldmodel.serving import ParameterError, ServingConfig
from worldmodel.session_size import session_bytes
from worldmodel.transformer import CausalWorldTransformer, dtype_of


@dataclass(frozen=True)
class Need:
    """Bytes that a world takes, as far as they are known before it is made; activations are not."""

    weights: int
    conditioner: int  # scale and shift of one chunk, as much of them as may be held
    session: int  # the largest of the served sizes
    session_px: tuple[int, int]  # that size, height and width

    @property
    def total(self) -> int:
        """Of a world with one session."""
        return self.weights + self.conditioner + self.session

    def __str__(self) -> str:
        parts = (("weights", self.weights), ("one session", self.session), ("a chunk's conditioner", self.conditioner))
        return ", ".join(f"{name} {gib(num_bytes)}" for name, num_bytes in parts)


def need_of(config: WorldConfig, serving: ServingConfig, dtype: torch.dtype, codec: Codec | None = None) -> Need:
    """What this world will take, with this codec or with ours; makes nothing."""
    with torch.device("meta"):
        transformer, codec = CausalWorldTransformer(config.transformer), codec or StreamingCodec(config.codec)
    weights = sum(value.numel() * dtype_of(name, dtype).itemsize for name, value in transformer.named_parameters())
    weights += sum(value.nbytes for value in codec.parameters())
    sessions = {size: session_bytes(config.at_size(size), codec, dtype) for size in config.sizes}
    largest = max(sessions, key=lambda size: sessions[size])
    tokens = config.chunk_latent_frames * max(config.at_size(size).tokens_per_frame for size in config.sizes)
    modulation = 2 * config.transformer.num_layers * tokens * config.transformer.dim * dtype.itemsize
    return Need(weights, min(modulation, serving.held_conditioner_bytes), sessions[largest], largest)


def check_budget(need: Need, serving: ServingConfig) -> None:
    """Refuse a budget that no session fits.

    Raises:
        ParameterError: with the least that would do.
    """
    if need.session > serving.session_budget_bytes:
        height, width = need.session_px
        raise ParameterError(
            f"parameter session_budget_bytes: wanted at least {need.session}, which one session of {height} x {width} "
            f"px takes, got {serving.session_budget_bytes}"
        )


def check_free(need: Need, free_bytes: int | None, device: torch.device) -> None:
    """Refuse a world that does not fit the free memory of its device, before anything of it is loaded.

    Raises:
        ParameterError: with what it takes.
    """
    if free_bytes is not None and need.total > free_bytes:
        raise ParameterError(
            f"device {device}: {gib(free_bytes)} are free, this world takes {gib(need.total)} ({need}), "
            "and more while it computes"
        )


def check_text_free(num_bytes: int, free_bytes: int | None, device: torch.device) -> None:
    """Refuse a text encoder that does not fit the free memory of its device, before it is read.

    Raises:
        ParameterError: with what it takes, and what to do.
    """
    if free_bytes is not None and num_bytes > free_bytes:
        raise ParameterError(
            f"device {device}: {gib(free_bytes)} are free, the text encoder takes {gib(num_bytes)}; parameter "
            "text_device puts it elsewhere, text_encoder none does without"
        )


def check_sessions(serving: ServingConfig, free_bytes: int | None, device: torch.device) -> None:
    """Refuse a budget for sessions that what is left beside weights and activations cannot hold.

    Args:
        free_bytes: once the world is warm.

    Raises:
        ParameterError: with the most that would do.
    """
    if free_bytes is not None and serving.session_budget_bytes > free_bytes:
        raise ParameterError(
            f"parameter session_budget_bytes: wanted at most {free_bytes}, what {device} has left beside the world, "
            f"got {serving.session_budget_bytes}"
        )


def free_bytes(device: torch.device) -> int | None:
    """What is free on the device, what torch keeps there unused included; None where that cannot be told."""
    if device.type == "cuda":
        unused = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        return int(torch.cuda.mem_get_info(device)[0]) + unused
    with contextlib.suppress(OSError, ValueError, IndexError):
        for line in Path("/proc/meminfo").read_text(encoding="ascii").splitlines():
            if line.startswith("MemAvailable:"):
                return 1024 * int(line.split()[1])
    return None


def gib(num_bytes: int) -> str:
    """A number of bytes for people."""
    return f"{num_bytes / 2**30:.2f} GiB"
