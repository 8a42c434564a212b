"""A session as one file, and a file as a session that goes on byte for byte. Knows no threads and no Triton.

Saved is what the next chunks depend on: the window's keys and values, the codec's memory, the picture's condition, the
prompt, the past that a new prompt may rewrite, camera, generator, counters; and which model it belongs to. Not saved is
what belongs to the place where it is served: its id, its pace, its queue. Floats that steer are stored as the 64 bits
that they are, never as decimal text.

A restored session equals the saved one on the same kind of device, with the same versions and the same acceleration
(step cache, compiler). A file from a GPU may be restored on a CPU and the other way round where the dtype is the same:
it then goes on as this world would, whose sums round otherwise.

Its length and its header are looked at before anything is allocated; what is allocated then is what any session of this
world takes. `unpack` and `check` may run on any thread, `take` and `restore` are the compute thread's.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from worldmodel.camera import Array, CameraState, Views
from worldmodel.config import WorldConfig, frames_of_chunk
from worldmodel.errors import InvalidInputError, shown
from worldmodel.kv_cache import KVCache
from worldmodel.pixels import Pixels
from worldmodel.session import PastChunk, Prompt, Session
from worldmodel.snapshot_checks import (
    MAX_CHUNKS,
    array_of,
    check_camera,
    check_model,
    check_picture,
    check_slots,
    check_strides,
    check_tensors,
    is_dense,
    layout_of,
    model_of,
    noise_of,
    past_chunks,
)
from worldmodel.snapshot_file import MAX_HEADER_BYTES, Stored, is_sizes, pack, unpack
from worldmodel.world import World

LARGEST = 1e6  # no number of a session comes near it; far beyond, the next chunk's would run over


@dataclass(frozen=True)
class Taken:
    """A session's state at one moment, on the host; what the session does afterwards does not change it."""

    tensors: Mapping[str, Tensor]
    document: Mapping[str, Any]

    @property
    def num_bytes(self) -> int:
        """What it takes on the host."""
        return sum(tensor.nbytes for tensor in self.tensors.values())

    def pieces(self, world: World) -> list[Pixels]:
        """The file as a row of byte arrays; reads every byte once for the checksum. For a thread that may take long."""
        return pack(self.tensors, {"model": model_of(world), **self.document})


@dataclass(frozen=True)
class Snapshot:
    """A file that is undamaged; whether it fits a world is `check`'s to say."""

    document: Mapping[str, Any]
    tensors: Mapping[str, Stored]
    num_bytes: int

    @property
    def size(self) -> tuple[int, int]:
        """Height and width of the session's frames, in px."""
        height, width = self.document["size"]
        return height, width

    @property
    def chunk_index(self) -> int:
        """How many chunks the session has."""
        return int(self.document["chunk_index"])


def open_snapshot(data: Pixels, config: WorldConfig, most_bytes: int) -> Snapshot:
    """Copy a file, check that it is whole, and read which size of session it holds.

    Raises:
        TooLargeError, InvalidInputError: as `unpack`, or a size that is not served.
    """
    document, tensors = unpack(data, most_bytes)
    size, chunk_index = document.get("size"), document.get("chunk_index", -1)
    if not is_sizes(size) or size not in [list(each) for each in config.sizes]:
        served = ", ".join(f"{height} x {width}" for height, width in config.sizes)
        raise InvalidInputError(f"snapshot: its frames are {shown(size)}, wanted one of {served} (height x width)")
    if not is_sizes([chunk_index]) or chunk_index > MAX_CHUNKS:
        raise InvalidInputError(f"snapshot: chunk_index: wanted 0 to {MAX_CHUNKS}, got {shown(chunk_index)}")
    return Snapshot(document, tensors, len(data))


def most_bytes(world: World) -> int:
    """The longest file that a session of this world can make."""
    return max(world.session_bytes(size) for size in world.config.sizes) + MAX_HEADER_BYTES


# From a session to a file


