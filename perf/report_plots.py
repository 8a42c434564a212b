"""The report's pictures, small PNGs with labelled axes. Knows the documents' forms; measures nothing.

A document of another form (an older one) gets no picture.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")

# isort: split
import matplotlib.pyplot as plt
import numpy as np
import step_cache_plot
from report_streams import draw_analyzer, draw_cadence
from report_style import COLOURS, SIZE, WIDE, Results, save


def draw_plots(documents: Mapping[str, Mapping[str, Any]], folder: Path) -> dict[str, str]:
    """Write one PNG a benchmark that has one; their names by benchmark."""
    names = {}
    for bench, draw in PLOTS.items():
        if bench not in documents:
            continue
        try:
            draw(documents[bench]["results"], folder / f"{bench}.png")
            names[bench] = f"{bench}.png"
        except (KeyError, TypeError, AttributeError, IndexError, ValueError, ZeroDivisionError):
            (folder / f"{bench}.png").unlink(missing_ok=True)  # an earlier document's
        finally:
            plt.close("all")
    return names


def _chunk_profile(results: Results, path: Path) -> None:
    figure, (left, right) = plt.subplots(1, 2, figsize=WIDE, layout="constrained")
    _stage_bars(left, results["configurations"])
    _roofline(right, results)
    save(figure, path)


def _stage_bars(axes: Any, configurations: Results) -> None:
    names = list(configurations)
    times = {
        stage: np.array([configurations[name]["stages"].get(stage, {"ms": 0.0})["ms"] for name in names])
        for stage in ("condition", "denoise", "decode", "transfer")
    }
    totals = sum(times.values(), np.zeros(len(names)))
    ends = np.zeros(len(names))
    for (stage, each), colour in zip(times.items(), COLOURS, strict=False):
        axes.barh(names, 100 * each / totals, left=ends, color=colour, label=stage)
        ends += 100 * each / totals
    for name, total in zip(names, totals, strict=True):
        axes.annotate(f"{total:.0f} ms a chunk", (8, name), va="center", color="white", fontsize="small")
    axes.set_xlabel("share of a chunk's time, %")
    axes.legend(fontsize="small", ncols=4, loc="upper center", bbox_to_anchor=(0.5, 1.18), frameon=False)


def _roofline(axes: Any, results: Results) -> None:
    peak, bandwidth = results["ceilings"]["best_gflops"], results["ceilings"]["best_gb_per_s"]
    points = [
        (row["flop_per_byte"], row["gflop_per_s"], name, kind)
        for name, result in results["configurations"].items()
        for kind, row in result["kinds"].items()
        if "mflop" in row
    ]
    reach = np.geomspace(0.5, 2 * max(point[0] for point in points), 100)
    axes.loglog(reach, np.minimum(peak, bandwidth * reach), color="black", linewidth=1.2)
    axes.annotate(f"{peak:.0f} GFLOP/s, {bandwidth:.0f} GB/s", (reach[0], peak), va="bottom", fontsize="small")
    names, kinds = list(results["configurations"]), list(dict.fromkeys(point[3] for point in points))
    for x, y, name, kind in points:
        axes.loglog(x, y, "osD^"[names.index(name) % 4], color=COLOURS[kinds.index(kind)], label=f"{kind}, {name}")
    axes.set_xlabel("operations a byte, FLOP/byte")
    axes.set_ylabel("GFLOP/s")
    axes.grid(alpha=0.3)
    axes.legend(fontsize="x-small")


def _conditioner(results: Results, path: Path) -> None:
    rows = [(place, entry) for place in ("here", "served") for entry in results.get(place, {}).values()]
    labels = [f"{'in process' if place == 'here' else place}\nwindow {e['window_latent_frames']}" for place, e in rows]
    saved = [100 * entry["denoise_saved"]["median"] for _, entry in rows]
    low = [100 * (entry["denoise_saved"]["median"] - entry["denoise_saved"]["p25"]) for _, entry in rows]
    high = [100 * (entry["denoise_saved"]["p75"] - entry["denoise_saved"]["median"]) for _, entry in rows]
    figure, axes = plt.subplots(figsize=SIZE, layout="constrained")
    places = np.arange(len(rows))
    axes.bar(places, saved, 0.55, yerr=[low, high], color=COLOURS[0], capsize=3, label="measured, with quartiles")
    predicted = [100 * entry["predicted_saved"] for _, entry in rows]
    axes.plot(places, predicted, "_", color="black", markersize=28, label="what counting operations predicts")
    axes.set_xticks(places, labels, fontsize="small")
    axes.set_ylabel("denoise time saved, %")
    axes.legend(fontsize="small", loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=2, frameon=False)
    save(figure, path)


def _first_request(results: Results, path: Path) -> None:
    arms = {**results["arms"], **({"served": results["served"]} if "served" in results else {})}
    figure, axes = plt.subplots(figsize=WIDE, layout="constrained")
    values = [row["first_over_twentieth"] for row in arms.values()]
    bars = axes.barh(list(arms), values, color=[COLOURS[0] if value < 1.15 else COLOURS[3] for value in values])
    axes.bar_label(bars, fmt="%.2f", padding=3, fontsize="small")
    axes.axvline(1, color="black", linewidth=0.8, linestyle=":")
    axes.set_xlabel("first request over the twentieth, ratio of times")
    axes.margins(x=0.1)
    axes.invert_yaxis()
    save(figure, path)


def _step_cache(results: Results, path: Path) -> None:
    settings = [entry["settings"] for entries in results["steps"].values() for entry in entries.values()]
    thresholds = sorted({each["threshold"] for each in settings if each["mode"] == "dynamic"})
    step_cache_plot.draw(results, thresholds, path)


def _ingest(results: Results, path: Path) -> None:
    figure, axes = plt.subplots(figsize=WIDE, layout="constrained")
    forms = list(dict.fromkeys(form for entries in results["cost"].values() for form in entries))
    places = np.arange(len(forms))
    width = 0.8 / len(results["cost"])
    for number, (size, entries) in enumerate(results["cost"].items()):
        height, _, columns = size.partition("x")
        times = [entries[form]["ms"] for form in forms]
        bars = axes.bar(places + width * number, times, width, color=COLOURS[number], label=f"{columns}x{height}")
        axes.bar_label(bars, fmt="%.3g", fontsize="x-small")
    axes.set_xticks(places + width * (len(results["cost"]) - 1) / 2, forms, fontsize="x-small")
    axes.set_yscale("log")
    axes.margins(y=0.15)
    axes.set_ylabel("ms a picture in preprocess")
    axes.legend(fontsize="small", title="pixels", title_fontsize="small")
    save(figure, path)


def _transport(results: Results, path: Path) -> None:
    served = results["served"]
    figure, axes = plt.subplots(figsize=SIZE, layout="constrained")
    rates = [entry["frames_per_s"] for entry in served.values()]
    bars = axes.barh(list(served), rates, color=COLOURS[0])
    axes.bar_label(bars, fmt="%.0f", padding=3, fontsize="small")
    _, height, width, _ = results["frames"]
    axes.set_xlabel(f"frames of {width}x{height} a second, end to end")
    axes.margins(x=0.12)
    axes.invert_yaxis()
    save(figure, path)


PLOTS: dict[str, Callable[[Results, Path], None]] = {
    "chunk_profile": _chunk_profile,
    "conditioner": _conditioner,
    "first_request": _first_request,
    "step_cache": _step_cache,
    "ingest": _ingest,
    "transport": _transport,
    "cadence": draw_cadence,
    "analyzer": draw_analyzer,
}
