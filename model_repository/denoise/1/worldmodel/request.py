"""What a client asks for: tensors and the sequence envelope in, one checked, immutable request out. NumPy only.

All checks of what a client sends are here, so that nothing behind this file meets a surprise. Letters: T latent frames.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from worldmodel import camera as cam
from worldmodel.config import WorldConfig
from worldmodel.errors import InvalidInputError, TooLargeError
from worldmodel.pixels import Pixels
from worldmodel.schedule import chunk_sigmas
from worldmodel.serving import ServingConfig
from worldmodel.session import SessionId
from worldmodel.world import Controls

PARAMETERS = ("fit", "session", "session_start", "session_end")
# HTTP `generate` hands Triton's sequence fields over as parameters, and sets no correlation id.
ALIASES = {"sequence_id": "session", "sequence_start": "session_start", "sequence_end": "session_end"}
FITS = ("crop", "stretch")


@dataclass(frozen=True)
class Envelope:
    """What travels beside the tensors: Triton's sequence fields and the request parameters."""

    correlation_id: int | str = 0
    is_start: bool = False
    is_end: bool = False
    parameters: Mapping[str, Any] | None = None


@dataclass(frozen=True)
class Request:
    """One request, checked. `num_chunks` is 0 for a bare end."""

    session: SessionId | None  # None: a session of this one request
    is_start: bool
    is_end: bool
    num_chunks: int
    picture: Pixels | None = None  # [H, W, 3]
    poses: cam.Array | None = None  # [T, 4, 4]
    intrinsics: cam.Array | None = None  # [1 or T, 4]
    actions: tuple[str, ...] | None = None
    translation_scale: float | None = None
    prompt: str | None = None
    num_steps: int | None = None
    seed: int = 0
    event_id: int = -1
    fit: str = "crop"

    def controls(self, chunk: int, chunk_latent_frames: int) -> Controls:
        """What steers this request's n-th chunk; a chunk that is not full is filled by standing still."""
        frames = range(chunk * chunk_latent_frames, (chunk + 1) * chunk_latent_frames)
        return Controls(
            poses=_rows(self.poses, frames),
            actions=None if self.actions is None else tuple(_pressed(self.actions, frame) for frame in frames),
            intrinsics=_rows(self.intrinsics, frames),
            clip_step=None if self.poses is None else self._longest_step(),
            prompt=self.prompt if chunk == 0 else None,
            num_steps=self.num_steps,
        )

    def _longest_step(self) -> float:
        assert self.poses is not None
        return cam.largest_step(cam.relative_to_previous(self.poses, self.poses[0]))


def _rows(values: cam.Array | None, frames: range) -> cam.Array | None:
    return None if values is None else values[np.minimum(np.array(frames), len(values) - 1)]


def _pressed(actions: tuple[str, ...], frame: int) -> str:
    return actions[frame] if frame < len(actions) else ""


def parse_request(
    tensors: Mapping[str, NDArray[Any]], envelope: Envelope, config: WorldConfig, serving: ServingConfig
) -> Request:
    """Check everything a client sent, and copy what is kept.

    Args:
        tensors: the inputs that are present, by name; BYTES as object arrays of bytes. Types and ranks are the model
            configuration's, which Triton has checked.

    Raises:
        InvalidInputError, TooLargeError: naming the input, what was wanted and what came.
    """
    session, is_start, is_end, parameters = _session_of(envelope)
    starts = is_start or session is None
    picture = _picture(tensors.get("pixels"), starts, serving)
    poses = _poses(tensors.get("cam_to_world"))
    actions = _actions(tensors.get("actions"))
    if poses is not None and actions is not None:
        raise InvalidInputError("actions: wanted cam_to_world or actions to steer a request, got both")
    num_chunks = _num_chunks(tensors, poses, actions, config, serving)
    if is_end and not starts and poses is None and actions is None and "num_chunks" not in tensors:
        num_chunks = 0
    num_steps = _scalar(tensors, "num_steps")
    chunk_sigmas(config, num_steps)
    for name in ("seed", "translation_scale"):
        if name in tensors and not starts:
            raise InvalidInputError(f"{name}: is set when a session starts, and cannot change afterwards")
    return Request(
        session=session,
        is_start=starts,
        is_end=is_end or session is None,
        num_chunks=num_chunks,
        picture=picture,
        poses=poses,
        intrinsics=_intrinsics(tensors.get("intrinsics"), poses),
        actions=actions,
        translation_scale=_translation_scale(tensors),
        prompt=_prompt(tensors.get("prompt"), serving),
        num_steps=num_steps,
        seed=_seed(tensors),
        event_id=_event_id(tensors),
        fit=_fit(parameters, starts),
    )


