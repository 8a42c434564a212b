"""The sequence fields and parameters of a request, each checked by itself. Knows no tensors.

A parameter's message begins with `parameter` and its name, says what was wanted and what came. `starts` says whether
the request begins a session from a picture.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from worldmodel.config import WorldConfig
from worldmodel.encoding import DEFAULT_QUALITY, LOSSY, NAMES, FrameEncoding
from worldmodel.errors import InvalidInputError, shown
from worldmodel.pixels import FITS
from worldmodel.serving import ServingConfig
from worldmodel.session import SessionId
from worldmodel.step_cache_settings import StepCacheSettings

# Request parameters of the step cache, and the types they come as.
STEP_CACHE = {
    "step_cache": (str,),
    "step_cache_threshold": (float, int),
    "step_cache_warmup_steps": (int,),
    "step_cache_max_continuous": (int,),
    "step_cache_taylorseer_order": (int,),
    "step_cache_first_blocks": (int,),
    "step_cache_last_blocks": (int,),
}
PARAMETERS = (
    "fit",
    "fps",
    "frame_encoding",
    "frame_quality",
    "height",
    "width",
    "receipt",
    "recache",
    "save",
    "session",
    "session_start",
    "session_end",
    *STEP_CACHE,
)
MIN_FPS, MAX_FPS = 1, 1000  # a slower watcher would hold a session for ever
INPUTS = (  # to be named beside the parameters: a misspelt input comes as one
    "pixels",
    "snapshot",
    "image and size of world",
    "cam_to_world",
    "intrinsics",
    "translation_scale",
    "actions",
    "prompt",
    "prompt_embeds",
    "num_chunks",
    "num_steps",
    "seed",
    "event_id",
)
# HTTP `generate` hands Triton's sequence fields over as parameters, and sets no correlation id.
ALIASES = ("sequence_id", "sequence_start", "sequence_end")
SESSION_NAMES = ("session", "session_start", "session_end", *ALIASES)
MAX_NAME = 128  # characters of a session's id


@dataclass(frozen=True)
class Envelope:
    """What travels beside the tensors: Triton's sequence fields and the request parameters."""

    correlation_id: int | str = 0
    is_start: bool = False
    is_end: bool = False
    parameters: Mapping[str, Any] | None = None
    outputs: tuple[str, ...] | None = None  # that are asked for; None: all


def parameters_of(envelope: Envelope) -> dict[str, Any]:
    """A request's parameters, none of them unknown."""
    parameters = dict(envelope.parameters or {})
    for name in parameters:
        # Triton's own, and forwarded headers, are not ours to judge.
        if name not in (*PARAMETERS, *ALIASES) and not name.startswith("triton_") and "-" not in name:
            raise InvalidInputError(
                f"{shown(name)} is neither an input ({', '.join(INPUTS)}) nor a parameter "
                f"({', '.join(each for each in PARAMETERS if each not in STEP_CACHE)}, step_cache, step_cache_...)"
            )
    return parameters


def session_of(envelope: Envelope, parameters: Mapping[str, Any]) -> tuple[SessionId | None, bool, bool]:
    """Which session a request belongs to (None: one of this request alone), and whether it starts and ends it."""
    if envelope.correlation_id not in (0, ""):
        for name in SESSION_NAMES:
            if name in parameters:
                raise InvalidInputError(f"parameter {name!r}: this request carries a sequence_id already")
        return _session_id("sequence_id", envelope.correlation_id), envelope.is_start, envelope.is_end
    if envelope.is_start or envelope.is_end:
        raise InvalidInputError("sequence_id: wanted an id beside sequence_start or sequence_end, got none")
    given = [name for name in ("session", "sequence_id") if name in parameters]
    flags = {name: flag_of(parameters, name) for name in SESSION_NAMES if name.endswith(("_start", "_end"))}
    is_start = flags["session_start"] or flags["sequence_start"]
    is_end = flags["session_end"] or flags["sequence_end"]
    if len(given) > 1:
        raise InvalidInputError("parameter 'session': wanted session or sequence_id, got both")
    if not given:
        if is_start or is_end:
            raise InvalidInputError("parameter 'session': wanted an id beside session_start or session_end, got none")
        return None, False, False
    return _session_id(f"parameter {given[0]!r}", parameters[given[0]]), is_start, is_end


def _session_id(where: str, name: Any) -> SessionId:
    if type(name) is int and name > 0:
        return ("number", name)
    if type(name) is str and 0 < len(name) <= MAX_NAME:
        return ("name", name)
    raise InvalidInputError(
        f"{where}: wanted an integer of 1 or more, or a string of 1 to {MAX_NAME} characters, got {shown(name)}"
    )