def take(session: Session, world: World) -> Taken:
    """Copy what the next chunk will change; all else is shared, since nothing writes to it. Waits for the device."""
    slots = [frame for frame in session.cache.frames if frame is not None]  # free ones lie behind them
    tensors: dict[str, Tensor] = {"condition": session.condition.cpu()}
    for layer, (keys, values) in enumerate(zip(session.cache.keys, session.cache.values, strict=True)):
        tensors[f"keys.{layer}"], tensors[f"values.{layer}"] = _window(keys, session), _window(values, session)
    for layer, (keys, values) in enumerate(zip(session.prompt.keys, session.prompt.values, strict=True)):
        tensors[f"prompt.keys.{layer}"], tensors[f"prompt.values.{layer}"] = keys.cpu(), values.cpu()
    with world.streams.beside():  # where the codec's memory is made: it may not be there yet
        for index, part in enumerate(session.decoder_memory or ()):
            tensors[f"decoder_memory.{index}"] = part.cpu()
    for past in session.history:
        chunk = past.first_frame // session.config.chunk_latent_frames
        tensors[f"past.{chunk}.latent"] = past.latent.cpu()
        tensors |= {f"past.{chunk}.{name}": torch.from_numpy(value) for name, value in vars(past.views).items()}
    tensors.update({f"camera.{name}": torch.from_numpy(value) for name, value in _camera_arrays(session.camera)})
    document = {
        "size": list(session.config.sizes[0]),
        "chunk_index": session.chunk_index,
        "slots": slots,
        "noise": session.noise.state(),
        "picture_px": list(session.picture_px),
        "fit": session.fit,
        # A file has its numbers row by row. Where memory has not, sums may be taken in another order.
        "strides": {
            name: list(each.stride())
            for name, each in tensors.items()
            if not _is_row_major(each) and is_dense(tuple(each.shape), each.stride())
        },
    }
    return Taken(tensors, document)


def _window(buffer: Tensor, session: Session) -> Tensor:
    """What a layer's buffer [1, H, tokens, D] has of the window, in memory of its own.

    Zeros where the next chunk will write before it reads: a chunk that was given up may have left anything there.
    """
    per_frame = session.cache.tokens_per_frame
    num_slots = sum(frame is not None for frame in session.cache.frames)
    held = buffer[:, :, : num_slots * per_frame]
    copy = torch.empty(held.shape, dtype=held.dtype).copy_(held)
    for slot in session.cache.stage(session.next_latent_frame, session.config.chunk_latent_frames).slots:
        copy[:, :, slot * per_frame : (slot + 1) * per_frame] = 0  # nothing, where it is a free one
    return copy


def _camera_arrays(camera: CameraState) -> list[tuple[str, Array]]:
    scale = None if camera.scale is None else np.array([camera.scale], np.float64)
    named = (
        ("cam_to_origin", camera.cam_to_origin),
        ("intrinsics", camera.intrinsics),
        ("scale", scale),
        ("alignment", camera.alignment),
        ("pending", camera.pending),
    )
    return [(name, np.ascontiguousarray(value)) for name, value in named if value is not None]


def _is_row_major(tensor: Tensor) -> bool:
    """Also where a dimension of one has a stride of its own, by which kernels may choose."""
    return tensor.stride() == torch.empty(tensor.shape, device="meta").stride()


# From a file to a session


def check(snapshot: Snapshot, world: World) -> None:
    """Whether this world can go on with it. Looks at all but the tensors' numbers, which `restore` does on its device.

    Raises:
        InvalidInputError: another model, weights or dtype; tensors that are missing, over, or of another shape or
            dtype; a window, generator, picture or camera that cannot be.
    """
    check_model(snapshot.document.get("model"), model_of(world))
    config = world.config.at_size(snapshot.size)
    check_slots(snapshot.document.get("slots"), config, snapshot.chunk_index)
    check_tensors(snapshot.tensors, layout_of(config, world, snapshot.chunk_index))
    check_strides(snapshot.document.get("strides"), snapshot.tensors)
    noise_of(snapshot.document.get("noise"))
    check_picture(snapshot.document.get("picture_px"), snapshot.document.get("fit"))
    check_camera(snapshot.tensors)


