"""What the server says of itself beside a measurement: how its counters grew.

Knows Prometheus' text form, and the names of Triton's and the world's counters. Triton's own durations of a decoupled
model end where its `execute` returns, before there is a frame: means are made of them for `preprocess` alone.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping
from typing import Any

from common import ROOT

sys.path.insert(0, str(ROOT / "client"))

# isort: split
from worldstream.errors import UnavailableError
from worldstream.info import fetch_metrics

LINE = re.compile(r"(\w+)(?:\{(.*)\})? (\S+)")
LABEL = re.compile(r'(\w+)="([^"]*)"')
Counters = dict[str, float]  # by name and sorted labels: name{label=value,...}
STAGES = "worldstream_stage_duration_seconds"
SESSION_TIMES = {
    "first_frame": "worldstream_first_frame_seconds",
    "control_to_frame": "worldstream_control_to_frame_seconds",
}
UNARY_MODEL = "preprocess"
UNARY_TIMES = {
    "request": "nv_inference_request_duration_us",
    "queue": "nv_inference_queue_duration_us",
    "compute": "nv_inference_compute_infer_duration_us",
}


def fetch_counters(address: str) -> Counters:
    """The counters of the metrics page at HOST:PORT, now."""
    try:
        return fetch_metrics(address, 10, parse_counters)
    except UnavailableError as error:
        raise SystemExit(f"analyzer.py: {error}") from error


def parse_counters(text: str) -> Counters:
    """All that only grows: counters, and the sums and counts of histograms, not their buckets."""
    kinds: dict[str, str] = {}
    counters = {}
    for line in text.splitlines():
        if line.startswith("# TYPE "):
            _, _, name, kind = line.split()
            kinds[name] = kind
        elif parts := LINE.fullmatch(line):
            name, labels, value = parts.groups()
            histogram = name.removesuffix("_sum").removesuffix("_count")
            if kinds.get(name) == "counter" or (kinds.get(histogram) == "histogram" and histogram != name):
                # Triton writes labels in an order that changes from one start to the next.
                key = ",".join(f"{label}={text}" for label, text in sorted(LABEL.findall(labels or "")))
                counters[f"{name}{{{key}}}"] = float(value)
    return counters


def growth(before: Mapping[str, float], after: Mapping[str, float]) -> Counters:
    """What has grown, and by how much."""
    differences = {name: after[name] - before.get(name, 0.0) for name in after}
    return {name: difference for name, difference in differences.items() if difference}


def server_figures(grown: Mapping[str, float]) -> dict[str, Any]:
    """Means in ms over all chunks, sessions and requests of a measurement, and everything that grew."""
    means = {}
    for name, count in grown.items():
        if name.startswith(f"{STAGES}_count{{"):
            stage = dict(label.split("=") for label in name[name.index("{") + 1 : -1].split(","))["stage"]
            means[stage] = 1e3 * grown.get(name.replace("_count{", "_sum{"), 0.0) / count
    for short, name in SESSION_TIMES.items():
        if count := total(grown, f"{name}_count"):
            means[short] = 1e3 * total(grown, f"{name}_sum") / count
    if count := total(grown, "nv_inference_request_success", UNARY_MODEL):
        for short, name in UNARY_TIMES.items():
            means[f"{UNARY_MODEL} {short}"] = total(grown, name, UNARY_MODEL) / count / 1e3
    return {
        "mean_ms": {name: round(mean, 3) for name, mean in sorted(means.items())},
        "grown_by": {name: round(value, 6) for name, value in sorted(grown.items())},
    }


def total(grown: Mapping[str, float], name: str, model: str = "") -> float:
    """The sum of one counter over all its labels, or over those of one model."""
    keys = [key for key in grown if key.startswith(f"{name}{{") and (not model or f"model={model}," in key)]
    return sum(grown[key] for key in keys)
