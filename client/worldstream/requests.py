"""What a client asks for, checked, and how it becomes Triton requests. Pure: no connection, no state.

T is the number of latent frames asked for; H and W are the sent picture's height and width.
"""

import reprlib
import string
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeAlias

import numpy as np
import numpy.typing as npt
from tritonclient.grpc import service_pb2

from worldstream.checks import (
    INT32_MAX,
    INT64_MAX,
    Float32,
    Parameters,
    checked_actions,
    checked_embeds,
    checked_flag,
    checked_fps,
    checked_integer,
    checked_intrinsics,
    checked_parameters,
    checked_poses,
    checked_scale,
    checked_size,
    checked_text,
    optional_integer,
)
from worldstream.errors import InvalidInputError
from worldstream.picture import Picture, Pixels, load_picture
from worldstream.snapshot import Snapshot
from worldstream.tensors import add_array, add_strings

WORLD = "world"
DENOISE = "denoise"
PREPROCESS = "preprocess"
MODELS = (PREPROCESS, DENOISE, WORLD)

SessionId: TypeAlias = str | int
Fit: TypeAlias = Literal["crop", "stretch"]
FrameEncoding: TypeAlias = Literal["raw", "png", "jpeg", "webp"]

_MAX_ID_CHARS = 128  # Triton refuses longer sequence ids
_ID_CHARS = frozenset(string.ascii_letters + string.digits + string.punctuation)


@dataclass(frozen=True)
class Opening:
    """What only a session's first request may carry."""

    picture: bytes | Pixels | Snapshot  # encoded bytes go through `world`, pixels [H, W, 3] straight to `denoise`
    seed: int | None = None
    translation_scale: float | None = None
    fit: Fit | None = None
    size: tuple[int, int] | None = None  # height, width of the frames

    @property
    def is_restored(self) -> bool:
        """Whether the session has a past already."""
        return isinstance(self.picture, Snapshot)

    @property
    def model(self) -> str:
        """The model that takes this picture."""
        return WORLD if isinstance(self.picture, bytes) else DENOISE


@dataclass(frozen=True)
class Controls:
    """What every request may carry. Absent values leave the choice to the server."""

    cam_to_world: Float32 | None = None  # [T, 4, 4], OpenCV axes
    actions: tuple[str, ...] | None = None  # T entries, such as "w", "wl", ""
    num_chunks: int | None = None
    intrinsics: Float32 | None = None  # [1 or T, 4]
    prompt: str | None = None
    num_steps: int | None = None
    event_id: int | None = None
    frame_encoding: FrameEncoding | None = None
    frame_quality: int | None = None
    recache: bool = False
    fps: float | None = None
    receipt: bool = False
    parameters: Parameters = ()  # more of the request's
    prompt_embeds: Float32 | None = None  # [n, d], in place of a prompt


# What whoever steers may answer with: actions, or controls as they are.
Steering: TypeAlias = str | Sequence[str] | Controls


@dataclass(frozen=True)
class SequenceFlags:
    """A request's place in its session: Triton's own sequence fields."""

    session_id: SessionId
    is_start: bool = False
    is_end: bool = False


def make_opening(
    picture: Picture,
    seed: int | None = None,
    translation_scale: float | None = None,
    fit: Fit | None = None,
    size: tuple[int, int] | None = None,
) -> Opening:
    """Check and load what a session starts from.

    Raises:
        InvalidInputError: if the picture cannot be used or a value is out of range.
    """
    if fit not in (None, "crop", "stretch"):
        raise InvalidInputError(f"fit: wanted crop or stretch, got {fit!r}")
    return Opening(
        load_picture(picture),
        optional_integer("seed", seed, -INT64_MAX - 1, INT64_MAX),
        None if translation_scale is None else checked_scale(translation_scale),
        fit,
        None if size is None else checked_size(size),
    )


