#!/usr/bin/env python3
"""Hold fresh results against the committed baselines: ratios only, each with a tolerance of its own.

Absolute times say more about the machine than about us, so a baseline that names one is refused. Prints a table. Exit
status: 0 where nothing is worse than its tolerance allows, 1 where something is, 2 where something cannot be compared.
"""

from __future__ import annotations

import argparse
import json
import math
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from report_documents import PlaceError, is_finite, number_at, read_documents

BASELINES = Path(__file__).with_name("baselines.json")
FIELDS = {"name", "place", "value", "tolerance", "better", "why"}
# Names of absolute measurements, at the end of a place or before its quartile.
ABSOLUTE = re.compile(r"(?:^|[/_])(?:ms|s|bytes|mb|gflops|per_s|us|ns|fps)(?:_p\d+)?(?:/(?:median|p\d+))?$")


class BaselineError(Exception):
    """The baselines are not usable; says why."""


@dataclass(frozen=True)
class Baseline:
    """A ratio as it was, and how much worse it may be: by the share `tolerance` of its value."""

    name: str
    place: str  # file#pointer: see report_documents
    value: float
    tolerance: float
    better: Literal["higher", "lower"]
    why: str  # this tolerance

    @property
    def limit(self) -> float:
        sign = -1 if self.better == "higher" else 1
        return self.value + sign * self.tolerance * abs(self.value)

    def is_met_by(self, value: float) -> bool:
        return value >= self.limit if self.better == "higher" else value <= self.limit


@dataclass(frozen=True)
class Verdict:
    """One baseline against what was measured; `problem` where nothing can be compared."""

    baseline: Baseline
    value: float = math.nan
    problem: str = ""

    @property
    def word(self) -> str:
        if self.problem:
            return "NO VALUE"
        return "ok" if self.baseline.is_met_by(self.value) else "REGRESSION"


def read_baselines(path: Path) -> list[Baseline]:
    """The committed baselines, checked.

    Raises:
        BaselineError: naming the entry, what was wanted and what came.
    """
    try:
        entries = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise BaselineError(f"{path.name} cannot be read: {error}") from None
    if not isinstance(entries, list) or not entries:
        raise BaselineError(f"{path.name}: wanted a list of baselines")
    baselines = [_baseline(number, entry) for number, entry in enumerate(entries)]
    names = [baseline.name for baseline in baselines]
    if len(set(names)) != len(names):
        raise BaselineError(f"{path.name}: two baselines have one name")
    return baselines


def _baseline(number: int, entry: Any) -> Baseline:
    place = f"baseline {number}"
    if not isinstance(entry, dict) or set(entry) != FIELDS:
        got = sorted(entry) if isinstance(entry, dict) else type(entry).__name__
        raise BaselineError(f"{place}: wanted {sorted(FIELDS)}, got {got}")
    if not (isinstance(entry["name"], str) and entry["name"].strip()):
        raise BaselineError(f"{place}: name: wanted a text, got {entry['name']!r}")
    place = f"baseline {entry['name']!r}"
    for field in ("value", "tolerance"):
        if not is_finite(entry[field]):
            raise BaselineError(f"{place}: {field}: wanted a finite number, got {entry[field]!r}")
    if entry["tolerance"] < 0 or (entry["better"] == "higher" and entry["tolerance"] >= 1):
        raise BaselineError(f"{place}: tolerance: wanted a share of the value, got {entry['tolerance']}")
    if entry["better"] not in ("higher", "lower"):
        raise BaselineError(f"{place}: better: wanted higher or lower, got {entry['better']!r}")
    if not (isinstance(entry["why"], str) and entry["why"].strip()):
        raise BaselineError(f"{place}: why: wanted the reason for its tolerance")
    if not isinstance(entry["place"], str) or ABSOLUTE.search(entry["place"]):
        raise BaselineError(f"{place}: place: wanted a ratio's, got {entry['place']!r}")
    return Baseline(**entry)


def compare(baselines: Sequence[Baseline], documents: Mapping[str, Mapping[str, Any]]) -> list[Verdict]:
    verdicts = []
    for baseline in baselines:
        try:
            verdicts.append(Verdict(baseline, number_at(documents, baseline.place)))
        except PlaceError as error:
            verdicts.append(Verdict(baseline, problem=str(error)))
    return verdicts


def status_of(verdicts: Sequence[Verdict]) -> int:
    words = {verdict.word for verdict in verdicts}
    return 2 if "NO VALUE" in words else int("REGRESSION" in words)


def show(verdicts: Sequence[Verdict]) -> None:
    width = max(len(verdict.baseline.name) for verdict in verdicts)
    print(f"{'ratio':{width}s}  {'was':>8s}  {'is':>8s}  {'limit':>9s}")
    for verdict in verdicts:
        baseline, sign = verdict.baseline, ">=" if verdict.baseline.better == "higher" else "<="
        value = verdict.problem or f"{verdict.value:8.3f}  {sign}{baseline.limit:7.3f}"
        print(f"{baseline.name:{width}s}  {baseline.value:8.3f}  {value}  {verdict.word}")


def of_benchmarks(baselines: Sequence[Baseline], names: Sequence[str]) -> list[Baseline]:
    """Those that are about these benchmarks.

    Raises:
        BaselineError: a benchmark without any.
    """
    chosen = [baseline for baseline in baselines if baseline.place.partition(".")[0] in names]
    for name in names:
        if not any(baseline.place.startswith(f"{name}.json#") for baseline in chosen):
            raise BaselineError(f"--only: there is no baseline of {name}")
    return chosen


def update(path: Path, verdicts: Sequence[Verdict]) -> None:
    """Write the measured values into the baselines; all else stays."""
    measured = {verdict.baseline.name: verdict.value for verdict in verdicts}
    entries = json.loads(path.read_text(encoding="utf-8"))
    for entry in entries:
        entry["value"] = measured.get(entry["name"], entry["value"])
    path.write_text(json.dumps(entries, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path, help="of fresh documents, as perf/run.py writes them")
    parser.add_argument("--baselines", type=Path, default=BASELINES, help="(default perf/baselines.json)")
    parser.add_argument("--only", nargs="+", metavar="NAME", help="baselines of these benchmarks alone")
    parser.add_argument("--update", action="store_true", help="make the measured values the baselines' own")
    options = parser.parse_args(arguments)
    try:
        baselines = read_baselines(options.baselines)
        if options.only:
            baselines = of_benchmarks(baselines, options.only)
        verdicts = compare(baselines, read_documents(options.folder))
    except (BaselineError, PlaceError) as error:
        print(f"check.py: {error}", file=sys.stderr)
        return 2
    show(verdicts)
    worse = [verdict.baseline.name for verdict in verdicts if verdict.word == "REGRESSION"]
    missing = [verdict.baseline.name for verdict in verdicts if verdict.problem]
    if missing:
        print(f"check.py: no value: {'; '.join(missing)}", file=sys.stderr)
    elif options.update:
        update(options.baselines, verdicts)
        return 0
    if worse:
        print(f"check.py: worse than their tolerance: {'; '.join(worse)}", file=sys.stderr)
    return status_of(verdicts)


if __name__ == "__main__":
    sys.exit(main())
