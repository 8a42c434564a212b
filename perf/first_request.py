#!/usr/bin/env python3
"""What the first real request pays, by the order of mounting the step cache and compiling.

Each start is a fresh process with an emptied folder for compiled code. Four arms, of two orders and two ways to
compile; all have the same warm-up (the server's own) and then the same request, twenty times over. In the wrong order
the mount comes after the warm-up, as where the first request asks for it. Then the real server: the first request after
READY. Prints tables; the last line is one JSON document. If the wrong order with the whole model compiled does not
stall, nothing has been shown, and the run is invalid: exit status 1.

A start's figure is a ratio of two requests in one process: by the clock, and by the CPU time of the processes that
compute (without the compiler's helpers), which a busy machine disturbs less. A request is a session's start and three
chunks of eight steps, cached dynamically, from a picture that has not been seen.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from common import Bar, Wanted, at_most, machine, print_document, print_wanted
from denoise_served import Served, running_denoise
from sessions import MOVES, go_on, picture_of

# isort: split
# sessions has put the world model's folder on the path.
import torch
from worldmodel.acceleration import warm_up
from worldmodel.codec import StreamingCodec
from worldmodel.compilation import Compilation
from worldmodel.config import EMBEDDED, WorldConfig
from worldmodel.layers import seed_parameters
from worldmodel.loading import Instance, load_world
from worldmodel.serving import ServingConfig
from worldmodel.step_cache import StepCache
from worldmodel.transformer import CausalWorldTransformer
from worldmodel.world import Controls, World
from worldstream import WorldClient

PACKAGES = ("cache-dit", "numpy", "torch")
NUM_REQUESTS = 20
NUM_CHUNKS = 3
NUM_STEPS = 8
FIRST = Bar("ours at most 1.15x (the same request, first against twentieth, median of 5 starts)", "<=", 1.15)
NO_GRAPHS = Bar("with 0 new graphs", "<=", 0)
STALL = Bar("the whole-model wrong order must stall at least 3x in the same run, or the run is invalid", ">=", 3)
SERVED = Bar(
    "The same through the real server: first request after READY at most 1.15x the steady one",
    "<=",
    1.15,
)
WANTED = (FIRST, NO_GRAPHS, STALL, SERVED)
# With seeded weights little changes less than this; a hit is what has to be seen.
THRESHOLD = 0.9
OURS = "mount, then compile, per block (ours)"
KEPT = "the same, compiled code kept"
LATE = "compile, then mount, per block"
WHOLE = "mount, then compile, whole model"
WHOLE_LATE = "compile, then mount, whole model"
ARMS = (OURS, KEPT, LATE, WHOLE, WHOLE_LATE)


# One start, in a process of its own


def start_here(arm: str, is_quick: bool) -> dict[str, Any]:
    """Make the world as the arm says, warm it up, ask it."""
    world = make_world(arm, is_quick)
    ready_at_s = time.monotonic()
    graphs, requests_s, requests_cpu_s = [world.compilation.num_graphs()], [], []
    for seed in range(NUM_REQUESTS):
        began, cpu_began = time.perf_counter(), time.process_time()
        request(world, seed)
        requests_s.append(time.perf_counter() - began)
        requests_cpu_s.append(time.process_time() - cpu_began)
        graphs.append(world.compilation.num_graphs())
    return {
        "ready_at_s": ready_at_s,
        "requests_s": requests_s,
        "requests_cpu_s": requests_cpu_s,
        "graphs_of_warm_up": graphs[0],
        "graphs_of_first": graphs[1] - graphs[0],
        "graphs_of_others": graphs[-1] - graphs[1],
        "skipped_blocks": world.block_runs()[1],
    }


def make_world(arm: str, is_quick: bool) -> World:
    """A warm world. Ours comes from the loader, as the server's does; the others do what the loader must not do.

    With the whole model compiled, what goes around the mount (the context pass) stays uncompiled.
    """
    config, serving = settings(is_quick)
    if arm in (OURS, KEPT):
        return load_world(config, serving, Path(), Instance("CPU", 0))
    transformer, codec = CausalWorldTransformer(config.transformer), StreamingCodec(config.codec)
    seed_parameters(transformer, serving.weights_seed)
    seed_parameters(codec, serving.weights_seed + 1)
    step_cache = StepCache(transformer) if arm == WHOLE else None
    world = World(
        config,
        transformer,
        codec,
        torch.device("cpu"),
        torch.float32,
        step_cache=step_cache,
        step_cache_settings=serving.step_cache_settings,
        compilation=Compilation(is_on=True),
    )
    for module in world.blocks if arm == LATE else (transformer,):
        module.compile(backend=serving.compile_backend)
    warm_up(world)
    if step_cache is None:
        world.step_cache = StepCache(transformer)  # as if the first request asked for it
    return world


def settings(is_quick: bool) -> tuple[WorldConfig, ServingConfig]:
    """The embedded world with fewer layers and half its window, so that all starts together take minutes."""
    few = dataclasses.replace(EMBEDDED.transformer, num_layers=2 if is_quick else 4)
    timesteps = tuple(1000.0 * (NUM_STEPS - step) / NUM_STEPS for step in range(NUM_STEPS))
    config = EMBEDDED.replace(transformer=few, window_latent_frames=9, timesteps=timesteps)
    if is_quick:
        config = config.replace(height_px=32, width_px=48, condition_latent_frames=2)
    serving = ServingConfig(
        compile="on",
        compile_backend="eager" if is_quick else "inductor",
        picture_cache_bytes=0,
        step_cache="dynamic",
        step_cache_threshold=THRESHOLD,
    )
    return config, serving


def request(world: World, seed: int) -> None:
    """A session's first chunks."""
    session = world.start(picture_of(world.config, seed), "day", seed)
    for _ in range(NUM_CHUNKS):
        session.commit(world.next_chunk(session, Controls(actions=MOVES), go_on).staged)


