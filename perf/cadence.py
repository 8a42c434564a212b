#!/usr/bin/env python3
"""How evenly the server streams to one and to several sessions, how soon it answers, and what serving adds to a chunk.

Starts the real server and runs the client's own bench against it (`worldstream bench`), all numbers of sessions in
turn, round by round; one and four have as many chunks in all, the others fewer and one round. One more arm has a chunk
of about 0.7 s, the real-time budget of its frames at 16 a second or so: the embedded world with as many denoising steps
as that takes here, found by two short runs. The figures of the bars are ratios within one round or one chunk. Prints a
table; the last line is one JSON document.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from common import ROOT, Bar, Wanted, machine, print_document, print_wanted
from denoise_served import Served, running_server

# isort: split
# denoise_served has put the client's folder on the path.
from rich.console import Console
from worldstream.aio import AsyncWorldClient
from worldstream.bench.figures import Figures, figures_of, frames_per_s
from worldstream.bench.percentiles import METHOD, percentile, spread
from worldstream.bench.plan import OpenLoop, Plan, name_of, parse_counts
from worldstream.bench.records import Round
from worldstream.bench.run import measure
from worldstream.bench.tables import NOTE, table_of

PACKAGES = ("numpy", "torch", "tritonclient")
LONG_CHUNK_MS = 700
LONG_OVERHEAD = Bar(
    "serving overhead per chunk at most 4 % of chunk time in a configuration whose chunk takes about 0.7 s "
    "(the real-time budget)",
    "<=",
    0.04,
)
OVERHEAD = Bar("at most 15 % in the embedded one", "<=", 0.15)
THROUGHPUT = Bar("throughput with 4 sessions at least 0.95 of one session's", ">=", 0.95)
EVENNESS = Bar("p99 inter-chunk period with 4 fair sessions at most 1.3x its median", "<=", 1.3)
WANTED = (LONG_OVERHEAD, OVERHEAD, THROUGHPUT, EVENNESS)
# Else the long arm's ratio is that of another configuration than was asked for.
IS_LONG = Bar("chunk time of the long arm, ms", ">=", 550)
IS_NOT_LONGER = Bar("chunk time of the long arm, ms", "<=", 900)
FEW_STEPS, MANY_STEPS = 4, 16  # of the two short runs; the embedded world's own number is 4
MOST_STEPS = 50  # that it serves
JUDGED = (1, 4)  # sessions
LOAD = 0.7  # of the open loop: arrivals come at so much of the rate that the server can take


@dataclass(frozen=True)
class Size:
    """How much is measured in a round, of each arm."""

    num_chunks: int  # of all sessions together, where a bar hangs on it: of 1 and of 4 sessions
    num_other_chunks: int  # of all sessions together, elsewhere
    num_long_chunks: int
    num_actions: int  # of all sessions together
    num_cancels: int
    num_requests: int  # of the open loop


# Two full rounds have the 100 periods of four sessions that a p99 wants.
FULL = Size(num_chunks=56, num_other_chunks=24, num_long_chunks=10, num_actions=8, num_cancels=3, num_requests=16)
QUICK = Size(num_chunks=24, num_other_chunks=16, num_long_chunks=4, num_actions=4, num_cancels=1, num_requests=6)


def calibrate(grpc: str) -> dict[int, float]:
    """The embedded world's chunk time in ms with few and with many steps; the server's word, a median."""
    plans = {
        str(num_steps): Plan(num_chunks=3, num_steps=num_steps, num_warm_steps=1, num_actions=0)
        for num_steps in (FEW_STEPS, MANY_STEPS)
    }
    rounds = measure(AsyncWorldClient(grpc), plans)
    return {
        int(name): percentile([chunk.timings.total_ms for chunk in seen[0].stream.chunks], 50)
        for name, seen in rounds.items()
    }


def steps_for(chunk_ms: float, measured_ms: Mapping[int, float]) -> int:
    """How many steps a chunk of this length takes, by a line through two measured ones."""
    (few, few_ms), (many, many_ms) = sorted(measured_ms.items())
    num_steps = few + (many - few) * (chunk_ms - few_ms) / (many_ms - few_ms)
    return min(MOST_STEPS, max(1, round(num_steps)))


def arms_of(counts: Sequence[int], size: Size, long_steps: int, chunk_ms: float) -> dict[str, Plan]:
    """All arms by name. Four sessions also get an open loop."""
    loop = OpenLoop(LOAD * 1000 / chunk_ms, size.num_requests)
    plans = {
        name_of(count): Plan(
            num_sessions=count,
            num_chunks=max(2, (size.num_chunks if count in JUDGED else size.num_other_chunks) // count),
            num_warm_steps=1,
            num_actions=max(1, size.num_actions // count),
            num_cancels=size.num_cancels,
            open_loop=loop if count == 4 else None,
        )
        for count in counts
    }
    plans[name_of_long(long_steps)] = Plan(
        num_chunks=size.num_long_chunks,
        num_steps=long_steps,
        num_warm_steps=1,
        num_actions=2,
        num_cancels=size.num_cancels,
    )
    return plans


def name_of_long(num_steps: int) -> str:
    return f"1 session, {num_steps} steps"


def run_rounds(served: Served, plans: Mapping[str, Plan], num_rounds: int) -> dict[str, list[Round]]:
    """All arms once, then those that a bar hangs on again and again."""

    def run(some: Mapping[str, Plan], num: int) -> dict[str, list[Round]]:
        client = AsyncWorldClient(served.grpc)
        return measure(client, some, num, served.metrics, say=lambda line: print(line, file=sys.stderr))

    judged = {name: plan for name, plan in plans.items() if plan.num_sessions in JUDGED}
    first, further = run(plans, 1), run(judged, num_rounds - 1) if num_rounds > 1 else {}
    return {name: first[name] + further.get(name, []) for name in plans}


def throughput_ratio(rounds: Mapping[str, Sequence[Round]]) -> dict[str, float]:
    """Frames a second of four sessions over one session's, round by round: median and quartiles."""
    pairs = zip(rounds[name_of(4)], rounds[name_of(1)], strict=True)
    ratios = spread([_rate(four) / _rate(one) for four, one in pairs])
    assert ratios is not None, "there is a round"
    return ratios.to_dict()


