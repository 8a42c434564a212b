"""Prepared frames through the real server: a replay engine behind the world's emitter, and a client that reads them.

Knows the tensor contract and the raw gRPC stub; knows nothing of what is judged.
"""

from __future__ import annotations

import contextlib
import gzip
import io
import shutil
import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import numpy as np
from common import ROOT
from denoise_served import Served, running_server
from google.protobuf import text_format
from numpy.typing import NDArray
from PIL import Image
from tritonclient.grpc import model_config_pb2, service_pb2, service_pb2_grpc

# isort: split
# denoise_served has put the client's folder on the path.
from worldstream.tensors import read_outputs

Pixels = NDArray[np.uint8]
DENOISE = ROOT / "model_repository" / "denoise"
TIMEOUT_S = 300.0


@dataclass(frozen=True)
class Way:
    """One way for frames to travel: how they are encoded, and how many bytes a message holds at most."""

    encoding: str
    response_bytes: int = 1 << 20  # the world's own bound


@dataclass(frozen=True)
class Trip:
    """One request of some chunks: clock, CPU of this process and of the server's, and bytes of the messages."""

    wall_s: float
    client_cpu_s: float
    server_cpu_s: float
    num_bytes: int
    num_messages: int
    num_frames: int


def frames_of(outputs: Mapping[str, Any], encoding: str) -> Pixels:
    """The frames of one response as pixels, [n, H, W, 3]: what every client does in the end."""
    if encoding == "raw":
        return outputs["frames"]
    files = outputs["encoded_frames"].tolist()
    if encoding == "delta-gzip":
        shape = (len(outputs["frame_index"]), *outputs["frames"].shape[1:])
        deltas = np.frombuffer(gzip.decompress(files[0]), np.uint8).reshape(shape)
        return np.add.accumulate(deltas, axis=0, dtype=np.uint8)
    return np.stack([np.asarray(Image.open(io.BytesIO(file))) for file in files])


@dataclass(frozen=True)
class Replay:
    """A running replay server and one channel to it."""

    stub: Any
    served: Served

    def stream(self, way: Way, num_chunks: int) -> Iterator[tuple[Any, Mapping[str, Any]]]:
        """Ask for chunks: each message, and its outputs."""
        request = service_pb2.ModelInferRequest(model_name="replay")
        request.parameters["encoding"].string_param = way.encoding
        request.parameters["response_bytes"].int64_param = way.response_bytes
        request.parameters["num_chunks"].int64_param = num_chunks
        # The one input: Triton wants a model to have some.
        request.inputs.add(name="seed", datatype="INT64", shape=[1])
        request.raw_input_contents.append(bytes(8))
        for message in self.stub.ModelStreamInfer(iter([request]), timeout=TIMEOUT_S):
            if message.error_message:
                raise SystemExit(f"{way.encoding}: {message.error_message}")
            yield message, read_outputs(message.infer_response)

    def receive(self, way: Way, num_chunks: int) -> Pixels:
        """Every frame, [n, H, W, 3]; their numbers must be without a gap."""
        parts, index = [], []
        for _, outputs in self.stream(way, num_chunks):
            parts.append(frames_of(outputs, way.encoding))
            index += outputs["frame_index"].tolist()
        assert index == list(range(len(index)))
        return np.concatenate(parts)

    def travel(self, way: Way, num_chunks: int) -> Trip:
        """Have chunks sent and read, and let them go."""
        num_bytes = num_messages = num_frames = 0
        server_cpu_s, client_cpu_s, began = self.served.cpu_s(), time.process_time(), time.perf_counter()
        for message, outputs in self.stream(way, num_chunks):
            num_frames += len(frames_of(outputs, way.encoding))
            num_bytes += message.ByteSize()  # to look at the contents would copy them
            num_messages += 1
        wall_s, client_cpu_s = time.perf_counter() - began, time.process_time() - client_cpu_s
        server_cpu_s = self.served.cpu_s() - server_cpu_s
        return Trip(wall_s, client_cpu_s, server_cpu_s, num_bytes, num_messages, num_frames)


@contextlib.contextmanager
def running_replay(frames: Pixels) -> Iterator[Replay]:
    """A server of its own that plays these frames, one chunk, over and over."""
    with tempfile.TemporaryDirectory(prefix="worldstream-perf-") as folder:
        repository = write_repository(Path(folder), frames)
        unlimited = [("grpc.max_receive_message_length", -1)]
        with running_server(repository, {}) as served, grpc.insecure_channel(served.grpc, unlimited) as channel:
            yield Replay(service_pb2_grpc.GRPCInferenceServiceStub(channel), served)


def write_repository(folder: Path, frames: Pixels) -> Path:
    """The replay model with the world's code beside it and the world's outputs."""
    version = folder / "models" / "replay" / "1"
    version.mkdir(parents=True)
    shutil.copy(ROOT / "perf" / "transport_replay.py", version / "model.py")
    (version / "denoise_model.py").symlink_to(DENOISE / "1" / "model.py")
    (version / "worldmodel").symlink_to(DENOISE / "1" / "worldmodel")
    np.save(folder / "frames.npy", frames)
    text = (DENOISE / "config.pbtxt").read_text(encoding="utf-8")
    world = text_format.Parse(text, model_config_pb2.ModelConfig())
    config = model_config_pb2.ModelConfig(name="replay", backend="python", output=world.output)
    config.input.extend(each for each in world.input if each.name == "seed")
    config.model_transaction_policy.decoupled = True
    config.instance_group.add(count=1, kind=model_config_pb2.ModelInstanceGroup.KIND_CPU)
    config.parameters["frames"].string_value = str(folder / "frames.npy")
    (version.parent / "config.pbtxt").write_text(text_format.MessageToString(config), encoding="utf-8")
    return folder / "models"
