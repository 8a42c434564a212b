"""What this machine can do at best: float32 matrix products a second, and bytes a second.

Each ceiling is the best of several rounds, not their median: it is what nothing disturbed. Knows no world.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import torch
from torch.nn import functional

Shape = tuple[int, int, int]  # rows, channels in, channels out

LARGE = (1024, 1024, 1024)
FAR_ELEMENTS = 1 << 27  # 512 MiB of float32: in no cache
NEAR_ELEMENTS = 1 << 16  # 256 KiB: in the cache of a core


def matmul_gflops(shapes: Sequence[Shape], num_rounds: int) -> dict[str, float]:
    """GFLOP/s of a linear layer at each of the shapes, all in turn round by round."""
    return {f"{rows} x {i} x {o}": _best_matmul((rows, i, o), num_rounds) for rows, i, o in dict.fromkeys(shapes)}


@torch.inference_mode()
def _best_matmul(shape: Shape, num_rounds: int) -> float:
    rows, channels_in, channels_out = shape
    x, weight, bias = torch.rand(rows, channels_in), torch.rand(channels_out, channels_in), torch.rand(channels_out)
    flops = 2 * rows * channels_in * channels_out
    loops = max(1, round(2e8 / flops))  # some milliseconds a round: short ones are sometimes left alone
    return round(flops / 1e9 / _best_s(lambda: functional.linear(x, weight, bias), loops, num_rounds), 2)


@torch.inference_mode()
def memory_gb_per_s(num_rounds: int, far_elements: int = FAR_ELEMENTS) -> dict[str, float]:
    """GB/s as STREAM counts them: what is read and what is written, not what a cache fetches before it is written."""
    far = [torch.ones(far_elements) for _ in range(3)]
    near = [torch.ones(NEAR_ELEMENTS) for _ in range(3)]
    return {
        "copy": _rate(lambda: far[0].copy_(far[1]), 2, far_elements, 1, num_rounds),
        "triad": _rate(lambda: torch.add(far[1], far[2], alpha=3.0, out=far[0]), 3, far_elements, 1, num_rounds),
        "triad in cache": _rate(
            lambda: torch.add(near[1], near[2], alpha=3.0, out=near[0]), 3, NEAR_ELEMENTS, 500, num_rounds
        ),
    }


def _rate(run: Callable[[], object], num_arrays: int, elements: int, loops: int, num_rounds: int) -> float:
    return round(4 * num_arrays * elements / 1e9 / _best_s(run, loops, num_rounds), 2)


def _best_s(run: Callable[[], object], loops: int, num_rounds: int) -> float:
    best = float("inf")
    for number in range(num_rounds + 1):
        began = time.perf_counter()
        for _ in range(loops):
            run()
        if number:  # the first one touches new memory
            best = min(best, (time.perf_counter() - began) / loops)
    return best
