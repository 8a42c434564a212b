"""A small server that keeps the tensor contract, for tests of programs that use this client; no model, no Triton.

It has `preprocess`, `denoise` and `world` behind a real gRPC port, and makes gray frames whose value is their number. A
script may answer a request with an error, silence or messages of its own. It builds messages by hand and shares no code
with the client, so that a fault in one does not hide in the other. It answers a stream's requests one after another.
"""

import struct
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any

import grpc
from tritonclient.grpc import service_pb2, service_pb2_grpc

HEIGHT_PX, WIDTH_PX = 6, 8
FRAMES_PER_PART = 5
_DATATYPE_FORMATS = {"UINT8": "B", "INT32": "i", "INT64": "q", "FP32": "f"}


@dataclass
class SeenRequest:
    """One request as it arrived."""

    model: str
    parameters: dict[str, Any]
    inputs: dict[str, list[Any]]  # flat values, or bytes for BYTES
    shapes: dict[str, list[int]]
    metadata: dict[str, str]


@dataclass
class _World:
    """A session's state: how far it has come."""

    num_frames: int = 0
    num_chunks: int = 0


@dataclass
class FakeServer(service_pb2_grpc.GRPCInferenceServiceServicer):  # type: ignore[misc]
    """A gRPC server on a free port of 127.0.0.1; use it as a context manager.

    `script(request)` is asked first for each request for frames: it may return messages to answer with (see
    `error_message` and `frames_message`), or None for the usual answer. `cancelled` is set once a client's cancel was
    seen.
    """

    chunk_latent_frames: int = 3
    is_ready: bool = True
    chunk_s: float = 0.0  # how long a chunk takes
    script: Callable[[SeenRequest], Iterator[Any] | None] | None = None
    seen: list[SeenRequest] = field(default_factory=list)
    cancelled: threading.Event = field(default_factory=threading.Event)
    sessions: dict[Any, _World] = field(default_factory=dict)
    url: str = ""
    credentials: Any = None  # gRPC's own, for TLS

    def __enter__(self) -> "FakeServer":
        self.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.stop()

    def start(self) -> None:
        """Listen; after a `stop` on the same port as before, with the same sessions."""
        unlimited = [("grpc.max_receive_message_length", -1), ("grpc.so_reuseport", 0)]
        self._server = grpc.server(ThreadPoolExecutor(8), options=unlimited)
        service_pb2_grpc.add_GRPCInferenceServiceServicer_to_server(self, self._server)
        place = self.url or "127.0.0.1:0"
        port = (
            self._server.add_insecure_port(place)
            if self.credentials is None
            else self._server.add_secure_port(place, self.credentials)
        )
        self.url = f"127.0.0.1:{port}"
        self._server.start()

    def stop(self) -> None:
        """Break off all connections, and listen no more."""
        self._server.stop(grace=None).wait()

    def ServerLive(self, request: Any, context: Any) -> Any:
        """Answer the rpc."""
        return service_pb2.ServerLiveResponse(live=True)

    def ServerReady(self, request: Any, context: Any) -> Any:
        """Answer the rpc."""
        return service_pb2.ServerReadyResponse(ready=self.is_ready)

    def ModelReady(self, request: Any, context: Any) -> Any:
        """Answer the rpc."""
        return service_pb2.ModelReadyResponse(ready=self.is_ready)

    def ServerMetadata(self, request: Any, context: Any) -> Any:
        """Answer the rpc."""
        return service_pb2.ServerMetadataResponse(name="fake", version="0.0")

    def ModelConfig(self, request: Any, context: Any) -> Any:
        """Answer the rpc."""
        response = service_pb2.ModelConfigResponse()
        response.config.parameters["chunk_latent_frames"].string_value = str(self.chunk_latent_frames)
        return response

    def ModelInfer(self, request: Any, context: Any) -> Any:
        """Answer `preprocess`: every picture is white and named after its place."""
        seen = _seen(request, context)
        self.seen.append(seen)
        if seen.inputs["image"] == [b"broken"]:
            context.abort(grpc.StatusCode.INVALID_ARGUMENT, "INVALID_INPUT: image 0: not a picture")
        num = len(seen.inputs["image"])
        height_px, width_px = seen.inputs.get("size", [HEIGHT_PX, WIDTH_PX])
        response = service_pb2.ModelInferResponse(model_name=request.model_name)
        _add(response, "pixels", "UINT8", [num, height_px, width_px, 3], b"\xff" * (num * height_px * width_px * 3))
        _add(response, "image_digest", "BYTES", [num], _strings([f"{place:032x}" for place in range(num)]))
        _add(response, "camera_name", "BYTES", [num], _strings([f"camera {place}" for place in range(num)]))
        return response

    def ModelStreamInfer(self, requests: Iterator[Any], context: Any) -> Iterator[Any]:
        """Answer requests for frames, one after another."""
        is_over = threading.Event()
        context.add_callback(lambda: None if is_over.is_set() else self.cancelled.set())
        for request in requests:
            seen = _seen(request, context)
            self.seen.append(seen)
            answer = self.script(seen) if self.script else None
            for message in answer if answer is not None else self._answer(seen):
                message.infer_response.id = request.id
                if seen.model == "world":
                    _rename_event_id(message.infer_response)
                yield message
        is_over.set()

    def _answer(self, seen: SeenRequest) -> Iterator[Any]:
        session_id = seen.parameters.get("sequence_id")
        is_start, is_end = seen.parameters.get("sequence_start"), seen.parameters.get("sequence_end")
        has_picture = any(name in seen.inputs for name in ("image", "pixels", "snapshot"))
        if session_id is None or is_start:
            if session_id in self.sessions:
                return iter([error_message("SESSION_EXISTS: sequence_id: wanted a new one")])
            if not has_picture:
                return iter([error_message("INVALID_INPUT: pixels: a start needs a picture")])
            world = _world_of(seen.inputs.get("snapshot"))
            if session_id is not None:
                self.sessions[session_id] = world
        elif session_id not in self.sessions:
            return iter([error_message("SESSION_NOT_FOUND: sequence_id: no such session")])
        else:
            world = self.sessions[session_id]
        if seen.parameters.get("save"):
            return snapshot_messages(world.num_frames, world.num_chunks)
        asks_for_frames = bool({"actions", "cam_to_world", "num_chunks"} & set(seen.inputs))
        if "snapshot" in seen.inputs and not is_end and not asks_for_frames:
            return iter([frames_message(0, 0, (world.num_chunks, 0, 1), True)])
        if is_end and not is_start and not asks_for_frames:
            del self.sessions[session_id]
            return iter([frames_message(0, 0, (0, 0, 1), True)])
        return self._frames(seen, world, session_id if is_end else None)

    def _frames(self, seen: SeenRequest, world: _World, ending_id: Any) -> Iterator[Any]:
        num_latents = len(seen.inputs.get("actions", [])) or seen.shapes.get("cam_to_world", [0])[0]
        num_chunks = seen.inputs.get("num_chunks", [max(1, -(-num_latents // self.chunk_latent_frames))])[0]
        (event_id,) = seen.inputs.get("event_id", [-1])
        if seen.parameters.get("receipt"):
            yield receipt_message(world.num_chunks, 0, event_id)
        for place in range(num_chunks):
            time.sleep(self.chunk_s)
            is_final = place == num_chunks - 1
            if is_final:
                self.sessions.pop(ending_id, None)
            yield from self._commit_chunk(world, is_final, event_id)

    def _commit_chunk(self, world: _World, is_final: bool, event_id: int) -> list[Any]:
        """Count a chunk as made, whether or not its messages are heard."""
        num = 4 * self.chunk_latent_frames - (3 if world.num_chunks == 0 else 0)
        starts = range(0, num, FRAMES_PER_PART)
        messages = [
            frames_message(
                world.num_frames + start,
                min(FRAMES_PER_PART, num - start),
                (world.num_chunks, part, len(starts)),
                is_final and part == len(starts) - 1,
                event_id,
            )
            for part, start in enumerate(starts)
        ]
        world.num_frames += num
        world.num_chunks += 1
        return messages


def frames_message(first_frame: int, num: int, chunk: tuple[int, int, int], is_final: bool, event_id: int = -1) -> Any:
    """Build a message of `num` gray frames from number `first_frame` on; `chunk` is chunk, part, number of parts."""
    message = service_pb2.ModelStreamInferResponse()
    response = message.infer_response
    response.parameters["triton_final_response"].bool_param = is_final
    index = range(first_frame, first_frame + num)
    pixels = b"".join(bytes([number % 256]) * (HEIGHT_PX * WIDTH_PX * 3) for number in index)
    _add(response, "frames", "UINT8", [num, HEIGHT_PX, WIDTH_PX, 3], pixels)
    _add(response, "frame_index", "INT64", [num], struct.pack(f"<{num}q", *index))
    _add(response, "chunk", "INT32", [3], struct.pack("<3i", *chunk))
    _add(response, "event_id", "INT64", [1], struct.pack("<q", event_id))
    _add(response, "timings", "FP32", [6], struct.pack("<6f", 1, 2, 3, 4, 5, 14))
    return message


def receipt_message(chunk_index: int, num_ahead: int, event_id: int = -1) -> Any:
    """Build the message that says which chunk a request will steer, and how many requests are ahead of it."""
    return frames_message(0, 0, (chunk_index, -1, num_ahead), is_final=False, event_id=event_id)


def snapshot_messages(num_frames: int, num_chunks: int) -> Iterator[Any]:
    """Build the messages of a file, in two parts: two numbers are all that this server's sessions are."""
    for place, number in enumerate((num_frames, num_chunks)):
        message = frames_message(0, 0, (num_chunks, place, 2), is_final=place == 1)
        _add(message.infer_response, "snapshot", "UINT8", [8], struct.pack("<q", number))
        yield message


def error_message(text: str) -> Any:
    """Build the message of an error, with its final flag."""
    message = service_pb2.ModelStreamInferResponse(error_message=text)
    message.infer_response.parameters["triton_final_response"].bool_param = True
    return message


def answer_once(*messages: Any) -> Callable[[SeenRequest], Iterator[Any] | None]:
    """Make a script that answers the first request with these messages, and the others as usual."""
    answers = [iter(messages)]
    return lambda seen: answers.pop() if answers else None


def silence(duration_s: float = 2.0) -> Iterator[Any]:
    """Answer nothing for a while, for a script: what a client hears of a model whose process has died."""
    threading.Event().wait(duration_s)
    yield from ()


def _world_of(snapshot: list[int] | None) -> _World:
    return _World() if snapshot is None else _World(*struct.unpack("<2q", bytes(snapshot)))


def _rename_event_id(response: Any) -> None:
    """Call it as the ensemble does, whose inputs and outputs share one set of names."""
    for output in response.outputs:
        if output.name == "event_id":
            output.name = "applied_event_id"


def _add(response: Any, name: str, datatype: str, shape: list[int], contents: bytes) -> None:
    response.outputs.add(name=name, datatype=datatype, shape=shape)
    response.raw_output_contents.append(contents)


def _strings(texts: list[str]) -> bytes:
    return b"".join(struct.pack("<I", len(text)) + text.encode() for text in texts)


def _seen(request: Any, context: Any) -> SeenRequest:
    return SeenRequest(
        model=request.model_name,
        parameters={
            name: getattr(value, value.WhichOneof("parameter_choice")) for name, value in request.parameters.items()
        },
        inputs={
            tensor.name: _values(tensor.datatype, contents)
            for tensor, contents in zip(request.inputs, request.raw_input_contents, strict=True)
        },
        shapes={tensor.name: list(tensor.shape) for tensor in request.inputs},
        metadata=dict(context.invocation_metadata()),
    )


def _values(datatype: str, contents: bytes) -> list[Any]:
    if datatype != "BYTES":
        kind = _DATATYPE_FORMATS[datatype]
        return list(struct.unpack(f"<{len(contents) // struct.calcsize(kind)}{kind}", contents))
    values = []
    while contents:
        (length,) = struct.unpack("<I", contents[:4])
        values.append(contents[4 : 4 + length])
        contents = contents[4 + length :]
    return values
