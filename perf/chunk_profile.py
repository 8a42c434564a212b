#!/usr/bin/env python3
"""Where a chunk's time goes, and how far that is from what this machine could do at best.

By stage: what the real server says in `timings`, window full, beside the operations counted from the shapes. By kind of
operation: one chunk in this process under torch's profiler. Beside both stand the machine's ceilings, measured in the
same run: float32 products at the world's own sizes, and memory by copy and triad. Prints tables; the last line is one
JSON document. How operations and bytes are counted: chunk_profile_operations.py.

A floor is the time that the counted operations take at the ceilings. What lies over it is norms, activations,
rotations and modulation, which are not counted, products slower than the best one, and Python.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from chunk_profile_ceilings import LARGE, Shape, matmul_gflops, memory_gb_per_s
from chunk_profile_operations import (
    KINDS,
    STAGES,
    Operation,
    chunk_operations,
    floor_ms,
    of_kind,
    tokens_of,
    total_bytes,
    total_flops,
)
from common import Bar, machine, print_document, quartiles
from denoise_served import running_denoise
from sessions import MOVES, full_session, picture_of, take

# isort: split
# sessions has put the world model's folder on the path.
import torch
from torch.profiler import ProfilerActivity, profile
from worldmodel.config import EMBEDDED, LINGBOT_WORLD_MINI, WorldConfig
from worldmodel.loading import Instance, load_world
from worldmodel.serving import ServingConfig
from worldmodel.session import Session
from worldmodel.world import Controls, World
from worldstream import WorldClient

PACKAGES = ("numpy", "torch")
WANTED: tuple[Bar, ...] = ()  # none was asked for
CONFIGURATIONS = {config.name: config for config in (EMBEDDED, LINGBOT_WORLD_MINI)}
LEAST_CHUNKS = 3
OTHERS = "all other operations"
BETWEEN = "between operations"

Times = dict[str, list[float]]  # ms by name, one entry a chunk


# Through the real server


def served_stages(config: WorldConfig, seconds: float) -> Times:
    """What each chunk took by `timings`, and by the client's clock from its request to its last frame."""
    times: Times = {name: [] for name in ("queued", *STAGES, "transfer", "total", "client")}
    with (
        running_denoise({"configuration": config.name, "checkpoint": ""}) as server,
        WorldClient(server.grpc, timeout_s=300) as client,
        client.session(picture_of(config), prompt="day", seed=0) as session,
    ):
        for _ in session.generate(num_chunks=-(-config.window_latent_frames // len(MOVES)), num_steps=1):
            pass  # until the window is full
        for _ in session.generate(actions=MOVES):
            pass
        end = time.monotonic() + seconds
        while len(times["total"]) < LEAST_CHUNKS or time.monotonic() < end:
            began = time.perf_counter()
            timings = list(session.generate(actions=MOVES))[-1].timings
            times["client"].append(1e3 * (time.perf_counter() - began))
            for name in times.keys() - {"client"}:
                times[name].append(getattr(timings, f"{name}_ms"))
    return times


# In this process


def stages_here(world: World, session: Session, seconds: float) -> Times:
    """The same chunk again and again, never committed."""
    times: Times = {name: [] for name in STAGES}
    take(world, session, Controls(actions=MOVES), commit=False)
    end = time.monotonic() + seconds
    while len(times["denoise"]) < LEAST_CHUNKS or time.monotonic() < end:
        timings = take(world, session, Controls(actions=MOVES), commit=False).timings
        for name in times:
            times[name].append(getattr(timings, f"{name}_ms"))
    return times


def kinds_here(world: World, session: Session, num_chunks: int) -> Times:
    """Milliseconds of a chunk by kind of operation; what the profiler itself costs is in BETWEEN."""
    times: Times = {name: [] for name in (*KINDS, OTHERS, BETWEEN)}
    for number in range(num_chunks + 1):
        with profile(activities=[ProfilerActivity.CPU]) as profiler:
            took_ms = _timed_chunk_ms(world, session)
        spent = dict.fromkeys(times, 0.0)
        for event in profiler.key_averages():
            if event.key.startswith("aten::"):
                spent[kind_of(event.key)] += event.self_cpu_time_total / 1e3
        spent[BETWEEN] = max(0.0, took_ms - sum(spent.values()))
        for name, ms in spent.items():
            if number:  # the first one readies the profiler
                times[name].append(ms)
    return times


def _timed_chunk_ms(world: World, session: Session) -> float:
    began = time.perf_counter()
    take(world, session, Controls(actions=MOVES), commit=False)
    return 1e3 * (time.perf_counter() - began)


def kind_of(operation: str) -> str:
    """The kind that an operation of torch belongs to, by its name."""
    name = operation.removeprefix("aten::")
    if name in ("addmm", "mm", "bmm", "baddbmm", "linear", "matmul", "mkldnn_linear"):
        return "linear"
    if "scaled_dot_product" in name:
        return "attention"
    return "convolution" if "conv" in name else OTHERS


# What it comes to


def shapes_of(config: WorldConfig) -> list[Shape]:
    """The linear layers that most of the work is in."""
    model, tokens = config.transformer, tokens_of(config)
    return [(tokens, model.dim, model.dim), (tokens, model.dim, model.ffn_dim), (tokens, model.ffn_dim, model.dim)]


def rows_of(
    times: Times, operations: Mapping[str, Sequence[Operation]], gflops: float, gb_per_s: float
) -> dict[str, dict[str, float]]:
    """One row a name: time, and where operations are counted for it, rates and the distance from the floor."""
    rows = {}
    for name, each in times.items():
        low, median, high = quartiles(each)
        rows[name] = {"ms": round(median, 3), "ms_p25": round(low, 3), "ms_p75": round(high, 3)}
        if operations.get(name):
            rows[name] |= against_floor(median, operations[name], gflops, gb_per_s)
    return rows


def against_floor(ms: float, operations: Sequence[Operation], gflops: float, gb_per_s: float) -> dict[str, float]:
    flops, num_bytes = total_flops(operations), total_bytes(operations)
    floor = floor_ms(operations, gflops, gb_per_s)
    return {
        "mflop": round(flops / 1e6, 2),
        "mb": round(num_bytes / 1e6, 2),
        "flop_per_byte": round(flops / num_bytes, 2),
        "gflop_per_s": round(flops / 1e6 / ms, 2),
        "of_matmul_ceiling": round(flops / 1e6 / ms / gflops, 4),
        "gb_per_s": round(num_bytes / 1e6 / ms, 2),
        "of_memory_ceiling": round(num_bytes / 1e6 / ms / gb_per_s, 4),
        "floor_ms": round(floor, 3),
        "over_floor": round(ms / floor, 3),
    }


def measure(config: WorldConfig, seconds: float, is_served: bool, ceilings: Mapping[str, Any]) -> dict[str, Any]:
    """One configuration's rows by stage and by kind."""
    gflops, gb_per_s = ceilings["best_gflops"], ceilings["best_gb_per_s"]
    visible = config.window_latent_frames * config.tokens_per_frame
    by_stage = chunk_operations(config, len(config.timesteps), visible)
    everything = [each for operations in by_stage.values() for each in operations]
    world = load_world(config, ServingConfig(), Path(), Instance("CPU", 0))
    session = full_session(world)
    take(world, session, Controls(actions=MOVES), commit=False)
    kinds = kinds_here(world, session, 1 if seconds < 1 else LEAST_CHUNKS)
    stages = served_stages(config, seconds) if is_served else stages_here(world, session, seconds)
    counted = {**by_stage, **({"total": everything} if is_served else {})}
    result = {
        "shape": shape_of(config),
        "chunks": len(stages["denoise"]),
        "is_served": is_served,
        "stages": rows_of(stages, counted, gflops, gb_per_s),
        "kinds": rows_of(kinds, {kind: of_kind(everything, kind) for kind in KINDS}, gflops, gb_per_s),
    }
    if is_served:
        outside = [
            1 - sum(parts) / total for *parts, total in zip(*(stages[n] for n in (*STAGES, "total")), strict=True)
        ]
        result["outside_stages"] = round(statistics.median(outside), 4)
    return result


def shape_of(config: WorldConfig) -> dict[str, Any]:
    model = config.transformer
    return {
        "size": f"{config.width_px}x{config.height_px}",
        "dim": model.dim,
        "layers": model.num_layers,
        "tokens_of_a_chunk": tokens_of(config),
        "window_latent_frames": config.window_latent_frames,
        "steps": len(config.timesteps),
    }


def measure_ceilings(configs: Sequence[WorldConfig], is_quick: bool) -> dict[str, Any]:
    shapes = [shape for config in configs for shape in shapes_of(config)]
    matmul = matmul_gflops([*shapes, LARGE], 2 if is_quick else 50)
    memory = memory_gb_per_s(2, 1 << 20) if is_quick else memory_gb_per_s(7)
    return {
        "matmul_gflops": matmul,
        "memory_gb_per_s": memory,
        "best_gflops": max(matmul.values()),
        "best_gb_per_s": max(memory["copy"], memory["triad"]),
    }


# Tables


def show_ceilings(ceilings: Mapping[str, Any]) -> None:
    print("this machine's ceilings, best of several rounds")
    for name, value in ceilings["matmul_gflops"].items():
        print(f"  float32 product {name:22s} {value:8.1f} GFLOP/s")
    for name, value in ceilings["memory_gb_per_s"].items():
        print(f"  memory, {name:30s} {value:8.1f} GB/s")


def show(name: str, result: Mapping[str, Any]) -> None:
    where = "through the real server" if result["is_served"] else "in this process"
    print(f"\n{name}: {', '.join(f'{key} {value}' for key, value in result['shape'].items())}")
    for title, rows in (
        (f"by stage, {where}, {result['chunks']} chunks", result["stages"]),
        ("by kind", result["kinds"]),
    ):
        print(f"  {title:42s}       ms  MFLOP     MB  FLOP/B  GFLOP/s  of best   GB/s  of best  x floor")
        for row_name, row in rows.items():
            print(f"    {row_name:40s} {row['ms']:8.2f}{_rates(row)}", flush=True)
    if "outside_stages" in result:
        print(f"  outside condition, denoise and decode: {100 * result['outside_stages']:.1f} % of a chunk")


def _rates(row: Mapping[str, float]) -> str:
    if "mflop" not in row:
        return ""
    return (
        f" {row['mflop']:6.0f} {row['mb']:6.1f} {row['flop_per_byte']:7.1f} {row['gflop_per_s']:8.1f} "
        f"{100 * row['of_matmul_ceiling']:6.1f} % {row['gb_per_s']:6.1f} {100 * row['of_memory_ceiling']:6.1f} % "
        f"{row['over_floor']:8.2f}"
    )


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--configurations", nargs="+", default=list(CONFIGURATIONS), choices=CONFIGURATIONS, help="(default: all)"
    )
    parser.add_argument("--seconds", type=float, default=12, help="of chunks, each configuration (default 12)")
    parser.add_argument("--no-server", action="store_true", help="only in this process")
    parser.add_argument("--quick", action="store_true", help="a moment in this process, to see that it runs")
    options = parser.parse_args(arguments)
    measured_on = machine(PACKAGES)
    configs = [CONFIGURATIONS[name] for name in options.configurations]
    ceilings = measure_ceilings(configs, options.quick)
    show_ceilings(ceilings)
    results: dict[str, Any] = {"threads": torch.get_num_threads(), "ceilings": ceilings, "configurations": {}}
    for config in configs:
        is_served = not (options.quick or options.no_server)
        seconds = 0.0 if options.quick else options.seconds
        results["configurations"][config.name] = measure(config, seconds, is_served, ceilings)
        show(config.name, results["configurations"][config.name])
    print_document("chunk_profile", measured_on, results, [])
    return 0


if __name__ == "__main__":
    sys.exit(main())
