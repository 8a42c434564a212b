"""Triton's gRPC stream by the raw stub: every message as it came, final flags and errors included.

tritonclient hides what is tested here: of an error it passes on neither the final flag nor the request. Knows the
protocol, the names and types of the tensor contract and the metrics page; knows nothing of how frames are made.
"""

import io
import queue
import re
import struct
import time
import urllib.request
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any

import grpc
import numpy as np
from numpy.typing import NDArray
from PIL import Image
from tritonclient.grpc import service_pb2, service_pb2_grpc

Array = NDArray[Any]

TIMEOUT_S = 120.0  # long: other programs may have this machine's cores
DATATYPES = {"uint8": "UINT8", "int32": "INT32", "int64": "INT64", "float32": "FP32", "object": "BYTES"}
LABEL = re.compile(r'(\w+)="([^"]*)"')
DTYPES = {datatype: np.dtype(name) for name, datatype in DATATYPES.items()}
INPUTS = {
    "pixels": "uint8",
    "snapshot": "uint8",
    "image": "object",
    "size": "int32",
    "cam_to_world": "float32",
    "intrinsics": "float32",
    "translation_scale": "float32",
    "actions": "object",
    "prompt": "object",
    "prompt_embeds": "float32",
    "num_chunks": "int32",
    "num_steps": "int32",
    "seed": "int64",
    "event_id": "int64",
}


@dataclass(frozen=True)
class Response:
    """One message of a stream: an error or tensors, and whether it is its request's last one."""

    error: str
    is_final: bool
    tensors: Mapping[str, Array]

    def __getitem__(self, name: str) -> Array:
        return self.tensors[name]


def make_request(model: str, inputs: Mapping[str, Any], **parameters: bool | int | float | str) -> Any:
    """A request message.

    Args:
        model: its name.
        inputs: by name, anything that NumPy makes an array of; a single value becomes [1], text becomes UTF-8 bytes.
        parameters: Triton's own (sequence_id, sequence_start, sequence_end) and the model's.
    """
    request = service_pb2.ModelInferRequest(model_name=model)
    for name, value in inputs.items():
        array = np.atleast_1d(np.array(value, INPUTS[name]))
        request.inputs.add(name=name, datatype=DATATYPES[INPUTS[name]], shape=array.shape)
        request.raw_input_contents.append(_content(array))
    for name, value in parameters.items():
        field = {bool: "bool_param", int: "int64_param", float: "double_param", str: "string_param"}[type(value)]
        setattr(request.parameters[name], field, value)
    return request


def _content(array: Array) -> bytes:
    if array.dtype != np.object_:
        return array.tobytes()
    elements = [value.encode() if isinstance(value, str) else value for value in array]
    return b"".join(struct.pack("<I", len(element)) + element for element in elements)


def _response(message: Any) -> Response:
    answer = message.infer_response
    contents = zip(answer.outputs, answer.raw_output_contents, strict=True)
    tensors = {each.name: _array(each, content) for each, content in contents}
    return Response(message.error_message, answer.parameters["triton_final_response"].bool_param, tensors)


def _array(output: Any, content: bytes) -> Array:
    if output.datatype != "BYTES":
        return np.frombuffer(content, DTYPES[output.datatype]).reshape(output.shape)
    elements = []
    while content:
        (length,) = struct.unpack_from("<I", content)
        elements.append(content[4 : 4 + length])
        content = content[4 + length :]
    return np.array(elements, np.object_).reshape(output.shape)


class Stream:
    """One open stream; a context manager. Leaving it cancels what still runs."""

    def __init__(self, address: str) -> None:
        self._channel = grpc.insecure_channel(address, [("grpc.max_receive_message_length", -1)])
        self._outgoing: queue.SimpleQueue[Any] = queue.SimpleQueue()
        stub = service_pb2_grpc.GRPCInferenceServiceStub(self._channel)
        self._call = stub.ModelStreamInfer(iter(self._outgoing.get, None), timeout=TIMEOUT_S)

    def send(self, *requests: Any) -> None:
        """Send requests; their responses come in the order in which the server makes them."""
        for request in requests:
            self._outgoing.put(request)

    def receive(self) -> Response:
        """The next response, of whichever request."""
        return _response(next(self._call))

    def receive_all(self) -> list[Response]:
        """Say that no request follows; every response until the server ends the stream."""
        self._outgoing.put(None)
        return [_response(message) for message in self._call]

    def cancel(self) -> None:
        """Cancel all requests of this stream; it gives no further response."""
        self._call.cancel()

    def __enter__(self) -> "Stream":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self._outgoing.put(None)
        self._call.cancel()
        self._channel.close()


