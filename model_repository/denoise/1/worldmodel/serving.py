"""How a world is served: budgets, limits, device. Read once from the model configuration's parameters, all strings."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from worldmodel.config import PRESETS, WorldConfig
from worldmodel.errors import InvalidInputError
from worldmodel.step_cache_settings import StepCacheSettings


class ParameterError(ValueError):
    """A model parameter cannot be meant: says which, what was wanted and what came."""


@dataclass(frozen=True)
class ServingConfig:
    """What the operator decides. Sizes in bytes, times in seconds."""

    checkpoint: str = ""  # a folder, absolute or in the version folder; empty: weights from weights_seed
    weights_seed: int = 0
    device: str = "auto"  # auto | cpu | cuda | cuda:N
    dtype: str = "auto"  # auto | float32 | bfloat16
    codec: str = "auto"  # own | wan | taehv | auto: the first of them that the checkpoint has
    codec_dtype: str = "auto"  # float32 | bfloat16 | auto: float32
    text_encoder: str = "auto"  # auto: the checkpoint's | words | umt5 | none: clients send prompt_embeds
    text_device: str = "auto"  # auto: the world's | cpu | cuda | cuda:N
    compile: str = "auto"  # on | off | auto: on a GPU; per block
    compile_backend: str = "inductor"
    compile_mode: str = "default"  # default | reduce-overhead | max-autotune-no-cudagraphs: of inductor only
    # A folder that keeps compiled code across restarts; "none" leaves the compiler's own, which a reboot may empty.
    compile_cache: str = "~/.cache/worldstream/compiled"
    step_cache: str = (
        "none"  # none: not mounted | off | auto | dynamic | a mask: what a chunk does without own settings
    )
    step_cache_threshold: float = 0.24
    step_cache_warmup_steps: int = 4
    step_cache_max_continuous: int = 3
    step_cache_taylorseer_order: int = 0
    step_cache_first_blocks: int = 1
    step_cache_last_blocks: int = 0
    conditioner_reuse: bool = True  # off: every pass evaluates every layer's conditioner, for comparison
    conditioner_budget_bytes: int = 4 << 30
    session_budget_bytes: int = 2 << 30
    session_idle_timeout_s: float = 60.0
    picture_cache_bytes: int = 64 << 20
    prompt_cache_bytes: int = 64 << 20
    max_chunks_per_request: int = 64
    max_requests_per_session: int = 4
    max_requests: int = 64
    max_picture_pixels: int = 1 << 24
    max_picture_side_px: int = 1 << 14
    max_waiting_picture_bytes: int = 512 << 20
    max_prompt_bytes: int = 4096
    response_bytes: int = 1 << 20  # frames in one response, at least one frame

    @property
    def step_cache_settings(self) -> StepCacheSettings:
        """What a chunk without settings of its own does."""
        mode = "off" if self.step_cache == "none" else self.step_cache
        rest = {
            field.name: getattr(self, f"step_cache_{field.name}") for field in dataclasses.fields(StepCacheSettings)[1:]
        }
        return StepCacheSettings(mode, **rest)

    @property
    def held_conditioner_bytes(self) -> int:
        """Bytes of scale and shift that a chunk may hold; none where reuse is off."""
        return self.conditioner_budget_bytes if self.conditioner_reuse else 0


# World fields that the operator may change; the value "" leaves the configuration's own.
WORLD_OVERRIDES = (
    "height_px",
    "width_px",
    "further_sizes",
    "chunk_latent_frames",
    "window_latent_frames",
    "sink_latent_frames",
    "shift",
    "timesteps",
    "flow_from_steps",
    "translation_scale",
    "translation_rule",
    "horizontal_fov_deg",
    "move_per_frame",
    "yaw_deg_per_frame",
    "pitch_deg_per_frame",
    "condition_latent_frames",
)


TEXT_ENCODERS = ("auto", "words", "umt5", "none")
COMPILE_MODES = ("default", "reduce-overhead", "max-autotune-no-cudagraphs")

MAY_BE_ZERO = (
    "weights_seed",
    "conditioner_budget_bytes",
    "picture_cache_bytes",
    "prompt_cache_bytes",
    "step_cache_warmup_steps",
    "step_cache_taylorseer_order",
    "step_cache_last_blocks",
)


def read_parameters(
    parameters: Mapping[str, str], config_of: Callable[[WorldConfig, str], WorldConfig] | None = None
) -> tuple[WorldConfig, ServingConfig]:
    """Turn string parameters into the two configurations.

    Args:
        parameters: `configuration` names the world; every other key is a field of `ServingConfig` or one of
            `WORLD_OVERRIDES`. Keys in capitals belong to Triton and are passed over.
        config_of: what the checkpoint of this name makes of that world; the parameters have the last word.

    Raises:
        ParameterError: an unknown key or configuration, a value of the wrong form or out of range.
    """
    ours = {key: value for key, value in parameters.items() if not key.isupper()}
    name = ours.pop("configuration", "") or "embedded"
    if name not in PRESETS:
        raise ParameterError(f"parameter configuration: wanted one of {', '.join(PRESETS)}, got {name!r}")
    serving = {field.name: field for field in dataclasses.fields(ServingConfig)}
    changes: dict[str, dict[str, Any]] = {"world": {}, "serving": {}}
    for key, text in ours.items():
        if key not in serving and key not in WORLD_OVERRIDES:
            raise ParameterError(f"parameter {key}: unknown")
        if text.strip() == "":
            continue
        sample = serving[key].default if key in serving else getattr(PRESETS[name], key)
        changes["serving" if key in serving else "world"][key] = _convert(key, text.strip(), sample)
    try:
        serving_config, preset = _checked(ServingConfig(**changes["serving"])), PRESETS[name]
        if serving_config.checkpoint and config_of:
            preset = config_of(preset, serving_config.checkpoint)
        world = preset.replace(**changes["world"])
        serving_config.step_cache_settings.check(len(world.timesteps), world.transformer.num_layers)
        return world, serving_config
    except (ValueError, InvalidInputError) as error:
        raise ParameterError(f"parameters: {error}") from error


def _convert(key: str, text: str, sample: Any) -> Any:
    wanted, parse = _SIZES if key == "further_sizes" else _FORMS[type(sample)]
    try:
        return parse(text)
    except (ValueError, KeyError) as error:
        raise ParameterError(f"parameter {key}: wanted {wanted}, got {text!r}") from error


def _real(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(text)
    return value


def _truth(text: str) -> bool:
    return {"true": True, "on": True, "1": True, "false": False, "off": False, "0": False}[text.lower()]


_FORMS: dict[type, tuple[str, Callable[[str], Any]]] = {
    bool: ("true or false", _truth),
    int: ("an integer", int),
    float: ("a number", _real),
    str: ("a word", str),
    tuple: ("numbers apart by commas", lambda text: tuple(_real(part) for part in text.split(","))),
}


def _sizes(text: str) -> tuple[tuple[int, int], ...]:
    return tuple((int(height), int(width)) for height, width in (part.split("x") for part in text.split(",")))


_SIZES = ("sizes such as 96x160,64x96 (height x width)", _sizes)


def _checked(serving: ServingConfig) -> ServingConfig:
    for field in dataclasses.fields(serving):
        value = getattr(serving, field.name)
        if type(value) is float and value <= 0:
            raise ParameterError(f"parameter {field.name}: wanted more than 0, got {value}")
        least = 0 if field.name in MAY_BE_ZERO else 1
        if type(value) is int and value < least:
            raise ParameterError(f"parameter {field.name}: wanted {least} or more, got {value}")
    if serving.compile not in ("auto", "on", "off"):
        raise ParameterError(f"parameter compile: wanted auto, on or off, got {serving.compile!r}")
    if serving.compile_mode not in COMPILE_MODES:
        wanted = ", ".join(COMPILE_MODES)
        raise ParameterError(f"parameter compile_mode: wanted one of {wanted}, got {serving.compile_mode!r}")
    for name, value in (("dtype", serving.dtype), ("codec_dtype", serving.codec_dtype)):
        if value not in ("auto", "float32", "bfloat16"):
            raise ParameterError(f"parameter {name}: wanted auto, float32 or bfloat16, got {value!r}")
    if serving.codec not in ("auto", "own", "wan", "taehv"):
        raise ParameterError(f"parameter codec: wanted auto, own, wan or taehv, got {serving.codec!r}")
    if serving.text_encoder not in TEXT_ENCODERS:
        wanted = ", ".join(TEXT_ENCODERS)
        raise ParameterError(f"parameter text_encoder: wanted one of {wanted}, got {serving.text_encoder!r}")
    for name in ("device", "text_device"):
        _check_device(name, getattr(serving, name))
    return serving


def _check_device(name: str, device: str) -> None:
    kind, _, index = device.partition(":")
    if kind not in ("auto", "cpu", "cuda") or (index and not (kind == "cuda" and index.isdigit())):
        raise ParameterError(f"parameter {name}: wanted auto, cpu, cuda or cuda:N, got {device!r}")
