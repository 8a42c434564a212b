"""Tables and pictures of the two benchmarks that watch streams from outside: cadence and analyzer.

Knows the forms of their documents; measures nothing, reads no files.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")

# isort: split
import matplotlib.pyplot as plt
import numpy as np
from report_style import COLOURS, WIDE, Results, Table, number, save, spread

PERCENTILES = ("p50", "p95", "p99")


def percentiles_text(summary: Mapping[str, Any] | None) -> str:
    """Three percentiles, and of how many samples; ~ before one that so few do not support."""
    if summary is None:
        return ""
    unsupported = summary.get("unsupported", ())
    parts = [("~" if name in unsupported else "") + number(summary[name], 3) for name in PERCENTILES]
    count = f" ({summary['n']})" if "n" in summary else ""
    return " / ".join(parts) + count


# Cadence


def arms_of(results: Results, path: str = "") -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Whatever in the results are figures of one arm, with its name: configuration and sessions."""
    for name, value in results.items():
        if not isinstance(value, Mapping):
            continue
        here = path if name == "arms" else ", ".join(filter(None, (path, name)))
        if "chunk_period_ms" in value:
            yield here, value
        else:
            yield from arms_of(value, here)


def cadence_tables(results: Results) -> list[Table]:
    arms = list(arms_of(results))
    times = [
        [
            name,
            *(
                percentiles_text(arm[key])
                for key in ("first_frame_ms", "chunk_period_ms", "inter_frame_ms", "control_to_frame_ms")
            ),
        ]
        for name, arm in arms
    ]
    rates = [
        [
            name,
            _spread(arm["frames_per_s"]),
            percentiles_text(arm["period_over_median"]),
            f"{100 * arm['viewer']['in_time']:.1f}",
            number(arm["viewer"]["underruns_per_minute"], 3),
            percentiles_text(arm["cancel_to_idle_ms"]),
            _spread(arm["overhead"]["share"], 100),
        ]
        for name, arm in arms
    ]
    loops = [
        [
            name,
            *(number(value, 3) for value in (loop["rate_per_s"], loop["requests"], sum(loop["refused"].values()))),
            *(percentiles_text(loop[key]) for key in ("from_intended_ms", "from_sent_ms")),
        ]
        for name, arm in arms
        if (loop := arm["open_loop"])
    ]
    viewer = arms[0][1]["viewer"]
    watched = f"A viewer at {viewer['fps']:g} frames a second with a buffer of {viewer['buffer_s']:g} s"
    tables = [
        Table("Times in ms, p50 / p95 / p99 (samples)", TIMES_HEADER, times),
        Table(watched, RATES_HEADER, rates),
    ]
    if loops:
        header = ("", "requests/s", "requests", "refused", "from intended, ms", "from sent, ms")
        tables.append(Table("Open loop: arrivals do not wait", header, loops))
    return tables


TIMES_HEADER = ("", "first frame after start", "chunk period", "inter-frame, arriving", "control to frame")
RATES_HEADER = (
    *("", "frames/s", "period over its median", "frames in time, %", "underruns a minute", "cancel to idle, ms"),
    "serving overhead, %",
)


def _spread(entry: Mapping[str, float] | None, scale: float = 1.0) -> str:
    return "" if entry is None else spread(entry, scale=scale)


def draw_cadence(results: Results, path: Path) -> None:
    arms = dict(arms_of(results))
    figure, axes = plt.subplots(figsize=WIDE, layout="constrained")
    places = np.arange(len(arms))
    for offset, (name, colour) in enumerate(zip(PERCENTILES, COLOURS, strict=False)):
        heights = [arm["chunk_period_ms"][name] for arm in arms.values()]
        bars = axes.bar(places + 0.27 * offset, heights, 0.27, color=colour, label=name)
        axes.bar_label(bars, fmt="%.0f", fontsize="x-small")
    axes.set_xticks(places + 0.27, [name.replace(", ", "\n") for name in arms], fontsize="small")
    axes.set_ylabel("ms from chunk to chunk of a session")
    axes.margins(y=0.1)
    axes.legend(fontsize="small")
    save(figure, path)


# Analyzer


def points_of(results: Results) -> Iterator[tuple[str, str, Mapping[str, Any]]]:
    """Scenario, concurrency and figures of each point."""
    for name, scenario in results["scenarios"].items():
        for concurrency, point in scenario["concurrency"].items():
            yield name, concurrency, point


def analyzer_tables(results: Results) -> list[Table]:
    streams = [
        [
            name,
            concurrency,
            *(
                percentiles_text(point.get(key))
                for key in ("first_response_ms", "control_to_response_ms", "inter_response_ms")
            ),
            percentiles_text(point["last_response_ms"]),
            number(point["frames_per_s"], 3),
            *(number(point["server"]["mean_ms"].get(key), 3) for key in ("total", "queued")),
        ]
        for name, concurrency, point in points_of(results)
        if "frames_per_s" in point
    ]
    unary = [
        [name, concurrency, percentiles_text(point["latency_ms"]), number(point["requests_per_s"], 3)]
        + [number(point["server"]["mean_ms"].get(f"preprocess {key}"), 3) for key in ("compute", "queue")]
        for name, concurrency, point in points_of(results)
        if "requests_per_s" in point
    ]
    return [
        table
        for table in (
            Table("Streams; times in ms, p50 / p95 / p99 (samples)", STREAM_HEADER, streams),
            Table("`preprocess`; times in ms, p50 / p95 / p99", UNARY_HEADER, unary),
        )
        if table.rows
    ]


STREAM_HEADER = (
    *("scenario", "at once", "first response", "control to response", "inter-response", "last response"),
    *("frames/s", "server: chunk, ms", "server: queued, ms"),
)
UNARY_HEADER = ("scenario", "at once", "latency", "requests/s", "server: compute, ms", "server: queue, ms")


def draw_analyzer(results: Results, path: Path) -> None:
    figure, (left, right) = plt.subplots(1, 2, figsize=WIDE, layout="constrained")
    streams: dict[str, list[tuple[int, Mapping[str, Any]]]] = {}
    for name, concurrency, point in points_of(results):
        if "frames_per_s" in point:
            streams.setdefault(name, []).append((int(concurrency), point))
    for (name, points), colour in zip(streams.items(), COLOURS, strict=False):
        at_once = [concurrency for concurrency, _ in points]
        left.plot(at_once, [point["frames_per_s"] for _, point in points], "o-", color=colour, label=name)
        first = [point["first_response_ms"]["p50"] for _, point in points]
        right.plot(at_once, first, "o-", color=colour)
    for axes, label in ((left, "frames a second, all senders"), (right, "first response, ms, p50")):
        axes.set_xlabel("senders at once")
        axes.set_ylabel(label)
        axes.set_ylim(bottom=0)
        axes.grid(alpha=0.3)
        axes.xaxis.get_major_locator().set_params(integer=True)
    left.legend(fontsize="x-small")
    save(figure, path)
