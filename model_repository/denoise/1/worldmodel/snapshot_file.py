"""Named tensors and one JSON document as one safetensors file, with a version and a checksum. Knows no sessions.

Any reader of safetensors reads it; nothing in it is code. Its header begins with fixed words, so that version and
checksum are found before anything is parsed:

    {"__metadata__":{"format":"worldstream session 1","checksum":"<64 hex digits>","document":"<JSON>"}, ...

The checksum is BLAKE2b-256 of all other bytes of the file. It finds damage; it is no signature: whoever may start a
session may also write a file that says anything, so what is read is checked by its meaning as well.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from worldmodel.errors import InvalidInputError, TooLargeError, shown
from worldmodel.pixels import Pixels

VERSION = 1
MAX_HEADER_BYTES = 1 << 20
ALIGNMENT = 8  # of the header's end, as safetensors wants it
HEX_DIGITS = 64
MAX_DIMENSIONS = 8
_OPENING = '{"__metadata__":{"format":"worldstream session %d","checksum":"'
_BEGINNING = re.compile(rb'\{"__metadata__":\{"format":"worldstream session ([0-9]{1,9})","checksum":"([0-9a-f]{64})"')
_DTYPES = {"F64": torch.float64, "F32": torch.float32, "BF16": torch.bfloat16, "F16": torch.float16}
_NAMES = {dtype: name for name, dtype in _DTYPES.items()}


@dataclass(frozen=True)
class Stored:
    """One tensor of a file, not yet looked at: its shape is only a claim."""

    dtype: torch.dtype
    shape: tuple[int, ...]
    content: Pixels

    def tensor(self) -> Tensor:
        """The same memory as a tensor; once the shape is known to be one that was wanted."""
        return torch.from_numpy(self.content).view(self.dtype).view(self.shape)


def pack(tensors: Mapping[str, Tensor], document: Mapping[str, Any]) -> list[Pixels]:
    """The file as a row of byte arrays; those of contiguous tensors are their own memory, not copies.

    Args:
        tensors: on the host, of the dtypes above.
        document: what JSON can say.
    """
    # The widest numbers first, so that each tensor begins at a multiple of its own width.
    ordered = sorted(tensors.items(), key=lambda item: -item[1].element_size())
    contents = [_bytes_of(tensor) for _, tensor in ordered]
    entries: dict[str, Any] = {
        "__metadata__": {
            "format": f"worldstream session {VERSION}",
            "checksum": "0" * HEX_DIGITS,
            "document": json.dumps(document),
        }
    }
    end = 0
    for (name, tensor), content in zip(ordered, contents, strict=True):
        begin, end = end, end + len(content)
        entries[name] = {"dtype": _NAMES[tensor.dtype], "shape": list(tensor.shape), "data_offsets": [begin, end]}
    text = json.dumps(entries, separators=(",", ":")).encode()
    text += b" " * (-len(text) % ALIGNMENT)
    header = np.frombuffer(bytearray(len(text).to_bytes(8, "little") + text), np.uint8)
    place = _checksum_place(VERSION)
    digest = _checksum([header[: place.start], header[place.stop :], *contents])
    header[place] = np.frombuffer(digest.encode(), np.uint8)
    return [header, *contents]


def unpack(data: Pixels, most_bytes: int) -> tuple[dict[str, Any], dict[str, Stored]]:
    """Check a file and look into it.

    Args:
        data: [n]; copied before it is trusted, since its memory may be somebody else's.
        most_bytes: longer ones are refused before anything else.

    Returns:
        The document, and the tensors, which look at the copy.

    Raises:
        TooLargeError, InvalidInputError: too long, no snapshot, another version, cut off or damaged; or a header that
            does not describe the bytes behind it.
    """
    if len(data) > most_bytes:
        raise TooLargeError(
            f"snapshot: wanted at most {most_bytes} bytes (a whole session of this world), got {len(data)}"
        )
    version, checksum = _beginning(data)
    if version != VERSION:
        raise InvalidInputError(f"snapshot: wanted version {VERSION}, got version {version}")
    owned = np.array(data)
    place = _checksum_place(VERSION)
    if _checksum([owned[: place.start], owned[place.stop :]]) != checksum:
        raise InvalidInputError("snapshot: its checksum does not fit its bytes: it is cut off or damaged")
    length = int.from_bytes(owned[:8].tobytes(), "little")
    if length > min(MAX_HEADER_BYTES, len(owned) - 8) or length % ALIGNMENT:
        raise InvalidInputError(
            f"snapshot: its header claims {length} bytes; wanted a multiple of {ALIGNMENT}, at most {MAX_HEADER_BYTES} "
            f"and within the {len(owned)} bytes that came"
        )
    entries = _json(owned[8 : 8 + length].tobytes(), "its header")
    metadata = entries.pop("__metadata__", None)
    text = metadata.get("document") if isinstance(metadata, dict) else None
    if not isinstance(text, str):
        raise InvalidInputError("snapshot: its header has no document")
    return _json(text.encode(errors="replace"), "its document"), _tensors(entries, owned[8 + length :])


def _beginning(data: Pixels) -> tuple[int, str]:
    # A few bytes more than the longest beginning; an array, so that no copy of the rest is made.
    found = _BEGINNING.match(data[8 : 8 + len(_OPENING) + HEX_DIGITS + 16].tobytes())
    if found is None:
        raise InvalidInputError("snapshot: wanted the bytes of a session's snapshot, these do not begin like one")
    return int(found[1]), found[2].decode()


def _checksum_place(version: int) -> slice:
    begin = 8 + len(_OPENING % version)
    return slice(begin, begin + HEX_DIGITS)


def _checksum(contents: Iterable[Pixels]) -> str:
    digest = hashlib.blake2b(digest_size=HEX_DIGITS // 2)
    for content in contents:
        digest.update(content.data)
    return digest.hexdigest()


def _bytes_of(tensor: Tensor) -> Pixels:
    bytes_array: Pixels = tensor.contiguous().view(-1).view(torch.uint8).numpy()
    return bytes_array


def _json(text: bytes, what: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InvalidInputError(f"snapshot: {what} cannot be read as JSON") from error
    if not isinstance(value, dict):
        raise InvalidInputError(f"snapshot: {what} is not a JSON object")
    return value


def _tensors(entries: Mapping[str, Any], content: Pixels) -> dict[str, Stored]:
    """The tensors, which must fill the file in order, without gaps."""
    tensors, position = {}, 0
    for name, entry in entries.items():
        dtype, shape, (begin, end) = _entry(name, entry)
        # Python's integers: a product of hostile sizes cannot run over.
        if begin != position or end - begin != dtype.itemsize * math.prod(shape) or begin % dtype.itemsize:
            raise InvalidInputError(f"snapshot: {shown(name)}: its place in the file does not fit its shape")
        tensors[name] = Stored(dtype, shape, content[begin:end])
        position = end
    if position != len(content):
        raise InvalidInputError(f"snapshot: its tensors take {position} bytes, {len(content)} follow its header")
    return tensors


def _entry(name: str, entry: Any) -> tuple[torch.dtype, tuple[int, ...], list[int]]:
    is_whole = (
        isinstance(entry, dict)
        and entry.get("dtype") in tuple(_DTYPES)
        and is_sizes(entry.get("shape"))
        and len(entry["shape"]) <= MAX_DIMENSIONS
        and is_sizes(entry.get("data_offsets"))
        and len(entry["data_offsets"]) == 2
    )
    if not is_whole:
        raise InvalidInputError(f"snapshot: {shown(name)}: its entry in the header is not that of a tensor")
    return _DTYPES[entry["dtype"]], tuple(entry["shape"]), entry["data_offsets"]


def is_sizes(value: Any) -> bool:
    """Whether this is a list of whole numbers, 0 or more, that 62 bits can hold."""
    return isinstance(value, list) and all(type(each) is int and 0 <= each < 1 << 62 for each in value)
