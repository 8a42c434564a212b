"""Worlds of growing size on one device, and what a session or an engine makes of them; for gpu_check.py.

Knows no budgets, tables or bars. Weights are random: times and memory do not depend on what a model has learnt.
"""

from __future__ import annotations

import math
import statistics
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from gpu_lab import UNBOUNDED_BYTES, Lab
from sessions import MOVES, picture_of, take

# isort: split
# sessions has put the world model's folder on the path.
import numpy as np
import torch
from worldmodel.acceleration import mount_and_compile
from worldmodel.codec import StreamingCodec
from worldmodel.config import WorldConfig
from worldmodel.emitter import Batch
from worldmodel.engine import Engine
from worldmodel.errors import WorldError
from worldmodel.layers import seed_parameters
from worldmodel.loading import settle_cuda
from worldmodel.request import Request
from worldmodel.serving import ServingConfig
from worldmodel.transformer import CausalWorldTransformer
from worldmodel.world import Controls, World

WAIT_S = 300.0


def seeded_world(
    config: WorldConfig, device: torch.device, dtype: torch.dtype, budget_bytes: int | None = None
) -> World:
    """Equal weights on every device: they are drawn on the host."""
    transformer, codec = CausalWorldTransformer(config.transformer), StreamingCodec(config.codec)
    seed_parameters(transformer, 0)
    seed_parameters(codec, 1)
    settle(device, dtype)
    return World(config, transformer, codec, device, dtype, budget_bytes, picture_cache_bytes=1 << 20)


def random_world(config: WorldConfig, lab: Lab, serving: ServingConfig | None = None) -> World:
    """Weights drawn on the device in its dtype: a model of 36 GB never passes through the host.

    Args:
        serving: what is mounted and compiled; nothing by default.
    """
    with torch.device("meta"):
        transformer = CausalWorldTransformer(config.transformer).to(lab.dtype)
    fill(transformer.to_empty(device=lab.device), lab.device)
    codec = StreamingCodec(config.codec)
    seed_parameters(codec, 1)
    settle(lab.device, lab.dtype)
    serving = serving or ServingConfig(compile="off")
    step_cache, compilation = mount_and_compile(transformer, lab.device, serving)
    settings = serving.step_cache_settings
    return World(config, transformer, codec, lab.device, lab.dtype, None, 1 << 26, step_cache, settings, compilation)


def again(world: World, config: WorldConfig) -> World:
    """The same modules as a world of another window."""
    return World(config, world.transformer, world.codec, world.device, world.dtype, None, 1 << 26)


def world_bytes(config: WorldConfig, dtype: torch.dtype) -> int:
    """What a world with one session and a chunk's scale and shift takes, without activations."""
    model = config.transformer
    with torch.device("meta"):
        transformer = CausalWorldTransformer(model)
    num_parameters = sum(parameter.numel() for parameter in transformer.parameters())
    tokens = config.tokens_per_frame
    cached = 2 * model.num_layers * model.dim * tokens * config.window_latent_frames
    held = 2 * model.num_layers * model.dim * tokens * config.chunk_latent_frames
    return (num_parameters + cached + held) * dtype.itemsize


def drawn(module: torch.nn.Module, device: torch.device) -> Iterator[tuple[str, torch.Tensor]]:
    """Weights for each parameter in turn, drawn on the device in bfloat16, one at a time: again the same ones.

    By fan-in, vectors small, norms at one: as `seed_parameters`, from the device's own generator.
    """
    generator = torch.Generator(device).manual_seed(0)
    for name, parameter in module.named_parameters():
        drawing = torch.empty(parameter.shape, dtype=torch.bfloat16, device=device)
        if parameter.dim() > 1 and not name.endswith("modulation"):
            drawing.normal_(0, 1 / math.sqrt(parameter[0].numel()), generator=generator)
        elif "norm" in name and name.endswith("weight"):
            drawing.fill_(1)
        else:
            drawing.normal_(0, 0.1, generator=generator)
        yield name, drawing


@torch.no_grad()
def fill(module: torch.nn.Module, device: torch.device) -> None:
    """Give a module on the device the weights that are drawn for it."""
    for parameter, (_, drawing) in zip(module.parameters(), drawn(module, device), strict=True):
        parameter.copy_(drawing)


def settle(device: torch.device, dtype: torch.dtype) -> None:
    """Say what torch keeps for this thread, as loading does."""
    if device.type == "cuda":
        settle_cuda(device, dtype)


# Through a session


def stream(world: World, num_chunks: int, seed: int = 0, prompt: str = "day") -> np.ndarray[Any, np.dtype[np.uint8]]:
    """A session's frames, [n, H, W, 3]."""
    session = world.start(picture_of(world.config, seed), prompt, seed)
    chunks = [take(world, session, Controls(actions=MOVES)).frames.cpu().numpy() for _ in range(num_chunks)]
    return np.concatenate(chunks)


# Through the engine


@dataclass
class Answers:
    """A reply that keeps what came, and when."""

    keeps_frames: bool = False
    batches: list[Batch] = field(default_factory=list)
    arrived_s: list[float] = field(default_factory=list)
    timings_ms: list[tuple[float, ...]] = field(default_factory=list)  # one a chunk
    error: WorldError | None = None
    done: threading.Event = field(default_factory=threading.Event)

    def send(self, batch: Batch) -> None:
        self.arrived_s.append(time.perf_counter())
        if self.keeps_frames:
            self.batches.append(batch)
        if batch.chunk[1] + 1 == batch.chunk[2]:
            self.timings_ms.append(batch.timings_ms)
        if batch.is_last:
            self.done.set()

    def fail(self, error: WorldError) -> None:
        self.error = error
        self.done.set()

    def is_cancelled(self) -> bool:
        return False

    def wait(self) -> Answers:
        if not self.done.wait(WAIT_S):
            raise TimeoutError("a request was not answered")
        if self.error is not None:
            raise self.error
        return self

    def frames(self) -> np.ndarray[Any, np.dtype[np.uint8]]:
        return np.concatenate([batch.frames for batch in self.wait().batches])


class Served:
    """A started engine; a session a request unless it has a name."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.world = engine.start()

    @staticmethod
    def over(world: World) -> Served:
        """An engine over a world that exists."""
        serving = ServingConfig(session_budget_bytes=UNBOUNDED_BYTES)
        return Served(Engine(lambda: _on_this_thread(world), serving, _ignore))

    def ask(self, num_chunks: int, name: str | None = None, keeps_frames: bool = False, **changes: Any) -> Answers:
        answers = Answers(keeps_frames)
        session = None if name is None else ("name", name)
        is_start = changes.setdefault("is_start", True)
        if is_start:
            changes["picture"] = picture_of(self.world.config, changes.get("seed", 0))
        changes.setdefault("is_end", name is None)
        self.engine.submit(Request(session=session, num_chunks=num_chunks, **changes), answers)
        return answers

    def close(self) -> None:
        self.engine.close()


def _on_this_thread(world: World) -> World:
    # The device that torch calls the current one is a thread's own.
    settle(world.device, world.dtype)
    return world


def _ignore(_: object) -> None:
    """No metrics here."""


def median(values: Sequence[float]) -> float:
    return round(statistics.median(values), 3)
