"""What a client asks for: tensors and the sequence envelope in, one checked, immutable request out.

All checks of what a client sends are here or called from here, so that nothing behind this file meets a surprise.
Parameters are checked in request_parameters.py, snapshots in snapshot_checks.py. Letters: T latent frames.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from worldmodel import camera as cam
from worldmodel.camera_checks import check_actions, check_intrinsics, checked_poses
from worldmodel.config import TIME_STRIDE, WorldConfig
from worldmodel.encoding import FrameEncoding
from worldmodel.errors import InvalidInputError, TooLargeError
from worldmodel.inputs import own_copy
from worldmodel.pixels import Picture
from worldmodel.prompt import Vectors
from worldmodel.request_parameters import (
    STEP_CACHE,
    Envelope,
    encoding_of,
    fit_of,
    flag_of,
    fps_of,
    parameters_of,
    recache_of,
    session_of,
    size_of,
    step_cache_of,
)
from worldmodel.schedule import chunk_sigmas
from worldmodel.serving import ServingConfig
from worldmodel.session import SessionId
from worldmodel.snapshot import Snapshot, open_snapshot
from worldmodel.step_cache_settings import StepCacheSettings
from worldmodel.world import Controls

# Of a request for frames.
CONTROLS = {"cam_to_world", "intrinsics", "actions", "prompt", "prompt_embeds", "num_chunks", "num_steps"}
MAX_KEYS = 8  # bytes of one entry of `actions`: every key once
MOST_EMBEDDED = 1e6  # no encoder's numbers come near it; far beyond, the transformer's would run over


@dataclass(frozen=True)
class Request:
    """One request, checked. `num_chunks` is 0 for a bare end or restore, and where a session is to be saved."""

    session: SessionId | None  # None: a session of this one request
    is_start: bool
    is_end: bool
    num_chunks: int
    picture: Picture | None = None  # [H, W, 3], on the host or on a device
    cam_to_world: cam.Array | None = None  # [T, 4, 4]
    intrinsics: cam.Array | None = None  # [1 or T, 4]
    actions: tuple[str, ...] | None = None
    translation_scale: float | None = None
    prompt: str | Vectors | None = None
    num_steps: int | None = None
    seed: int = 0
    event_id: int = -1
    step_cache: StepCacheSettings | None = None
    fit: str = "crop"
    size: tuple[int, int] | None = None  # height and width in px; None: the usual one
    is_recached: bool = False  # the prompt holds for what the session remembers, too
    wants_receipt: bool = False
    fps: float | None = None  # no chunk begins before the one before it has been watched at this rate
    encoding: FrameEncoding | None = None  # of the frames that answer it; None: raw
    is_resumed: bool = False  # it starts from a snapshot
    snapshot: Snapshot | None = None  # until it has done its part, as a picture
    is_saving: bool = False  # answered by the session's snapshot

    @property
    def is_bare_end(self) -> bool:
        """Whether it asks for no further chunk, and for the end of the one that runs."""
        return self.is_end and self.num_chunks == 0

    @property
    def text(self) -> str | None:
        """What has to be read before its first chunk: its prompt, or the empty one of a start that has none."""
        if self.prompt is None and self.picture is not None:
            return ""
        return self.prompt if isinstance(self.prompt, str) and not self.is_bare_end else None

    @property
    def waiting_bytes(self) -> int:
        """Bytes of the picture or snapshot, and of the prompt's vectors, that wait with this request."""
        picture_bytes = 0 if self.picture is None else self.picture.nbytes
        prompt_bytes = self.prompt.nbytes if isinstance(self.prompt, np.ndarray) else 0
        return picture_bytes + prompt_bytes + (0 if self.snapshot is None else self.snapshot.num_bytes)

    def controls(self, chunk: int, chunk_latent_frames: int) -> Controls:
        """What steers this request's n-th chunk; a chunk that is not full is filled by standing still."""
        frames = range(chunk * chunk_latent_frames, (chunk + 1) * chunk_latent_frames)
        return Controls(
            cam_to_world=_rows(self.cam_to_world, frames),
            actions=None if self.actions is None else tuple(_pressed(self.actions, frame) for frame in frames),
            intrinsics=_rows(self.intrinsics, frames),
            clip_step=self._longest_step,
            # A start has its prompt already; what is resumed has the one that it was saved with.
            prompt=self.prompt if chunk == 0 and (self.is_resumed or not self.is_start) else None,
            is_recached=chunk == 0 and self.is_recached,
            num_steps=self.num_steps,
            step_cache=self.step_cache,
        )

    @functools.cached_property
    def _longest_step(self) -> float | None:
        """The longest step among all poses: once a request, not once a chunk."""
        if self.cam_to_world is None:
            return None
        return cam.largest_step(cam.relative_to_previous(self.cam_to_world, self.cam_to_world[0]))


def _rows(values: cam.Array | None, frames: range) -> cam.Array | None:
    return None if values is None else values[np.minimum(np.array(frames), len(values) - 1)]


def _pressed(actions: tuple[str, ...], frame: int) -> str:
    return actions[frame] if frame < len(actions) else ""


