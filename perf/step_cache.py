#!/usr/bin/env python3
"""What the step cache saves and what it costs: denoise time against PSNR to the uncached frames and to ground truth.

Held-out walks are streamed through the embedded world with every setting, chunk by chunk in turn: at 8, 16, 20 and 28
steps a curve over thresholds, with and without TaylorSeer, and at 4 steps the masks. Then what a mounted cache costs
that never hits, and one real server asked for its frames with the cache off and on. Prints tables and draws the curves;
the last line is one JSON document.

Denoise time is a chunk's steps and its context pass, which is never cached; beside it stands the CPU time of the steps
alone, which other programs disturb less. Sessions drift apart chunk by chunk, since each chunk is denoised on the keys
and values of those before. The bar is held against the PSNR of all frames of all walks in one, where the worst chunks
weigh most; the first chunk's and the mean over chunks stand beside it.
"""

from __future__ import annotations

import argparse
import dataclasses
import gc
import os
import statistics
import sys
import time
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from common import ROOT, Bar, Wanted, machine, print_document, print_wanted, quartiles
from quality import LOOKS, Pixels, Walk, held_out_walks, nearness

# isort: split
# quality has put the world model's folder on the path.
import torch
from step_cache_plot import draw
from step_cache_served import Wish, ask_in_turn
from worldmodel.config import EMBEDDED, WorldConfig
from worldmodel.loading import Instance, load_world
from worldmodel.serving import ServingConfig
from worldmodel.session import Session
from worldmodel.step_cache_settings import StepCacheSettings
from worldmodel.world import Controls, World

PACKAGES = ("cache-dit", "matplotlib", "numpy", "torch")
WEIGHTS = ROOT / "model_repository" / "denoise" / "1" / "weights"
FEW_STEPS = 4
MANY_STEPS = (8, 16, 20, 28)
QUICK_STEPS = (8, 20)
MASKS = ("1111", "1011", "1101", "1001")
THRESHOLDS = (0.08, 0.16, 0.24, 0.4, 0.6)
WARMUP_STEPS, MAX_CONTINUOUS = 4, 3
EVERY_OTHER = "every other step"
NEVER = 1e-6  # a threshold that no step of a chunk falls below
BAR_STEPS, BAR_DB = 20, 30.0
SAVED = Bar("at 20 steps at least 30 % less denoise time at 30 dB or better to the uncached run", ">=", 30)
WANTED = (SAVED,)


# The arms


@dataclass(frozen=True)
class Arm:
    """A world, and how each chunk is made in it."""

    world: World
    num_steps: int
    settings: StepCacheSettings | None = None  # None where no cache is mounted


@dataclass
class Streamed:
    """What came of an arm: times of all chunks, walk after walk, and the frames of each walk's chunks."""

    denoise_ms: list[float] = field(default_factory=list)
    frames: list[list[Pixels]] = field(default_factory=list)
    computed_blocks: int = 0
    skipped_blocks: int = 0
    steps_cpu_ms: list[float] = field(default_factory=list)  # without the context pass; none of a server


def settings_at(num_steps: int) -> dict[str, StepCacheSettings]:
    """Every setting that is compared at this step count, by its name."""
    off = {"off": StepCacheSettings("off")}
    if num_steps == FEW_STEPS:
        return off | {mask: StepCacheSettings(mask) for mask in MASKS}
    dynamic = {
        threshold_name(threshold, order): StepCacheSettings(
            "dynamic", threshold, WARMUP_STEPS, MAX_CONTINUOUS, taylorseer_order=order
        )
        for order in (0, 1)
        for threshold in THRESHOLDS
    }
    return off | dynamic | {EVERY_OTHER: StepCacheSettings(every_other_step(num_steps))}


def threshold_name(threshold: float, taylorseer_order: int) -> str:
    return f"R {threshold:g}" + (", TaylorSeer" if taylorseer_order else "")


