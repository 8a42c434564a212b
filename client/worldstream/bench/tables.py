"""Shows figures to people. Knows their names; computes nothing."""

from collections.abc import Mapping, Sequence
from typing import Any

from rich.table import Table

from worldstream.bench.figures import Figures
from worldstream.bench.percentiles import METHOD

NOTE = (
    f"Times are p50 / p95 / p99 ({METHOD}); n beside each, and ~ before one that so few samples do not support. "
    "Frames of one response arrive together."
)
_SUMMARIES = (
    ("first frame after start, ms", ("first_frame_ms",)),
    ("chunk period, ms", ("chunk_period_ms",)),
    ("inter-frame as arriving, ms", ("inter_frame_ms",)),
    ("inter-frame as shown, ms", ("viewer", "shown_gap_ms")),
    ("control to frame, ms", ("control_to_frame_ms",)),
    ("the same, requests ahead, ms", ("control_to_frame_ahead_ms",)),
    ("cancel to idle, ms", ("cancel_to_idle_ms",)),
    ("open loop, from intended, ms", ("open_loop", "from_intended_ms")),
    ("open loop, from sent, ms", ("open_loop", "from_sent_ms")),
)


def table_of(arms: Mapping[str, Figures]) -> Table:
    """A row a figure, a column an arm; of summaries p50 / p95 / p99 (n)."""
    table = Table("", *arms)
    for name, path in _SUMMARIES:
        _add(table, name, [_summary(_find(figures, path)) for figures in arms.values()])
    for name, texts in _others(list(arms.values())).items():
        _add(table, name, texts)
    return table


def _add(table: Table, name: str, texts: Sequence[str]) -> None:
    """A row, where any arm has something for it."""
    if any(texts):
        table.add_row(name, *texts)


def _find(figures: Figures, path: Sequence[str]) -> Any:
    found: Any = figures
    for key in path:
        found = None if found is None else found[key]
    return found


def _summary(summary: Mapping[str, Any] | None) -> str:
    if summary is None:
        return ""
    parts = [("~" if name in summary["unsupported"] else "") + f"{summary[name]:.0f}" for name in ("p50", "p95", "p99")]
    return f"{' / '.join(parts)} ({summary['n']})"


def _p99(summary: Mapping[str, Any] | None) -> str:
    if summary is None:
        return ""
    return f"{'~' if 'p99' in summary['unsupported'] else ''}{summary['p99']:.2f} ({summary['n']})"


def _others(arms: Sequence[Figures]) -> dict[str, list[str]]:
    viewer, overhead = arms[0]["viewer"], [each["overhead"] for each in arms]
    at = f"at {viewer['fps']:g} fps, {viewer['buffer_s']:g} s buffer"
    return {
        "frames a second, all sessions": [_spread(each["frames_per_s"], "{:.1f}") for each in arms],
        "chunk period over its median, p99": [_p99(each["period_over_median"]) for each in arms],
        f"frames in time {at}": [f"{each['viewer']['in_time']:.1%} ({each['viewer']['frames']})" for each in arms],
        "underruns: how many, how many a minute": [
            f"{each['viewer']['underruns']}, {each['viewer']['underruns_per_minute']:.1f}" for each in arms
        ],
        "part of the time stalled": [f"{each['viewer']['stalled_share']:.1%}" for each in arms],
        "chunk: total, serving overhead, ms": [
            f"{each['chunk_ms']['p50']:.1f}, {each['ms']['p50']:.1f} ({each['ms']['n']})" for each in overhead
        ],
        "serving overhead, part of the chunk": [_spread(each["share"], "{:.1%}") for each in overhead],
        "clock without computing": [_spread(each["share_by_clock"], "{:.1%}") for each in overhead],
        "open loop: sent, refused": [
            f"{loop['requests']}, {sum(loop['refused'].values())}" if (loop := each["open_loop"]) else ""
            for each in arms
        ],
        "this client's CPU, ms a frame": [f"{each['client']['cpu_ms_per_frame']:.2f}" for each in arms],
    }


def _spread(spread: Mapping[str, float] | None, form: str) -> str:
    if spread is None:
        return ""
    low, middle, high = (form.format(spread[name]) for name in ("p25", "median", "p75"))
    return middle if spread["n"] == 1 else f"{middle} ({low}-{high}; {spread['n']})"