def parse_request(
    tensors: Mapping[str, Any],
    envelope: Envelope,
    config: WorldConfig,
    serving: ServingConfig,
    max_snapshot_bytes: int = 0,
) -> Request:
    """Check everything a client sent, and copy what is kept.

    Args:
        tensors: the inputs that are present, by name; BYTES as object arrays of bytes, `pixels` perhaps on a device.
            Types and ranks are the model configuration's, which Triton has checked.
        max_snapshot_bytes: the longest that a session of this world can make.

    Raises:
        InvalidInputError, TooLargeError: naming the input, what was wanted and what came.
    """
    parameters = parameters_of(envelope)
    session, is_start, is_end = session_of(envelope, parameters)
    starts = is_start or session is None
    if flag_of(parameters, "save"):
        # An ensemble asks for what it passes on: the file of a session would be made for nobody.
        if envelope.outputs is not None and "snapshot" not in envelope.outputs:
            raise InvalidInputError("parameter 'save': wanted a request to denoise that asks for its output 'snapshot'")
        return _saving(tensors, session, starts, is_end, parameters)
    snapshot = _snapshot(tensors, starts, config, max_snapshot_bytes)
    begins = starts and snapshot is None  # from a picture
    picture = _picture(tensors.get("pixels"), starts, serving) if snapshot is None else None
    most = serving.max_chunks_per_request * config.chunk_latent_frames
    poses = _poses(tensors.get("cam_to_world"), most)
    actions = _actions(tensors.get("actions"), most)
    if poses is not None and actions is not None:
        raise InvalidInputError("actions: wanted cam_to_world or actions to steer a request, got both")
    num_chunks = _num_chunks(tensors, poses, actions, config, serving)
    if is_end and not starts and poses is None and actions is None and "num_chunks" not in tensors:
        num_chunks = 0
    if snapshot is not None and session is not None and not is_end and not tensors.keys() & CONTROLS:
        num_chunks = 0
    num_steps = _scalar(tensors, "num_steps")
    sigmas = chunk_sigmas(config, num_steps)
    for name in ("seed", "translation_scale"):
        if name in tensors and not begins:
            raise InvalidInputError(f"{name}: is set when a session starts, and cannot change afterwards")
    size = size_of(parameters, begins, config)
    return Request(
        session=session,
        is_start=starts,
        is_end=is_end or session is None,
        num_chunks=num_chunks,
        picture=picture,
        cam_to_world=poses,
        intrinsics=_intrinsics(tensors.get("intrinsics"), poses),
        actions=actions,
        translation_scale=_translation_scale(tensors),
        prompt=_prompt(tensors, config, serving),
        num_steps=num_steps,
        seed=_seed(tensors),
        event_id=_event_id(tensors),
        step_cache=step_cache_of(parameters, serving, len(sigmas), config.transformer.num_layers),
        fit=fit_of(parameters, begins),
        size=size if snapshot is None else snapshot.size,
        is_recached=recache_of(parameters, begins, not tensors.keys().isdisjoint(("prompt", "prompt_embeds"))),
        wants_receipt=flag_of(parameters, "receipt"),
        fps=_fps(parameters, num_chunks, config, serving),
        encoding=encoding_of(parameters),
        is_resumed=snapshot is not None,
        snapshot=snapshot,
    )


def _saving(
    tensors: Mapping[str, Any],
    session: SessionId | None,
    starts: bool,
    is_end: bool,
    parameters: Mapping[str, Any],
) -> Request:
    if session is None or starts or is_end:
        raise InvalidInputError(
            "parameter 'save': wanted it in a request that continues a session, and does not end it"
        )
    for name in tensors:
        if name != "event_id" and 0 not in tensors[name].shape:
            raise InvalidInputError(f"{name}: a request that saves its session computes nothing; wanted none")
    for name in ("fps", "frame_encoding", "frame_quality", "height", "width", "fit", "recache", *STEP_CACHE):
        if name in parameters:
            raise InvalidInputError(f"parameter {name!r}: a request that saves its session computes nothing")
    return Request(
        session,
        is_start=False,
        is_end=False,
        num_chunks=0,
        event_id=_event_id(tensors),
        wants_receipt=flag_of(parameters, "receipt"),
        is_saving=True,
    )


def _snapshot(
    tensors: Mapping[str, Any], starts: bool, config: WorldConfig, max_snapshot_bytes: int
) -> Snapshot | None:
    if "snapshot" not in tensors:
        return None
    if not starts:
        raise InvalidInputError("snapshot: a session is restored by the request that starts it; this one continues one")
    if "pixels" in tensors and 0 not in tensors["pixels"].shape:
        raise InvalidInputError("snapshot: wanted pixels or snapshot to start a session, got both")
    return open_snapshot(tensors["snapshot"], config, max_snapshot_bytes)


