#!/usr/bin/env python3
"""What it saves to compute the camera's scale and shift once a chunk, not once a pass.

At LingBot-World's proportions (configuration lingbot_world_mini), with a full window, reuse on against off in turn: in
this process, then through the real server. Beside each: the share that counting operations predicts. Prints tables; the
last line is one JSON document.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import gc
import math
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from common import Bar, Wanted, at_most, machine, print_document, print_wanted, quartiles
from denoise_served import running_denoise
from sessions import MOVES, fingerprint, full_session, picture_of, take, with_window

# isort: split
# sessions has put the world model's folder on the path.
import torch
from torch import Tensor
from worldmodel.codec import Memory, StreamingCodec
from worldmodel.config import LINGBOT_WORLD_MINI, WorldConfig
from worldmodel.layers import seed_parameters
from worldmodel.session import Session
from worldmodel.transformer import CausalWorldTransformer
from worldmodel.world import Controls, World
from worldstream import WorldClient

PACKAGES = ("numpy", "torch")
WINDOWS = (3, 18, 45)  # latent frames
REUSE = {"on": None, "off": 0}  # bytes of scale and shift that a chunk may hold
SAVED = Bar("at least 10 % of denoise time saved at window 18", ">=", 10)
WANTED = (SAVED,)


# What counting predicts


@dataclass(frozen=True)
class BlockOperations:
    """Floating-point operations of one block in one pass of one chunk, a multiplication and an addition being two."""

    self_attention: int
    cross_attention: int
    feed_forward: int
    camera: int

    @property
    def total(self) -> int:
        return self.self_attention + self.cross_attention + self.feed_forward + self.camera


def block_operations(config: WorldConfig, visible_tokens: int) -> BlockOperations:
    """Count matrix products; norms, modulation and activations are left out.

    With L tokens in the chunk, K visible ones, S of the prompt, d = dim and f = ffn_dim:

        self-attention   q, k, v, o: 4 * 2Ld^2     scores and values: 2 * 2LKd
        cross-attention  q, o:       2 * 2Ld^2     scores and values: 2 * 2LSd    (k, v are the prompt's, kept)
        feed-forward     2 * 2Ldf
        camera           two injector layers, scale, shift: 4 * 2Ld^2
    """
    model = config.transformer
    dim, tokens = model.dim, config.chunk_latent_frames * config.tokens_per_frame
    square = 2 * tokens * dim**2
    return BlockOperations(
        self_attention=4 * square + 4 * tokens * visible_tokens * dim,
        cross_attention=2 * square + 4 * tokens * model.text_len * dim,
        feed_forward=4 * tokens * dim * model.ffn_dim,
        camera=4 * square,
    )


def predicted_saving(config: WorldConfig) -> float:
    """The share of a chunk's block work that reuse saves with a full window.

    A chunk is n denoising steps and a context pass. Without reuse each of these n + 1 passes evaluates the camera,
    with it one evaluation serves them all: n / (n + 1) of the camera's share. The embeddings and the head (under 1 %
    here) are left out.
    """
    work = block_operations(config, config.window_latent_frames * config.tokens_per_frame)
    num_steps = len(config.timesteps)
    return num_steps * work.camera / ((num_steps + 1) * work.total)


# Both arms, measured in turn


@dataclass(frozen=True)
class Take:
    """One chunk: what it took, in ms, and what came out."""

    denoise_ms: float  # conditioning and denoising
    chunk_ms: float  # with the decode
    output: bytes
    denoise_cpu_ms: float = math.nan  # of this process, where that is what computes


def summary(takes: Sequence[Take]) -> dict[str, float]:
    """One arm's rounds in short."""
    low, median, high = quartiles([take.denoise_ms for take in takes])
    return {
        "denoise_ms": round(median, 2),
        "denoise_ms_p25": round(low, 2),
        "denoise_ms_p75": round(high, 2),
        "chunk_ms": round(statistics.median(take.chunk_ms for take in takes), 2),
    }


def take_turns(arms: Mapping[str, Callable[[], Take]], num_rounds: int) -> tuple[dict[str, list[Take]], int]:
    """One chunk of each arm a round, after a round that does not count; how many rounds' outputs differed too.

    Which arm is first changes from round to round.
    """
    takes: dict[str, list[Take]] = {name: [] for name in arms}
    num_different = 0
    for number in range(num_rounds + 1):
        outputs = []
        for name in sorted(arms, reverse=bool(number % 2)):
            take = arms[name]()
            outputs.append(take.output)
            if number:
                takes[name].append(dataclasses.replace(take, output=b""))
        num_different += len(set(outputs)) > 1
    return takes, num_different


