"""Input tensors from either side: in host memory, or on a GPU. Knows the few methods of Triton's tensors, not Triton.

Where the configuration says FORCE_CPU_ONLY_INPUT_TENSORS "no", any input may come on a GPU (a client's CUDA shared
memory, a model before this one). A picture stays there; the others are a few numbers that the host has to check.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.dlpack import from_dlpack

from worldmodel.errors import InvalidInputError
from worldmodel.pixels import Picture
from worldmodel.streams import beside_computing

STAYS_ON_DEVICE = ("pixels",)


class InputTensor(Protocol):
    """What is used of pb_utils.Tensor."""

    def name(self) -> str:
        """Of the input."""

    def as_numpy(self) -> NDArray[Any]:
        """Its values, where they are on the host; no copy."""

    def is_cpu(self) -> bool:
        """Whether they are."""

    def to_dlpack(self) -> Any:
        """Its values wherever they are, as a DLPack capsule; no copy."""


def read_inputs(tensors: Iterable[InputTensor]) -> dict[str, NDArray[Any] | Tensor]:
    """The inputs by name, as views: whoever keeps one longer than its request makes a copy.

    Returns:
        Arrays; a tensor on its device for a name in STAYS_ON_DEVICE that came there.

    Raises:
        InvalidInputError: a text that came on a GPU.
    """
    return {tensor.name(): _read(tensor) for tensor in tensors}


def _read(tensor: InputTensor) -> NDArray[Any] | Tensor:
    # Backends built without GPU support have no such question, and host tensors only.
    if not hasattr(tensor, "is_cpu") or tensor.is_cpu():
        return tensor.as_numpy()
    try:
        on_device = from_dlpack(tensor.to_dlpack())
    except Exception as error:
        # DLPack has no texts; Triton's message would be the server's, not the client's.
        raise InvalidInputError(
            f"{tensor.name()}: wanted it in host memory, it came on a GPU and cannot be read there"
        ) from error
    if tensor.name() in STAYS_ON_DEVICE:
        return on_device
    with beside_computing(on_device.device):
        return on_device.cpu().numpy()


def own_copy(picture: Picture) -> Picture:
    """A picture that outlives its request, on the side where it came: Triton takes a request's memory back.

    The only copy that is made of a picture before it is put on the world's device. It is complete when this returns.
    """
    if not isinstance(picture, Tensor):
        return np.array(picture)
    with beside_computing(picture.device) as stream:
        copy = picture.clone()
        if stream is not None:
            # Made on this stream, read and dropped on the compute thread's: the allocator has to know both.
            copy.record_stream(torch.cuda.default_stream(picture.device))
            stream.synchronize()
    return copy