def _session_of(envelope: Envelope) -> tuple[SessionId | None, bool, bool, Mapping[str, Any]]:
    parameters = dict(envelope.parameters or {})
    for name in parameters:
        # Triton's own, and forwarded headers, are not ours to judge.
        if name not in (*PARAMETERS, *ALIASES) and not name.startswith("triton_") and "-" not in name:
            raise InvalidInputError(f"parameter {name!r} is unknown; wanted one of {', '.join(PARAMETERS)}")
    for alias, name in ALIASES.items():
        if alias in parameters:
            parameters.setdefault(name, parameters.pop(alias))
    if envelope.correlation_id not in (0, ""):
        for name in ALIASES.values():
            if name in parameters:
                raise InvalidInputError(f"parameter {name!r}: this request carries a sequence_id already")
        return _session_id(envelope.correlation_id), envelope.is_start, envelope.is_end, parameters
    if envelope.is_start or envelope.is_end:
        raise InvalidInputError("sequence_id: wanted an id beside sequence_start or sequence_end, got none")
    is_start, is_end = (_flag(parameters, name) for name in ("session_start", "session_end"))
    if "session" not in parameters:
        if is_start or is_end:
            raise InvalidInputError("parameter 'session': wanted an id beside session_start or session_end, got none")
        return None, False, False, parameters
    name = parameters["session"]
    if type(name) not in (int, str) or name in (0, ""):
        raise InvalidInputError(f"parameter 'session': wanted a non-empty string or an integer above 0, got {name!r}")
    return _session_id(name), is_start, is_end, parameters


def _session_id(name: int | str) -> SessionId:
    return ("name" if isinstance(name, str) else "number", name)


def _flag(parameters: Mapping[str, Any], name: str) -> bool:
    value = parameters.get(name, False)
    if not isinstance(value, bool):
        raise InvalidInputError(f"parameter {name!r}: wanted true or false, got {value!r}")
    return value


def _fit(parameters: Mapping[str, Any], starts: bool) -> str:
    if "fit" not in parameters:
        return "crop"
    if not starts:
        raise InvalidInputError("parameter 'fit': is set when a session starts, and cannot change afterwards")
    if parameters["fit"] not in FITS:
        raise InvalidInputError(f"parameter 'fit': wanted crop or stretch, got {parameters['fit']!r}")
    return str(parameters["fit"])


def _picture(pixels: NDArray[Any] | None, starts: bool, serving: ServingConfig) -> Pixels | None:
    if pixels is None or pixels.size == 0:
        if starts:
            raise InvalidInputError("pixels: wanted the picture that starts the session, got none")
        return None
    if not starts:
        raise InvalidInputError("pixels: a picture starts a session; this request continues one")
    if len(pixels) != 1:
        raise InvalidInputError(f"pixels: wanted exactly one picture, got {len(pixels)}")
    height, width = pixels.shape[1:3]
    if height * width > serving.max_picture_pixels:
        raise TooLargeError(
            f"pixels: wanted at most {serving.max_picture_pixels} pixels, got {height} x {width} = {height * width}"
        )
    return np.array(pixels[0])  # a copy: Triton takes the request's memory back


