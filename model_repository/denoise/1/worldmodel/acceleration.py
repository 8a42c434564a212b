"""Mount, compile, warm up: in this order, once, and the only place that does it.

Mounted before compiling, so that the warm-up compiles the path that requests take. Compiled block by block: the step
cache calls blocks one by one anyway, all blocks are one graph, and start-up takes half as long as with the whole model.
"""

from __future__ import annotations

import functools
import logging
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import numpy as np
import torch

from worldmodel.compilation import Compilation
from worldmodel.serving import ServingConfig
from worldmodel.session import Session
from worldmodel.step_cache import StepCache
from worldmodel.transformer import CausalWorldTransformer
from worldmodel.world import Chunk, Controls, World

log = logging.getLogger("worldstream")

Result = TypeVar("Result")


def mount_and_compile(
    transformer: CausalWorldTransformer, device: torch.device, serving: ServingConfig
) -> tuple[StepCache | None, Compilation]:
    """Mount the step cache, then compile the blocks, as far as the configuration asks for them."""
    step_cache = None
    if serving.step_cache != "none":
        step_cache = _timed("mounted the step cache", lambda: StepCache(transformer))
    compilation = Compilation(serving.compile == "on" or (serving.compile == "auto" and device.type == "cuda"))
    if compilation.is_on:
        keep_compiled_code(serving.compile_cache)
        # "reduce-overhead" asks inductor for CUDA graphs. It can do little here: a block writes keys and values into
        # buffers that are its inputs, and inductor runs a graph that changes its inputs without CUDA graphs (its log
        # says so). It is offered to be measured, as is the search for faster kernels; "default" is what is tested.
        mode = serving.compile_mode if serving.compile_backend == "inductor" else "default"
        backend = compilation.backend(serving.compile_backend, mode)
        for block in transformer.blocks:
            block.compile(backend=backend)
    return step_cache, compilation


def keep_compiled_code(folder: str) -> None:
    """Let the compiler keep what it makes in this folder, so that the next start finds it; "none" leaves its own."""
    if folder == "none":
        return
    path = Path(folder).expanduser()
    try:
        # For its owner alone: what lies in it is loaded and run.
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        log.warning("compiled code is not kept: compile_cache cannot be made (%s)", error.strerror)
        return
    os.environ["TORCHINDUCTOR_CACHE_DIR"] = str(path)


def warm_up(world: World) -> None:
    """Run a session of every served size through everything that requests will do, by the code that requests run.

    First chunk, filling window, first roll, steady state, the context pass of each, a prompt switch: the window's
    growing length is what a compiler must see at two lengths before it holds for all. Without a compiler two chunks
    are enough.

    Raises:
        FloatingPointError: weights of which this world's dtype makes numbers that are not finite.
    """
    for size in world.config.sizes:
        _warm_up_size(world, size)
    world.forget_counts()
    world.compilation.mark_ready()


def _warm_up_size(world: World, size: tuple[int, int]) -> None:
    config = world.config
    session = world.start(np.zeros((*size, 3), np.uint8), "warm up", size=size)
    num_chunks = 2
    if world.compilation.is_on:
        num_chunks += -(-config.window_latent_frames // config.chunk_latent_frames)
    for index in range(num_chunks):
        controls = Controls(prompt="switch" if index == num_chunks - 1 else None)
        compute = functools.partial(_whole_chunk, world, session, controls)
        what = f"warmed up {size[0]}x{size[1]}, chunk {index + 1} of {num_chunks}"
        session.commit(_timed(what, compute).staged)


def _whole_chunk(world: World, session: Session, controls: Controls) -> Chunk:
    chunk = world.next_chunk(session, controls, _go_on)
    world.streams.to_host(chunk.frames)  # waits for the decode, and takes the pinned memory that requests will use
    if not all(bool(part.isfinite().all()) for part in chunk.staged.decoder_memory):
        raise FloatingPointError("what the codec decodes is not finite")  # pixels would not tell: they are clamped
    return chunk


def _go_on() -> None:
    """Nobody gives a warm-up up."""


def _timed(what: str, do: Callable[[], Result]) -> Result:
    began = time.monotonic()
    result = do()
    log.info("%s in %.2f s", what, time.monotonic() - began)
    return result
