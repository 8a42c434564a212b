"""Files -> modules, strictly: every key is used, none is missing, each has its shape.

Knows safetensors, one file or a sharded folder with an index. Messages name keys, never paths.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn


class CheckpointError(Exception):
    """A checkpoint does not fit the module: says which keys, and what was wanted."""


def load_strict(module: nn.Module, source: Path, prefix: str = "") -> None:
    """Copy a checkpoint into a module.

    Args:
        source: a .safetensors file, or a folder with one (or several and an index).
        prefix: take only keys that begin with it, and cut it off.

    Raises:
        CheckpointError: a key is missing, over, or of another shape; a file is missing or damaged.
    """
    wanted = {**dict(module.named_parameters()), **dict(module.named_buffers())}
    seen: set[str] = set()
    surplus: list[str] = []
    with torch.no_grad():
        for key, tensor in _tensors(source):
            if not key.startswith(prefix):
                continue
            name = key[len(prefix) :]
            if name not in wanted:
                surplus.append(name)
                continue
            if tensor.shape != wanted[name].shape:
                raise CheckpointError(
                    f"{name}: wanted shape {list(wanted[name].shape)}, the file has {list(tensor.shape)}"
                )
            wanted[name].copy_(tensor)
            seen.add(name)
    missing = sorted(wanted.keys() - seen)
    if missing or surplus:
        raise CheckpointError(f"{_listed('missing', missing)}; {_listed('not known', sorted(surplus))}")


def _listed(what: str, names: list[str]) -> str:
    shown = ", ".join(names[:5]) + (", ..." if len(names) > 5 else "")
    return f"{len(names)} keys {what}" + (f" ({shown})" if names else "")


def _tensors(source: Path) -> Iterator[tuple[str, Tensor]]:
    for file in _files(source):
        try:
            with safe_open(file, framework="pt") as opened:
                for key in opened.keys():  # noqa: SIM118 (not a dict)
                    yield key, opened.get_tensor(key)
        except (SafetensorError, OSError) as error:
            raise CheckpointError(f"{file.name}: cannot be read as safetensors ({type(error).__name__})") from error


def _files(source: Path) -> list[Path]:
    if source.is_file():
        return [source]
    indices = sorted(source.glob("*.safetensors.index.json"))
    if indices:
        weight_map = json.loads(indices[0].read_text(encoding="utf-8"))["weight_map"]
        return [source / name for name in sorted(set(weight_map.values()))]
    files = sorted(source.glob("*.safetensors"))
    if not files:
        raise CheckpointError("no .safetensors file found at the configured place")
    return files
