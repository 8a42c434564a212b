#!/usr/bin/env python3
"""Run the benchmarks one after the other, keep what each measured, and write the report: what `make perf` does.

Each benchmark's document goes to perf/results/MACHINE/NAME.json, with the command that made it; what it printed, to
perf/out/NAME.log. One that fails takes no other with it. The exit status says whether all could measure, not whether
their bars hold: check.py compares.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from common import ROOT, machine
from report import write_report
from report_documents import PlaceError, check_form
from report_style import number

PYTHON = ".venv/bin/python"  # as a reader types it
TOLD = ("OMP_NUM_THREADS",)  # what the environment says that changes figures
PATIENCE = 4.0  # times the expected minutes: then something hangs
GRACE_S = 40.0  # in which a benchmark's server stops


@dataclass(frozen=True)
class Benchmark:
    """perf/NAME.py as it is run here; minutes are those that it takes on two quiet cores."""

    name: str
    options: str
    minutes: float
    configuration: str  # of the world that it measures
    is_in_readme: bool = False
    needs_gpu: bool = False

    def command(self, environment: Mapping[str, str]) -> str:
        """What a reader types to have the same; threads are told where the environment says how many."""
        told = [f"{name}={environment[name]}" for name in TOLD if name in environment]
        return " ".join([*told, PYTHON, f"perf/{self.name}.py", self.options]).strip()


# Together under 15 minutes. Each script's own default measures longer.
BENCHMARKS = (
    Benchmark("chunk_profile", "--seconds 6", 0.8, "embedded, lingbot_world_mini", is_in_readme=True),
    Benchmark("snapshot", "--rounds 5 --engine-rounds 3", 0.3, "embedded", is_in_readme=True),
    Benchmark("ingest", "--rounds 5", 0.8, "none (preprocess)", is_in_readme=True),
    Benchmark("transport", "--rounds 5", 0.7, "none (replayed frames of 832x480)", is_in_readme=True),
    Benchmark("cadence", "--rounds 2 --sessions 1,4,8", 2.6, "embedded", is_in_readme=True),
    Benchmark("analyzer", "--only 'preprocess-*-360x640' 'denoise-*' 'world-*'", 2.6, "embedded"),
    Benchmark("step_cache", "--walks 1", 1.6, "embedded", is_in_readme=True),
    Benchmark("conditioner", "--rounds 3 --served-windows 18", 1.4, "lingbot_world_mini", is_in_readme=True),
    Benchmark(
        "first_request",
        "--starts 5 --other-starts 1 --served-starts 2",
        3.9,
        "embedded, 4 layers, window 9; served: embedded",
        is_in_readme=True,
    ),
    Benchmark(
        "gpu_check", "--minutes 8 --output perf/out/gpu_check.json", 8.0, "embedded to LingBot's 14B", needs_gpu=True
    ),
)


class BenchmarkError(Exception):
    """A benchmark measured nothing; says why."""


# Running one


def run_benchmark(benchmark: Benchmark, log: Path) -> dict[str, Any]:
    """Run it and give its document, with how it came about.

    Raises:
        BenchmarkError: if it fails, ends without a document, or does not end.
    """
    if not (ROOT / "perf" / f"{benchmark.name}.py").is_file():
        raise BenchmarkError(f"there is no perf/{benchmark.name}.py")
    command = [sys.executable, f"perf/{benchmark.name}.py", *shlex.split(benchmark.options)]
    started, began = datetime.now(timezone.utc), time.monotonic()
    status, printed = run_command(command, 60 * PATIENCE * benchmark.minutes, log)
    took_s = time.monotonic() - began
    if status is None:
        raise BenchmarkError(f"did not end within {took_s / 60:.1f} minutes")
    if status:
        raise BenchmarkError(f"exit status {status}")
    return {
        **document_in(printed),
        "command": benchmark.command(os.environ),
        "configuration": benchmark.configuration,
        "started": started.isoformat(timespec="seconds"),
        "took_s": round(took_s, 1),
    }


def run_command(command: Sequence[str], timeout_s: float, log: Path) -> tuple[int | None, str]:
    """Exit status, None where time ran out, and standard output; all that is printed goes to the log."""
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("w", encoding="utf-8") as errors:
        # A session of its own: what it has started is stopped with it.
        process = subprocess.Popen(
            command,
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=errors,
            encoding="utf-8",
            errors="replace",
            start_new_session=True,
        )
        try:
            printed, _ = process.communicate(timeout=timeout_s)
            status: int | None = process.returncode
        except subprocess.TimeoutExpired:
            printed, status = stop(process), None
        except BaseException:
            stop(process)
            raise
    with log.open("a", encoding="utf-8") as file:
        file.write(printed)
    return status, printed


def stop(process: subprocess.Popen[str]) -> str:
    """End a benchmark and what it has started, by a word and then by force; what it had printed."""
    for sent in (signal.SIGTERM, signal.SIGKILL):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, sent)
        with contextlib.suppress(subprocess.TimeoutExpired):
            return process.communicate(timeout=GRACE_S)[0]
    return ""


def document_in(printed: str) -> dict[str, Any]:
    """The JSON document that a benchmark's output ends with.

    Raises:
        BenchmarkError: its last line is none, or one that no report can be made of.
    """
    lines = printed.strip().splitlines()
    try:
        document: dict[str, Any] = json.loads(lines[-1] if lines else "")
        check_form(document, "its last line")
    except (ValueError, RecursionError):
        raise BenchmarkError("its last line is no document") from None
    except PlaceError as error:
        raise BenchmarkError(str(error)) from None
    return document


# Running them all


def machine_slug(found: Mapping[str, Any]) -> str:
    """A folder's name for a machine: its CPU's model and how many of its cores we have."""
    cpu = re.sub(r"\((r|tm)\)", "", str(found["cpu"]).lower())
    return re.sub(r"[^a-z0-9.]+", "-", f"{cpu} {found['num_cpus']} cores").strip("-")


def chosen(only: Sequence[str] | None, has_gpu: bool) -> list[Benchmark]:
    """Those that are named, by name or path; else all that this machine can run.

    Raises:
        KeyError: a name that is unknown.
    """
    by_name = {benchmark.name: benchmark for benchmark in BENCHMARKS}
    if only:
        return [by_name[Path(name).stem] for name in only]
    return [benchmark for benchmark in BENCHMARKS if has_gpu or not benchmark.needs_gpu]


def has_gpu() -> bool:
    import torch

    return bool(torch.cuda.is_available())


def run_all(benchmarks: Sequence[Benchmark], folder: Path) -> list[str]:
    """Run each in turn and write its document into the folder; the names of those that failed."""
    failed = []
    for turn, benchmark in enumerate(benchmarks, 1):
        log = ROOT / "perf" / "out" / f"{benchmark.name}.log"
        place = f"[{turn}/{len(benchmarks)}] {benchmark.name}"
        say(f"{place}: about {benchmark.minutes:g} minutes: {benchmark.command({})}")
        try:
            document = run_benchmark(benchmark, log)
        except BenchmarkError as error:
            failed.append(benchmark.name)
            say(f"{place}: FAILED: {error}; see {shown(log)}")
            continue
        path = folder / f"{benchmark.name}.json"
        path.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
        say(f"{place}: {document['took_s']:.0f} s; {bars_of(document)}; {shown(path)}")
    return failed


def bars_of(document: Mapping[str, Any]) -> str:
    wanted = document["wanted"]
    if not wanted:
        return "no bars"
    missed = [
        f"{entry['what']} ({number(entry['value'])}, wanted {entry['bar']})" for entry in wanted if not entry["holds"]
    ]
    held = f"{len(wanted) - len(missed)} of {len(wanted)} bars hold"
    return "; MISSED: ".join([held, *missed])


def shown(path: Path) -> str:
    return str(path.relative_to(ROOT)) if path.is_relative_to(ROOT) else str(path)


def say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def table() -> str:
    lines = [f"{'benchmark':14s} {'minutes':>7s}  README  command"]
    for each in BENCHMARKS:
        readme, gpu = "yes" if each.is_in_readme else "", "  (where there is a GPU)" if each.needs_gpu else ""
        lines.append(f"{each.name:14s} {each.minutes:7.1f}  {readme:6s}  {each.command({})}{gpu}")
    minutes = sum(each.minutes for each in BENCHMARKS if not each.needs_gpu)
    return "\n".join([*lines, f"{'on CPUs':14s} {minutes:7.1f}"])


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", nargs="+", metavar="NAME", help="these alone, such as ingest or perf/ingest.py")
    parser.add_argument("--out", type=Path, help="the results' folder (default perf/results/MACHINE)")
    parser.add_argument("--list", action="store_true", help="what would run, how long it takes, what the README uses")
    options = parser.parse_args(arguments)
    if options.list:
        print(table())
        return 0
    try:
        benchmarks = chosen(options.only, options.only is None and has_gpu())
    except KeyError as error:
        parser.error(f"--only: wanted some of {', '.join(each.name for each in BENCHMARKS)}, got {error.args[0]}")
    folder = (options.out or ROOT / "perf" / "results" / machine_slug(machine(()))).resolve()
    folder.mkdir(parents=True, exist_ok=True)
    load = os.getloadavg()[0]
    if load > 0.5:
        say(f"NOTE: this machine is busy (load average {load:.1f}): times will be too long, ratios rough")
    failed = run_all(benchmarks, folder)
    try:
        say(f"report: {shown(write_report(folder))}")
    except PlaceError as error:  # a file that lay there before
        say(f"report: FAILED: {error}")
        failed.append("report")
    if failed:
        say(f"FAILED: {', '.join(failed)}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
