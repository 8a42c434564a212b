"""Where gpu_check.py measures: the device, what it counts of memory, a section's time, and the sizes that are tried.

Knows no worlds that run.
"""

from __future__ import annotations

import dataclasses
import gc
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import sessions  # noqa: F401 - puts the world model's folder on the path

# isort: split
import torch
from worldmodel.config import EMBEDDED, LINGBOT_WORLD_FAST, TransformerConfig

UNBOUNDED_BYTES = 1 << 50

# Wan 2.1's 1.3B, with LingBot-World's camera conditioner and window.
WAN_1_3B = LINGBOT_WORLD_FAST.replace(
    name="1.3B",
    transformer=TransformerConfig(
        dim=1536, ffn_dim=8960, num_heads=12, num_layers=30, freq_dim=256, text_dim=4096, text_len=512
    ),
    is_distilled=False,
)
# Not distilled here: any number of steps may be asked of random weights.
LINGBOT = LINGBOT_WORLD_FAST.replace(name="LingBot 14B/18B", is_distilled=False)
TINY = EMBEDDED.replace(
    name="tiny",
    # Published layouts have no start rays.
    transformer=dataclasses.replace(
        EMBEDDED.transformer, dim=48, ffn_dim=96, num_heads=2, num_layers=2, has_start_rays=False
    ),
    height_px=32,
    width_px=48,
)


class NotHereError(Exception):
    """This machine cannot do it, which is no failure."""


class OverBudgetError(Exception):
    """A section took more time than it has."""


@dataclass(frozen=True)
class Budget:
    """When a section has to come to its end, and how often it measures at most."""

    end_s: float  # monotonic
    most_rounds: int

    def left_s(self) -> float:
        return self.end_s - time.monotonic()

    def part(self, num_parts: int) -> Budget:
        """The first of so many equal parts of what is left."""
        return Budget(time.monotonic() + self.left_s() / num_parts, self.most_rounds)

    def rounds(self, num_parts: int = 1) -> Callable[[int], bool]:
        """Whether to begin another round, given how many are done: one at least, in this part of what is left."""
        end_s = self.part(num_parts).end_s
        return lambda done: done == 0 or (done < self.most_rounds and time.monotonic() < end_s)


@dataclass(frozen=True)
class Section:
    """One thing to find out: where its result goes, how long it may take at most, and how it is found."""

    name: str
    seconds: float
    run: Callable[[Budget], dict[str, Any]]
    least_s: float = 1.0  # it is not begun with less, for itself and for those that need what it makes
    unless: str = ""  # nor where this section has found the same and more


@dataclass(frozen=True)
class Lab:
    """Where things are measured, and how. Of a CPU no memory is counted: all is there, and none is taken."""

    device: torch.device
    dtype: torch.dtype
    is_tiny: bool
    scratch: Path = field(default_factory=lambda: Path(tempfile.gettempdir()))  # for large files

    @property
    def is_gpu(self) -> bool:
        return self.device.type == "cuda"

    @property
    def backend(self) -> str:
        """Of the compiler; in a tiny run only its graphs are made, no code."""
        return "eager" if self.is_tiny else "inductor"

    def free_bytes(self) -> int:
        return torch.cuda.mem_get_info(self.device)[0] if self.is_gpu else UNBOUNDED_BYTES

    def forget(self) -> None:
        """Give freed memory back, compiled code included, and count the peak anew. No compiled world may live."""
        gc.collect()
        # Not imported for this. What it keeps of a world that is gone may hold memory of the device.
        dynamo = sys.modules.get("torch._dynamo")
        if dynamo is not None:
            dynamo.reset()
        if self.is_gpu:
            torch.cuda.synchronize(self.device)
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats(self.device)

    def allocated_bytes(self) -> int:
        """Of tensors that live now."""
        return torch.cuda.memory_allocated(self.device) if self.is_gpu else 0

    def peak_bytes(self) -> int:
        """Of tensors that lived at one time, since `forget`."""
        return torch.cuda.max_memory_allocated(self.device) if self.is_gpu else 0

    def reserved_peak_bytes(self) -> int:
        """What torch took of the device for them: each stream keeps a pool of its own."""
        return torch.cuda.max_memory_reserved(self.device) if self.is_gpu else 0

    def beside_torch_bytes(self) -> int:
        """What is taken beside torch's pools: the context, kernels, and whatever else runs on this device."""
        if not self.is_gpu:
            return 0
        free, total = torch.cuda.mem_get_info(self.device)
        return total - free - torch.cuda.memory_reserved(self.device)
