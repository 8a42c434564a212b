"""What gpu_check.py finds out about one device and one size; each function is one section and gives plain numbers.

Arms of a comparison run in turn, on the same weights and the same session, until the section's budget ends.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from gpu_lab import UNBOUNDED_BYTES, Budget, Lab
from gpu_loads import served_by
from gpu_worlds import Served, again, median, random_world, seeded_world, stream
from sessions import MOVES, fingerprint, full_session, take, with_window

# isort: split
import numpy as np
import torch
from worldmodel.acceleration import mount_and_compile, warm_up
from worldmodel.config import WorldConfig
from worldmodel.serving import ServingConfig
from worldmodel.session import Session
from worldmodel.step_cache_settings import StepCacheSettings
from worldmodel.world import Chunk, Controls, World

MANY_STEPS, FEW_STEPS = 20, 4
ARMS = {"on": None, "off": 0}  # of the conditioner's reuse: bytes of scale and shift that a chunk may hold


# Which steps of a chunk are left out: of many steps, and of the few of a distilled model.
MANY_STEPS_ARMS = {
    "off": StepCacheSettings("off"),
    "every second step": StepCacheSettings("11" + "01" * (MANY_STEPS // 2 - 1)),
    "dynamic": StepCacheSettings("dynamic"),
}
FEW_STEPS_ARMS = {"off": StepCacheSettings("off"), "one of four": StepCacheSettings("1011")}


# Equality


def equality(lab: Lab, config: WorldConfig, budget: Budget) -> dict[str, Any]:
    """Whether frames are what they are elsewhere, alone, again, and without reuse."""
    num_chunks = 3
    host = stream(seeded_world(config, torch.device("cpu"), torch.float32), num_chunks)
    wide = stream(seeded_world(config, lab.device, torch.float32), num_chunks)
    world = seeded_world(config, lab.device, torch.bfloat16)
    narrow = stream(world, num_chunks)
    without = stream(seeded_world(config, lab.device, torch.bfloat16, budget_bytes=0), num_chunks)
    return {
        "float32 from the CPU's, most of 255": int(distance(wide, host).max()),
        "bfloat16 from the CPU's float32, mean of 255": round(float(distance(narrow, host).mean()), 3),
        "bfloat16 from the CPU's float32, most of 255": int(distance(narrow, host).max()),
        "again from before, differing bytes": differing(narrow, stream(world, num_chunks)),
        "without conditioner reuse, differing bytes": differing(narrow, without),
        "interleaved from solo, differing bytes": interleaved_differences(world, num_chunks),
    }


def interleaved_differences(world: World, num_chunks: int) -> int:
    served = Served.over(world)
    try:
        solo = [served.ask(num_chunks, keeps_frames=True, seed=seed).frames() for seed in range(3)]
        answers = [served.ask(num_chunks, keeps_frames=True, seed=seed) for seed in range(3)]
        return sum(differing(one, other.frames()) for one, other in zip(solo, answers, strict=True))
    finally:
        served.close()


def distance(a: np.ndarray[Any, Any], b: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    return np.abs(a.astype(int) - b.astype(int))


def differing(a: np.ndarray[Any, Any], b: np.ndarray[Any, Any]) -> int:
    return int(np.count_nonzero(a != b))


# Times


def stages(lab: Lab, world: World, budget: Budget) -> dict[str, Any]:
    """A chunk by stage, window full, one stage after the other; and what it all takes."""
    session = full_session(world)
    chunks: list[Chunk] = []
    goes_on = budget.rounds()
    take(world, session, Controls(actions=MOVES))  # does not count
    while goes_on(len(chunks)):
        chunks.append(take(world, session, Controls(actions=MOVES)))
    timings = [chunk.timings for chunk in chunks]
    spent = {name: median([getattr(each, name) for each in timings]) for name in vars(timings[0])}
    return {
        **spent,
        "chunks": len(chunks),
        "frames_per_s": round(1e3 * chunks[0].decoding.num_frames / sum(spent.values()), 2),
        "session_mib": round(world.session_bytes() / 2**20, 1),
        "conditioner_mib": round(world.counters.conditioner_peak_bytes / 2**20, 1),
        "peak_mib": round(lab.peak_bytes() / 2**20, 1),
    }


def overlap(lab: Lab, world: World, budget: Budget) -> dict[str, Any]:
    """Chunks through the engine: by the clock, and as the sum of what their stages took."""
    served = Served.over(world)
    try:
        return walk(served, budget, num_steps=1)
    finally:
        served.close()


def walk(served: Served, budget: Budget, num_steps: int | None = None) -> dict[str, Any]:
    """A session of a started engine whose window is full; ends with it.

    Args:
        num_steps: of the chunks that fill the window; they do not count.
    """
    config = served.world.config
    window = -(-config.window_latent_frames // config.chunk_latent_frames)
    served.ask(window, "walk", num_steps=num_steps).wait()
    began = time.perf_counter()
    served.ask(1, "walk", is_start=False).wait()
    one_s = time.perf_counter() - began
    num_chunks = max(2, min(budget.most_rounds, int(budget.left_s() / one_s) - 1))
    began = time.perf_counter()
    answers = served.ask(num_chunks, "walk", is_start=False, is_end=True).wait()
    wall_ms = 1e3 * (time.perf_counter() - began)
    condition, denoise, decode, transfer = ([chunk[stage] for chunk in answers.timings_ms] for stage in range(1, 5))
    stages_ms = sum(map(sum, (condition, denoise, decode, transfer)))
    beside_ms = sum(decode) + sum(transfer)
    frames = 4 * config.chunk_latent_frames * num_chunks
    return {
        "chunks": num_chunks,
        "condition_ms": median(condition),
        "denoise_ms": median(denoise),
        "decode_ms": median(decode),
        "transfer_ms": median(transfer),
        "wall_ms": round(wall_ms, 1),
        "stages_ms": round(stages_ms, 1),
        "wall_over_stages": round(wall_ms / stages_ms, 3),
        "decode_and_transfer_ms": round(beside_ms, 1),
        "of_it_hidden": round((stages_ms - wall_ms) / beside_ms, 3),
        "frames_per_s": round(1e3 * frames / wall_ms, 2),
    }


def conditioner(windows: Sequence[int], lab: Lab, world: World, budget: Budget) -> dict[str, Any]:
    """What it saves to compute scale and shift once a chunk, by window; and whether the bits are the same."""
    results: dict[str, Any] = {}
    for number, window in enumerate(windows):
        goes_on = budget.rounds(len(windows) - number)
        try:
            results[f"window {window}"] = _on_and_off(again(world, with_window(world.config, window)), goes_on)
        except torch.OutOfMemoryError:
            results[f"window {window}"] = {"skipped": "too little memory"}
        lab.forget()
    return results


def _on_and_off(world: World, goes_on: Callable[[int], bool]) -> dict[str, Any]:
    session = full_session(world)
    spent: dict[str, list[float]] = {arm: [] for arm in ARMS}
    prints = {fingerprint(_reusing(world, session, held), session) for held in ARMS.values()}  # does not count
    while goes_on(len(spent["on"])):
        for arm, held in ARMS.items():
            timings = _reusing(world, session, held).timings
            spent[arm].append(timings.condition_ms + timings.denoise_ms)
    saved = [1 - on / off for on, off in zip(spent["on"], spent["off"], strict=True)]
    return {
        "on_ms": median(spent["on"]),
        "off_ms": median(spent["off"]),
        "percent_saved": round(100 * median(saved), 2),
        "rounds": len(saved),
        "bit_equal": len(prints) == 1,
    }


def _reusing(world: World, session: Session, bytes_held: int | None) -> Chunk:
    world.conditioner_budget_bytes = bytes_held
    return take(world, session, Controls(actions=MOVES), commit=False)


def step_cache(
    arms: Mapping[str, StepCacheSettings], num_steps: int, lab: Lab, config: WorldConfig, budget: Budget
) -> dict[str, Any]:
    """A chunk with steps skipped and without; what dynamic skips depends on the weights, random here."""
    world = random_world(config, lab, ServingConfig(compile="off", step_cache="off"))
    session = full_session(world)
    spent: dict[str, list[float]] = {arm: [] for arm in arms}
    skipped: dict[str, float] = {}
    goes_on = budget.rounds()
    while goes_on(len(spent["off"])):
        for arm, settings in arms.items():
            before = world.block_runs()
            controls = Controls(actions=MOVES, num_steps=num_steps, step_cache=settings)
            spent[arm].append(take(world, session, controls, commit=False).timings.denoise_ms)
            computed, left_out = (now - then for now, then in zip(world.block_runs(), before, strict=True))
            skipped[arm] = round(left_out / (computed + left_out), 3)
    return {
        arm: {
            "denoise_ms": median(times),
            "over_off": median([a / b for a, b in zip(times, spent["off"], strict=True)]),
            "blocks_skipped": skipped[arm],
        }
        for arm, times in spent.items()
    } | {"steps": num_steps, "rounds": len(spent["off"])}


def compiled_or_not(lab: Lab, config: WorldConfig, budget: Budget) -> dict[str, Any]:
    """Blocks with and without compiled code on the same weights; large worlds try the default mode only."""
    modes = ("default", "reduce-overhead") if config.transformer.num_layers <= 8 and not lab.is_tiny else ("default",)
    results: dict[str, Any] = {}
    for number, mode in enumerate(modes):
        results[mode] = _compiled(lab, config, mode, budget.rounds(len(modes) - number))
        lab.forget()
    return results


def _compiled(lab: Lab, config: WorldConfig, mode: str, goes_on: Callable[[int], bool]) -> dict[str, Any]:
    world = random_world(config, lab)
    # A folder of its own: no code of another section is found in it.
    folder = lab.scratch / f"compiled-{config.transformer.num_layers}-{mode}"
    _, world.compilation = mount_and_compile(
        world.transformer,
        lab.device,
        ServingConfig(compile="on", compile_backend=lab.backend, compile_mode=mode, compile_cache=str(folder)),
    )
    code = [block._compiled_call_impl for block in world.blocks]
    began = time.perf_counter()
    session = full_session(world)
    take(world, session, Controls(actions=MOVES), commit=False)
    compile_s = time.perf_counter() - began
    world.compilation.mark_ready()
    spent: dict[str, list[float]] = {"compiled": [], "eager": []}
    frames = {}
    while goes_on(len(spent["eager"])):
        for arm in spent:
            for block, compiled in zip(world.blocks, code, strict=True):
                block._compiled_call_impl = compiled if arm == "compiled" else None
            chunk = take(world, session, Controls(actions=MOVES), commit=False)
            spent[arm].append(chunk.timings.denoise_ms)
            frames[arm] = chunk.frames.cpu().numpy()
    return {
        **{f"{arm}_ms": median(times) for arm, times in spent.items()},
        "compiled_over_eager": median([a / b for a, b in zip(spent["compiled"], spent["eager"], strict=True)]),
        "until_first_ready_s": round(compile_s, 2),
        "recompiles": world.compilation.recompiles(),
        "mean_of_255_apart": round(float(distance(frames["compiled"], frames["eager"]).mean()), 4),
        "rounds": len(spent["eager"]),
    }


def first_request(lab: Lab, config: WorldConfig, budget: Budget) -> dict[str, Any]:
    """Starts after READY, through warm-up as it is served, on weights drawn on the device."""
    serving = ServingConfig(
        device=str(lab.device),
        compile="off" if lab.is_tiny else "on",
        compile_cache=str(lab.scratch / f"compiled-{config.transformer.num_layers}"),
        session_budget_bytes=UNBOUNDED_BYTES,
    )

    def make_world() -> World:
        world = random_world(config, lab, serving)
        warm_up(world)
        return world

    with served_by(make_world, serving) as (served, watch):
        return {"ready_s": round(watch.ready_s, 2), **starts(served, 2, budget)}


def starts(served: Served, num_chunks: int, budget: Budget) -> dict[str, Any]:
    """Sessions one after the other, the first one after READY against those that follow."""
    spent: list[float] = []
    goes_on = budget.rounds()
    while len(spent) < 4 or goes_on(len(spent)):
        asked = time.perf_counter()
        answers = served.ask(num_chunks, seed=len(spent)).wait()
        spent.append(1e3 * (answers.arrived_s[0] - asked))
    steady = median(spent[2:])
    return {
        "first_ms": round(spent[0], 2),
        "steady_ms": steady,
        "first_over_steady": round(spent[0] / steady, 3),
        "starts": len(spent),
        "recompiles": served.world.compilation.recompiles(),
    }