def _poses(cam_to_world: NDArray[Any] | None) -> cam.Array | None:
    if cam_to_world is None:
        return None
    if len(cam_to_world) == 0:
        raise InvalidInputError("cam_to_world: wanted one pose or more, got none")
    poses = cam_to_world.astype(np.float64)
    cam.check_poses(poses)
    return poses


def _actions(actions: NDArray[Any] | None) -> tuple[str, ...] | None:
    if actions is None:
        return None
    if len(actions) == 0:
        raise InvalidInputError("actions: wanted one entry or more, got none")
    pressed = tuple(_text("actions", value, f"frame {frame}") for frame, value in enumerate(actions))
    cam.parse_actions(pressed)
    return pressed


def _intrinsics(intrinsics: NDArray[Any] | None, poses: cam.Array | None) -> cam.Array | None:
    if intrinsics is None:
        return None
    num_poses = 0 if poses is None else len(poses)
    if len(intrinsics) != 1 and len(intrinsics) != num_poses:
        raise InvalidInputError(
            f"intrinsics: wanted 1 row, or one per pose ({num_poses} came), got {len(intrinsics)} rows"
        )
    rows = intrinsics.astype(np.float64)
    cam.check_intrinsics(rows)
    return rows


def _num_chunks(
    tensors: Mapping[str, NDArray[Any]],
    poses: cam.Array | None,
    actions: tuple[str, ...] | None,
    config: WorldConfig,
    serving: ServingConfig,
) -> int:
    name, steered = (
        ("actions", len(actions)) if actions is not None else ("cam_to_world", 0 if poses is None else len(poses))
    )
    filled = -(-steered // config.chunk_latent_frames)
    num_chunks = _scalar(tensors, "num_chunks")
    if num_chunks is None:
        num_chunks = max(1, filled)
    elif num_chunks < 1:
        raise InvalidInputError(f"num_chunks: wanted 1 or more, got {num_chunks}")
    elif num_chunks < filled:
        raise InvalidInputError(
            f"{name}: {steered} latent frames fill {filled} chunks of {config.chunk_latent_frames}, but num_chunks is "
            f"{num_chunks}"
        )
    if num_chunks > serving.max_chunks_per_request:
        raise TooLargeError(
            f"num_chunks: wanted at most {serving.max_chunks_per_request} chunks in one request, got {num_chunks}"
        )
    return num_chunks


def _scalar(tensors: Mapping[str, NDArray[Any]], name: str) -> int | None:
    return int(tensors[name].reshape(-1)[0]) if name in tensors else None


def _translation_scale(tensors: Mapping[str, NDArray[Any]]) -> float | None:
    if "translation_scale" not in tensors:
        return None
    scale = float(tensors["translation_scale"].reshape(-1)[0])
    if not (np.isfinite(scale) and scale > 0):
        raise InvalidInputError(f"translation_scale: wanted a positive number, got {scale}")
    return scale


def _seed(tensors: Mapping[str, NDArray[Any]]) -> int:
    return _scalar(tensors, "seed") or 0


def _event_id(tensors: Mapping[str, NDArray[Any]]) -> int:
    event_id = _scalar(tensors, "event_id")
    if event_id is None:
        return -1
    if event_id < 0:
        raise InvalidInputError(f"event_id: wanted 0 or more, got {event_id}")
    return event_id


def _prompt(prompt: NDArray[Any] | None, serving: ServingConfig) -> str | None:
    if prompt is None:
        return None
    value = prompt.reshape(-1)[0]
    if len(value) > serving.max_prompt_bytes:
        raise TooLargeError(f"prompt: wanted at most {serving.max_prompt_bytes} bytes, got {len(value)}")
    return _text("prompt", value)


def _text(name: str, value: bytes | str, where: str = "") -> str:
    try:
        return value if isinstance(value, str) else value.decode("utf-8")
    except UnicodeDecodeError as error:
        place = f"{name}: {where}: " if where else f"{name}: "
        raise InvalidInputError(f"{place}wanted UTF-8 text, byte {error.start} is none") from error