@torch.inference_mode()
def restore(snapshot: Snapshot, world: World) -> Session:
    """The session that was saved, on this world's device. `check` has been called.

    Raises:
        InvalidInputError: a number that is not finite.
    """
    config, stored = world.config.at_size(snapshot.size), snapshot.tensors
    strides = snapshot.document["strides"]

    def tensor(name: str) -> Tensor:
        return _placed(stored[name], strides.get(name), world.device)

    layers = range(config.transformer.num_layers)
    # Laid out as this world lays them out, whatever the file says: to compiled blocks another layout is another graph.
    made = world.encode_prompt(np.zeros((0, config.transformer.text_dim), np.float32))
    prompt = Prompt(
        tuple(torch.empty_like(made.keys[i]).copy_(stored[f"prompt.keys.{i}"].tensor()) for i in layers),
        tuple(torch.empty_like(made.values[i]).copy_(stored[f"prompt.values.{i}"].tensor()) for i in layers),
    )
    camera = _camera(stored)
    session = Session(
        config,
        world.new_cache(config),
        tensor("condition"),
        camera,
        prompt,
        seed=0,
        picture_px=(snapshot.document["picture_px"][0], snapshot.document["picture_px"][1]),
        fit=snapshot.document["fit"],
    )
    session.noise = noise_of(snapshot.document["noise"])
    _fill(session.cache, stored, snapshot.document["slots"])
    with world.streams.beside():
        # By number: a file may have its tensors in any order.
        num_parts = sum(name.startswith("decoder_memory.") for name in stored)
        memory = tuple(tensor(f"decoder_memory.{index}") for index in range(num_parts))
    session.decoder_memory = memory or None
    session.history = tuple(
        PastChunk(
            chunk * config.chunk_latent_frames,
            tensor(f"past.{chunk}.latent"),
            Views(*(array_of(stored[f"past.{chunk}.{field.name}"]) for field in dataclasses.fields(Views))),
        )
        for chunk in past_chunks(config, snapshot.chunk_index)
    )
    session.chunk_index = snapshot.chunk_index
    session.next_latent_frame = snapshot.chunk_index * config.chunk_latent_frames
    session.next_frame = _num_frames(config, snapshot.chunk_index)
    _check_finite(session, world)
    return session


def _num_frames(config: WorldConfig, num_chunks: int) -> int:
    first, later = (frames_of_chunk(config.chunk_latent_frames, index) for index in (0, 1))
    return first + (num_chunks - 1) * later if num_chunks else 0


def _camera(stored: Mapping[str, Stored]) -> CameraState:
    given = {
        name: array_of(stored[f"camera.{name}"]) for name in ("alignment", "pending") if f"camera.{name}" in stored
    }
    scale = float(array_of(stored["camera.scale"])[0]) if "camera.scale" in stored else None
    return CameraState(array_of(stored["camera.cam_to_origin"]), array_of(stored["camera.intrinsics"]), scale, **given)


def _placed(stored: Stored, strides: list[int] | None, device: torch.device) -> Tensor:
    """A tensor of its own on the device, laid out in memory as it was."""
    if strides is None:
        return torch.empty(stored.shape, dtype=stored.dtype, device=device).copy_(stored.tensor())
    return torch.empty_strided(stored.shape, strides, dtype=stored.dtype, device=device).copy_(stored.tensor())


def _fill(cache: KVCache, stored: Mapping[str, Stored], slots: list[int]) -> None:
    num_tokens = len(slots) * cache.tokens_per_frame
    for layer, (keys, values) in enumerate(zip(cache.keys, cache.values, strict=True)):
        keys[:, :, :num_tokens].copy_(stored[f"keys.{layer}"].tensor())
        values[:, :, :num_tokens].copy_(stored[f"values.{layer}"].tensor())
    cache.frames = (*slots, *(None,) * (len(cache.frames) - len(slots)))


def _check_finite(session: Session, world: World) -> None:
    """On the device, where it takes no time, and with one wait for all tensors."""
    on_compute = {
        "condition": [session.condition],
        "keys": session.cache.keys,
        "values": session.cache.values,
        "prompt": [*session.prompt.keys, *session.prompt.values],
        "past": [past.latent for past in session.history],
    }
    marks = {name: _all_finite(tensors, world.device) for name, tensors in on_compute.items()}
    with world.streams.beside():
        marks["decoder_memory"] = _all_finite(session.decoder_memory or (), world.device)
        for name, is_finite in marks.items():
            if not bool(is_finite):
                raise InvalidInputError(f"snapshot: {name}: a number is not finite, or beyond all measure")


def _all_finite(tensors: Sequence[Tensor], device: torch.device) -> Tensor:
    # The least and the largest number are NaN where one is, and ten times faster to have than isfinite of all.
    ends = [end.float() for each in tensors if each.numel() for end in torch.aminmax(each)]
    return (torch.stack(ends).abs() <= LARGEST).all() if ends else torch.ones((), dtype=torch.bool, device=device)