def judge_arms(config: WorldConfig, takes: Mapping[str, Sequence[Take]], num_different: int) -> dict[str, Any]:
    """Compare round by round."""
    pairs = list(zip(takes["on"], takes["off"], strict=True))
    low, median, high = quartiles([1 - on.denoise_ms / off.denoise_ms for on, off in pairs])
    result: dict[str, Any] = {
        "arms": {name: summary(each) for name, each in takes.items()},
        "denoise_saved": {"median": round(median, 4), "p25": round(low, 4), "p75": round(high, 4)},
        "predicted_saved": round(predicted_saving(config), 4),
        "chunk_time_ratio": round(statistics.median(on.chunk_ms / off.chunk_ms for on, off in pairs), 4),
        "rounds_with_other_bytes": num_different,
    }
    if not math.isnan(pairs[0][0].denoise_cpu_ms):
        cpu = statistics.median(1 - on.denoise_cpu_ms / off.denoise_cpu_ms for on, off in pairs)
        result["denoise_saved"]["cpu"] = round(cpu, 4)
    return result


def show(name: str, result: dict[str, Any]) -> None:
    on, off, saved = result["arms"]["on"], result["arms"]["off"], result["denoise_saved"]
    same = "equal bytes" if not result["rounds_with_other_bytes"] else "OTHER BYTES"
    cpu = f"; CPU {100 * saved['cpu']:.1f}" if "cpu" in saved else ""
    print(
        f"  {name:20s} on {on['denoise_ms']:7.1f} ms, off {off['denoise_ms']:7.1f} ms: "
        f"saves {100 * saved['median']:5.1f} % ({100 * saved['p25']:.1f} to {100 * saved['p75']:.1f}{cpu}), "
        f"predicted {100 * result['predicted_saved']:4.1f} %; whole chunk x{result['chunk_time_ratio']:.3f}; {same}",
        flush=True,
    )


def quick_config() -> WorldConfig:
    """A world that computes in milliseconds; its times say nothing."""
    small = dataclasses.replace(
        LINGBOT_WORLD_MINI.transformer, dim=64, ffn_dim=176, num_heads=2, num_layers=2, text_dim=16, text_len=8
    )
    return LINGBOT_WORLD_MINI.replace(
        name="quick", transformer=small, height_px=32, width_px=48, condition_latent_frames=2
    )


# In this process


class WatchedCodec(StreamingCodec):
    """Knows how much CPU time the process had used when its last decode began."""

    cpu_before_s = 0.0

    def decode(self, latents: Tensor, memory: Memory | None = None) -> tuple[Tensor, Memory]:
        """As it is, with a look at the clock."""
        self.cpu_before_s = time.process_time()
        return super().decode(latents, memory)


def measure_here(config: WorldConfig, dtype: torch.dtype, num_rounds: int) -> dict[str, Any]:
    """Both arms make the same chunk of the same session again and again: it is never committed."""
    transformer, codec = CausalWorldTransformer(config.transformer), WatchedCodec(config.codec)
    seed_parameters(transformer, 0)
    seed_parameters(codec, 1)
    world = World(config, transformer, codec, torch.device("cpu"), dtype)
    session = full_session(world)
    arms = {name: partial(make_chunk, world, codec, session, budget) for name, budget in REUSE.items()}
    held = world.counters.conditioner_peak_bytes
    return {**judge_arms(config, *take_turns(arms, num_rounds)), "held_bytes": held}


def make_chunk(world: World, codec: WatchedCodec, session: Session, budget_bytes: int | None) -> Take:
    world.conditioner_budget_bytes = budget_bytes
    gc.collect()
    cpu_s = time.process_time()
    chunk = take(world, session, Controls(actions=MOVES), commit=False)
    cpu_s = codec.cpu_before_s - cpu_s
    denoise_ms = chunk.timings.condition_ms + chunk.timings.denoise_ms
    chunk_ms = denoise_ms + chunk.timings.decode_ms
    return Take(denoise_ms, chunk_ms, fingerprint(chunk, session), 1e3 * cpu_s)


# Through the real server