def ask(address: str, *requests: Any) -> list[Response]:
    """Every response to requests on a stream of their own, which the server ends when it has answered the last one."""
    with Stream(address) as stream:
        stream.send(*requests)
        return stream.receive_all()


def picture(height_px: int = 96, width_px: int = 160) -> Array:
    """A picture without symmetry, [1, H, W, 3] uint8."""
    rows, columns = np.mgrid[0:height_px, 0:width_px]
    channels = [255 * rows // height_px, 255 * columns // width_px, (3 * rows + columns) % 256]
    return np.stack(channels, axis=-1).astype(np.uint8)[None]


def png(pixels: Array) -> bytes:
    """[1, H, W, 3] uint8 as a PNG, which loses nothing."""
    buffer = io.BytesIO()
    Image.fromarray(pixels[0]).save(buffer, "PNG")
    return buffer.getvalue()


def walk(num_poses: int) -> Array:
    """Poses that go straight ahead, [num_poses, 4, 4] float32."""
    poses = np.tile(np.eye(4, dtype=np.float32), (num_poses, 1, 1))
    poses[:, 2, 3] = 0.25 * np.arange(num_poses)
    return poses


def join(responses: Sequence[Response], name: str = "frames") -> Array:
    """One output of all responses of a request, joined; they must be without error, and the last one alone final."""
    assert [response.error for response in responses] == [""] * len(responses)
    assert [response.is_final for response in responses] == [False] * (len(responses) - 1) + [True]
    return np.concatenate([response[name] for response in responses])


def mean_difference(one: Array, other: Array) -> float:
    """Mean absolute difference of two uint8 arrays of one shape, in gray values."""
    assert one.shape == other.shape
    return float(np.abs(one.astype(np.int16) - other.astype(np.int16)).mean())


def read_metrics(address: str) -> dict[str, int]:
    """The counts and gauges of `denoise` on the metrics page, by name without worldstream_ before it."""
    return dict(_sample(line) for line in _page_lines(address) if "_seconds" not in line)


def _sample(line: str) -> tuple[str, int]:
    labelled, _, value = line.rpartition(" ")
    return labelled.partition("{")[0].removeprefix("worldstream_"), int(float(value))


def settled_metrics(address: str) -> dict[str, int]:
    """The metrics once they stand still: the page follows a request's last response by a moment."""
    now = read_metrics(address)
    while True:
        time.sleep(0.5)
        before, now = now, read_metrics(address)
        if now == before:
            return now


def wait_for_metrics(address: str, **wanted: int) -> dict[str, int]:
    """The metrics once some of them have the wanted values; the last ones seen if they never have."""
    deadline = time.monotonic() + TIMEOUT_S
    while True:
        now = read_metrics(address)
        if wanted.items() <= now.items() or time.monotonic() > deadline:
            return now
        time.sleep(0.02)


@dataclass(frozen=True)
class Histogram:
    """One series of a histogram: how many values were at most each upper edge, their number and their sum."""

    buckets: Mapping[float, float]
    count: float
    sum: float

    def __sub__(self, other: "Histogram") -> "Histogram":
        buckets = {edge: value - other.buckets[edge] for edge, value in self.buckets.items()}
        return Histogram(buckets, self.count - other.count, self.sum - other.sum)


def read_histogram(address: str, name: str, **labels: str) -> Histogram:
    """What `denoise` shows of one histogram, for these labels beside its model's name."""
    wanted = {"model": "denoise", **labels}
    buckets, values = {}, {}
    for line in _page_lines(address):
        series, _, value = line.rpartition(" ")
        of, _, inside = series.partition("{")
        found = dict(LABEL.findall(inside))
        if of.startswith(f"worldstream_{name}_") and wanted.items() <= found.items():
            if "le" in found:
                buckets[float(found["le"])] = float(value)
            else:
                values[of.removeprefix(f"worldstream_{name}_")] = float(value)
    return Histogram(buckets, values["count"], values["sum"])


def _page_lines(address: str) -> list[str]:
    with urllib.request.urlopen(f"http://{address}/metrics", timeout=TIMEOUT_S) as page:
        return [line for line in page.read().decode().splitlines() if line.startswith("worldstream_")]
