"""How Triton's responses become batches, errors and pictures. Pure: no connection, no state.

n is the number of frames in one response, N the number of pictures; H and W are their height and width.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from worldstream.batch import Batch, Receipt, Timings
from worldstream.errors import ProtocolError, WorldStreamError, error_from_message
from worldstream.snapshot import SnapshotPart
from worldstream.tensors import read_outputs

_Outputs = Mapping[str, npt.NDArray[Any]]
# An ensemble's inputs and outputs share one set of names, so `world` gives `event_id` back under this one.
_WORLD_EVENT_ID = "applied_event_id"
_RECEIPT = -1  # in place of a part's index
# Of each output: its dtype, and its shape with None for any length.
_BATCH_OUTPUTS: dict[str, tuple[type, tuple[int | None, ...]]] = {
    "frames": (np.uint8, (None, None, None, 3)),
    "frame_index": (np.int64, (None,)),
    "chunk": (np.int32, (3,)),
    "event_id": (np.int64, (1,)),
    "timings": (np.float32, (6,)),
}


@dataclass(frozen=True, eq=False)
class Event:
    """One message of a stream: frames, a receipt, part of a session's file, an error, or none (an end is confirmed)."""

    request_id: str
    batch: Batch | None
    error: WorldStreamError | None
    is_final: bool
    part: SnapshotPart | None = None
    receipt: Receipt | None = None


@dataclass(frozen=True, eq=False)
class Pictures:
    """What `preprocess` made of pictures."""

    pixels: npt.NDArray[np.uint8]  # [N, H, W, 3] RGB, read-only
    image_digests: tuple[str, ...]  # 32 hex characters each
    camera_names: tuple[str, ...]  # "" where the picture came without a name


def parse_stream_response(message: Any) -> Event:
    """Read a ModelStreamInferResponse.

    Raises:
        ProtocolError: if a tensor is missing or misshapen.
    """
    response = message.infer_response
    if message.error_message:
        return Event(response.id, None, error_from_message(message.error_message), is_final=True)
    is_final = response.parameters["triton_final_response"].bool_param
    outputs = read_outputs(response)
    if _WORLD_EVENT_ID in outputs:
        outputs["event_id"] = outputs.pop(_WORLD_EVENT_ID)
    if "snapshot" in outputs:
        return Event(response.id, None, None, is_final, _part(outputs))
    has_frames = any(name in outputs and len(outputs[name]) > 0 for name in ("frames", "encoded_frames"))
    if not has_frames and not is_final:
        return Event(response.id, None, None, is_final, receipt=_receipt(outputs))
    return Event(response.id, _batch(outputs, is_final) if has_frames else None, None, is_final)


def parse_preprocess_response(response: Any) -> Pictures:
    """Read a ModelInferResponse of `preprocess`.

    Raises:
        ProtocolError: if a tensor is missing or misshapen.
    """
    outputs = read_outputs(response)
    pixels = _checked(outputs, "pixels", np.uint8, (None, None, None, 3))
    digests = _checked(outputs, "image_digest", np.object_, (len(pixels),))
    names = _checked(outputs, "camera_name", np.object_, (len(pixels),))
    return Pictures(pixels, tuple(item.decode() for item in digests), tuple(item.decode() for item in names))


def _receipt(outputs: _Outputs) -> Receipt:
    chunk_index, kind, num_ahead = _checked(outputs, "chunk", np.int32, (3,)).tolist()
    if kind != _RECEIPT:
        raise ProtocolError("frames: a response that is not final came without frames")
    return Receipt(chunk_index, num_ahead, _event_id(outputs))


def _part(outputs: _Outputs) -> SnapshotPart:
    _, part_index, num_parts = _checked(outputs, "chunk", np.int32, (3,)).tolist()
    return SnapshotPart(part_index, num_parts, _checked(outputs, "snapshot", np.uint8, (None,)))


def _batch(outputs: _Outputs, is_final: bool) -> Batch:
    tensors = {name: _checked(outputs, name, dtype, shape) for name, (dtype, shape) in _BATCH_OUTPUTS.items()}
    encoded = None
    if "encoded_frames" in outputs:  # only where the request asked for it
        encoded = tuple(_checked(outputs, "encoded_frames", np.object_, (None,)))
    num_frames = len(tensors["frames"]) if encoded is None else len(encoded)
    if len(tensors["frame_index"]) != num_frames:
        raise ProtocolError(f"frame_index: wanted {num_frames} numbers, got {len(tensors['frame_index'])}")
    chunk_index, part_index, num_parts = tensors["chunk"].tolist()
    return Batch(
        raw_frames=tensors["frames"],
        frame_index=tensors["frame_index"],
        chunk_index=chunk_index,
        part_index=part_index,
        num_parts=num_parts,
        event_id=_event_id(outputs),
        timings=Timings(*tensors["timings"].tolist()),
        is_last=is_final,
        encoded=encoded,
    )


def _event_id(outputs: _Outputs) -> int | None:
    (event_id,) = _checked(outputs, "event_id", np.int64, (1,)).tolist()
    return None if event_id == -1 else event_id


def _checked(outputs: _Outputs, name: str, dtype: type, shape: tuple[int | None, ...]) -> npt.NDArray[Any]:
    if name not in outputs:
        raise ProtocolError(f"{name}: the response lacks this output")
    array = outputs[name]
    is_shape_right = len(shape) == array.ndim and all(
        wanted in (None, got) for wanted, got in zip(shape, array.shape, strict=True)
    )
    if array.dtype != dtype or not is_shape_right:
        wanted_text = [length if length is not None else -1 for length in shape]
        raise ProtocolError(
            f"{name}: wanted {np.dtype(dtype).name} {wanted_text}, got {array.dtype.name} {list(array.shape)}"
        )
    return array
