"""The three ways into `preprocess`, each as bytes on the wire: gRPC, and HTTP with JSON or with the binary extension.

Knows the two protocols and the tensor contract; knows nothing of pictures. N, H, W: pictures, height, width.
"""

import http.client
import json
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import grpc
import numpy as np
from numpy.typing import NDArray
from tritonclient.grpc import service_pb2, service_pb2_grpc

TIMEOUT_S = 60.0
PATH = "/v2/models/preprocess/infer"
OUTPUTS = ("pixels", "image_digest", "camera_name")


@dataclass(frozen=True)
class Answer:
    """What came back: pictures, or an error with its status ("400", "INVALID_ARGUMENT", ...); "" is none."""

    status: str
    message: str = ""
    pixels: NDArray[np.uint8] = field(default_factory=lambda: np.zeros((0, 0, 0, 3), np.uint8))
    digests: tuple[str, ...] = ()
    camera_names: tuple[str, ...] = ()

    @property
    def is_refusal(self) -> bool:
        """Whether the server says that the client is at fault."""
        return self.status in ("400", "INVALID_ARGUMENT")


class Entrance(Protocol):
    """One open connection."""

    def ask(self, elements: Sequence[bytes], size: Sequence[int] | None = None) -> Answer:
        """Send one request with these elements of `image`, and wait for its answer."""

    def close(self) -> None: ...


class GrpcEntrance:
    """The unary gRPC call by the raw stub."""

    def __init__(self, address: str) -> None:
        limits = [("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)]
        self._channel = grpc.insecure_channel(address, limits)
        self._stub = service_pb2_grpc.GRPCInferenceServiceStub(self._channel)

    def ask(self, elements: Sequence[bytes], size: Sequence[int] | None = None) -> Answer:
        request = service_pb2.ModelInferRequest(model_name="preprocess")
        request.inputs.add(name="image", datatype="BYTES", shape=[len(elements)])
        request.raw_input_contents.append(length_prefixed(elements))
        if size is not None:
            request.inputs.add(name="size", datatype="INT32", shape=[len(size)])
            request.raw_input_contents.append(np.array(size, "<i4").tobytes())
        try:
            response = self._stub.ModelInfer(request, timeout=TIMEOUT_S)
        except grpc.RpcError as error:
            return Answer(error.code().name, error.details())
        contents = dict(zip([output.name for output in response.outputs], response.raw_output_contents, strict=True))
        shape = next(output.shape for output in response.outputs if output.name == "pixels")
        return _answer(contents, shape)

    def close(self) -> None:
        self._channel.close()


class _HttpEntrance:
    """One HTTP connection that stays open between requests."""

    def __init__(self, address: str) -> None:
        self._connection = http.client.HTTPConnection(address, timeout=TIMEOUT_S)

    def close(self) -> None:
        self._connection.close()

    def _post(self, body: bytes, headers: dict[str, str]) -> tuple[http.client.HTTPResponse, bytes]:
        self._connection.request("POST", PATH, body, headers)
        response = self._connection.getresponse()
        return response, response.read()


class BinaryEntrance(_HttpEntrance):
    """HTTP with Triton's binary extension both ways: a JSON header, then the tensors' bytes."""

    def ask(self, elements: Sequence[bytes], size: Sequence[int] | None = None) -> Answer:
        tensors = [("image", "BYTES", len(elements), length_prefixed(elements))]
        if size is not None:
            tensors.append(("size", "INT32", len(size), np.array(size, "<i4").tobytes()))
        inputs = [
            {"name": name, "datatype": datatype, "shape": [num], "parameters": {"binary_data_size": len(content)}}
            for name, datatype, num, content in tensors
        ]
        header = json.dumps({"inputs": inputs, "parameters": {"binary_data_output": True}}).encode()
        body = header + b"".join(content for *_, content in tensors)
        response, answered = self._post(body, {"Inference-Header-Content-Length": str(len(header))})
        if response.status != 200:
            return Answer(str(response.status), json.loads(answered)["error"])
        position = int(response.headers["Inference-Header-Content-Length"])
        contents = {}
        outputs = json.loads(answered[:position])["outputs"]
        for output in outputs:
            end = position + output["parameters"]["binary_data_size"]
            contents[output["name"]] = answered[position:end]
            position = end
        return _answer(contents, next(output["shape"] for output in outputs if output["name"] == "pixels"))


class JsonEntrance(_HttpEntrance):
    """HTTP with a JSON body both ways; elements must be UTF-8."""

    def ask(self, elements: Sequence[bytes], size: Sequence[int] | None = None) -> Answer:
        texts = [element.decode("utf-8") for element in elements]
        inputs: list[dict[str, Any]] = [{"name": "image", "datatype": "BYTES", "shape": [len(texts)], "data": texts}]
        if size is not None:
            inputs.append({"name": "size", "datatype": "INT32", "shape": [len(size)], "data": list(size)})
        # As text and not in \u escapes: that is how most clients send it.
        response, answered = self._post(json.dumps({"inputs": inputs}, ensure_ascii=False).encode(), {})
        if response.status != 200:
            return Answer(str(response.status), json.loads(answered)["error"])
        outputs = {output["name"]: output for output in json.loads(answered)["outputs"]}
        pixels = np.array(outputs["pixels"]["data"], np.uint8).reshape(outputs["pixels"]["shape"])
        return Answer("", "", pixels, tuple(outputs["image_digest"]["data"]), tuple(outputs["camera_name"]["data"]))


def open_entrances(server: Any) -> dict[str, Entrance]:
    """One connection of each kind to a running server."""
    makers: dict[str, Callable[[], Entrance]] = {
        "grpc": lambda: GrpcEntrance(server.grpc),
        "http-binary": lambda: BinaryEntrance(server.http),
        "http-json": lambda: JsonEntrance(server.http),
    }
    return {name: make() for name, make in makers.items()}


def is_utf8(elements: Sequence[bytes]) -> bool:
    """Whether a JSON body can carry these elements."""
    try:
        b"".join(element + b"\n" for element in elements).decode("utf-8")
    except UnicodeDecodeError:
        return False
    return True


def length_prefixed(elements: Sequence[bytes]) -> bytes:
    """BYTES on the wire: each element behind its length in four bytes, little endian."""
    return b"".join(struct.pack("<I", len(element)) + element for element in elements)


def _elements(content: bytes) -> tuple[str, ...]:
    elements, position = [], 0
    while position < len(content):
        start = position + 4
        position = start + int.from_bytes(content[position:start], "little")
        elements.append(content[start:position].decode("utf-8"))
    return tuple(elements)


def _answer(contents: dict[str, bytes], shape: Sequence[int]) -> Answer:
    pixels = np.frombuffer(contents["pixels"], np.uint8).reshape(shape)
    return Answer("", "", pixels, _elements(contents["image_digest"]), _elements(contents["camera_name"]))
