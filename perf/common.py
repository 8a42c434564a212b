"""What the benchmarks share: what ran where, interleaved timing, tables, and the JSON document that comes last.

Knows nothing of what is measured. On a shared machine single times mean little: all arms of a comparison run in turn,
round by round, so that a disturbance meets them alike, and ratios are taken round by round before their median is.
"""

from __future__ import annotations

import contextlib
import gc
import json
import os
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib import metadata
from pathlib import Path
from typing import Any, Literal

ROOT = Path(__file__).parent.parent


@dataclass(frozen=True)
class Arm:
    """One way of doing something: `run` does it once; in each round it is done `loops` times over."""

    run: Callable[[], object]
    loops: int = 1


@dataclass(frozen=True)
class Timing:
    """Times of one arm in ms for doing it once, one entry a round: by the clock, and of this process's CPU."""

    wall_ms: list[float]
    cpu_ms: list[float]

    def summary(self) -> dict[str, float]:
        low, median, high = quartiles(self.wall_ms)
        return {
            "ms": round(median, 4),
            "ms_p25": round(low, 4),
            "ms_p75": round(high, 4),
            "cpu_ms": round(statistics.median(self.cpu_ms), 4),
        }

    def __str__(self) -> str:
        low, median, high = quartiles(self.wall_ms)
        return f"{median:8.2f} ms ({low:.2f}-{high:.2f}; CPU {statistics.median(self.cpu_ms):.2f})"


@dataclass(frozen=True)
class Wanted:
    """One bar: what was measured, its value, what it should be, and whether it is; where, if in several places."""

    what: str
    value: float
    bar: str
    holds: bool
    where: str = ""


@dataclass(frozen=True)
class Bar:
    """What a benchmark was asked to show, in the words of whoever asked. A script lists its own in `WANTED`."""

    what: str
    sign: Literal[">=", "<="]
    limit: float

    def __str__(self) -> str:
        return f"{self.sign} {self.limit:g}"

    def held_against(self, value: float, where: str = "") -> Wanted:
        holds = value >= self.limit if self.sign == ">=" else value <= self.limit
        return Wanted(self.what, value, str(self), holds, where)


def quartiles(values: Sequence[float]) -> tuple[float, float, float]:
    """Give the first quartile, the median and the third quartile; of a single value, itself."""
    if len(values) < 2:
        return values[0], values[0], values[0]
    low, median, high = statistics.quantiles(values, n=4, method="inclusive")
    return low, median, high


def interleave(arms: Mapping[str, Arm], num_rounds: int) -> dict[str, Timing]:
    """Run all arms in turn, `num_rounds` times after one round that does not count.

    The garbage collector stays on, as in any server: what an arm leaves for it to visit is a cost of that arm. What was
    there before is kept out of its sight, and what an arm leaves behind out of the next arm's time.
    """
    timings = {name: Timing([], []) for name in arms}
    gc.collect()
    gc.freeze()
    for number in range(num_rounds + 1):
        for name, arm in arms.items():
            wall_ms, cpu_ms = _time(arm)
            gc.collect()
            if number:
                timings[name].wall_ms.append(wall_ms)
                timings[name].cpu_ms.append(cpu_ms)
    gc.unfreeze()
    return timings


def _time(arm: Arm) -> tuple[float, float]:
    wall_s, cpu_s = time.perf_counter(), time.process_time()
    for _ in range(arm.loops):
        arm.run()
    wall_s, cpu_s = time.perf_counter() - wall_s, time.process_time() - cpu_s
    return 1000 * wall_s / arm.loops, 1000 * cpu_s / arm.loops


def ratio(slow: Timing, fast: Timing) -> dict[str, float]:
    """How many times faster `fast` is, round by round: median, quartiles, and by CPU time."""
    low, median, high = quartiles([a / b for a, b in zip(slow.wall_ms, fast.wall_ms, strict=True)])
    cpu = statistics.median(a / b for a, b in zip(slow.cpu_ms, fast.cpu_ms, strict=True) if b > 0)
    return {"median": round(median, 3), "p25": round(low, 3), "p75": round(high, 3), "cpu": round(cpu, 3)}


def at_least(what: str, value: float, bar: float) -> Wanted:
    return Bar(what, ">=", bar).held_against(value)


def at_most(what: str, value: float, bar: float) -> Wanted:
    return Bar(what, "<=", bar).held_against(value)


def machine(packages: Sequence[str]) -> dict[str, Any]:
    """Say what this runs on; `packages` are those whose versions matter."""
    return {
        "cpu": _cpu_name(),
        "num_cpus": len(os.sched_getaffinity(0)),
        "load_average": [round(load, 2) for load in os.getloadavg()],
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        **{name: metadata.version(name) for name in packages},
    }


def _cpu_name() -> str:
    with contextlib.suppress(OSError), Path("/proc/cpuinfo").open(encoding="utf-8") as lines:
        for line in lines:
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor()


def commit() -> str:
    """The commit of this checkout, with a + where files differ from it, results apart; "" outside one."""
    name = _git("describe", "--always", "--abbrev=12", "--match=")
    # A run of all benchmarks writes results as it goes: that changes nothing of what is measured.
    return name + ("+" if name and _git("status", "--porcelain", "-uno", "--", ".", ":(exclude)perf/results") else "")


def _git(*arguments: str) -> str:
    command = ["git", "-C", str(ROOT), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()


def print_wanted(wanted: Sequence[Wanted], checks: Sequence[Wanted] = ()) -> None:
    for title, entries in (("wanted", wanted), ("checked besides", checks)):
        if entries:
            print(f"\n{title}")
        for entry in entries:
            where = f" [{entry.where}]" if entry.where else ""
            verdict = "holds" if entry.holds else "FAILS"
            print(f"  {verdict}  {entry.what}{where}: {entry.value:.4g} (wanted {entry.bar})")


def print_document(
    bench: str,
    machine: Mapping[str, Any],
    results: Mapping[str, Any],
    wanted: Sequence[Wanted],
    checks: Sequence[Wanted] = (),
) -> None:
    """End a benchmark: everything measured, as one line of JSON."""
    sys.stdout.flush()
    print(json.dumps(document_of(bench, machine, results, wanted, checks)), flush=True)


def document_of(
    bench: str,
    machine: Mapping[str, Any],
    results: Mapping[str, Any],
    wanted: Sequence[Wanted],
    checks: Sequence[Wanted] = (),
) -> dict[str, Any]:
    """What a benchmark ends with.

    Args:
        wanted: the bars that it was asked to meet.
        checks: what it looks at besides, so that its figures mean something.
    """
    return {
        "bench": bench,
        "machine": machine,
        "commit": commit(),
        "results": results,
        "wanted": [asdict(entry) for entry in wanted],
        **({"checks": [asdict(entry) for entry in checks]} if checks else {}),
    }
