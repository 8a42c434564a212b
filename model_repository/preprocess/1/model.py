"""Triton's side of `preprocess`: tensors in, tensors or an error out. What a picture is, only `ingest` knows."""

import locale

# The stub starts in an ASCII locale whatever the environment says.
locale.setlocale(locale.LC_CTYPE, "C.UTF-8")

import json  # noqa: E402
import secrets  # noqa: E402
import traceback  # noqa: E402
from typing import Any  # noqa: E402

import numpy as np  # noqa: E402
import triton_python_backend_utils as pb_utils  # noqa: E402
from ingest import IngestError, InvalidInputError, Limits, Pictures, continues_session, read_images  # noqa: E402
from numpy.typing import NDArray  # noqa: E402

# Names on the TritonError class; the class itself does not exist yet while this file is imported.
TRITON_CODES = {
    "INVALID_INPUT": "INVALID_ARG",
    "TOO_LARGE": "INVALID_ARG",
    "CANCELLED": "CANCELLED",
    "INTERNAL": "INTERNAL",
}


class TritonPythonModel:
    """Answers each request on its own: a bad one leaves the others of its batch alone."""

    def initialize(self, args: dict[str, str]) -> None:
        """Read the limits from config.pbtxt."""
        parameters = json.loads(args["model_config"])["parameters"]
        self.limits = Limits.from_parameters({name: value["string_value"] for name, value in parameters.items()})

    def execute(self, requests: list[Any]) -> list[Any]:
        """Answer every request, in order."""
        return [self._answer(request) for request in requests]

    def _answer(self, request: Any) -> Any:
        try:
            return self._respond(request)
        except Exception:
            return _failure()

    def _respond(self, request: Any) -> Any:
        if request.is_cancelled():
            return _refusal("CANCELLED", "CANCELLED: the request was cancelled before its pictures were read")
        try:
            return _response(self._read(request), request.requested_output_names())
        except IngestError as error:
            return _refusal(error.code, str(error))

    def _read(self, request: Any) -> Pictures:
        inputs = {tensor.name(): tensor.as_numpy() for tensor in request.inputs()}
        elements = list(inputs["image"].reshape(-1)) if "image" in inputs else []
        if not elements and not _continues(request):
            raise InvalidInputError("image: wanted at least one picture, came none")
        size = inputs["size"].reshape(-1).tolist() if "size" in inputs and elements else None
        return read_images(elements, size, self.limits)


def _continues(request: Any) -> bool:
    is_start = bool(request.flags() & pb_utils.TRITONSERVER_REQUEST_FLAG_SEQUENCE_START)
    try:
        return continues_session(request.correlation_id(), is_start, request.parameters())
    except UnicodeDecodeError as error:  # Triton does not look into the texts of a JSON body
        raise InvalidInputError("parameters: wanted names and texts in UTF-8") from error


def _response(pictures: Pictures, wanted: list[str]) -> Any:
    tensors = [
        pb_utils.Tensor("pixels", pictures.pixels),
        pb_utils.Tensor("camera_name", _text(pictures.camera_names)),
    ]
    if "image_digest" in wanted:
        tensors.append(pb_utils.Tensor("image_digest", _text(pictures.digests())))
    return pb_utils.InferenceResponse(output_tensors=tensors)


def _refusal(code: str, message: str) -> Any:
    triton_code = getattr(pb_utils.TritonError, TRITON_CODES[code])
    return pb_utils.InferenceResponse(error=pb_utils.TritonError(message, triton_code))


def _failure() -> Any:
    """Log the exception that is being handled under a reference; the client hears the reference alone."""
    reference = secrets.token_hex(4)
    # Half a surrogate pair in an exception's text would make the log call fail, and the whole batch with it.
    text = traceback.format_exc().encode("ascii", "backslashreplace").decode()
    pb_utils.Logger.log_error(f"preprocess: INTERNAL {reference}\n{text}")
    return _refusal("INTERNAL", f"INTERNAL: the server failed, its log has more under reference {reference}")


def _text(values: list[str]) -> NDArray[np.object_]:
    return np.array([value.encode() for value in values], dtype=np.object_)
