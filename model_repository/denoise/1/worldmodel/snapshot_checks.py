"""Whether a snapshot can be a session of a world: its model, its counters, its tensors, its camera.

Looks at all but the tensors' numbers. Every refusal is INVALID_INPUT, begins with `snapshot:` and names what is wrong.
"""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch

from worldmodel.camera import MAX_STEP, Array
from worldmodel.camera_checks import checked_poses
from worldmodel.config import MASK_CHANNELS, WorldConfig
from worldmodel.errors import InvalidInputError, shown
from worldmodel.pixels import FITS
from worldmodel.session import Noise
from worldmodel.snapshot_file import Stored, is_sizes
from worldmodel.world import World

MAX_CHUNKS = 1 << 30  # chunk numbers are sent in 32 bits
MAX_SIDE_PX = 1 << 20
MAX_NUMBER = 1e50  # of a camera in the client's units, which are float32: far beyond, squares run over
# Of the configuration, what a session that runs no longer depends on, or carries itself.
NOT_COMPARED = ("height_px", "width_px", "further_sizes", "horizontal_fov_deg", "max_steps")
OPTIONAL = {"camera.scale": (1,), "camera.alignment": (4, 4), "camera.pending": (4, 4)}

Layout = dict[str, tuple[torch.dtype, tuple[int, ...]]]  # of every tensor, dtype and shape


def model_of(world: World) -> dict[str, Any]:
    """What a session's model must be to go on with it: configuration, dtype, and a digest of all weights."""
    config = dataclasses.asdict(world.config)
    kept = {name: value for name, value in config.items() if name not in NOT_COMPARED}
    named = {**kept, "dtype": str(world.dtype).removeprefix("torch."), "weights": world.weights_digest}
    plain: dict[str, Any] = json.loads(json.dumps(named))
    return plain