def every_other_step(num_steps: int) -> str:
    """A mask of an even step count: the first two steps are computed, then every second one, the last among them."""
    return "11" + "01" * (num_steps // 2 - 1)


def stream(arms: Mapping[str, Arm], walks: Sequence[Walk]) -> dict[str, Streamed]:
    """Stream all walks with all arms, chunk by chunk in turn, each time beginning with another arm."""
    streamed = {name: Streamed() for name in arms}
    turn = deque(arms)
    gc.collect()
    gc.freeze()
    for seed, walk in enumerate(walks):
        sessions = {name: arm.world.start(walk.picture, walk.looks[0], seed) for name, arm in arms.items()}
        for each in streamed.values():
            each.frames.append([])
        for chunk in range(len(walk.truth)):
            for name in turn:
                take_chunk(arms[name], sessions[name], walk, chunk, streamed[name])
            turn.rotate(-1)
    gc.unfreeze()
    return streamed


def take_chunk(arm: Arm, session: Session, walk: Walk, chunk: int, streamed: Streamed) -> None:
    """Make the session's next chunk and note what it took."""
    is_new_look = walk.looks[chunk] != walk.looks[max(0, chunk - 1)]
    controls = Controls(
        cam_to_world=walk.cam_to_world[chunk],
        prompt=walk.looks[chunk] if is_new_look else None,
        num_steps=arm.num_steps,
        step_cache=arm.settings,
    )
    computed, skipped = arm.world.block_runs()
    cpu_s: list[float] = []  # before each step, and before the context pass
    done = arm.world.next_chunk(session, controls, lambda: cpu_s.append(time.process_time()))
    session.commit(done.staged)
    streamed.steps_cpu_ms.append(1000 * (cpu_s[-1] - cpu_s[0]))
    streamed.frames[-1].append(done.frames.cpu().numpy())
    streamed.denoise_ms.append(done.timings.denoise_ms)
    computed_now, skipped_now = arm.world.block_runs()
    streamed.computed_blocks += computed_now - computed
    streamed.skipped_blocks += skipped_now - skipped


# What they came to


def compare(num_steps: int, world: World, walks: Sequence[Walk]) -> dict[str, Any]:
    """Every setting at this step count against "off", chunk by chunk, and against the truth."""
    settings = settings_at(num_steps)
    streamed = stream({name: Arm(world, num_steps, each) for name, each in settings.items()}, walks)
    off, truth = streamed["off"], [walk.truth for walk in walks]
    print(f"\n{num_steps} steps: time and PSNR of all frames; off takes {quartiles(off.denoise_ms)[1]:.1f} ms a chunk")
    results = {}
    for name, each in streamed.items():
        results[name] = {
            "settings": dataclasses.asdict(settings[name]),
            **costs(each, off),
            "to_uncached": nearness(each.frames, off.frames),
            "to_truth": nearness(each.frames, truth),
        }
        show(name, results[name])
    return results


def costs(arm: Streamed, base: Streamed) -> dict[str, Any]:
    """Time of an arm, and in relation to the base's of the same round; what it skipped of all blocks it came to."""
    low, median, high = quartiles(arm.denoise_ms)
    times = quartiles([a / b for a, b in zip(arm.denoise_ms, base.denoise_ms, strict=True)])
    cpu = [a / b for a, b in zip(arm.steps_cpu_ms, base.steps_cpu_ms, strict=True)]
    num_blocks = arm.computed_blocks + arm.skipped_blocks
    return {
        "denoise_ms": {"median": round(median, 2), "p25": round(low, 2), "p75": round(high, 2)},
        "time_ratio": {name: round(value, 4) for name, value in zip(("p25", "median", "p75"), times, strict=True)},
        "steps_cpu_ratio": round(statistics.median(cpu), 4) if cpu else None,
        "speed_up": round(1 / times[1], 3),
        "computed_blocks": arm.computed_blocks,
        "skipped_blocks": arm.skipped_blocks,
        "skipped_share": round(arm.skipped_blocks / num_blocks, 4),
    }


def show(name: str, entry: Mapping[str, Any]) -> None:
    near, true = entry["to_uncached"], entry["to_truth"]
    print(
        f"  {name:20s} {cost_text(entry)}, skips {100 * entry['skipped_share']:4.1f} % of blocks; "
        f"to uncached {db_text(near['all_frames_db'])} "
        f"(first chunk {db_text(near['chunk_db'][0])}, chunks' mean {db_text(near['chunk_mean_db'])}), "
        f"to truth {db_text(true['all_frames_db'])}",
        flush=True,
    )


def cost_text(entry: Mapping[str, Any]) -> str:
    times, cpu = entry["time_ratio"], entry["steps_cpu_ratio"]
    text = f"time x{times['median']:.3f} ({times['p25']:.3f}-{times['p75']:.3f}"
    return text + (")" if cpu is None else f"; CPU of steps x{cpu:.3f})")


def db_text(db: float | None) -> str:
    return "   equal" if db is None else f"{db:5.2f} dB"


def measure_overhead(unmounted: World, mounted: World, walks: Sequence[Walk]) -> dict[str, Any]:
    """What it costs that a cache is there, in chunks that skip nothing."""
    arms = {
        "unmounted": Arm(unmounted, BAR_STEPS),
        "mounted, off": Arm(mounted, BAR_STEPS, StepCacheSettings("off")),
        "mounted, never hits": Arm(mounted, BAR_STEPS, StepCacheSettings("dynamic", NEVER, WARMUP_STEPS)),
        "mounted, mask of ones": Arm(mounted, BAR_STEPS, StepCacheSettings("1" * BAR_STEPS)),
    }
    streamed = stream(arms, walks)
    base = streamed["unmounted"]
    print(f"\nno step is skipped, {BAR_STEPS} steps: time in relation to a world without a cache")
    results = {}
    for name, each in streamed.items():
        is_equal = nearness(each.frames, base.frames)["all_frames_db"] is None
        results[name] = {**costs(each, base), "is_bit_equal": is_equal}
        print(f"  {name:24s} {cost_text(results[name])}; {'equal frames' if is_equal else 'OTHER FRAMES'}")
    return results


def measure_served(walks: Sequence[Walk], weights: Path | None) -> dict[str, Any]:
    """One server whose requests have the step cache off and on in turn."""
    wishes = {"off": Wish("off"), "auto": Wish("auto"), "auto, R 0.4": Wish("auto", 0.4)}
    answers = ask_in_turn(walks, weights, BAR_STEPS, wishes)
    streamed = {
        name: Streamed(answer.denoise_ms, answer.frames, answer.computed_blocks, answer.skipped_blocks)
        for name, answer in answers.items()
    }
    off = streamed["off"]
    truth = [walk.truth for walk in walks]
    print(f"\nthrough the real server, {BAR_STEPS} steps")
    results = {}
    for name, each in streamed.items():
        results[name] = {
            **costs(each, off),
            "to_uncached": nearness(each.frames, off.frames),
            "to_truth": nearness(each.frames, truth),
        }
        show(name, results[name])
    return results


# What is wanted


def judge(results: Mapping[str, Any]) -> list[Wanted]:
    """The setting that saves most of those that come near enough, in process and served."""
    wanted = [_best_near("here", results["steps"][str(BAR_STEPS)])]
    if "served" in results:
        wanted.append(_best_near("served", results["served"]))
    return wanted


def _best_near(place: str, entries: Mapping[str, Any]) -> Wanted:
    saved = {name: percent_saved(entry) for name, entry in entries.items() if name != "off" and is_near(entry)}
    best = max(saved, key=lambda name: saved[name], default="no setting is near enough")
    return SAVED.held_against(saved.get(best, 0.0), f"{place}: {best}")


def is_near(entry: Mapping[str, Any]) -> bool:
    db = entry["to_uncached"]["all_frames_db"]
    return db is None or db >= BAR_DB


def percent_saved(entry: Mapping[str, Any]) -> float:
    return round(100 * (1 - entry["time_ratio"]["median"]), 2)


# The world that is measured


def load(config: WorldConfig, weights: Path | None, step_cache: str) -> World:
    serving = ServingConfig(checkpoint=str(weights or ""), step_cache=step_cache)
    return load_world(config, serving, Path(), Instance("CPU", 0))


def config_of(is_quick: bool) -> WorldConfig:
    """The embedded world; quick: with fewer layers and pixels, whose times say nothing."""
    config = EMBEDDED.replace(vocabulary=LOOKS)
    if not is_quick:
        return config
    few = dataclasses.replace(config.transformer, dim=48, ffn_dim=64, num_heads=2, num_layers=3, freq_dim=32)
    return config.replace(transformer=few, height_px=32, width_px=48, condition_latent_frames=2)


def weights_of(options: argparse.Namespace) -> Path | None:
    """The folder of trained weights; None for seeded ones."""
    if options.quick:
        return None
    folder: Path = options.weights or WEIGHTS
    has_weights = (folder / "transformer.safetensors").is_file()
    if options.weights and not has_weights:
        raise SystemExit(f"--weights: wanted a folder with transformer.safetensors, got {folder}")
    return folder.resolve() if has_weights else None


def options_of(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--weights", type=Path, help="a folder of trained weights (default: the embedded ones)")
    parser.add_argument("--walks", type=int, default=3, help="held-out walks (default 3)")
    parser.add_argument("--chunks", type=int, default=3, help="of each walk, at most 8 (default 3)")
    parser.add_argument(
        "--threads", type=int, default=1, help="of torch here and in the server; 1 is least disturbed (default 1)"
    )
    parser.add_argument("--plot", type=Path, default=ROOT / "perf" / "out" / "step_cache.png", help="the PNG to write")
    parser.add_argument("--no-server", action="store_true", help="only in this process")
    parser.add_argument("--quick", action="store_true", help="at a size that says nothing, to see that it runs")
    options = parser.parse_args(arguments)
    if options.walks < 1 or not 1 <= options.chunks <= 8:
        parser.error("--walks, --chunks: wanted 1 walk or more of 1 to 8 chunks")
    return options


def main(arguments: Sequence[str] | None = None) -> int:
    options = options_of(arguments)
    measured_on = machine(PACKAGES)
    torch.set_num_threads(options.threads)
    os.environ["OMP_NUM_THREADS"] = str(options.threads)  # the server's
    weights, config = weights_of(options), config_of(options.quick)
    print(f"{options.walks} held-out walks of {options.chunks} chunks; dB are PSNR of uint8 frames")
    if weights is None:
        print("NOTE: no trained weights, so they are drawn from a seed: PSNR to ground truth means nothing,")
        print("      and PSNR to the uncached run is that of an untrained model")
    walks = held_out_walks(config, options.walks, options.chunks)
    step_counts = (FEW_STEPS, *(QUICK_STEPS if options.quick else MANY_STEPS))
    mounted = load(config, weights, "off")
    results: dict[str, Any] = {
        "weights": "trained" if weights else "seeded",
        "walks": options.walks,
        "chunks": options.chunks,
        "threads": options.threads,
        "steps": {str(count): compare(count, mounted, walks) for count in step_counts},
        "overhead": measure_overhead(load(config, weights, "none"), mounted, walks),
    }
    if not (options.no_server or options.quick):  # no server knows the quick size
        results["served"] = measure_served(walks, weights)
    options.plot.parent.mkdir(parents=True, exist_ok=True)
    draw(results, THRESHOLDS, options.plot)
    print(f"\ncurves: {options.plot}")
    wanted = judge(results)
    print_wanted(wanted)
    print_document("step_cache", measured_on, results, wanted)
    return 0


if __name__ == "__main__":
    sys.exit(main())