def _rate(seen: Round) -> float:
    rate = frames_per_s(seen.stream)
    assert rate is not None, "every arm streams two chunks or more"
    return rate


def judge(arms: Mapping[str, Figures], long_name: str, throughput: Mapping[str, float]) -> list[Wanted]:
    """What was asked for, against what was measured."""
    one, four, long = arms[name_of(1)], arms[name_of(4)], arms[long_name]
    return [
        LONG_OVERHEAD.held_against(long["overhead"]["share"]["median"]),
        OVERHEAD.held_against(one["overhead"]["share"]["median"]),
        THROUGHPUT.held_against(throughput["median"]),
        EVENNESS.held_against(four["period_over_median"]["p99"]),
    ]


def check_length(long: Figures) -> list[Wanted]:
    """Whether the long arm's chunk is one of about 0.7 s."""
    long_ms = long["overhead"]["chunk_ms"]["p50"]
    return [IS_LONG.held_against(long_ms), IS_NOT_LONGER.held_against(long_ms)]


def results_of(arms: Mapping[str, Figures], throughput: Mapping[str, float]) -> dict[str, Any]:
    return {"percentiles": METHOD, "configuration": "embedded", "arms": arms, "throughput_4_over_1": throughput}


def show(arms: Mapping[str, Figures], throughput: Mapping[str, float]) -> None:
    console = Console(width=max(160, 40 + 30 * len(arms)))
    console.print(table_of(arms))
    console.print(NOTE)
    low, median, high = (throughput[name] for name in ("p25", "median", "p75"))
    print(
        f"throughput with 4 sessions over one session's: {median:.3f} ({low:.3f}-{high:.3f}; {throughput['n']} rounds)"
    )


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--sessions", type=parse_counts, default=[1, 2, 4, 8], help="how many; 1 and 4 always (default 1,2,4,8)"
    )
    parser.add_argument("--rounds", type=int, default=2, help="of 1 and 4 sessions; others have one (default 2)")
    parser.add_argument("--quick", action="store_true", help="1 and 4 sessions, one round, few chunks")
    options = parser.parse_args(arguments)
    counts, num_rounds, size = list(JUDGED), 1, QUICK
    if not options.quick:
        counts, num_rounds, size = sorted({*JUDGED, *options.sessions}), options.rounds, FULL
    measured_on = machine(PACKAGES)
    with running_server(ROOT / "model_repository", {}) as served:
        measured_ms = calibrate(served.grpc)
        long_steps = steps_for(LONG_CHUNK_MS, measured_ms)
        print(f"a chunk of about {LONG_CHUNK_MS} ms: the embedded world with {long_steps} steps", file=sys.stderr)
        plans = arms_of(counts, size, long_steps, measured_ms[FEW_STEPS])
        rounds = run_rounds(served, plans, num_rounds)
    arms = {name: figures_of(rounds[name], plan) for name, plan in plans.items()}
    throughput = throughput_ratio(rounds)
    show(arms, throughput)
    long_name = name_of_long(long_steps)
    wanted, checks = judge(arms, long_name, throughput), check_length(arms[long_name])
    print_wanted(wanted, checks)
    calibration_ms = {str(steps): round(ms, 1) for steps, ms in measured_ms.items()}
    results = {**results_of(arms, throughput), "long_steps": long_steps, "calibration_ms": calibration_ms}
    print_document("cadence", measured_on, results, wanted, checks)
    return 0


if __name__ == "__main__":
    sys.exit(main())
