"""`preprocess`'s model.py without a server: its codes, and requests that fail beside others that do not."""

import importlib.util
import json
import re
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import ingest
import numpy as np
import pytest

MODEL = Path(ingest.__file__).parents[1] / "model.py"
GRAY_PIXEL = [[[[7, 7, 7]]]]


class Tensor:
    def __init__(self, name: str, values: np.ndarray) -> None:
        self._name, self._values = name, values

    def name(self) -> str:
        return self._name

    def as_numpy(self) -> np.ndarray:
        return self._values


class TritonError:
    INTERNAL, INVALID_ARG, CANCELLED = range(3)

    def __init__(self, message: str, code: int) -> None:
        self.message, self.code = message, code


class InferenceResponse:
    def __init__(self, output_tensors: list[Tensor] | None = None, error: TritonError | None = None) -> None:
        self.error = error
        self.outputs = {tensor.name(): tensor.as_numpy() for tensor in output_tensors or []}


class Logger:
    """Takes text that can be sent on, as Triton's does."""

    lines: list[str]

    def __init__(self) -> None:
        self.lines = []

    def log_error(self, text: str) -> None:
        self.lines.append(text.encode("utf-8").decode())


OUTPUTS = ("pixels", "image_digest", "camera_name")


class Request:
    def __init__(self, *elements: bytes, is_cancelled: bool = False, outputs: tuple[str, ...] = OUTPUTS) -> None:
        self._elements, self._is_cancelled, self._outputs = elements, is_cancelled, outputs

    def inputs(self) -> list[Tensor]:
        return [Tensor("image", np.array(self._elements, np.object_))] if self._elements else []

    def is_cancelled(self) -> bool:
        return self._is_cancelled

    def flags(self) -> int:
        return 0

    def correlation_id(self) -> int:
        return 0

    def parameters(self) -> str:
        return ""

    def requested_output_names(self) -> list[str]:
        return list(self._outputs)


class BrokenRequest(Request):
    """Fails where the model asks for one thing; the text cannot be encoded."""

    def __init__(self, method: str) -> None:
        super().__init__()
        setattr(self, method, self._fail)

    def _fail(self) -> None:
        raise RuntimeError("/secret/path \ud800")


@pytest.fixture
def logger() -> Logger:
    return Logger()


@pytest.fixture
def module(monkeypatch: pytest.MonkeyPatch, logger: Logger) -> ModuleType:
    backend = SimpleNamespace(
        Tensor=Tensor,
        TritonError=TritonError,
        InferenceResponse=InferenceResponse,
        Logger=logger,
        TRITONSERVER_REQUEST_FLAG_SEQUENCE_START=1,
    )
    monkeypatch.setitem(sys.modules, "triton_python_backend_utils", backend)  # type: ignore[arg-type]
    spec = importlib.util.spec_from_file_location("preprocess_model", MODEL)
    assert spec is not None
    assert spec.loader is not None
    loaded = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(loaded)
    return loaded


@pytest.fixture
def model(module: ModuleType) -> Any:
    started = module.TritonPythonModel()
    started.initialize({"model_config": json.dumps({"parameters": {"max_json_depth": {"string_value": "3"}}})})
    return started


def test_every_refusal_has_the_triton_code_of_the_contract(module: ModuleType) -> None:
    refusals = {ingest.IngestError, *ingest.IngestError.__subclasses__()}
    assert {refusal.code for refusal in refusals} | {"CANCELLED"} == set(module.TRITON_CODES)
    assert module.TRITON_CODES == {
        "INVALID_INPUT": "INVALID_ARG",
        "TOO_LARGE": "INVALID_ARG",
        "CANCELLED": "CANCELLED",
        "INTERNAL": "INTERNAL",
    }


def test_each_request_of_a_batch_gets_its_own_answer(model: Any) -> None:
    requests = [
        Request(b"[[7]]"),
        Request(b"[[7],[]]"),
        Request(b"[[[[7]]]]"),  # four levels
        Request(b"[[7]]", is_cancelled=True),
        Request(b"[[7]]"),
    ]
    answers = model.execute(requests)
    assert [answers[0].outputs["pixels"].tolist(), answers[4].outputs["pixels"].tolist()] == [GRAY_PIXEL] * 2
    errors = [answer.error for answer in answers[1:4]]
    assert [error.message.partition(":")[0] for error in errors] == ["INVALID_INPUT", "TOO_LARGE", "CANCELLED"]
    assert [error.code for error in errors] == [TritonError.INVALID_ARG, TritonError.INVALID_ARG, TritonError.CANCELLED]


@pytest.mark.parametrize("method", ["is_cancelled", "inputs", "flags", "correlation_id", "parameters"])
def test_a_request_that_cannot_be_read_leaves_those_beside_it_alone(model: Any, logger: Logger, method: str) -> None:
    # The log call must not fail either: what it raised once went past every guard and took the batch with it.
    first, broken, last = model.execute([Request(b"[[7]]"), BrokenRequest(method), Request(b"[[7]]")])
    assert first.outputs["pixels"].tolist() == last.outputs["pixels"].tolist() == GRAY_PIXEL
    assert broken.error.code == TritonError.INTERNAL
    found = re.fullmatch(
        r"INTERNAL: the server failed, its log has more under reference ([0-9a-f]{8})", broken.error.message
    )
    assert found is not None
    assert f"INTERNAL {found[1]}\nTraceback" in logger.lines[0]
    assert "/secret/path" in logger.lines[0]


@pytest.mark.parametrize("method", ["correlation_id", "parameters"])
def test_a_name_or_text_that_is_not_utf8_is_the_clients_fault(model: Any, method: str) -> None:
    # It was answered as the server's own failure, status 500, each with a traceback in the log.
    request = Request()
    setattr(request, method, lambda: b"\xff".decode("utf-8"))  # as the stub does
    (answer,) = model.execute([request])
    assert answer.error.code == TritonError.INVALID_ARG
    assert answer.error.message == "INVALID_INPUT: parameters: wanted names and texts in UTF-8"


def test_pictures_are_hashed_only_for_those_who_ask(model: Any) -> None:
    asked, not_asked = model.execute([Request(b"[[7]]"), Request(b"[[7]]", outputs=("pixels",))])
    assert len(asked.outputs["image_digest"][0]) == 32
    assert "image_digest" not in not_asked.outputs
    assert not_asked.outputs["pixels"].tolist() == GRAY_PIXEL
