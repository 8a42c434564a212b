"""What perf_analyzer sends: its JSON files of inputs, made from the requests of a scenario.

Knows perf_analyzer's form: one object a request, or a list of them a sequence, and for each input its content and, as
all of ours have an open dimension or take any number, its shape. All pictures are the one that the README shows.
"""

from __future__ import annotations

import base64
import json
import re
import struct
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from analyzer_scenarios import Scenario
from common import ROOT
from ingest_forms import Pixels, file_of, list_of
from PIL import Image, ImageOps

PICTURE = ROOT / "client" / "pictures" / "start.png"
PICTURE_INPUTS = ("pixels", "image")
RGB = "rgb"
FORMS: Mapping[str, Callable[[Pixels], bytes]] = {
    "JPEG": lambda pixels: file_of(pixels, "JPEG"),
    "PNG": lambda pixels: file_of(pixels, "PNG"),
    "base64 JPEG": lambda pixels: base64.b64encode(file_of(pixels, "JPEG")),
    "base64 PNG": lambda pixels: base64.b64encode(file_of(pixels, "PNG")),
    "pixel list": list_of,
}


def write_inputs(scenario: Scenario, path: Path) -> None:
    path.write_text(json.dumps(inputs_of(scenario)), encoding="utf-8")


def inputs_of(scenario: Scenario) -> dict[str, Any]:
    requests = [{name: tensor(name, value) for name, value in request.items()} for request in scenario.requests]
    return {"data": [requests] if scenario.is_sequence else requests}


def tensor(name: str, value: Any) -> Mapping[str, Any]:
    """One input; `value` is a picture's form and size, a list, or a single value."""
    if name in PICTURE_INPUTS:
        return picture_tensor(value)
    values = value if isinstance(value, list) else [value]
    return {"content": values, "shape": [len(values)]}


def picture_tensor(wish: str) -> Mapping[str, Any]:
    """A picture as "FORM HEIGHTxWIDTH" says: UINT8 pixels, or one BYTES element.

    Raises:
        ValueError: if there is no such form.
    """
    form, pixels = picture_of(wish)
    if form == RGB:
        return {"content": {"b64": as_text(pixels.tobytes())}, "shape": [1, *pixels.shape]}
    if form not in FORMS:
        raise ValueError(f"{wish!r}: no form {form!r}; there are: {', '.join((RGB, *FORMS))}")
    element = FORMS[form](pixels)
    # Raw bytes, also of a text: the tensor as it travels, where the element's length comes first.
    return {"content": {"b64": as_text(struct.pack("<I", len(element)) + element)}, "shape": [1]}


def picture_of(wish: str) -> tuple[str, Pixels]:
    """The form's name and the picture at the size that are wished for: "PNG 360x640"."""
    parts = re.fullmatch(r"(.+) (\d+)x(\d+)", wish)
    if parts is None:
        raise ValueError(f"{wish!r}: wanted FORM HEIGHTxWIDTH")
    size = int(parts[3]), int(parts[2])
    with Image.open(PICTURE) as picture:
        return parts[1], np.asarray(ImageOps.fit(picture.convert("RGB"), size))


def as_text(content: bytes) -> str:
    return base64.b64encode(content).decode()