def make_controls(
    cam_to_world: npt.ArrayLike | None = None,
    actions: str | Sequence[str] | None = None,
    num_chunks: int | None = None,
    intrinsics: npt.ArrayLike | None = None,
    prompt: str | None = None,
    num_steps: int | None = None,
    event_id: int | None = None,
    frame_encoding: FrameEncoding | None = None,
    frame_quality: int | None = None,
    recache: bool = False,
    fps: float | None = None,
    receipt: bool = False,
    parameters: Mapping[str, bool | int | float | str] | None = None,
    prompt_embeds: npt.ArrayLike | None = None,
) -> Controls:
    """Check and convert what a request asks for.

    Args:
        cam_to_world: [T, 4, 4], one absolute pose a latent frame.
        actions: one entry a latent frame, or text for `paths.actions_from_text`.
        num_chunks: 1 or more.
        intrinsics: [4], [1, 4] or [T, 4]; fx, fy, cx, cy in pixels of the sent picture.
        prompt: words for the world.
        num_steps: 1 or more.
        event_id: 0 or more; comes back in every batch that this request steers.
        frame_encoding: how frames travel: "raw", "png", "jpeg" or "webp".
        frame_quality: 1 to 100, of jpeg and webp.
        recache: whether the prompt holds for what the session remembers, too.
        parameters: more request parameters of `denoise`, such as {"step_cache": "dynamic"}.
        fps: 1 to 1000; no chunk begins before the last one has been watched at this rate.
        receipt: whether the server answers at once, before any frame.
        prompt_embeds: [n, d], the token vectors of a prompt, in its place.

    Raises:
        InvalidInputError: if a shape or value cannot be right, or two are given of which a request takes one.
    """
    if cam_to_world is not None and actions is not None:
        raise InvalidInputError("cam_to_world, actions: a request takes one of them, both came")
    if prompt is not None and prompt_embeds is not None:
        raise InvalidInputError("prompt, prompt_embeds: a request takes one of them, both came")
    if recache and prompt is None and prompt_embeds is None:
        raise InvalidInputError("recache: wanted it beside a prompt that a session switches to, came without one")
    return Controls(
        cam_to_world=None if cam_to_world is None else checked_poses(cam_to_world),
        actions=None if actions is None else checked_actions(actions),
        num_chunks=optional_integer("num_chunks", num_chunks, 1, INT32_MAX),
        intrinsics=None if intrinsics is None else checked_intrinsics(intrinsics),
        prompt=None if prompt is None else checked_text("prompt", prompt),
        num_steps=optional_integer("num_steps", num_steps, 1, INT32_MAX),
        event_id=optional_integer("event_id", event_id, 0, INT64_MAX),
        frame_encoding=_frame_encoding(frame_encoding, frame_quality),
        frame_quality=optional_integer("frame_quality", frame_quality, 1, 100),
        recache=checked_flag("recache", recache),
        parameters=checked_parameters(parameters),
        fps=None if fps is None else checked_fps(fps),
        receipt=checked_flag("receipt", receipt),
        prompt_embeds=None if prompt_embeds is None else checked_embeds(prompt_embeds),
    )


def controls_from(steering: Steering) -> Controls:
    """The answer of whoever steers as a request's controls."""
    return steering if isinstance(steering, Controls) else make_controls(actions=steering)


def with_defaults(controls: Controls, defaults: Controls, is_start: bool) -> Controls:
    """Fill what a request leaves open from its session's settings; a session's prompt goes out with its start only."""
    encoded = controls if controls.frame_encoding is not None else defaults
    has_prompt = controls.prompt is not None or controls.prompt_embeds is not None
    prompting = defaults if is_start and not has_prompt else controls
    return replace(
        controls,
        frame_encoding=encoded.frame_encoding,
        frame_quality=encoded.frame_quality,
        fps=controls.fps if controls.fps is not None else defaults.fps,
        intrinsics=controls.intrinsics if controls.intrinsics is not None else defaults.intrinsics,
        num_steps=controls.num_steps if controls.num_steps is not None else defaults.num_steps,
        prompt=prompting.prompt,
        prompt_embeds=prompting.prompt_embeds,
    )


def make_defaults(
    intrinsics: npt.ArrayLike | None,
    prompt: str | None,
    num_steps: int | None,
    frame_encoding: FrameEncoding | None,
    frame_quality: int | None,
    fps: float | None,
    prompt_embeds: npt.ArrayLike | None = None,
) -> Controls:
    """Check and convert what fills a session's requests where they leave it open.

    Raises:
        InvalidInputError: if a value cannot be right, or there are several rows of intrinsics.
    """
    defaults = make_controls(
        intrinsics=intrinsics,
        prompt=prompt,
        num_steps=num_steps,
        frame_encoding=frame_encoding,
        frame_quality=frame_quality,
        fps=fps,
        prompt_embeds=prompt_embeds,
    )
    if defaults.intrinsics is not None and len(defaults.intrinsics) != 1:
        raise InvalidInputError(f"intrinsics: a session takes one row, got {len(defaults.intrinsics)}")
    return defaults


def asking_for_frames(controls: Controls) -> Controls:
    """Name the one chunk that is the default: an end, or a start from a snapshot, that names none would give none."""
    is_bare = controls.cam_to_world is None and controls.actions is None and controls.num_chunks is None
    return replace(controls, num_chunks=1) if is_bare else controls


def check_session_id(session_id: SessionId) -> SessionId:
    """Return an id that both Triton's sequence fields and gRPC metadata can carry.

    Raises:
        InvalidInputError: if it is neither 1 or more nor 1 to 128 printable ASCII characters without spaces.
    """
    if not isinstance(session_id, str):
        return checked_integer("session_id", session_id, 1, INT64_MAX)
    if not (0 < len(session_id) <= _MAX_ID_CHARS and set(session_id) <= _ID_CHARS):
        raise InvalidInputError(f"session_id: wanted 1 to {_MAX_ID_CHARS} printable ASCII characters without spaces")
    return session_id


