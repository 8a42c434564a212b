"""Files of a prompt's token vectors: NumPy's .npy, or .safetensors. Knows no text encoder and no requests.

n is the number of tokens, d the numbers of each.
"""

import io
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from worldstream.checks import Float32, checked_embeds
from worldstream.errors import InvalidInputError
from worldstream.npy import open_npy
from worldstream.snapshot import write_whole

NAME = "prompt_embeds"  # of the tensor in a .safetensors file
SUFFIXES = (".npy", ".safetensors")
_DTYPES = {"F64": "<f8", "F32": "<f4", "F16": "<f2", "BF16": "<u2"}


def check_suffix(path: Path) -> None:
    """Refuse a name that says neither form.

    Raises:
        InvalidInputError: if it ends in neither.
    """
    if path.suffix.lower() not in SUFFIXES:
        raise InvalidInputError(f"prompt_embeds: wanted a name that ends in {' or '.join(SUFFIXES)}, got {path.name}")


def read_embeds(path: Path) -> Float32:
    """The vectors in a file, float32 [n, d].

    Args:
        path: a .npy file of an array, or a .safetensors file with one tensor, or with one called `prompt_embeds`.

    Raises:
        InvalidInputError: if it cannot be read, or holds no such array.
    """
    check_suffix(path)
    try:
        array = open_npy(path) if path.suffix.lower() == ".npy" else _tensor(path.read_bytes())
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is damaged, or another kind of file"
        raise InvalidInputError(f"prompt_embeds: cannot read {path.name}: {why}") from error
    return checked_embeds(array)


def write_embeds(path: Path, vectors: Float32) -> None:
    """Write vectors in the form that the name says; the whole file or none.

    Raises:
        InvalidInputError: if the name ends in neither.
    """
    check_suffix(path)
    data = np.ascontiguousarray(vectors, "<f4")
    if path.suffix.lower() == ".npy":
        file = io.BytesIO()
        np.save(file, data)
        write_whole(path, file.getvalue())
        return
    entry = {"dtype": "F32", "shape": list(data.shape), "data_offsets": [0, data.nbytes]}
    text = json.dumps({NAME: entry}).encode()
    text += b" " * (-len(text) % 8)
    write_whole(path, len(text).to_bytes(8, "little") + text + data.tobytes())


def _tensor(content: bytes) -> npt.NDArray[Any]:
    """One tensor of a .safetensors file. By hand: that package is not among the client's, and NumPy has no bfloat16."""
    length = int.from_bytes(content[:8], "little")
    entries = json.loads(content[8 : 8 + length])
    entries.pop("__metadata__", None)
    (entry,) = [entries[NAME]] if NAME in entries else entries.values()
    begin, end = entry["data_offsets"]
    data = np.frombuffer(content[8 + length + begin : 8 + length + end], _DTYPES[entry["dtype"]])
    if len(data) != math.prod(entry["shape"]):
        raise ValueError("the tensor is not whole")
    if entry["dtype"] == "BF16":  # the upper half of a float32
        data = (data.astype("<u4") << 16).view("<f4")
    return data.reshape(entry["shape"])
