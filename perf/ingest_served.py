"""`preprocess` on the real server, beside a null model and the same work in this process.

The null model takes and returns the same tensors and reads no picture: it is what the way through the server costs.
"""

from __future__ import annotations

import base64
import contextlib
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from common import ROOT, Arm, Timing, interleave, quartiles
from denoise_served import Served, running_server
from ingest_forms import CAMERA, NUM_CAMERAS, cameras_of, check_equal, file_of, list_of, natural_picture, ours

NULL_CONFIG = """
name: "null"
backend: "python"
max_batch_size: 0
input [
  { name: "image" data_type: TYPE_STRING dims: [ -1 ] },
  { name: "shape" data_type: TYPE_INT32 dims: [ 3 ] }
]
output [
  { name: "pixels" data_type: TYPE_UINT8 dims: [ -1, -1, -1, 3 ] },
  { name: "image_digest" data_type: TYPE_STRING dims: [ -1 ] },
  { name: "camera_name" data_type: TYPE_STRING dims: [ -1 ] }
]
instance_group [ { count: 2 kind: KIND_CPU } ]
"""
NULL_MODEL = """
import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def initialize(self, args):
        self.outputs = {}

    def execute(self, requests):
        return [self.answer(request) for request in requests]

    def answer(self, request):
        pb_utils.get_input_tensor_by_name(request, "image").as_numpy()
        shape = tuple(pb_utils.get_input_tensor_by_name(request, "shape").as_numpy().tolist())
        if shape not in self.outputs:
            count = shape[0]
            self.outputs[shape] = (
                np.full((*shape, 3), 7, np.uint8),
                np.array([b"0" * 32] * count, np.object_),
                np.array([b"camera"] * count, np.object_),
            )
        names = ("pixels", "image_digest", "camera_name")
        tensors = [pb_utils.Tensor(*pair) for pair in zip(names, self.outputs[shape])]
        return pb_utils.InferenceResponse(output_tensors=tensors)
"""


@dataclass(frozen=True)
class Sent:
    """One request's elements and the shape of the pixels that come back."""

    elements: list[bytes]
    shape: tuple[int, int, int]


def requests_to_serve() -> dict[str, Sent]:
    pictures = [natural_picture(*CAMERA, seed) for seed in range(NUM_CAMERAS)]
    one, three = (1, *CAMERA), (NUM_CAMERAS, *CAMERA)
    png_texts, jpeg_texts = ([base64.b64encode(file_of(p, kind)) for p in pictures] for kind in ("PNG", "JPEG"))
    return {
        "pixel list, 1 camera": Sent([list_of(pictures[0])], one),
        f"pixel list, {NUM_CAMERAS} cameras": Sent([cameras_of(pictures)], three),
        "base64 PNG, 1 camera": Sent(png_texts[:1], one),
        f"base64 PNG, {NUM_CAMERAS} cameras": Sent(png_texts, three),
        "base64 JPEG, 1 camera": Sent(jpeg_texts[:1], one),
        f"base64 JPEG, {NUM_CAMERAS} cameras": Sent(jpeg_texts, three),
    }


@contextlib.contextmanager
def running_preprocess() -> Iterator[Served]:
    """`preprocess` and the null model on a server of their own."""
    with tempfile.TemporaryDirectory(prefix="worldstream-perf-") as folder:
        repository = Path(folder, "models")
        ignored = shutil.ignore_patterns("__pycache__", ".*_cache")
        shutil.copytree(ROOT / "model_repository" / "preprocess", repository / "preprocess", ignore=ignored)
        (repository / "null" / "1").mkdir(parents=True)
        (repository / "null" / "config.pbtxt").write_text(NULL_CONFIG, encoding="utf-8")
        (repository / "null" / "1" / "model.py").write_text(NULL_MODEL, encoding="utf-8")
        with running_server(repository, {}) as served:
            yield served


def infer(client_kind: Any, client: Any, model: str, sent: Sent) -> Any:
    inputs = [client_kind.InferInput("image", [len(sent.elements)], "BYTES")]
    inputs[0].set_data_from_numpy(np.array(sent.elements, np.object_))
    if model == "null":
        inputs.append(client_kind.InferInput("shape", [3], "INT32"))
        inputs[1].set_data_from_numpy(np.array(sent.shape, np.int32))
    return client.infer(model, inputs).as_numpy("pixels")


def compare_served(num_rounds: int) -> dict[str, Any]:
    import tritonclient.grpc as grpcclient
    import tritonclient.http as httpclient

    results: dict[str, Any] = {}
    with running_preprocess() as server:
        for transport, kind, address in (("grpc", grpcclient, server.grpc), ("http", httpclient, server.http)):
            with kind.InferenceServerClient(address) as client:
                print(f"\nserved over {transport}")
                results[transport] = {
                    name: compare_one_served(name, kind, client, sent, num_rounds)
                    for name, sent in requests_to_serve().items()
                }
    return results


def compare_one_served(name: str, kind: Any, client: Any, sent: Sent, num_rounds: int) -> dict[str, Any]:
    check_equal(infer(kind, client, "preprocess", sent), ours(*sent.elements))
    timings = interleave(
        {
            "in process": Arm(lambda: ours(*sent.elements), loops=2),
            "null": Arm(lambda: infer(kind, client, "null", sent), loops=2),
            "served": Arm(lambda: infer(kind, client, "preprocess", sent), loops=2),
        },
        num_rounds,
    )
    low, median, high = quartiles(overheads(timings))
    print(
        f"  {name:24s} served {timings['served'].summary()['ms']:7.2f} ms = {median:.2f} ({low:.2f}-{high:.2f}) times "
        f"in process {timings['in process'].summary()['ms']:.2f} + null {timings['null'].summary()['ms']:.2f}"
    )
    return {
        "arms": {arm: timing.summary() for arm, timing in timings.items()},
        "served_over_sum": {"median": round(median, 3), "p25": round(low, 3), "p75": round(high, 3)},
    }


def overheads(timings: Mapping[str, Timing]) -> list[float]:
    rounds = zip(timings["served"].wall_ms, timings["in process"].wall_ms, timings["null"].wall_ms, strict=True)
    return [served / (in_process + null) for served, in_process, null in rounds]
