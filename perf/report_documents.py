"""A folder of benchmark documents, and the way to one value in it.

A value's place is written as in RFC 6901: `conditioner.json#/results/served/window 18/denoise_saved/median`, with ~1
for a slash in a name. Knows no benchmark.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

# What a report reads of every document, by its types.
FORM = {"bench": str, "machine": dict, "commit": str, "results": dict, "wanted": list}
MACHINE_FORM = {"cpu": str, "num_cpus": int, "load_average": list, "system": str, "python": str}
BAR_FORM = {"what": str, "bar": str, "holds": bool, "value": (int, float, type(None))}
OPTIONAL_FORM = {"checks": list, "command": str, "configuration": str, "started": str, "took_s": (int, float)}


class PlaceError(Exception):
    """There is no number at a place; says why."""


def read_documents(folder: Path) -> dict[str, dict[str, Any]]:
    """All documents of a folder by name, without .json.

    Raises:
        PlaceError: if a file is not a document.
    """
    documents = {}
    for path in sorted(folder.glob("*.json")):
        try:
            document = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError, RecursionError) as error:
            raise PlaceError(f"{path.name} cannot be read: {error}") from None
        if not isinstance(document, dict) or not isinstance(document.get("results"), dict):
            raise PlaceError(f"{path.name} is no benchmark's document")
        documents[path.stem] = document
    return documents


def check_form(document: Any, name: str) -> None:
    """Whether a report can be made of it: all but what stands in `results`.

    Raises:
        PlaceError: naming the first place that is missing or of another type.
    """
    if not isinstance(document, dict):
        raise PlaceError(f"{name} is no benchmark's document")
    given = {key: wanted for key, wanted in OPTIONAL_FORM.items() if key in document}
    _check_types(document, {**FORM, **given}, name)
    _check_types(document["machine"], MACHINE_FORM, f"{name}#/machine")
    if not any(map(_is_number, document["machine"]["load_average"][:1])):
        raise PlaceError(f"{name}#/machine/load_average: wanted numbers")
    for list_name in ("wanted", "checks"):
        for index, entry in enumerate(document.get(list_name, [])):
            _check_types(entry, BAR_FORM, f"{name}#/{list_name}/{index}")


def _check_types(entry: Any, form: Mapping[str, Any], place: str) -> None:
    for key, wanted in form.items():
        value = entry.get(key) if isinstance(entry, dict) else None
        is_there = isinstance(entry, dict) and key in entry
        # To Python, true is a number.
        if not is_there or not isinstance(value, wanted) or (isinstance(value, bool) and wanted is not bool):
            raise PlaceError(f"{place}/{key} is missing, or of another type")


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def number_at(documents: Mapping[str, Mapping[str, Any]], place: str) -> float:
    """The number at a place.

    Raises:
        PlaceError: if the document or one of the names is missing, or if there is no finite number.
    """
    file, _, pointer = place.partition("#")
    name = file.removesuffix(".json")
    if name not in documents:
        raise PlaceError(f"there is no {name}.json")
    value: Any = documents[name]
    for part in pointer.split("/")[1:]:
        key = part.replace("~1", "/").replace("~0", "~")
        if isinstance(value, list) and key.isdecimal() and int(key) < len(value):
            value = value[int(key)]
        elif isinstance(value, Mapping) and key in value:
            value = value[key]
        else:
            raise PlaceError(f"{place}: there is no {key!r}")
    if not _is_number(value):
        raise PlaceError(f"{place}: wanted a number, got {type(value).__name__}")
    if not is_finite(value):
        raise PlaceError(f"{place}: wanted a finite number, got {value}")
    return float(value)


def is_finite(value: Any) -> bool:
    """Whether it is a number, and one that arithmetic can go on with: JSON's integers may be of any length."""
    try:
        return _is_number(value) and math.isfinite(value)
    except OverflowError:
        return False