def _picture(pixels: NDArray[Any] | Tensor | None, starts: bool, serving: ServingConfig) -> Picture | None:
    if pixels is None or 0 in pixels.shape:
        if starts:
            raise InvalidInputError("pixels: wanted the picture that starts the session, got none")
        return None
    if not starts:
        raise InvalidInputError("pixels: a picture starts a session; this request continues one")
    if len(pixels) != 1:
        raise InvalidInputError(f"pixels: wanted exactly one picture, got {len(pixels)}")
    height, width = pixels.shape[1:3]
    if max(height, width) > serving.max_picture_side_px:  # a thin one of few pixels would still be made wide
        raise TooLargeError(
            f"pixels: wanted sides of at most {serving.max_picture_side_px} pixels, got {height} x {width}"
        )
    if height * width > serving.max_picture_pixels:
        raise TooLargeError(
            f"pixels: wanted at most {serving.max_picture_pixels} pixels, got {height} x {width} = {height * width}"
        )
    return own_copy(pixels[0])


def _poses(cam_to_world: NDArray[Any] | None, most: int) -> cam.Array | None:
    if cam_to_world is None:
        return None
    if len(cam_to_world) == 0:
        raise InvalidInputError("cam_to_world: wanted one pose or more, got none")
    if len(cam_to_world) > most:
        raise TooLargeError(f"cam_to_world: wanted at most {most} poses in one request, got {len(cam_to_world)}")
    return checked_poses(cam_to_world.astype(np.float64))


def _actions(actions: NDArray[Any] | None, most: int) -> tuple[str, ...] | None:
    if actions is None:
        return None
    if len(actions) == 0:
        raise InvalidInputError("actions: wanted one entry or more, got none")
    if len(actions) > most:
        raise TooLargeError(f"actions: wanted at most {most} entries in one request, got {len(actions)}")
    for frame, value in enumerate(actions):
        if len(value) > MAX_KEYS:
            raise InvalidInputError(f"actions: frame {frame}: wanted at most {MAX_KEYS} keys, got {len(value)} bytes")
    pressed = tuple(_text("actions", value, f"frame {frame}") for frame, value in enumerate(actions))
    check_actions(pressed)
    return pressed


def _intrinsics(intrinsics: NDArray[Any] | None, poses: cam.Array | None) -> cam.Array | None:
    if intrinsics is None:
        return None
    num_poses = 0 if poses is None else len(poses)
    if len(intrinsics) == 0:
        raise InvalidInputError("intrinsics: wanted one row or more, got none")
    if len(intrinsics) != 1 and len(intrinsics) != num_poses:
        raise InvalidInputError(
            f"intrinsics: wanted 1 row, or one per pose ({num_poses} came), got {len(intrinsics)} rows"
        )
    rows = intrinsics.astype(np.float64)
    check_intrinsics(rows)
    return rows


def _fps(parameters: Mapping[str, Any], num_chunks: int, config: WorldConfig, serving: ServingConfig) -> float | None:
    """A paced request keeps its place while it waits: no longer than a session may be idle."""
    fps = fps_of(parameters)
    lasts_s = 0.0 if fps is None else num_chunks * config.chunk_latent_frames * TIME_STRIDE / fps
    if lasts_s > serving.session_idle_timeout_s:
        raise InvalidInputError(
            f"parameter 'fps': wanted a request whose frames last at most {serving.session_idle_timeout_s:g} s, got "
            f"{num_chunks} chunks, {lasts_s:.0f} s at {fps:g} frames a second; ask for fewer at a time"
        )
    return fps


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


def _prompt(tensors: Mapping[str, Any], config: WorldConfig, serving: ServingConfig) -> str | Vectors | None:
    if "prompt_embeds" in tensors:
        if "prompt" in tensors:
            raise InvalidInputError("prompt_embeds: wanted prompt or prompt_embeds, got both")
        return _vectors(tensors["prompt_embeds"], config)
    if "prompt" not in tensors:
        return None
    value = tensors["prompt"].reshape(-1)[0]
    if len(value) > serving.max_prompt_bytes:
        raise TooLargeError(f"prompt: wanted at most {serving.max_prompt_bytes} bytes, got {len(value)}")
    return _text("prompt", value)


def _vectors(embeds: NDArray[Any], config: WorldConfig) -> Vectors:
    sizes = config.transformer
    if embeds.ndim != 2 or embeds.shape[1] != sizes.text_dim:
        raise InvalidInputError(
            f"prompt_embeds: wanted [n, {sizes.text_dim}], this world's token vectors, got {list(embeds.shape)}"
        )
    if len(embeds) > sizes.text_len:
        raise TooLargeError(f"prompt_embeds: wanted at most {sizes.text_len} rows, got {len(embeds)}")
    is_sound = np.abs(embeds).max(axis=1, initial=0) <= MOST_EMBEDDED  # NaN is not
    if not is_sound.all():
        raise InvalidInputError(
            f"prompt_embeds: row {int(np.argmin(is_sound))}: a number is not finite, or beyond {MOST_EMBEDDED:g}"
        )
    return np.array(embeds, np.float32)


def _text(name: str, value: bytes | str, where: str = "") -> str:
    try:
        return value if isinstance(value, str) else value.decode("utf-8")
    except UnicodeDecodeError as error:
        place = f"{name}: {where}: " if where else f"{name}: "
        raise InvalidInputError(f"{place}wanted UTF-8 text, byte {error.start} is none") from error
