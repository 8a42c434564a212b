"""How fast pictures come in: `preprocess` against what one would write with json, base64, Pillow and NumPy.

In this process first, all checks on, then through the real server beside a null model, which takes and returns the same
tensors without reading them: what is served may cost little more than both together. Prints tables; the last line is
one JSON document. Knows the package `ingest` to its private functions, to say where the time goes.
"""

from __future__ import annotations

import argparse
import base64
import gc
import io
import json
from collections.abc import Callable, Mapping
from functools import partial
from itertools import chain
from typing import Any

import numpy as np
import simplejpeg
from common import Arm, Bar, Wanted, interleave, machine, print_document, print_wanted, ratio
from ingest_forms import (
    CAMERA,
    LIMITS,
    NUM_CAMERAS,
    Pixels,
    cameras_of,
    check_equal,
    file_of,
    forms_of,
    list_of,
    natural_picture,
    ours,
)
from ingest_served import compare_served
from PIL import Image

# isort: split
# The package, not the script: `ingest_forms` has put it first on the path.
from ingest import jpeg, png, read_images, uniform_lists
from ingest.base64text import decode_base64
from ingest.digest import image_digest

PACKAGES = ("isal", "numpy", "pillow", "pybase64", "pysimdjson", "simplejpeg")
SIZES = (CAMERA, (720, 1280))
LISTS = Bar("pixel lists at least 8x faster than (a) with all checks on", ">=", 8)  # (a): json + chain
FILES = Bar("base64 PNG at least 1.25x faster than stdlib + Pillow", ">=", 1.25)
BASE64 = Bar("base64 decoding itself at least 10x", ">=", 10)
SERVED = Bar(
    "served time at most 1.3x the sum of in-process time and a null model that takes and returns the same tensors "
    "in the same run",
    "<=",
    1.3,
)
WANTED = (LISTS, FILES, BASE64, SERVED)

# Both sides of the comparisons


def ours_without_digest(*elements: bytes) -> Pixels:
    """What a request gets that does not ask for `image_digest`, as the ensemble's."""
    return read_images(elements, None, LIMITS).pixels


def without_gc(way: Callable[[bytes], object], text: bytes) -> object:
    """As nobody runs a server: the garbage collector does not visit the lists that json makes."""
    gc.disable()
    try:
        return way(text)
    finally:
        gc.enable()


def chained(text: bytes) -> list[Pixels]:
    """The published way with pixel lists: one picture, or an object of cameras."""
    return [chained_picture(picture) for picture in pictures_in(text)]


def chained_picture(picture: list[list[list[int]]]) -> Pixels:
    flat = bytes(chain.from_iterable(chain.from_iterable(picture)))
    return np.frombuffer(flat, np.uint8).reshape(len(picture), len(picture[0]), 3)


def as_arrays(text: bytes) -> list[Pixels]:
    """The short way with pixel lists."""
    return [np.asarray(picture, np.uint8) for picture in pictures_in(text)]


def pictures_in(text: bytes) -> list[Any]:
    content = json.loads(text)
    return list(content.values()) if isinstance(content, dict) else [content]


def by_pillow(*texts: bytes) -> list[Pixels]:
    """The usual way with base64 of a picture file."""
    return [np.asarray(Image.open(io.BytesIO(base64.b64decode(text))).convert("RGB")) for text in texts]


# In this process


def compare_lists(num_rounds: int) -> dict[str, Any]:
    pictures = [natural_picture(*CAMERA, seed) for seed in range(NUM_CAMERAS)]
    texts = {
        "1 camera": list_of(pictures[0]),
        "1 camera, json.dumps": json.dumps(pictures[0].tolist()).encode(),
        f"{NUM_CAMERAS} cameras": cameras_of(pictures),
    }
    results = {}
    for name, text in texts.items():
        check_equal(ours(text), chained(text))
        arms = {
            "ours": Arm(partial(ours, text)),
            "json + chain": Arm(partial(chained, text)),
            "json + asarray": Arm(partial(as_arrays, text)),
            "same, no GC": Arm(partial(without_gc, chained, text)),
        }
        results[name] = compare(f"pixel list, {name}", len(text), arms, num_rounds)
    return results


