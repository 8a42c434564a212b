#!/usr/bin/env python3
"""What it costs to save and to restore a session, and what other sessions notice of it.

The embedded world with a full window, in this process. First each step by itself, and a chunk beside it: only what the
compute thread does (take, restore) holds others up. Then through the engine: a session that streams, alone, and while
another one is saved once in each of its chunks, in turn. Prints tables; the last line is one JSON document.
"""

from __future__ import annotations

import argparse
import sys
import threading
from collections.abc import Callable, Sequence
from pathlib import Path

from common import Arm, Bar, Timing, Wanted, at_most, interleave, machine, print_document, print_wanted, ratio
from sessions import picture_of, take

# isort: split
# sessions has put the world model's folder on the path.
import numpy as np
from worldmodel import snapshot
from worldmodel.config import EMBEDDED
from worldmodel.emitter import Batch
from worldmodel.engine import Engine
from worldmodel.errors import WorldError
from worldmodel.loading import Instance, load_world
from worldmodel.request import Request
from worldmodel.serving import ServingConfig
from worldmodel.world import Controls, World

PACKAGES = ("numpy", "torch")
WANTED: tuple[Bar, ...] = ()  # none was asked for
NUM_FILLING = 7  # chunks until the window is full and has rolled once
TIMEOUT_S = 600.0
SERVING = ServingConfig()


class Reply:
    """Takes answers; calls back at each chunk's last part, and when all has come."""

    def __init__(self, on_chunk: Callable[[], None] = lambda: None) -> None:
        self._on_chunk = on_chunk
        self._done = threading.Event()
        self.num_bytes = 0
        self.error: WorldError | None = None

    def send(self, batch: Batch) -> None:
        self.num_bytes += 0 if batch.snapshot is None else len(batch.snapshot)
        if batch.chunk[1] + 1 == batch.chunk[2]:
            self._on_chunk()
        if batch.is_last:
            self._done.set()

    def fail(self, error: WorldError) -> None:
        self.error = error
        self._done.set()

    def is_cancelled(self) -> bool:
        return False

    def wait(self) -> None:
        if not self._done.wait(TIMEOUT_S):
            raise TimeoutError("a request was not answered")
        if self.error is not None:
            raise self.error


def measure_steps(world: World, num_rounds: int) -> tuple[dict[str, Timing], int]:
    """The times of a chunk and of each step of saving and restoring; and the file's bytes."""
    session = world.start(picture_of(world.config))
    for _ in range(NUM_FILLING):
        take(world, session, Controls())
    taken = snapshot.take(session, world)
    file = np.concatenate(taken.pieces(world))
    most = snapshot.most_bytes(world)
    opened = snapshot.open_snapshot(file, world.config, most)
    snapshot.check(opened, world)
    arms = {
        "a chunk": Arm(lambda: take(world, session, Controls())),
        "take it": Arm(lambda: snapshot.take(session, world)),
        "make the file": Arm(lambda: taken.pieces(world)),
        "check the file": Arm(
            lambda: snapshot.check(snapshot.open_snapshot(file, world.config, most), world),
        ),
        "restore": Arm(lambda: snapshot.restore(opened, world)),
    }
    return interleave(arms, num_rounds), len(file)


def measure_stall(world: World, num_rounds: int, num_chunks: int) -> dict[str, Timing]:
    """A session's chunks, alone and beside another one that is saved once in each of them."""
    engine = Engine(lambda: world, SERVING, lambda _: None)
    engine.start()
    ask(engine, start("idle", world, NUM_FILLING))
    ask(engine, start("busy", world, NUM_FILLING))
    saving: list[Reply] = []

    def save() -> None:
        reply = Reply()
        engine.submit(Request(("name", "idle"), is_start=False, is_end=False, num_chunks=0, is_saving=True), reply)
        saving.append(reply)

    def stream(on_chunk: Callable[[], None]) -> None:
        going_on = Request(("name", "busy"), is_start=False, is_end=False, num_chunks=num_chunks)
        reply = Reply(on_chunk)
        engine.submit(going_on, reply)
        reply.wait()

    timings = interleave({"alone": Arm(lambda: stream(lambda: None)), "beside": Arm(lambda: stream(save))}, num_rounds)
    for reply in saving:
        reply.wait()
    engine.close()
    return timings


def start(name: str, world: World, num_chunks: int) -> Request:
    return Request(("name", name), is_start=True, is_end=False, num_chunks=num_chunks, picture=picture_of(world.config))


def ask(engine: Engine, request: Request) -> None:
    reply = Reply()
    engine.submit(request, reply)
    reply.wait()


def checks(steps: dict[str, Timing], stall: dict[str, float]) -> list[Wanted]:
    return [
        at_most("taking a snapshot, part of a chunk", ratio(steps["take it"], steps["a chunk"])["median"], 0.05),
        at_most("a chunk of others with a snapshot in it, over one without", stall["median"], 1.15),
    ]


def show(title: str, timings: dict[str, Timing]) -> None:
    print(f"\n{title}")
    for name, timing in timings.items():
        print(f"  {name:16s} {timing}")


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=9, help="of each step (default 9)")
    parser.add_argument("--engine-rounds", type=int, default=5, help="of streaming (default 5)")
    parser.add_argument("--chunks", type=int, default=4, help="that a session streams in a round (default 4)")
    options = parser.parse_args(arguments)
    measured_on = machine(PACKAGES)
    world = load_world(EMBEDDED, SERVING, Path(), Instance("CPU", 0))
    steps, num_bytes = measure_steps(world, options.rounds)
    show(f"a file of {num_bytes / 1e6:.1f} MB; only take and restore are the compute thread's", steps)
    streams = measure_stall(world, options.engine_rounds, options.chunks)
    stall = ratio(streams["beside"], streams["alone"])
    show(f"{options.chunks} chunks of a session, alone and beside one that is saved in each of them", streams)
    print(f"  beside over alone: x{stall['median']:.2f} ({stall['p25']:.2f}-{stall['p75']:.2f})")
    checked = checks(steps, stall)
    print_wanted([], checked)
    results = {
        "file_bytes": num_bytes,
        "steps": {name: timing.summary() for name, timing in steps.items()},
        "streams": {name: timing.summary() for name, timing in streams.items()},
        "beside_over_alone": stall,
    }
    print_document("snapshot", measured_on, results, [], checked)
    return 0


if __name__ == "__main__":
    sys.exit(main())