def past_chunks(config: WorldConfig, num_chunks: int) -> list[int]:
    """The chunks of which the window holds a frame, oldest first."""
    return sorted({frame // config.chunk_latent_frames for frame in held_frames(config, num_chunks)})


def held_frames(config: WorldConfig, num_chunks: int) -> list[int]:
    """The latent frames in the window, by number: the sink, and then the newest."""
    num_frames = num_chunks * config.chunk_latent_frames
    if num_frames <= config.window_latent_frames:
        return list(range(num_frames))
    num_rolling = config.window_latent_frames - config.sink_latent_frames
    return [*range(config.sink_latent_frames), *range(num_frames - num_rolling, num_frames)]


def layout_of(config: WorldConfig, world: World, num_chunks: int) -> Layout:
    """Every tensor of such a session: dtype and shape."""
    transformer, double = config.transformer, torch.float64
    cells = (config.latent_height, config.latent_width)
    num_tokens = len(held_frames(config, num_chunks)) * config.tokens_per_frame
    window = (1, transformer.num_heads, num_tokens, transformer.head_dim)
    text = (1, transformer.num_heads, transformer.text_len, transformer.head_dim)
    layout: Layout = {
        "condition": (
            world.dtype,
            (MASK_CHANNELS + transformer.latent_channels, config.condition_latent_frames, *cells),
        ),
        "camera.cam_to_origin": (double, (4, 4)),
        "camera.intrinsics": (double, (4,)),
    }
    for layer in range(transformer.num_layers):
        layout |= {f"{name}.{layer}": (world.dtype, window) for name in ("keys", "values")}
        layout |= {f"{name}.{layer}": (world.dtype, text) for name in ("prompt.keys", "prompt.values")}
    if num_chunks:
        shapes = world.codec.decoder_memory_shapes(config.height_px, config.width_px)
        dtype = world.codec.dtype
        layout |= {f"decoder_memory.{index}": (dtype, shape) for index, shape in enumerate(shapes)}
    for chunk in past_chunks(config, num_chunks):
        length = config.chunk_latent_frames
        layout[f"past.{chunk}.latent"] = (torch.float32, (1, transformer.latent_channels, length, *cells))
        layout |= {f"past.{chunk}.{name}": (double, (length, 4, 4)) for name in ("relative", "cam_to_origin")}
        layout[f"past.{chunk}.intrinsics"] = (double, (length, 4))
    return layout


def check_model(given: Any, wanted: Mapping[str, Any]) -> None:
    """Refuse a session of another model, naming the first setting that differs."""
    if not isinstance(given, dict):
        raise InvalidInputError("snapshot: it does not say which model it belongs to")
    made, own = _settings(given), _settings(wanted)
    for name, value in own.items():
        if name in made and made[name] == value:
            continue
        if name == "weights":
            raise InvalidInputError("snapshot: weights: it was made with others than this server has loaded")
        it_had = f"with {shown(made[name])}" if name in made else "without this setting"
        raise InvalidInputError(f"snapshot: {name}: it was made {it_had}, this server's world has {shown(value)}")
    surplus = sorted(made.keys() - own.keys())
    if surplus:
        raise InvalidInputError(f"snapshot: {shown(surplus[0])}: this server's model has no such setting")


def _settings(model: Mapping[str, Any]) -> dict[str, Any]:
    """A model's settings by name. Those of a module have its name in front: the whole of them says not what differs."""
    settings: dict[str, Any] = {}
    for name, value in model.items():
        own = {f"{name}.{part}": each for part, each in value.items()} if isinstance(value, dict) else {name: value}
        settings |= own
    return settings


def check_slots(slots: Any, config: WorldConfig, num_chunks: int) -> None:
    """Refuse a window that does not hold what so many chunks leave in it."""
    if not is_sizes(slots) or sorted(slots) != held_frames(config, num_chunks):
        raise InvalidInputError(f"snapshot: slots: wanted the latent frames of a window after {num_chunks} chunks")


def check_tensors(stored: Mapping[str, Stored], layout: Layout) -> None:
    """Refuse tensors that are missing or over, or of another dtype or shape."""
    optional = {name: (torch.float64, shape) for name, shape in OPTIONAL.items() if name in stored}
    wanted = {**layout, **optional}
    for name, (dtype, shape) in wanted.items():
        if name not in stored:
            raise InvalidInputError(f"snapshot: {name}: this tensor is missing")
        if (stored[name].dtype, stored[name].shape) != (dtype, shape):
            raise InvalidInputError(
                f"snapshot: {name}: wanted {dtype} {list(shape)}, got {stored[name].dtype} {shown(stored[name].shape)}"
            )
    surplus = sorted(stored.keys() - wanted.keys())
    if surplus:
        raise InvalidInputError(f"snapshot: {shown(surplus[0])}: no session of this world has such a tensor")


def check_strides(strides: Any, stored: Mapping[str, Stored]) -> None:
    """Refuse strides of which a tensor would take more memory than its numbers."""
    if not isinstance(strides, dict):
        raise InvalidInputError("snapshot: strides: wanted a JSON object")
    for name, each in strides.items():
        if name not in stored or not is_sizes(each) or not is_dense(stored[name].shape, each):
            raise InvalidInputError(f"snapshot: {shown(name)}: its strides do not fit its shape")


def is_dense(shape: tuple[int, ...], strides: Sequence[int]) -> bool:
    """Whether these strides visit each number of a block of memory once, in some order of the dimensions."""
    if len(shape) != len(strides) or 0 in shape or max(strides, default=0) > math.prod(shape):
        return False
    step = 1
    for stride, side in sorted((stride, side) for stride, side in zip(strides, shape, strict=True) if side > 1):
        if stride != step:
            return False
        step *= side
    return True


def check_picture(picture_px: Any, fit: Any) -> None:
    """Refuse what no session's picture was, and how none was fitted."""
    if not (is_sizes(picture_px) and len(picture_px) == 2 and 0 < min(picture_px) <= max(picture_px) <= MAX_SIDE_PX):
        raise InvalidInputError(f"snapshot: picture_px: wanted height and width, got {shown(picture_px)}")
    if fit not in FITS:
        raise InvalidInputError(f"snapshot: fit: wanted crop or stretch, got {shown(fit)}")


def check_camera(stored: Mapping[str, Stored]) -> None:
    """Refuse poses that are none, and lenses that none has; the tensors' shapes have been checked."""
    for name, each in stored.items():
        if each.dtype != torch.float64:
            continue
        values = array_of(each)
        if name == "camera.scale" or name.endswith(".intrinsics"):
            lengths = values[..., :2]  # the scale; fx and fy
            if not ((np.abs(values) <= MAX_NUMBER).all() and (lengths >= 1 / MAX_NUMBER).all()):
                raise InvalidInputError(
                    f"snapshot: {name}: wanted numbers of at most {MAX_NUMBER:g}, and lengths of at least "
                    f"{1 / MAX_NUMBER:g}"
                )
            continue
        try:
            checked_poses(values.reshape(-1, 4, 4))
        except InvalidInputError as error:
            raise InvalidInputError(f"snapshot: {name}: {str(error).removeprefix('cam_to_world: ')}") from error
        farthest = _farthest(name, len(values))
        if np.abs(values[..., :3, 3]).max() > farthest:
            raise InvalidInputError(f"snapshot: {name}: wanted translations of at most {farthest:g}")


def _farthest(name: str, length: int) -> float:
    """How far a camera can be: those of the past are in model units, of which a step has so many at most."""
    if not name.startswith("past."):
        return MAX_NUMBER
    _, chunk, kind = name.split(".")
    return MAX_STEP if kind == "relative" else MAX_STEP * length * (int(chunk) + 1)


def noise_of(state: Any) -> Noise:
    """The generator that a document tells of."""
    try:
        return Noise.from_state(state)
    except ValueError as error:
        raise InvalidInputError(f"snapshot: noise: {error}") from error


def array_of(stored: Stored) -> Array:
    """A copy as float64."""
    array: Array = stored.tensor().numpy().copy()
    return array
