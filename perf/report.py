#!/usr/bin/env python3
"""The report of a results folder: report.md with tables and pictures, from its documents alone; measures nothing.

With --readme, the figures of a README take their values from the documents too: see report_figures.py.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from report_documents import PlaceError, check_form, read_documents
from report_figures import rewritten
from report_plots import draw_plots
from report_style import Table, number
from report_tables import tables_of

# Of a document's machine, what is no package's version.
FACTS = ("cpu", "num_cpus", "load_average", "system", "python")


def write_report(folder: Path) -> Path:
    """Draw the pictures and write report.md into the folder.

    Raises:
        PlaceError: if there is no such folder, or one of its files is not a document.
    """
    if not folder.is_dir():
        raise PlaceError(f"{folder.name} is no folder of documents")
    documents = read_documents(folder)
    for name, document in documents.items():
        check_form(document, f"{name}.json")
    pictures = draw_plots(documents, folder)
    path = folder / "report.md"
    path.write_text(report_of(documents, pictures), encoding="utf-8")
    return path


def report_of(documents: Mapping[str, Mapping[str, Any]], pictures: Mapping[str, str]) -> str:
    """The report's text.

    Args:
        pictures: file names by benchmark.
    """
    if not documents:
        return "# What was measured\n\nNothing yet.\n"
    parts = [
        "# What was measured",
        "Made by `perf/report.py` from the documents beside it; `perf/README.md` says how to read it.",
        str(machines_table(documents)),
        str(bars_table(documents)),
    ]
    for name, document in documents.items():
        parts.append(f"## {name}")
        parts.append(f"`{document.get('command', f'perf/{name}.py')}`{of_world(document)}")
        if name in pictures:
            parts.append(f"![{name}]({pictures[name]})")
        parts += map(str, tables_of(document))
    return "\n\n".join(parts) + "\n"


def of_world(document: Mapping[str, Any]) -> str:
    return f"; world: {document['configuration']}" if "configuration" in document else ""


def machines_table(documents: Mapping[str, Mapping[str, Any]]) -> Table:
    """What each benchmark ran on."""
    rows = []
    for name, document in documents.items():
        found = document["machine"]
        versions = ", ".join(f"{key} {value}" for key, value in found.items() if key not in FACTS)
        rows.append(
            [
                name,
                f"{found['cpu']}, {found['num_cpus']} cores",
                number(found["load_average"][0], 2),
                f"`{document['commit']}`",
                document.get("started", "")[:10],
                number(document.get("took_s"), 3),
                f"{found['system']}, Python {found['python']}, {versions}",
            ]
        )
    header = ("benchmark", "machine", "load before", "commit", "day", "took, s", "versions")
    return Table("Where, of what, when", header, rows)


def bars_table(documents: Mapping[str, Mapping[str, Any]]) -> Table:
    """What was wanted, and what is looked at besides."""
    rows = [
        [
            name,
            entry["what"] + (f" [{entry['where']}]" if entry.get("where") else ""),
            number(entry["value"]),
            entry["bar"],
            "holds" if entry["holds"] else "**missed**",
        ]
        for name, document in documents.items()
        for entry in [*document["wanted"], *document.get("checks", [])]
    ]
    return Table("Bars", ("benchmark", "what", "measured", "wanted", ""), rows)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path, help="of documents, such as perf/results/MACHINE")
    parser.add_argument("--readme", type=Path, help="a file whose figures are given the folder's values")
    options = parser.parse_args(arguments)
    try:
        print(write_report(options.folder))
        if options.readme is not None:
            text = options.readme.read_text(encoding="utf-8")
            options.readme.write_text(rewritten(text, options.folder), encoding="utf-8")
    except PlaceError as error:
        print(f"report.py: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