def flag_of(parameters: Mapping[str, Any], name: str) -> bool:
    """A parameter that is true or false; false where it is absent."""
    value = parameters.get(name, False)
    if not isinstance(value, bool):
        raise InvalidInputError(f"parameter {name!r}: wanted true or false, got {shown(value)}")
    return value


def fps_of(parameters: Mapping[str, Any]) -> float | None:
    """Frames per second at which the client watches; None: as fast as they come."""
    fps = parameters.get("fps")
    if fps is None:
        return None
    if type(fps) not in (int, float) or not MIN_FPS <= fps <= MAX_FPS:  # NaN fails too
        raise InvalidInputError(f"parameter 'fps': wanted a number from {MIN_FPS} to {MAX_FPS}, got {shown(fps)}")
    return float(fps)


def encoding_of(parameters: Mapping[str, Any]) -> FrameEncoding | None:
    """What frames are sent as; None: raw.

    Raises:
        UnavailableError: this server lacks a package for it.
    """
    name = parameters.get("frame_encoding", "raw")
    if name not in ("raw", *NAMES):
        raise InvalidInputError(f"parameter 'frame_encoding': wanted raw, {', '.join(NAMES)}, got {shown(name)}")
    quality = parameters.get("frame_quality", DEFAULT_QUALITY)
    if type(quality) is not int or not 1 <= quality <= 100:
        raise InvalidInputError(f"parameter 'frame_quality': wanted an integer from 1 to 100, got {shown(quality)}")
    if "frame_quality" in parameters and not name.startswith(LOSSY):
        raise InvalidInputError(
            f"parameter 'frame_quality': wanted it beside a frame_encoding that loses something "
            f"({', '.join(LOSSY)}), got {name}"
        )
    if name == "raw":
        return None
    encoding = FrameEncoding(name, quality)
    encoding.make()  # refuse now, rather than with the frames, what this server lacks a package for
    return encoding


def recache_of(parameters: Mapping[str, Any], starts: bool, has_prompt: bool) -> bool:
    """Whether a new prompt holds for what the session remembers, too."""
    is_wanted = flag_of(parameters, "recache")
    if is_wanted and (starts or not has_prompt):
        raise InvalidInputError("parameter 'recache': wanted it beside a prompt that a session switches to")
    return is_wanted


def fit_of(parameters: Mapping[str, Any], starts: bool) -> str:
    """How the picture is fitted to the model's size."""
    if "fit" not in parameters:
        return "crop"
    if not starts:
        raise InvalidInputError("parameter 'fit': is set when a session starts, and cannot change afterwards")
    if parameters["fit"] not in FITS:
        raise InvalidInputError(f"parameter 'fit': wanted crop or stretch, got {shown(parameters['fit'])}")
    return str(parameters["fit"])


def size_of(parameters: Mapping[str, Any], starts: bool, config: WorldConfig) -> tuple[int, int] | None:
    """Height and width that were asked for, in px; None: the usual size."""
    given = [name for name in ("height", "width") if name in parameters]
    if not given:
        return None
    if not starts:
        raise InvalidInputError(f"parameter {given[0]!r}: is set when a session starts, and cannot change afterwards")
    if len(given) == 1:
        raise InvalidInputError(f"parameter {given[0]!r}: wanted height and width together")
    height, width = parameters["height"], parameters["width"]
    if type(height) is not int or type(width) is not int or (height, width) not in config.sizes:
        served = ", ".join(f"{each[0]} x {each[1]}" for each in config.sizes)
        raise InvalidInputError(
            f"parameters 'height', 'width': wanted a size that is served ({served}; height x width), "
            f"got {shown(height)} x {shown(width)}"
        )
    return height, width


def step_cache_of(
    parameters: Mapping[str, Any], serving: ServingConfig, num_steps: int, num_layers: int
) -> StepCacheSettings | None:
    """How the step cache serves this request; None: as the server's configuration says."""
    given = {name: parameters[name] for name in STEP_CACHE if name in parameters}
    if not given:
        return None
    for name, value in given.items():
        if type(value) not in STEP_CACHE[name]:
            wanted = STEP_CACHE[name][0].__name__
            raise InvalidInputError(f"parameter {name!r}: wanted a value of type {wanted}, got {shown(value)}")
    if serving.step_cache == "none":
        raise InvalidInputError(
            f"parameter {next(iter(given))!r}: this server runs without a step cache (the model's parameter step_cache "
            "mounts one)"
        )
    changes = {name.removeprefix("step_cache_"): value for name, value in given.items() if name != "step_cache"}
    settings = dataclasses.replace(serving.step_cache_settings, **changes)
    settings = dataclasses.replace(settings, mode=given.get("step_cache", settings.mode))
    settings.check(num_steps, num_layers)
    return settings
