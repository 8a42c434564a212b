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
        except (OSError, ValueError) as error:
            raise PlaceError(f"{path.name} cannot be read: {error}") from None
        if not isinstance(document, dict) or not isinstance(document.get("results"), dict):
            raise PlaceError(f"{path.name} is no benchmark's document")
        documents[path.stem] = document
    return documents


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
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise PlaceError(f"{place}: wanted a number, got {type(value).__name__}")
    if not math.isfinite(value):
        raise PlaceError(f"{place}: wanted a finite number, got {value}")
    return float(value)
