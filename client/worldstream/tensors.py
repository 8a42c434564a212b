"""NumPy arrays to and from the raw tensors of Triton's gRPC messages; knows no tensor's name or meaning."""

import math
import struct
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from tritonclient.grpc import service_pb2

from worldstream.errors import ProtocolError

_DATATYPES = {"uint8": "UINT8", "int32": "INT32", "int64": "INT64", "float32": "FP32"}
_DTYPES = {datatype: np.dtype(name).newbyteorder("<") for name, datatype in _DATATYPES.items()}


def add_array(request: Any, name: str, array: npt.NDArray[Any]) -> None:
    """Append a numeric input to a ModelInferRequest; the array is uint8, int32, int64 or float32."""
    datatype = _DATATYPES[array.dtype.name]
    contents = np.ascontiguousarray(array, dtype=_DTYPES[datatype]).tobytes()
    _add(request, name, datatype, array.shape, contents)


def add_strings(request: Any, name: str, elements: Sequence[bytes]) -> None:
    """Append a BYTES input of shape [len(elements)]: each element is its length as uint32, then its bytes."""
    contents = b"".join(struct.pack("<I", len(element)) + element for element in elements)
    _add(request, name, "BYTES", (len(elements),), contents)


def read_outputs(response: Any) -> dict[str, npt.NDArray[Any]]:
    """Read all outputs of a ModelInferResponse.

    Returns:
        Arrays by name. Numeric ones are read-only views of the message's bytes; BYTES become object arrays of `bytes`.

    Raises:
        ProtocolError: if an output's bytes do not fill its shape.
    """
    if len(response.outputs) != len(response.raw_output_contents):
        raise ProtocolError(
            f"response: {len(response.outputs)} outputs but {len(response.raw_output_contents)} raw contents"
        )
    return {
        output.name: _read(output.name, output.datatype, tuple(output.shape), contents)
        for output, contents in zip(response.outputs, response.raw_output_contents, strict=True)
    }


def _add(
    request: service_pb2.ModelInferRequest, name: str, datatype: str, shape: Sequence[int], contents: bytes
) -> None:
    tensor = request.inputs.add()
    tensor.name = name
    tensor.datatype = datatype
    tensor.shape.extend(shape)
    request.raw_input_contents.append(contents)


def _read(name: str, datatype: str, shape: tuple[int, ...], contents: bytes) -> npt.NDArray[Any]:
    if datatype == "BYTES":
        return _read_strings(name, shape, contents)
    if datatype not in _DTYPES:
        raise ProtocolError(f"{name}: datatype {datatype} is none of {', '.join(_DTYPES)}, BYTES")
    dtype = _DTYPES[datatype]
    wanted = math.prod(shape) * dtype.itemsize
    if len(contents) != wanted:
        raise ProtocolError(f"{name}: {datatype} {list(shape)} needs {wanted} bytes, {len(contents)} came")
    return np.frombuffer(contents, dtype=dtype).reshape(shape)


def _read_strings(name: str, shape: tuple[int, ...], contents: bytes) -> npt.NDArray[Any]:
    elements = []
    offset = 0
    while offset + 4 <= len(contents):
        (length,) = struct.unpack_from("<I", contents, offset)
        elements.append(contents[offset + 4 : offset + 4 + length])
        offset += 4 + length
    if offset != len(contents) or len(elements) != math.prod(shape):
        raise ProtocolError(f"{name}: the bytes do not hold {list(shape)} elements")
    array = np.empty(len(elements), dtype=object)
    array[:] = elements
    return array.reshape(shape)
