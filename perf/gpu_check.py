#!/usr/bin/env python3
"""Everything that only a GPU can show, in one run of at most eight minutes: checks, then times at growing sizes.

Each section is caught on its own and has a budget, and the results are written after each: what one loses, the others
keep. Without a GPU, or with --tiny, the same code runs on the CPU at a size that says nothing. Prints a table; the last
line is one JSON document.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from common import ROOT, Bar, Wanted, at_least, at_most, document_of, machine, print_document, print_wanted
from gpu_sections import (
    Budget,
    NotHereError,
    compiled_or_not,
    conditioner,
    equality,
    first_request,
    overlap,
    stages,
    step_cache,
)
from gpu_worlds import EMBEDDED, LINGBOT, TINY, WAN_1_3B, Lab, random_world, world_bytes

# isort: split
import torch
from worldmodel.config import WorldConfig
from worldmodel.world import World

PACKAGES = ("numpy", "torch")
WANTED: tuple[Bar, ...] = ()  # none was asked for
MARGIN = 1.25  # on what a world is counted to take: activations


class OverBudgetError(Exception):
    """A section took more time than it has."""


@dataclass(frozen=True)
class Section:
    """One thing to find out: where its result goes, how long it may take at most, and how it is found."""

    name: str
    seconds: float
    run: Callable[[Budget], dict[str, Any]]


# What is run


def sections_of(lab: Lab) -> list[Section]:
    """In the order of their worth: what comes last is lost where time runs out."""
    if lab.is_tiny:
        sizes, windows = {TINY: 6.0}, (3, 6)
        further = [(TINY, "step cache", 8), (TINY, "compiled", 8), (TINY, "first request", 8)]
    else:
        sizes, windows = {EMBEDDED: 12.0, WAN_1_3B: 20.0, LINGBOT: 40.0}, (3, 18, 45)
        further = [
            (WAN_1_3B, "step cache", 25),
            (EMBEDDED, "first request", 40),
            (WAN_1_3B, "compiled", 60),
            (EMBEDDED, "compiled", 80),
            (EMBEDDED, "step cache", 12),
        ]
    return [
        Section("environment", 5, partial(environment, lab)),
        Section("tests", 100, partial(gpu_tests, lab)),
        Section("equality", 30, partial(equality, lab, TINY if lab.is_tiny else EMBEDDED)),
        *(section for size, seconds in sizes.items() for section in sized_sections(lab, size, windows, seconds)),
        *(further_section(lab, size, what, seconds) for size, what, seconds in further),
    ]


def sized_sections(lab: Lab, config: WorldConfig, windows: Sequence[int], seconds: float) -> list[Section]:
    """Those that one world serves; it is gone before the next one is made."""
    kept: dict[str, World] = {}

    def with_world(measure: Callable[[Lab, World, Budget], dict[str, Any]], is_last: bool, budget: Budget) -> Any:
        try:
            if not kept:
                check_memory(lab, config)
                lab.forget()
                kept["world"] = random_world(config, lab)
            return measure(lab, kept["world"], budget)
        finally:
            if is_last:
                kept.clear()
                lab.forget()

    return [
        Section(f"{config.name}: stages", seconds, partial(with_world, stages, False)),
        Section(f"{config.name}: overlap", seconds, partial(with_world, overlap, False)),
        Section(f"{config.name}: conditioner", 1.5 * seconds, partial(with_world, partial(conditioner, windows), True)),
    ]


def further_section(lab: Lab, config: WorldConfig, what: str, seconds: float) -> Section:
    measure = {"step cache": step_cache, "compiled": compiled_or_not, "first request": first_request}[what]

    def alone(budget: Budget) -> dict[str, Any]:
        check_memory(lab, config)
        lab.forget()
        return measure(lab, config, budget)

    return Section(f"{config.name}: {what}", seconds, alone)


def check_memory(lab: Lab, config: WorldConfig) -> None:
    needed, free = MARGIN * world_bytes(config, lab.dtype), lab.free_bytes()
    if needed > free:
        raise NotHereError(f"{config.name} takes about {needed / 2**30:.0f} GiB, {free / 2**30:.0f} GiB are free")


def environment(lab: Lab, budget: Budget) -> dict[str, Any]:
    found: dict[str, Any] = {"device": str(lab.device), "dtype": str(lab.dtype).removeprefix("torch.")}
    if lab.device.type == "cuda":
        facts = torch.cuda.get_device_properties(lab.device)
        found |= {
            "name": facts.name,
            "memory_gib": round(facts.total_memory / 2**30, 1),
            "free_gib": round(lab.free_bytes() / 2**30, 1),
            "capability": f"{facts.major}.{facts.minor}",
            "cuda": torch.version.cuda,
            "cudnn": torch.backends.cudnn.version(),
        }
    return found


def gpu_tests(lab: Lab, budget: Budget) -> dict[str, Any]:
    if lab.device.type != "cuda":
        raise NotHereError("there is no GPU")
    command = [sys.executable, "-m", "pytest", "-m", "gpu", "-q", "-p", "no:cacheprovider", "tests/unit"]
    done = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, timeout=max(1, budget.left_s() - 2), check=False
    )
    lines = done.stdout.strip().splitlines()
    return {"exit_code": done.returncode, "says": lines[-1:], "failures": [x for x in lines if x.startswith("FAILED")]}


# Running it


def run(
    sections: Sequence[Section], end_s: float, most_rounds: int, save: Callable[[dict[str, Any]], None]
) -> dict[str, Any]:
    """All sections in turn; an entry {"error": ...} or {"skipped": ...} where one came to nothing."""
    results: dict[str, Any] = {}
    for section in sections:
        began = time.monotonic()
        seconds = min(section.seconds, end_s - began)
        if seconds < 1:
            results[section.name] = {"skipped": "no time was left"}
        else:
            results[section.name] = attempt(section, seconds, most_rounds)
            results[section.name]["took_s"] = round(time.monotonic() - began, 1)
        show(section.name, results[section.name])
        save(results)
    return results


def attempt(section: Section, seconds: float, most_rounds: int) -> dict[str, Any]:
    try:
        with stopped_after(seconds):
            # Measuring loops end a little before: what they have is then kept.
            return section.run(Budget(time.monotonic() + 0.85 * seconds, most_rounds))
    except NotHereError as error:
        return {"skipped": str(error)}
    except Exception as error:
        return {"error": f"{type(error).__name__}: {error}"[:500]}


@contextlib.contextmanager
def stopped_after(seconds: float) -> Iterator[None]:
    """Raise in what is inside when its time is over, at its next line of Python."""

    def stop(*_: object) -> None:
        raise OverBudgetError(f"not done after {seconds:.0f} s")

    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def show(name: str, result: Mapping[str, Any]) -> None:
    print(f"\n{name}")
    for key, value in result.items():
        print(f"  {key:38s} {json.dumps(value) if isinstance(value, (dict, list)) else value}", flush=True)


# What is looked at


def checks(lab: Lab, results: Mapping[str, Any]) -> list[Wanted]:
    failed = sum("error" in result for result in results.values())
    checked = [at_most("sections that failed", failed, 0)]
    same = results["equality"]
    checked += [
        at_most(f"equality: {what}", same[what], bar)
        for what, bar in (
            ("float32 from the CPU's, most of 255", 2),
            ("bfloat16 from the CPU's float32, mean of 255", 1),
            ("interleaved from solo, differing bytes", 0),
            ("again from before, differing bytes", 0),
            ("without conditioner reuse, differing bytes", 0),
        )
        if what in same
    ]
    if lab.is_tiny:
        return checked  # times say nothing here
    if "exit_code" in results["tests"]:
        checked.append(at_most("pytest -m gpu: exit code", results["tests"]["exit_code"], 0))
    for name, result in results.items():
        if "wall_over_stages" in result:
            checked.append(at_most(f"{name}: wall time over the sum of the stages", result["wall_over_stages"], 1))
        if "first_over_steady" in result:
            checked.append(at_most(f"{name}: first request over steady ones", result["first_over_steady"], 1.15))
    saved = results.get("1.3B: conditioner", {}).get("window 18", {}).get("percent_saved")
    if saved is not None:
        checked.append(at_least("1.3B: conditioner: percent of denoising saved at window 18", saved, 10))
    return checked


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tiny", action="store_true", help="on the CPU at a size that says nothing")
    parser.add_argument("--minutes", type=float, default=8, help="all in all (default 8)")
    parser.add_argument("--output", type=Path, help="default perf/results/gpu_check.json; without a GPU, in perf/out")
    options = parser.parse_args(arguments)
    end_s = time.monotonic() + 60 * options.minutes - 5
    has_gpu = torch.cuda.is_available() and not options.tiny
    lab = (
        Lab(torch.device("cuda", 0), torch.bfloat16, False)
        if has_gpu
        else Lab(torch.device("cpu"), torch.float32, True)
    )
    output = options.output or ROOT / "perf" / ("results" if has_gpu else "out") / "gpu_check.json"
    output.parent.mkdir(parents=True, exist_ok=True)
    measured_on = machine(PACKAGES)

    def save(results: dict[str, Any], checked: Sequence[Wanted] = ()) -> None:
        document = document_of("gpu_check", measured_on, results, [], checked)
        output.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")

    results = run(sections_of(lab), end_s, 2 if lab.is_tiny else 12, save)
    checked = checks(lab, results)
    save(results, checked)
    print_wanted([], checked)
    print_document("gpu_check", measured_on, results, [], checked)
    return 0


if __name__ == "__main__":
    sys.exit(main())
