#!/usr/bin/env python3
"""Everything that only a GPU can show, in one run of at most eight minutes: checks, then times at growing sizes.

Worlds are made in memory, and loaded as the server loads a published checkpoint, from random files that are written
for it and gone afterwards. Each section is caught on its own and has a budget, and the results are written after each:
what one loses, the others keep. Without a GPU, or with --tiny, the same code runs on the CPU at a size that says
nothing. Prints a table; the last line is one JSON document.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from common import ROOT, Bar, Wanted, at_least, at_most, document_of, machine, print_document, print_wanted
from gpu_lab import Budget, Lab, NotHereError, OverBudgetError, Section
from gpu_order import sections_of
from gpu_published import DEVIATION

# isort: split
import torch

PACKAGES = ("numpy", "torch")
WANTED: tuple[Bar, ...] = ()  # none was asked for
# A result's entry -> at most so much. Of any device.
EQUAL = {
    "float32 from the CPU's, most of 255": 2,
    "bfloat16 from the CPU's float32, mean of 255": 1,
    "interleaved from solo, differing bytes": 0,
    "again from before, differing bytes": 0,
    "without conditioner reuse, differing bytes": 0,
    "from the same weights in memory, differing bytes": 0,
}
# The same of a GPU, in words: times, and what is said of memory in model_repository/denoise/CHECKPOINTS.md.
ON_A_GPU = {
    "exit_code": ("exit code of pytest -m gpu", 0),
    "wall_over_stages": ("wall time over the sum of the stages", 1),
    "first_over_steady": ("first request over steady ones", 1.15),
    "recompiles": ("graphs made after READY", 0),
    "peak_over_counted": ("peak memory over what is counted", 1),
    "beside_torch_gib": ("GiB beside torch's own, of which `worldstream plan` leaves 1", 1),
    "host_growth_over_weights": ("host memory while loading, over the weights", 0.5),
}
# Running it


def run(
    sections: Sequence[Section], end_s: float, most_rounds: int, save: Callable[[dict[str, Any]], None]
) -> dict[str, Any]:
    """All sections in turn; an entry {"error": ...} or {"skipped": ...} where one came to nothing."""
    results: dict[str, Any] = {}
    for section in sections:
        began = time.monotonic()
        left_s = end_s - began
        if left_s < section.least_s:
            results[section.name] = {"skipped": f"{max(0, left_s):.0f} s were left, {section.least_s:.0f} are needed"}
        elif has_come_to_something(results.get(section.unless)):
            results[section.name] = {"skipped": f"{section.unless!r} has found it"}
        else:
            seconds = min(section.seconds, left_s)
            results[section.name] = attempt(section, seconds, most_rounds)
            results[section.name]["took_s"] = round(time.monotonic() - began, 1)
        show(section.name, results[section.name])
        save(results)
    return results


def has_come_to_something(result: Mapping[str, Any] | None) -> bool:
    return result is not None and not result.keys() & {"error", "skipped"}


def attempt(section: Section, seconds: float, most_rounds: int) -> dict[str, Any]:
    """A section's result, whatever happens in it."""
    try:
        with stopped_after(seconds):
            # Measuring loops end a little before: what they have is then kept.
            return section.run(Budget(time.monotonic() + 0.85 * seconds, most_rounds))
    except NotHereError as error:
        return {"skipped": str(error)}
    except OverBudgetError as error:
        # Its own time was enough to ask for; that less was left is nobody's failure.
        return {"error" if seconds == section.seconds else "skipped": str(error)}
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
    """What holds or fails: everywhere what has to be equal, on a GPU also times and memory."""
    failed = sum("error" in result for result in results.values())
    checked = [at_most("sections that failed", failed, 0)]
    for name, result in results.items():
        checked += [at_most(f"{name}: {what}", result[what], bar) for what, bar in EQUAL.items() if what in result]
        windows = {what: each for what, each in result.items() if what.startswith("window ") and "bit_equal" in each}
        checked += [
            at_least(f"{name}: {what}: bits are equal", int(each["bit_equal"]), 1) for what, each in windows.items()
        ]
        if DEVIATION in result:
            checked.append(at_least(f"{name}: {DEVIATION}: equal ones say something", result[DEVIATION], 1))
    if lab.is_tiny:
        return checked  # times say nothing here
    for name, result in results.items():
        checked += [
            at_most(f"{name}: {what}", result[key], bar) for key, (what, bar) in ON_A_GPU.items() if key in result
        ]
    saved = results.get("1.3B: conditioner", {}).get("window 18", {}).get("percent_saved")
    if saved is not None:
        checked.append(at_least("1.3B: conditioner: percent of denoising saved at window 18", saved, 10))
    return checked


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tiny", action="store_true", help="on the CPU at a size that says nothing")
    parser.add_argument("--minutes", type=float, default=8, help="all in all (default 8)")
    parser.add_argument("--only", nargs="+", metavar="TEXT", help="sections whose names contain one of these")
    parser.add_argument(
        "--scratch", type=Path, help="a folder for checkpoints, up to 40 GB (default the temporary one)"
    )
    parser.add_argument("--output", type=Path, help="default perf/results/gpu_check.json; without a GPU, in perf/out")
    options = parser.parse_args(arguments)
    end_s = time.monotonic() + 60 * options.minutes - 5
    # As after Ctrl-C: what was written goes away.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("ended by SIGTERM"))
    has_gpu = torch.cuda.is_available() and not options.tiny
    output = options.output or ROOT / "perf" / ("results" if has_gpu else "out") / "gpu_check.json"
    output.parent.mkdir(parents=True, exist_ok=True)
    measured_on = machine(PACKAGES)

    def save(results: dict[str, Any], checked: Sequence[Wanted] = ()) -> None:
        document = document_of("gpu_check", measured_on, results, [], checked)
        output.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")

    with tempfile.TemporaryDirectory(
        prefix="worldstream-gpu-check-", dir=options.scratch, ignore_cleanup_errors=True
    ) as scratch:
        place = (torch.device("cuda", 0), torch.bfloat16) if has_gpu else (torch.device("cpu"), torch.float32)
        lab = Lab(*place, is_tiny=not has_gpu, scratch=Path(scratch))
        sections = [
            section
            for section in sections_of(lab)
            if not options.only or any(text in section.name for text in options.only)
        ]
        results = run(sections, end_s, 2 if lab.is_tiny else 12, save)
    checked = checks(lab, results)
    save(results, checked)
    print_wanted([], checked)
    print_document("gpu_check", measured_on, results, [], checked)
    return 0 if all(each.holds for each in checked) else 1


if __name__ == "__main__":
    sys.exit(main())