def compare_files(num_rounds: int) -> dict[str, Any]:
    pictures = [natural_picture(*CAMERA, seed) for seed in range(NUM_CAMERAS)]
    results = {}
    for kind in ("PNG", "JPEG"):
        texts = [base64.b64encode(file_of(pixels, kind)) for pixels in pictures]
        for count in (1, NUM_CAMERAS):
            sent = texts[:count]
            check_equal(ours(*sent), by_pillow(*sent))
            arms = {
                "ours": Arm(partial(ours, *sent), loops=3),
                "base64 + Pillow": Arm(partial(by_pillow, *sent), loops=3),
                "ours, no digest": Arm(partial(ours_without_digest, *sent), loops=3),
            }
            name = f"base64 {kind}, {count} camera{'s' * (count > 1)}"
            results[name] = compare(name, sum(map(len, sent)), arms, num_rounds)
    text = base64.b64encode(file_of(pictures[0], "PNG"))
    arms = {
        "ours": Arm(lambda: decode_base64(text, "image[0]"), loops=50),
        "base64": Arm(lambda: base64.b64decode(text), loops=5),
    }
    results["base64 alone"] = compare("base64 alone, of a PNG", len(text), arms, num_rounds)
    return results


def compare(title: str, num_bytes: int, arms: dict[str, Arm], num_rounds: int) -> dict[str, Any]:
    timings = interleave(arms, num_rounds)
    print(f"\n{title}, {num_bytes / 1e6:.2f} MB")
    result: dict[str, Any] = {"bytes": num_bytes, "arms": {}, "times_faster": {}}
    for name, timing in timings.items():
        result["arms"][name] = timing.summary()
        line = f"  {name:16s} {timing}"
        if not name.startswith("ours"):
            faster = result["times_faster"][name] = ratio(timing, timings["ours"])
            line += f"   ours is {faster['median']:.2f} times faster ({faster['p25']:.2f}-{faster['p75']:.2f})"
        print(line)
    return result


def list_stages() -> dict[str, Arm]:
    """What reading one camera's pixel list is made of; private functions on their own."""
    pixels = natural_picture(*CAMERA, 0)
    text = list_of(pixels)
    layout = uniform_lists._read_layout(text)
    assert layout is not None
    gap_bytes = uniform_lists._gap_bytes(layout)
    stored = np.frombuffer(text, np.uint8)[layout.start - 2 : layout.end + 1]
    digits = stored - np.uint8(48) < 10
    last = np.flatnonzero(digits[2:-1] > digits[3:])
    num_digits = int(np.count_nonzero(digits))
    # In one piece each; the real thing works through blocks that fit the cache, and so is faster than the sum.
    return {
        "a plain pass over the bytes": Arm(lambda: np.frombuffer(text, np.uint8).max(), loops=5),
        "a copy of the bytes": Arm(lambda: bytearray(text), loops=5),
        "all of it": Arm(lambda: ours(text)),
        "list to array": Arm(lambda: uniform_lists.read_uniform_list(text, LIMITS.max_pixels_per_picture)),
        "  of it checks between numbers": Arm(
            lambda: uniform_lists._has_gaps(stored[3:], last, num_digits, layout, gap_bytes)
        ),
        "  of it the search for numbers": Arm(lambda: np.flatnonzero(digits[2:-1] > digits[3:])),
        "digest": Arm(lambda: image_digest(pixels)),
    }