# All starts, in turn


def run_starts(num_starts: dict[str, int], is_quick: bool) -> dict[str, list[dict[str, Any]]]:
    """Round by round one start of each arm that has not had all of its own."""
    starts: dict[str, list[dict[str, Any]]] = {arm: [] for arm in ARMS}
    for number in range(max(num_starts.values())):
        with tempfile.TemporaryDirectory(prefix="worldstream-perf-") as kept:
            for arm in ARMS:
                if number < num_starts[arm]:
                    starts[arm].append(run_start(arm, Path(kept, folder_of(arm)), is_quick))
                    show_start(arm, starts[arm][-1])
    return starts


def folder_of(arm: str) -> str:
    """Where an arm's start keeps compiled code in its round; KEPT finds there what OURS has left."""
    return str(ARMS.index(OURS if arm == KEPT else arm))


def run_start(arm: str, folder: Path, is_quick: bool) -> dict[str, Any]:
    """Start once in a new process."""
    command = [sys.executable, str(Path(__file__).resolve()), "--arm", arm, *(["--quick"] if is_quick else [])]
    env = {**os.environ, "TORCHINDUCTOR_CACHE_DIR": str(folder)}
    began_s = time.monotonic()
    result = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    if result.returncode:
        raise SystemExit(f"{arm}: the start failed:\n{result.stderr[-3000:]}")
    start: dict[str, Any] = json.loads(result.stdout.splitlines()[-1])
    # One clock for all processes: a start counts from the process's own, before torch loads.
    return {"ready_s": start.pop("ready_at_s") - began_s, **start}


def first_over_twentieth(starts: Sequence[dict[str, Any]], clock: str = "requests_s") -> float:
    """The first request against the twentieth, median over starts."""
    return round(statistics.median(start[clock][0] / start[clock][-1] for start in starts), 4)


def rounded(start: dict[str, Any]) -> dict[str, Any]:
    """The same with times to a tenth of a millisecond."""
    times = {name: [round(s, 4) for s in start[name]] for name in ("requests_s", "requests_cpu_s")}
    return {**start, **times, "ready_s": round(start["ready_s"], 3)}


def show_start(arm: str, start: dict[str, Any]) -> None:
    first, last = start["requests_s"][0], start["requests_s"][-1]
    print(
        f"  {arm:38s} ready in {start['ready_s']:6.1f} s; first {1e3 * first:8.1f} ms, twentieth {1e3 * last:7.1f} ms: "
        f"x{first / last:6.2f}; new graphs {start['graphs_of_first']}",
        flush=True,
    )


def summary(starts: list[dict[str, Any]]) -> dict[str, Any]:
    """Medians over an arm's starts, and every start."""
    over_last_ten = [each["requests_s"][0] / statistics.median(each["requests_s"][-10:]) for each in starts]
    return {
        "first_over_twentieth": first_over_twentieth(starts),
        "first_over_twentieth_cpu": first_over_twentieth(starts, "requests_cpu_s"),
        "first_over_median_of_last_ten": round(statistics.median(over_last_ten), 4),
        "ready_s": round(statistics.median(each["ready_s"] for each in starts), 2),
        "most_graphs_of_first": max(each["graphs_of_first"] for each in starts),
        "starts": list(map(rounded, starts)),
    }


# Through the real server


def serve_starts(num_starts: int) -> list[dict[str, Any]]:
    """The embedded world as it is served, compiled; the first start with an emptied folder, the others after it."""
    starts = []
    with tempfile.TemporaryDirectory(prefix="worldstream-perf-") as folder:
        parameters = {
            "compile": "on",
            "compile_cache": folder,
            "step_cache": "dynamic",
            "step_cache_threshold": THRESHOLD,
            "picture_cache_bytes": 0,
        }
        for number in range(num_starts):
            with running_denoise(parameters) as server:
                starts.append(ask_server(server))
            show_start(f"served, code {'kept' if number else 'compiled'}", starts[-1])
    return starts


