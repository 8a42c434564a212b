"""What serve.py starts, seen from outside: a tiny model to serve, and the traces that a server leaves or should not."""

import os
import tempfile
from pathlib import Path

from tritonclient.grpc import InferenceServerClient

from tests.waiting import wait_for

TINY_MODEL = """
import json
import numpy as np
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def initialize(self, args):
        self.answer = int(json.loads(args["model_config"])["parameters"]["answer"]["string_value"])

    def execute(self, requests):
        answer = np.array([self.answer], dtype=np.int32)
        return [pb_utils.InferenceResponse([pb_utils.Tensor("answer", answer)]) for _ in requests]
"""

TINY_CONFIG = """
name: "tiny"
backend: "python"
max_batch_size: 0
input [ { name: "unused" data_type: TYPE_INT32 dims: [ 1 ] optional: true } ]
output [ { name: "answer" data_type: TYPE_INT32 dims: [ 1 ] } ]
parameters [ { key: "answer" value { string_value: "41" } } ]
"""


def write_model(repository: Path, name: str, config: str, model: str) -> None:
    (repository / name / "1").mkdir(parents=True)
    (repository / name / "config.pbtxt").write_text(config, encoding="utf-8")
    (repository / name / "1" / "model.py").write_text(model, encoding="utf-8")


def ask_tiny(grpc_address: str) -> int:
    with InferenceServerClient(grpc_address) as client:
        return int(client.infer("tiny", [], client_timeout=20).as_numpy("answer")[0])


def region_prefix(server_pid: int) -> str:
    """What serve.py named this server's shared memory, and its own temporary folder, after."""
    command = Path(f"/proc/{server_pid}/cmdline").read_text(encoding="utf-8").split("\0")
    return next(part.rpartition("=")[2] for part in command if "shm-region-prefix-name" in part)


def leftovers(prefix: str) -> list[Path]:
    return [*Path("/dev/shm").glob(f"{prefix}*"), *Path(tempfile.gettempdir()).glob(f"{prefix}*")]


def is_gone(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    return False


def wait_until_gone(pid: int) -> None:
    wait_for(lambda: is_gone(pid), 20, lambda: f"for the end of process {pid}")
