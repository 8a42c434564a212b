"""Measured figures in a text, each held to the result file that it comes from.

A passage with figures names the folder of results, and each figure in it is followed by its place there:

    <!-- figures: perf/results/MACHINE -->
    reuse saves 11 %<!-- conditioner.json#/results/served/window 18/denoise_saved/median as percent -->
    <!-- end of figures -->

`as percent` is 100 times the value, `as percent less` 100 times what it is short of 1, `as millions` a millionth of it.
A figure is right if the value, rounded to as many decimals, is what is written. Settings stand in `code`, where no
figure is looked for. Knows no benchmark.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from report_documents import PlaceError, number_at, read_documents

PASSAGE = re.compile(r"<!-- figures: (?P<folder>\S+) -->(?P<text>.*?)<!-- end of figures -->", re.DOTALL)
FIGURE = re.compile(
    r"(?P<number>\d+(?:\.\d+)?)(?P<unit>(?: ?[^\s\d<|(),;]+){0,2})"
    r"<!-- (?P<place>\w+\.json#/[^<>]+?)(?P<scale> as percent less| as percent| as millions)? -->"
)
PICTURE = re.compile(r"\]\(perf/results/[^/)]+/")
COMMENT = re.compile(r"<!--.*?-->", re.DOTALL)
CODE = re.compile(r"^ *```.*?^ *```|`[^`\n]+`", re.DOTALL | re.MULTILINE)
# What is measured here, and with which unit.
UNITS = r"%|dB|ms|MB/s|GB/s|GFLOP/s|frames/s|frames a second|times\b(?= (?:as|faster|slower|the))"
MEASURED = re.compile(rf"\d+(?:\.\d+)? ?(?:{UNITS})")
# In a passage also seconds, bytes and ratios.
MEASURED_IN_PASSAGE = re.compile(rf"\d+(?:\.\d+)? ?(?:{UNITS}|s\b|MB\b|MiB\b|times\b|x\b)|(?<![\w.])\d+\.\d+(?![\w.])")


@dataclass(frozen=True)
class Figure:
    """One figure: as it is written, and where its value is."""

    written: str
    place: str
    scale: str

    def value(self, documents: Mapping[str, Mapping[str, Any]]) -> float:
        value = number_at(documents, self.place)
        return {
            "": value,
            " as percent": 100 * value,
            " as percent less": 100 * (1 - value),
            " as millions": value / 1e6,
        }[self.scale]

    @property
    def decimals(self) -> int:
        return len(self.written.partition(".")[2])

    def is_right(self, documents: Mapping[str, Mapping[str, Any]]) -> bool:
        return abs(self.value(documents) - float(self.written)) <= 0.5 * 10**-self.decimals + 1e-9


def passages(text: str) -> Iterator[tuple[str, str]]:
    """The folder that each passage names, and its text."""
    for match in PASSAGE.finditer(text):
        yield match["folder"], match["text"]


def figures(passage: str) -> list[Figure]:
    return [_figure(match) for match in FIGURE.finditer(passage)]


def _figure(match: re.Match[str]) -> Figure:
    return Figure(match["number"], match["place"], match["scale"] or "")


def unplaced(text: str) -> list[str]:
    """What looks like a measured figure and says no place, inside passages and outside."""
    found = [
        match[0]
        for _, passage in passages(text)
        for match in MEASURED_IN_PASSAGE.finditer(_without_marks(FIGURE.sub("", passage)))
    ]
    return found + [match[0] for match in MEASURED.finditer(_without_marks(PASSAGE.sub("", text)))]


def _without_marks(text: str) -> str:
    return CODE.sub("", COMMENT.sub("", text))


def rewritten(text: str, folder: Path) -> str:
    """The text with every figure as the folder's documents have it, to as many decimals as it had.

    Args:
        folder: of documents; the passages and their pictures are made to name it, as perf/results/MACHINE.

    Raises:
        PlaceError: if a figure's place is not there.
    """
    documents = read_documents(folder)

    def figure(match: re.Match[str]) -> str:
        each = _figure(match)
        shown = f"{each.value(documents):.{each.decimals}f}"
        return shown + match[0][len(match["number"]) :]

    def passage(match: re.Match[str]) -> str:
        named = f"perf/results/{folder.resolve().name}"
        pictured = PICTURE.sub(f"]({named}/", FIGURE.sub(figure, match["text"]))
        return f"<!-- figures: {named} -->{pictured}<!-- end of figures -->"

    return PASSAGE.sub(passage, text)


def wrong(text: str, root: Path) -> list[str]:
    """What is not right about a text's figures, a line each; empty if all is well.

    Args:
        root: what the passages' folders are relative to.
    """
    found = [f"{figure}: says no place" for figure in unplaced(text)]
    for folder, passage in passages(text):
        documents = read_documents(root / folder)
        for figure in figures(passage):
            try:
                if not figure.is_right(documents):
                    found.append(f"{figure.written}: {figure.place} is {figure.value(documents):g}")
                name = figure.place.partition(".")[0]
                if not documents[name].get("command"):
                    found.append(f"{figure.written}: {name}.json names no command")
            except PlaceError as error:
                found.append(f"{figure.written}: {error}")
    return found
