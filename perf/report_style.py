"""How the report looks: its tables, numbers and colours. Knows no benchmark."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

Results = Mapping[str, Any]
SIZE, WIDE = (6.4, 3.2), (10.0, 3.6)  # inches
DPI = 100
COLOURS = ("#4c78a8", "#f58518", "#54a24b", "#e45756", "#72b7b2", "#b279a2")


@dataclass(frozen=True)
class Table:
    """Cells are text; the first column names the rows, and columns of numbers are flush right."""

    title: str
    header: Sequence[str]
    rows: Sequence[Sequence[str]]

    def __str__(self) -> str:
        columns = list(zip(*self.rows, strict=True))[1:] or [()] * (len(self.header) - 1)
        rule = ["---", *("---:" if _are_numbers(column) else "---" for column in columns)]
        return "\n".join([f"{self.title}\n", *map(_line, (self.header, rule, *self.rows))])


def _are_numbers(cells: Sequence[str]) -> bool:
    return any(cells) and all(cell.lstrip("~-")[:1].isdigit() or not cell for cell in cells)


def _line(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def number(value: float | None, digits: int = 4) -> str:
    """So many significant digits, without an exponent where none is needed."""
    if value is None:
        return ""
    if float(value).is_integer() and abs(value) < 1e9:
        return str(int(value))
    return f"{value:.{digits}g}" if abs(value) < 10**digits else f"{value:.0f}"


def spread(entry: Mapping[str, float], name: str = "median", scale: float = 1.0) -> str:
    """A median with its quartiles."""
    low, high = (entry["p25"], entry["p75"]) if name == "median" else (entry[f"{name}_p25"], entry[f"{name}_p75"])
    return f"{number(scale * entry[name], 3)} ({number(scale * low, 3)} to {number(scale * high, 3)})"


def save(figure: Any, path: Path) -> None:
    """Write a picture."""
    figure.savefig(path, dpi=DPI)