def file_stages(kind: str) -> dict[str, Arm]:
    """What reading a camera's base64 PNG or JPEG is made of."""
    pixels = natural_picture(*CAMERA, 0)
    data = file_of(pixels, kind)
    text = base64.b64encode(data)
    stages = {
        "a plain pass over the pixels": Arm(lambda: pixels.max(), loops=5),
        "all of it": Arm(lambda: ours(text)),
        "base64": Arm(lambda: decode_base64(text, ""), loops=20),
        "digest": Arm(lambda: image_digest(pixels)),
    }
    if kind == "JPEG":
        file = jpeg._read_segments(data, "", LIMITS)
        stages["segments, size"] = Arm(lambda: jpeg._read_segments(data, "", LIMITS), loops=5)
        stages["libjpeg-turbo"] = Arm(lambda: simplejpeg.decode_jpeg(file.pixel_data, "RGB"))
        return stages
    header = png._read_header(data, "")
    lines = png._read_chunks(data, header, "")[1]
    stages["chunks, checksums"] = Arm(lambda: sum(len(body) for _, body in png._chunks(data, "")), loops=5)
    stages["chunks and inflation"] = Arm(lambda: png._read_chunks(data, header, ""))
    stages["line filters"] = Arm(lambda: png._unpack(header, lines, ""))
    return stages


def show_stages(num_rounds: int) -> dict[str, Any]:
    results = {}
    for name, arms in (
        ("pixel list", list_stages()),
        ("base64 PNG", file_stages("PNG")),
        ("base64 JPEG", file_stages("JPEG")),
    ):
        timings = interleave(arms, num_rounds)
        plain = next(iter(timings.values()))
        print(f"\nwhat a {name} is made of, 1 camera")
        for stage, timing in timings.items():
            print(f"  {stage:32s} {timing}   {ratio(timing, plain)['median']:6.1f} plain passes")
        results[name] = {stage.strip(): timing.summary() for stage, timing in timings.items()}
    return results


def show_costs(num_rounds: int) -> dict[str, Any]:
    """One picture in each form and size."""
    results: dict[str, Any] = {}
    for size in SIZES:
        forms = forms_of(natural_picture(*size, 0))
        timings = interleave({name: Arm(partial(ours, sent)) for name, sent in forms.items()}, num_rounds)
        print(f"\ncost of one picture of {size[0]}x{size[1]}")
        for name, timing in timings.items():
            print(f"  {name:24s} {len(forms[name]) / 1e6:7.2f} MB {timing}")
        results[f"{size[0]}x{size[1]}"] = {
            name: {"bytes": len(forms[name]), **timing.summary()} for name, timing in timings.items()
        }
    return results


# What is wanted


def judge(results: Mapping[str, Any]) -> list[Wanted]:
    lists, files = results["lists"], results["files"]
    wanted = [
        LISTS.held_against(entry["times_faster"]["json + chain"]["median"], name) for name, entry in lists.items()
    ]
    wanted += [
        FILES.held_against(entry["times_faster"]["base64 + Pillow"]["median"], name)
        for name, entry in files.items()
        if name.startswith("base64 PNG")
    ]
    wanted.append(BASE64.held_against(files["base64 alone"]["times_faster"]["base64"]["median"]))
    for transport, forms in results.get("served", {}).items():
        worst = max(forms, key=lambda name: forms[name]["served_over_sum"]["median"])
        over_sum = forms[worst]["served_over_sum"]["median"]
        wanted.append(SERVED.held_against(over_sum, f"over {transport}, worst form: {worst}"))
    return wanted


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=15, help="of each comparison (default 15)")
    parser.add_argument("--no-server", action="store_true", help="only in this process")
    options = parser.parse_args()
    measured_on = machine(PACKAGES)  # before we are its load
    results: dict[str, Any] = {
        "lists": compare_lists(options.rounds),
        "files": compare_files(options.rounds),
        "stages": show_stages(options.rounds),
        "cost": show_costs(options.rounds),
    }
    if not options.no_server:
        results["served"] = compare_served(options.rounds)
    wanted = judge(results)
    print_wanted(wanted)
    print_document("ingest", measured_on, results, wanted)
    return 0
