"""The step cache's curves as a picture: time against nearness to the uncached frames, and to the truth.

Knows the results of step_cache.py as they stand in its document; measures nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")

# isort: split
import matplotlib.pyplot as plt
from matplotlib.lines import Line2D

COLOURS = ("#7f7f7f", "#1f77b4", "#ff7f0e", "#2ca02c", "#d62728", "#9467bd")
SHAPES = ("o", "s", "^", "D", "v", "P")
MASK_SHAPE, OFF_SHAPE = "*", "x"
BAR_TIME, BAR_DB = 0.7, 30.0
PANELS = {"to_uncached": "PSNR to the uncached run, dB", "to_truth": "PSNR to ground truth, dB"}

Point = tuple[float, float, str]  # time in relation to uncached, dB, shape


def draw(results: Mapping[str, Any], thresholds: Sequence[float], path: Path) -> None:
    """Write the PNG: one panel a reference, one colour a step count, one shape a threshold."""
    shapes = dict(zip(thresholds, SHAPES, strict=False))
    figure, panels = plt.subplots(1, 2, figsize=(15, 6.5), sharex=True, layout="constrained")
    for axes, (reference, label) in zip(panels, PANELS.items(), strict=True):
        for colour, entries in zip(COLOURS, results["steps"].values(), strict=False):
            _draw_step_count(axes, entries, reference, colour, shapes)
        axes.set_xlabel("denoise time of a chunk in relation to uncached (context pass included)")
        axes.set_ylabel(label)
        axes.grid(alpha=0.3)
    panels[0].axhline(BAR_DB, color="black", linewidth=0.8, linestyle=":")
    panels[0].axvline(BAR_TIME, color="black", linewidth=0.8, linestyle=":")
    panels[0].set_title(
        "wanted at 20 steps: left of and above the dotted lines; equal frames have no dB", fontsize="small"
    )
    kind = "trained weights" if results["weights"] == "trained" else "SEEDED weights: an untrained model"
    figure.suptitle(f"Step cache: {results['walks']} held-out walks of {results['chunks']} chunks, {kind}")
    figure.legend(handles=_key(results["steps"], shapes), loc="outside right upper", fontsize="small")
    figure.savefig(path, dpi=110)
    plt.close(figure)


def _draw_step_count(
    axes: Any, entries: Mapping[str, Any], reference: str, colour: str, shapes: Mapping[float, str]
) -> None:
    for order, style in ((0, "-"), (1, "--")):
        curve = _points(entries, reference, shapes, order)
        axes.plot([point[0] for point in curve], [point[1] for point in curve], style, color=colour, linewidth=1.2)
        for time, db, shape in curve:
            axes.plot(time, db, shape, color=colour, markerfacecolor=colour if order == 0 else "white")
    for name, entry in entries.items():
        db, mode = entry[reference]["all_frames_db"], entry["settings"]["mode"]
        if mode == "dynamic" or db is None:
            continue
        time = entry["time_ratio"]["median"]
        axes.plot(time, db, OFF_SHAPE if mode == "off" else MASK_SHAPE, color=colour, markersize=9)
        if name == mode and mode != "off":
            axes.annotate(name, (time, db), textcoords="offset points", xytext=(6, 4), fontsize="small", color=colour)


def _points(
    entries: Mapping[str, Any], reference: str, shapes: Mapping[float, str], taylorseer_order: int
) -> list[Point]:
    """The curve over thresholds, lowest first; what equals the reference has no dB and no place."""
    chosen = [
        entry
        for entry in entries.values()
        if entry["settings"]["mode"] == "dynamic" and entry["settings"]["taylorseer_order"] == taylorseer_order
    ]
    chosen.sort(key=lambda entry: entry["settings"]["threshold"])
    return [
        (entry["time_ratio"]["median"], entry[reference]["all_frames_db"], shapes[entry["settings"]["threshold"]])
        for entry in chosen
        if entry[reference]["all_frames_db"] is not None
    ]


def _key(step_counts: Mapping[str, Any], shapes: Mapping[float, str]) -> list[Line2D]:
    counts = [
        Line2D([], [], color=colour, linewidth=3, label=f"{count} steps")
        for colour, count in zip(COLOURS, step_counts, strict=False)
    ]
    kinds = [
        Line2D([], [], color="black", linestyle="-", label="last change again"),
        Line2D([], [], color="black", linestyle="--", marker="o", markerfacecolor="white", label="TaylorSeer, order 1"),
        Line2D([], [], color="black", linestyle="", marker=MASK_SHAPE, label="mask (every other step)"),
        Line2D([], [], color="black", linestyle="", marker=OFF_SHAPE, label="uncached"),
    ]
    thresholds = [
        Line2D([], [], color="black", linestyle="", marker=shape, label=f"threshold {threshold:g}")
        for threshold, shape in shapes.items()
    ]
    return counts + kinds + thresholds
