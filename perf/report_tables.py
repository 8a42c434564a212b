"""Each benchmark's results as tables for people. Knows the documents' forms; measures nothing, reads no files.

A document that has no table of its own here, or another form than its table expects (an older one), is shown as it is:
a row a number.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from report_streams import analyzer_tables, cadence_tables
from report_style import Results, Table, number, spread

MOST_PLAIN_ROWS = 60


def tables_of(document: Mapping[str, Any]) -> list[Table]:
    """The tables of one benchmark."""
    make = TABLES.get(document["bench"])
    try:
        if make is not None:
            return make(document["results"])
    except (KeyError, TypeError, AttributeError, IndexError, ValueError, ZeroDivisionError):
        pass  # another form
    return [plain_table(document["results"])]


def plain_table(results: Results) -> Table:
    rows = [(path, number(value)) for path, value in _numbers("", results)]
    left_out = len(rows) - MOST_PLAIN_ROWS
    title = "Every number" if left_out <= 0 else f"The first {MOST_PLAIN_ROWS} numbers; {left_out} more in the document"
    return Table(title, ("what", "value"), rows[:MOST_PLAIN_ROWS])


def _numbers(path: str, value: Any) -> Iterator[tuple[str, float]]:
    if isinstance(value, Mapping):
        for name, each in value.items():
            yield from _numbers(f"{path}: {name}" if path else str(name), each)
    elif isinstance(value, (int, float)) and not isinstance(value, bool):
        yield path, value


# One function a benchmark


def _chunk_profile(results: Results) -> list[Table]:
    ceilings = results["ceilings"]
    rows = [(f"float32 product, {name}", number(value), "GFLOP/s") for name, value in ceilings["matmul_gflops"].items()]
    rows += [(f"memory, {name}", number(value), "GB/s") for name, value in ceilings["memory_gb_per_s"].items()]
    tables = [Table("Ceilings of this machine, best of several rounds", ("what", "best", "unit"), rows)]
    for name, result in results["configurations"].items():
        shape = ", ".join(f"{key.replace('_', ' ')} {value}" for key, value in result["shape"].items())
        where = "served" if result["is_served"] else "in process"
        for what, entries in ((f"by stage, {where}", result["stages"]), ("by kind, in process", result["kinds"])):
            tables.append(Table(f"{name}, {what} ({shape})", PROFILE_HEADER, list(map(_profile_row, entries.items()))))
    return tables


PROFILE_HEADER = (
    *("", "ms (quartiles)", "MFLOP", "MB", "FLOP/byte"),
    *("GFLOP/s", "of matmul ceiling", "GB/s", "of memory ceiling", "floor, ms", "times the floor"),
)


def _profile_row(item: tuple[str, Mapping[str, float]]) -> list[str]:
    name, row = item
    cells = [name, spread(row, "ms")]
    if "mflop" not in row:
        return [*cells, *[""] * (len(PROFILE_HEADER) - 2)]
    return [
        *cells,
        *(number(row[key], 3) for key in ("mflop", "mb", "flop_per_byte", "gflop_per_s")),
        f"{100 * row['of_matmul_ceiling']:.0f} %",
        number(row["gb_per_s"], 3),
        f"{100 * row['of_memory_ceiling']:.0f} %",
        *(number(row[key], 3) for key in ("floor_ms", "over_floor")),
    ]


def _conditioner(results: Results) -> list[Table]:
    rows = [
        [
            f"{place}, {name}",
            spread(entry["arms"]["on"], "denoise_ms"),
            spread(entry["arms"]["off"], "denoise_ms"),
            spread(entry["denoise_saved"], scale=100),
            number(100 * entry["predicted_saved"], 3),
            number(entry["chunk_time_ratio"], 3),
            "equal" if not entry["rounds_with_other_bytes"] else "OTHER",
        ]
        for place in ("here", "served")
        for name, entry in results.get(place, {}).items()
    ]
    header = ("", "reused, ms", "each pass, ms", "saved, %", "predicted, %", "whole chunk, ratio", "bytes")
    return [Table(f"Condition and denoise of a chunk, {results['configuration']}", header, rows)]


def _first_request(results: Results) -> list[Table]:
    arms = {**results["arms"], **({"served": results["served"]} if "served" in results else {})}
    rows = [
        [
            name,
            number(row["ready_s"], 3),
            number(row["first_over_twentieth"], 3),
            number(row["first_over_twentieth_cpu"], 3),
            number(row["most_graphs_of_first"]),
            number(len(row["starts"])),
        ]
        for name, row in arms.items()
    ]
    header = ("order", "ready, s", "first over twentieth", "by CPU time", "new graphs in the first", "starts")
    return [Table("The first real request after a start", header, rows)]


def _step_cache(results: Results) -> list[Table]:
    groups = {f"{count} steps": entries for count, entries in results["steps"].items()}
    if "served" in results:
        groups["served, 20 steps"] = results["served"]
    rows = [
        [
            f"{group}: {name}",
            spread(entry["time_ratio"]),
            f"{100 * (1 - entry['time_ratio']['median']):.1f}",
            number(entry["to_uncached"]["all_frames_db"], 3) or "equal frames",
            f"{100 * entry['skipped_share']:.0f}",
        ]
        for group, entries in groups.items()
        for name, entry in entries.items()
        if name not in ("off", "1111")
    ]
    header = ("setting", "denoise time, ratio", "saved, %", "to uncached, dB", "blocks skipped, %")
    return [Table(f"Step cache against none, {results['weights']} weights", header, rows)]


def _ingest(results: Results) -> list[Table]:
    faster = [
        [kind if name == "alone" else name, against, spread(times), number(entry["arms"]["ours"]["ms"], 3)]
        for kind, entries in (("pixel list, ", results["lists"]), ("", results["files"]))
        for name, entry in ((f"{kind}{name}", each) for name, each in entries.items())
        for against, times in entry["times_faster"].items()
    ]
    cost = [
        [f"{name}, {size}", number(entry["bytes"] / 1e6, 3), spread(entry, "ms"), number(entry["cpu_ms"], 3)]
        for size, entries in results["cost"].items()
        for name, entry in entries.items()
    ]
    served = [
        [
            f"{name}, {transport}",
            *(number(entry["arms"][arm]["ms"], 3) for arm in arms),
            spread(entry["served_over_sum"]),
        ]
        for transport, entries in results.get("served", {}).items()
        for name, entry in entries.items()
        for arms in [("in process", "null", "served")]
    ]
    return [
        Table("Against other ways", ("form", "against", "times faster", "ours, ms"), faster),
        Table("What a picture costs", ("form", "MB", "ms", "CPU, ms"), cost),
        Table("Served", ("form", "in process, ms", "null model, ms", "served, ms", "served over their sum"), served),
    ]


def _transport(results: Results) -> list[Table]:
    rows = [
        [
            name,
            number(made["ms"], 3),
            number(made["bytes"] / 1e6, 3),
            number(came["messages_per_chunk"]),
            f"{number(came['frames_per_s'], 3)} "
            f"({number(came['frames_per_s_p25'], 3)} to {number(came['frames_per_s_p75'], 3)})",
            number(came["pixel_mb_per_s"], 3),
            number(came["server_cpu_ms_per_chunk"], 3),
            number(came["client_cpu_ms_per_chunk"], 3),
        ]
        for name, made in results["build"].items()
        for came in [results["served"][name]]
    ]
    header = ("", "build, ms", "MB", "messages", "frames/s", "pixels, MB/s", "server CPU, ms", "client CPU, ms")
    num_frames, height, width, _ = results["frames"]
    return [Table(f"A chunk of {num_frames} frames of {width}x{height}", header, rows)]


def _snapshot(results: Results) -> list[Table]:
    rows = [
        [name, spread(entry, "ms"), number(entry["cpu_ms"], 3)]
        for entries in (results["steps"], results["streams"])
        for name, entry in entries.items()
    ]
    rows.append(["beside over alone, ratio", spread(results["beside_over_alone"]), ""])
    return [Table(f"A file of {results['file_bytes'] / 1e6:.1f} MB", ("step", "ms", "CPU, ms"), rows)]


TABLES: dict[str, Callable[[Results], list[Table]]] = {
    "chunk_profile": _chunk_profile,
    "conditioner": _conditioner,
    "first_request": _first_request,
    "step_cache": _step_cache,
    "ingest": _ingest,
    "transport": _transport,
    "snapshot": _snapshot,
    "cadence": cadence_tables,
    "analyzer": analyzer_tables,
}
