"""Files -> modules, strictly: every key is used, none is missing, each has its shape.

Knows safetensors: one file, or a folder of shards, with or without an index. All headers are held against the module
before anything else is read. Tensors are mapped, one after the other put on their device in their dtype, and let go, so
that the host never holds a second copy of the weights. Messages name keys and files, never paths.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn

from worldmodel.checkpoint_files import CheckpointError, check_is_file, read_object, shown

log = logging.getLogger("worldstream")

INDEX = "*.safetensors.index.json"
LFS_MARK = b"version https://git-lfs.github.com/spec/"
FLOATS = ("F64", "F32", "F16", "BF16")
MAPPED_BYTES = 256 << 20  # a file is opened anew after so much of it: what was read of it is unmapped then
REPORT_EVERY_S = 10.0


@dataclass(frozen=True)
class _Stored:
    """A tensor in a file, as its header has it."""

    file: Path
    key: str
    shape: tuple[int, ...]
    dtype: str


def load_strict(
    module: nn.Module,
    source: Path,
    rename: Callable[[str], str] | None = None,
    device: torch.device | None = None,
    dtype_of: Callable[[str], torch.dtype] | None = None,
    passing_over: Collection[str] = (),
) -> None:
    """Give a module its tensors from a checkpoint.

    Args:
        module: on any device; on "meta" it takes no memory before. Its parameters no longer require gradients.
        source: a .safetensors file, or a folder with one, or with several.
        rename: from a key of the files to the module's name.
        device: where the tensors go; default the CPU.
        dtype_of: what they become, by the module's name; default what the module has there.
        passing_over: files in the folder that belong to others; an index that names them has the last word.

    Raises:
        CheckpointError: a key is missing, over, or of another shape; a file is missing or damaged; a number is not
            finite.
    """
    wanted = module.state_dict()
    stored = _fitting(_headers(source, passing_over), wanted, rename or (lambda key: key))
    progress = _Progress(len(stored))
    with torch.no_grad():
        for name, tensor in _tensors(stored, device or torch.device("cpu")):
            dtype = dtype_of(name) if dtype_of else wanted[name].dtype
            # A copy, always: a mapped tensor changes, or ends the process, when somebody writes into the file.
            _put(module, name, tensor.to(dtype, copy=tensor.device.type == "cpu"), stored[name].file)
            progress.note(tensor.nbytes)


def fill_strict(module: nn.Module, tensors: Mapping[str, Tensor], file: Path, device: torch.device) -> None:
    """As `load_strict`, from tensors that are on the host already: for small files.

    Args:
        tensors: by the module's names.
        file: where they come from.
    """
    wanted = module.state_dict()
    found = (_Stored(file, key, tuple(each.shape), _word(each.dtype)) for key, each in tensors.items())
    for name in _fitting(found, wanted, lambda key: key):
        _put(module, name, tensors[name].detach().to(device, wanted[name].dtype).contiguous(), file)


def _word(dtype: torch.dtype) -> str:
    words = {torch.float64: "F64", torch.float32: "F32", torch.float16: "F16", torch.bfloat16: "BF16"}
    return words.get(dtype, str(dtype))


def read_tensors(file: Path) -> dict[str, Tensor]:
    """Every tensor of a small file on the host: .safetensors, or .pth as torch.save writes it.

    Raises:
        CheckpointError: it is not there, damaged, or holds something else.
    """
    check_is_file(file)
    if file.suffix == ".safetensors":
        with _opened(file, torch.device("cpu")) as opened:
            return {key: opened.get_tensor(key).clone() for key in list(opened.keys())}
    try:
        # weights_only: a pickle could run anything.
        tensors = torch.load(file, map_location="cpu", weights_only=True)
    except Exception as error:  # of many classes, as the damage is
        raise CheckpointError(
            f"{file.name}: cannot be read as torch's weights, it is damaged, not whole, or more than tensors "
            f"({type(error).__name__})"
        ) from error
    if not isinstance(tensors, dict) or not all(
        isinstance(key, str) and isinstance(each, Tensor) for key, each in tensors.items()
    ):
        raise CheckpointError(f"{file.name}: wanted tensors by their names, got something else")
    for key, each in tensors.items():
        if each.layout != torch.strided or each.device.type != "cpu":
            raise CheckpointError(f"{file.name}: {key}: wanted a plain tensor, got {each.layout} on {each.device.type}")
    return tensors


def _fitting(found: Iterator[_Stored], wanted: dict[str, Tensor], rename: Callable[[str], str]) -> dict[str, _Stored]:
    """What the files have for each wanted name."""
    stored: dict[str, _Stored] = {}
    surplus: list[str] = []
    for each in found:
        name = rename(each.key)
        if name not in wanted:
            surplus.append(each.key)
        elif name in stored:
            raise CheckpointError(f"{name}: is there twice, in {stored[name].file.name} and in {each.file.name}")
        elif each.shape != tuple(wanted[name].shape):
            raise CheckpointError(f"{name}: wanted shape {list(wanted[name].shape)}, the file has {list(each.shape)}")
        elif each.dtype not in FLOATS:
            raise CheckpointError(f"{name}: wanted one of {', '.join(FLOATS)}, the file has {each.dtype}")
        else:
            stored[name] = each
    missing = sorted(wanted.keys() - stored.keys())
    if missing or surplus:
        raise CheckpointError(f"{_listed('missing', missing)}; {_listed('not known', sorted(surplus))}")
    return stored


def _listed(what: str, names: list[str]) -> str:
    shown = ", ".join(names[:5]) + (", ..." if len(names) > 5 else "")
    return f"{len(names)} keys {what}" + (f" ({shown})" if names else "")


def _put(module: nn.Module, name: str, tensor: Tensor, file: Path) -> None:
    if not _is_finite(tensor):
        raise CheckpointError(f"{name}: wanted numbers that are finite in {tensor.dtype}, {file.name} has others")
    owner_name, _, leaf = name.rpartition(".")
    owner = module.get_submodule(owner_name)
    is_parameter = leaf in dict(owner.named_parameters(recurse=False))
    setattr(owner, leaf, nn.Parameter(tensor, requires_grad=False) if is_parameter else tensor)


def _is_finite(tensor: Tensor) -> bool:
    """Without a copy, and ten times faster than isfinite of all: the least and the largest are NaN where one is."""
    if not tensor.numel():
        return True
    least, largest = tensor.aminmax()
    return bool(torch.isfinite(least) & torch.isfinite(largest))


def _tensors(stored: dict[str, _Stored], device: torch.device) -> Iterator[tuple[str, Tensor]]:
    """Each wanted tensor on its device, file by file; on the CPU it is mapped, and to be copied before the next one."""
    by_file: dict[Path, list[tuple[str, _Stored]]] = {}
    for name, each in stored.items():
        by_file.setdefault(each.file, []).append((name, each))
    for file, entries in sorted(by_file.items()):
        left = list(reversed(entries))
        while left:
            num_bytes = 0
            with _opened(file, device) as opened:
                while left and num_bytes < MAPPED_BYTES:
                    name, each = left.pop()
                    tensor = opened.get_tensor(each.key)
                    num_bytes += tensor.nbytes
                    yield name, tensor
                    del tensor


def _headers(source: Path, passing_over: Collection[str]) -> Iterator[_Stored]:
    """Every tensor that the files hold."""
    for file, promised in _files(source, passing_over):
        with _opened(file, torch.device("cpu")) as opened:
            keys = list(opened.keys())
            if promised is not None and (lacking := sorted(promised - set(keys))):
                raise CheckpointError(f"{file.name}: the index promises {_listed('that it has not', lacking)}")
            for key in keys:
                part = opened.get_slice(key)
                yield _Stored(file, key, tuple(part.get_shape()), part.get_dtype())


@contextmanager
def _opened(file: Path, device: torch.device) -> Iterator[Any]:
    """A safetensors file, whose damages are named."""
    check_is_file(file)
    try:
        opened: Any = safe_open(file, framework="pt", device=str(device))
    except (SafetensorError, OSError) as error:
        raise CheckpointError(
            f"{file.name}: cannot be read as safetensors, it is {_damage(file)} ({type(error).__name__})"
        ) from error
    with opened:
        yield opened


def _damage(file: Path) -> str:
    """What is wrong with a file that cannot be opened."""
    with suppress(OSError), file.open("rb") as opened:
        # What a clone without Git LFS leaves in place of a large file.
        if opened.read(len(LFS_MARK)) == LFS_MARK:
            return "a Git LFS pointer: fetch the file itself (git lfs pull)"
    return "damaged or not whole"


def _files(source: Path, passing_over: Collection[str]) -> list[tuple[Path, set[str] | None]]:
    """The files of a checkpoint, each with the keys that an index promises of it."""
    if source.suffix == ".safetensors":
        return [(source, None)]
    indices = sorted(source.glob(INDEX))
    if len(indices) > 1:
        raise CheckpointError(f"wanted one index, found {', '.join(index.name for index in indices)}")
    if indices:
        return _indexed(indices[0])
    files = [file for file in sorted(source.glob("*.safetensors")) if file.name not in passing_over]
    if not files:
        raise CheckpointError("no .safetensors file found at the configured place")
    return [(file, None) for file in files]


def _indexed(index: Path) -> list[tuple[Path, set[str] | None]]:
    promised: dict[str, set[str]] = {}
    listed = read_object(index).get("weight_map")
    if not isinstance(listed, dict) or not all(isinstance(name, str) for name in listed.values()):
        raise CheckpointError(f'{index.name}: wanted {{"weight_map": {{key: file}}}}')
    for key, name in listed.items():
        if Path(name).name != name or name in ("", ".."):
            raise CheckpointError(f"{index.name}: wanted names of files beside it, got {shown(name)}")
        promised.setdefault(name, set()).add(key)
    return [(index.parent / name, keys) for name, keys in sorted(promised.items())]


class _Progress:
    """Says in the log how far a long load is."""

    def __init__(self, num_tensors: int) -> None:
        self._num_tensors = num_tensors
        self._num_done = self._num_bytes = 0
        self._began_s = self._said_s = time.monotonic()

    def note(self, num_bytes: int) -> None:
        """One more tensor of so many bytes is there."""
        self._num_done += 1
        self._num_bytes += num_bytes
        now_s = time.monotonic()
        if now_s - self._said_s >= REPORT_EVERY_S:
            self._said_s = now_s
            log.info(
                "checkpoint: %d of %d tensors, %.1f GiB in %.0f s",
                self._num_done,
                self._num_tensors,
                self._num_bytes / 2**30,
                now_s - self._began_s,
            )