def build_request(
    request_id: str, opening: Opening | None, controls: Controls, sequence: SequenceFlags | None
) -> service_pb2.ModelInferRequest:
    """Build a request for frames: to `world` when it carries an encoded picture, else to `denoise`."""
    request = service_pb2.ModelInferRequest(model_name=opening.model if opening else DENOISE, id=request_id)
    if sequence is not None:
        _add_sequence(request, sequence)
    if opening is not None:
        _add_opening(request, opening)
    _add_controls(request, controls)
    return request


def build_save_request(request_id: str, session_id: SessionId) -> service_pb2.ModelInferRequest:
    """Build a request for a session's file."""
    request = service_pb2.ModelInferRequest(model_name=DENOISE, id=request_id)
    _add_sequence(request, SequenceFlags(session_id))
    _add_parameter(request, "save", True)
    return request


def build_preprocess_request(pictures: Sequence[bytes], size: tuple[int, int] | None) -> service_pb2.ModelInferRequest:
    """Build a request to `preprocess`; `size` is height, width.

    Raises:
        InvalidInputError: if `size` is not two integers of 1 or more.
    """
    request = service_pb2.ModelInferRequest(model_name=PREPROCESS)
    add_strings(request, "image", pictures)
    if size is not None:
        add_array(request, "size", np.array(checked_size(size), dtype=np.int32))
    return request


def chunk_latent_frames_of(model_config: Any, default: int) -> int:
    """Read the chunk's length from the parameters of `denoise`'s configuration."""
    text = model_config.parameters["chunk_latent_frames"].string_value
    return int(text) if text.isdigit() and int(text) > 0 else default


def _add_sequence(request: Any, sequence: SequenceFlags) -> None:
    _add_parameter(request, "sequence_id", sequence.session_id)
    _add_parameter(request, "sequence_start", sequence.is_start)
    _add_parameter(request, "sequence_end", sequence.is_end)


def _add_parameter(request: Any, name: str, value: bool | int | float | str) -> None:
    kind = {bool: "bool_param", int: "int64_param", float: "double_param", str: "string_param"}[type(value)]
    setattr(request.parameters[name], kind, value)


def _add_opening(request: Any, opening: Opening) -> None:
    if isinstance(opening.picture, bytes):
        add_strings(request, "image", [opening.picture])
    elif isinstance(opening.picture, Snapshot):
        add_array(request, "snapshot", opening.picture.content)
    else:
        add_array(request, "pixels", opening.picture[np.newaxis])
    if opening.seed is not None:
        add_array(request, "seed", np.array([opening.seed], dtype=np.int64))
    if opening.translation_scale is not None:
        add_array(request, "translation_scale", np.array([opening.translation_scale], dtype=np.float32))
    if opening.fit is not None:
        _add_parameter(request, "fit", opening.fit)
    if opening.size is not None:
        for name, side in zip(("height", "width"), opening.size, strict=True):
            _add_parameter(request, name, side)


def _add_controls(request: Any, controls: Controls) -> None:
    if controls.cam_to_world is not None:
        add_array(request, "cam_to_world", controls.cam_to_world)
    if controls.actions is not None:
        add_strings(request, "actions", [keys.encode() for keys in controls.actions])
    if controls.intrinsics is not None:
        add_array(request, "intrinsics", controls.intrinsics)
    if controls.prompt is not None:
        add_strings(request, "prompt", [controls.prompt.encode()])
    if controls.prompt_embeds is not None:
        add_array(request, "prompt_embeds", controls.prompt_embeds)
    for name, value in (("num_chunks", controls.num_chunks), ("num_steps", controls.num_steps)):
        if value is not None:
            add_array(request, name, np.array([value], dtype=np.int32))
    if controls.event_id is not None:
        add_array(request, "event_id", np.array([controls.event_id], dtype=np.int64))
    for name, given in controls.parameters:
        _add_parameter(request, name, given)
    for name in ("frame_encoding", "frame_quality", "fps", "recache", "receipt"):
        wish = getattr(controls, name)
        if wish is not None and wish is not False:
            _add_parameter(request, name, wish)


def _frame_encoding(encoding: FrameEncoding | None, quality: int | None) -> FrameEncoding | None:
    if encoding not in (None, "raw", "png", "jpeg", "webp"):
        raise InvalidInputError(f"frame_encoding: wanted raw, png, jpeg or webp, got {reprlib.repr(encoding)}")
    if quality is not None and encoding not in ("jpeg", "webp"):
        raise InvalidInputError(f"frame_quality: wanted it with jpeg or webp, came with {encoding or 'raw'}")
    return encoding