def ask_server(server: Served) -> dict[str, Any]:
    """Twenty requests, each over a connection of its own, so that all pay for one."""
    requests_s, requests_cpu_s = [], []
    for seed in range(NUM_REQUESTS):
        picture = picture_of(EMBEDDED, seed)
        began, cpu_began = time.perf_counter(), server.cpu_s()
        with WorldClient(server.grpc, timeout_s=300) as client:
            for _ in client.generate(picture, num_chunks=NUM_CHUNKS, num_steps=NUM_STEPS, seed=seed):
                pass
        requests_s.append(time.perf_counter() - began)
        requests_cpu_s.append(server.cpu_s() - cpu_began)
        if seed == 0:
            graphs_of_first = server.counts()["recompiles"]
    counts = server.counts()
    return {
        "ready_s": server.start_s,
        "requests_s": requests_s,
        "requests_cpu_s": requests_cpu_s,
        "graphs_of_first": int(graphs_of_first),
        "graphs_of_others": int(counts["recompiles"] - graphs_of_first),
        "skipped_blocks": int(counts["step_cache_skipped_blocks"]),
    }


# What is wanted


def judge(arms: dict[str, dict[str, Any]], served: dict[str, Any] | None) -> list[Wanted]:
    ours = arms[OURS]
    wanted = [
        FIRST.held_against(ours["first_over_twentieth"]),
        NO_GRAPHS.held_against(ours["most_graphs_of_first"]),
        STALL.held_against(arms[WHOLE_LATE]["first_over_twentieth"]),
    ]
    if served is not None:
        wanted.append(SERVED.held_against(served["first_over_twentieth"]))
    return wanted


def checks(served: dict[str, Any] | None) -> list[Wanted]:
    if served is None:
        return []
    return [at_most("served: most recompiles in a first request", served["most_graphs_of_first"], 0)]


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--starts", type=int, default=5, help="of our arm (default 5)")
    parser.add_argument("--other-starts", type=int, default=2, help="of each other arm (default 2)")
    parser.add_argument("--served-starts", type=int, default=3, help="of the server; 0 leaves it out (default 3)")
    parser.add_argument("--quick", action="store_true", help="at a size that says nothing, to see that it runs")
    parser.add_argument("--arm", choices=ARMS, help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.arm is not None:
        print(json.dumps(start_here(options.arm, options.quick)))
        return 0
    measured_on = machine(PACKAGES)
    print(f"a start, then {NUM_REQUESTS} equal requests of {NUM_CHUNKS} chunks with {NUM_STEPS} steps")
    num_starts = {arm: options.starts if arm == OURS else options.other_starts for arm in ARMS}
    arms = {arm: summary(starts) for arm, starts in run_starts(num_starts, options.quick).items()}
    results: dict[str, Any] = {"arms": arms, "second_start_over_first": ratio_of_starts(arms[KEPT], arms[OURS])}
    served = None
    if options.served_starts:
        starts = serve_starts(options.served_starts)
        served = results["served"] = summary(starts)
        if len(starts) > 1:
            served["second_start_over_first"] = round(starts[1]["ready_s"] / starts[0]["ready_s"], 3)
    wanted = judge(arms, served)
    is_valid = results["is_valid"] = arms[WHOLE_LATE]["first_over_twentieth"] >= STALL.limit
    show_summary(results)
    print_wanted(wanted, checks(served))
    if not is_valid:
        print("INVALID: the wrong order did not stall, so this run cannot tell a stall from none")
    print_document("first_request", measured_on, results, wanted, checks(served))
    return 0 if is_valid else 1


def ratio_of_starts(kept: dict[str, Any], emptied: dict[str, Any]) -> float:
    """Start-up time with compiled code kept over that with an emptied folder, median over the rounds that had both."""
    pairs = zip(kept["starts"], emptied["starts"], strict=False)
    return round(statistics.median(second["ready_s"] / first["ready_s"] for second, first in pairs), 3)


def show_summary(results: dict[str, Any]) -> None:
    print("\nmedians over starts")
    rows = {**results["arms"], **({"served": results["served"]} if "served" in results else {})}
    for name, row in rows.items():
        print(
            f"  {name:38s} ready in {row['ready_s']:6.1f} s; first over twentieth x{row['first_over_twentieth']:6.2f}, "
            f"over the median of the last ten x{row['first_over_median_of_last_ten']:6.2f}, "
            f"by CPU time x{row['first_over_twentieth_cpu']:.2f}; "
            f"new graphs at most {row['most_graphs_of_first']}"
        )
    print(f"  second start, compiled code kept, over the first: {results['second_start_over_first']:.2f} of the time")
    if "second_start_over_first" in results.get("served", {}):
        print(f"  the same through the server: {results['served']['second_start_over_first']:.2f} of the time")


if __name__ == "__main__":
    sys.exit(main())