def measure_served(config: WorldConfig, num_rounds: int) -> dict[str, Any]:
    """One server with reuse, one without, asked in turn for the next chunk of equal sessions."""
    with contextlib.ExitStack() as stack:
        servers, arms = {}, {}
        for name in REUSE:
            servers[name] = stack.enter_context(running_denoise(parameters_of(config, name)))
            client = stack.enter_context(WorldClient(servers[name].grpc, timeout_s=300))
            session = stack.enter_context(client.session(picture_of(config), prompt="day", seed=0))
            num_chunks = -(-config.window_latent_frames // config.chunk_latent_frames)
            for _ in session.generate(num_chunks=num_chunks, num_steps=1):
                pass  # until the window is full
            arms[name] = partial(ask_chunk, session)
        before = {name: server.counts() for name, server in servers.items()}
        judged = judge_arms(config, *take_turns(arms, num_rounds))
        after = {name: server.counts() for name, server in servers.items()}
    counts = {name: conditioner_counts(before[name], after[name]) for name in servers}
    return {**judged, "counts_of_a_chunk": per_chunk(counts, num_rounds + 1)}


def parameters_of(config: WorldConfig, reuse: str) -> dict[str, object]:
    return {
        "configuration": config.name,
        "checkpoint": "",
        "window_latent_frames": config.window_latent_frames,
        "sink_latent_frames": config.sink_latent_frames,
        "conditioner_reuse": reuse,
        "session_idle_timeout_s": 600,
    }


def ask_chunk(session: Any) -> Take:
    batches = list(session.generate(actions=MOVES))
    timings = batches[-1].timings
    frames = b"".join(batch.frames.tobytes() for batch in batches)
    return Take(timings.condition_ms + timings.denoise_ms, timings.total_ms, frames)


def conditioner_counts(before: dict[str, float], after: dict[str, float]) -> dict[str, float]:
    names = [name for name in after if name.startswith("conditioner_") and not name.endswith("_bytes")]
    return {name: after[name] - before[name] for name in names}


def per_chunk(counts: dict[str, dict[str, float]], num_chunks: int) -> dict[str, dict[str, float]]:
    return {arm: {name: value / num_chunks for name, value in each.items()} for arm, each in counts.items()}


# What is wanted


def judge(results: Mapping[str, Mapping[str, Any]], window: int) -> list[Wanted]:
    return [
        SAVED.held_against(round(100 * entry["denoise_saved"]["median"], 2), f"{place}, {name}")
        for place, entries in results.items()
        for name, entry in entries.items()
        if entry["window_latent_frames"] == window
    ]


def checks(results: Mapping[str, Mapping[str, Any]]) -> list[Wanted]:
    """Savings mean something where both arms give equal bytes."""
    return [
        at_most(
            f"{place}: rounds whose output differs from the other arm's",
            sum(entry["rounds_with_other_bytes"] for entry in entries.values()),
            0,
        )
        for place, entries in results.items()
    ]


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=12, help="of each comparison (default 12)")
    parser.add_argument("--windows", type=int, nargs="+", default=list(WINDOWS), help="latent frames (default 3 18 45)")
    parser.add_argument(
        "--dtypes", nargs="+", default=["float32"], choices=("float32", "bfloat16"), help="in this process (float32)"
    )
    parser.add_argument(
        "--served-windows", type=int, nargs="*", help="those that the server is asked for too (default: all of them)"
    )
    parser.add_argument("--no-server", action="store_true", help="only in this process")
    parser.add_argument("--quick", action="store_true", help="at a size that says nothing, to see that it runs")
    options = parser.parse_args(arguments)
    measured_on = machine(PACKAGES)
    config = quick_config() if options.quick else LINGBOT_WORLD_MINI
    results: dict[str, dict[str, Any]] = {"here": {}}
    print(f"reuse of the conditioner at {config.name}, window full; times are conditioning and denoising of a chunk")
    for dtype in options.dtypes:
        for window in options.windows:
            sized = with_window(config, window)
            name = f"{dtype}, window {window}"
            results["here"][name] = {
                "window_latent_frames": window,
                **measure_here(sized, getattr(torch, dtype), options.rounds),
            }
            show(name, results["here"][name])
    if not (options.no_server or options.quick):  # no server knows the quick size
        print("through the real server")
        results["served"] = {}
        for window in options.windows if options.served_windows is None else options.served_windows:
            name = f"window {window}"
            sized = with_window(config, window)
            results["served"][name] = {
                "window_latent_frames": window,
                **measure_served(sized, options.rounds),
            }
            show(name, results["served"][name])
            print(f"    per chunk: {results['served'][name]['counts_of_a_chunk']}")
    wanted = judge(results, 18)
    print_wanted(wanted, checks(results))
    ran = {"configuration": config.name, "rounds": options.rounds, "threads": torch.get_num_threads()}
    print_document("conditioner", measured_on, {**ran, **results}, wanted, checks(results))
    return 0


if __name__ == "__main__":
    sys.exit(main())
