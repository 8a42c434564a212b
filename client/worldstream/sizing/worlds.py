"""What decides on a world's bytes: its sizes, and what its operator sets. Read from a name or from a config.pbtxt.

The sizes are the server's own, written down again: the client runs without it. A test holds the two equal.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from google.protobuf import text_format
from tritonclient.grpc import model_config_pb2

from worldstream.errors import InvalidInputError

GIB = 2**30
# Fixed by the architecture: pictures shrink 8x in space and 4x in time, a patch is 2x2 cells.
SPATIAL_STRIDE, TIME_STRIDE, PATCH = 8, 4, 2
ITEM_BYTES = {"float32": 4, "bfloat16": 2}


@dataclass(frozen=True)
class WorldSizes:
    """What decides on bytes: a world's sizes, then what its operator sets. Names as in `denoise`'s parameters."""

    dim: int
    ffn_dim: int
    num_heads: int
    num_layers: int
    freq_dim: int
    text_dim: int
    text_len: int
    height_px: int
    width_px: int
    latent_channels: int = 16
    has_start_rays: bool = False
    decoder_widths: tuple[int, ...] = (128, 64, 32)
    decoder_blocks: tuple[int, ...] = (3, 3, 3)
    encoder_widths: tuple[int, ...] = (32, 64, 96)
    encoder_blocks: tuple[int, ...] = (1, 2, 2)
    chunk_latent_frames: int = 3
    window_latent_frames: int = 18
    sink_latent_frames: int = 3
    condition_latent_frames: int = 6
    is_published: bool = False  # others have made weights for it, with Wan's VAE and UMT5
    device: str = "auto"
    dtype: str = "auto"
    codec: str = "auto"
    codec_dtype: str = "auto"
    text_encoder: str = "auto"
    text_device: str = "auto"
    conditioner_reuse: bool = True
    conditioner_budget_bytes: int = 4 * GIB
    session_budget_bytes: int = 2 * GIB
    picture_cache_bytes: int = 64 * 2**20
    response_bytes: int = 2**20

    @property
    def served_dtype(self) -> str:
        """Of the transformer: bfloat16 unless it runs on a CPU, or another one is set."""
        if self.dtype != "auto":
            return self.dtype
        return "float32" if self.device == "cpu" else "bfloat16"

    @property
    def item_bytes(self) -> int:
        """Bytes of one number of that dtype."""
        return ITEM_BYTES[self.served_dtype]

    @property
    def served_codec(self) -> str:
        """Own, wan or taehv; auto is what a published checkpoint has."""
        return ("wan" if self.is_published else "own") if self.codec == "auto" else self.codec

    @property
    def codec_item_bytes(self) -> int:
        """Bytes of one number of the codec's; float32 unless another is set."""
        return ITEM_BYTES["float32" if self.codec_dtype == "auto" else self.codec_dtype]

    @property
    def has_text_encoder(self) -> bool:
        """Whether UMT5 lies on the world's own device."""
        is_umt5 = self.text_encoder == "umt5" or (self.text_encoder == "auto" and self.is_published)
        return is_umt5 and self.text_device in ("auto", self.device if self.device != "auto" else "cuda")

    @property
    def cells(self) -> int:
        """h * w."""
        return (self.height_px // SPATIAL_STRIDE) * (self.width_px // SPATIAL_STRIDE)

    @property
    def tokens_per_frame(self) -> int:
        """Tokens of one latent frame."""
        return self.cells // PATCH**2

    @property
    def chunk_tokens(self) -> int:
        """L."""
        return self.chunk_latent_frames * self.tokens_per_frame


_LINGBOT_WORLD_FAST = WorldSizes(
    dim=5120,
    ffn_dim=13824,
    num_heads=40,
    num_layers=40,
    freq_dim=256,
    text_dim=4096,
    text_len=512,
    height_px=480,
    width_px=832,
    sink_latent_frames=9,
    is_published=True,
)
WORLDS: dict[str, WorldSizes] = {
    "embedded": WorldSizes(
        dim=192,
        ffn_dim=512,
        num_heads=3,
        num_layers=6,
        freq_dim=256,
        text_dim=32,
        text_len=8,
        height_px=96,
        width_px=160,
        has_start_rays=True,
    ),
    "lingbot_world_fast": _LINGBOT_WORLD_FAST,
    "lingbot_world_v2": replace(_LINGBOT_WORLD_FAST, chunk_latent_frames=4, sink_latent_frames=6),
    "lingbot_world_mini": replace(
        _LINGBOT_WORLD_FAST,
        dim=512,
        ffn_dim=1382,
        num_heads=4,
        num_layers=8,
        text_dim=410,
        text_len=51,
        height_px=192,
        width_px=208,
        is_published=False,
    ),
}
# The parameters of `denoise` that decide on bytes; its others are passed over.
_SETTABLE = (
    "height_px",
    "width_px",
    "chunk_latent_frames",
    "window_latent_frames",
    "sink_latent_frames",
    "condition_latent_frames",
    "device",
    "dtype",
    "codec",
    "codec_dtype",
    "text_encoder",
    "text_device",
    "conditioner_reuse",
    "conditioner_budget_bytes",
    "session_budget_bytes",
    "picture_cache_bytes",
    "response_bytes",
)
_WORDS = {
    "device": ("auto", "cpu", "cuda"),
    "dtype": ("auto", *ITEM_BYTES),
    "codec": ("auto", "own", "wan", "taehv"),
    "codec_dtype": ("auto", *ITEM_BYTES),
    "text_encoder": ("auto", "words", "umt5", "none"),
    "text_device": ("auto", "cpu", "cuda"),
}
_TRUTHS = {"true": True, "on": True, "1": True, "false": False, "off": False, "0": False}


def read_config(config: str) -> tuple[str, dict[str, str]]:
    """The name of a world and the model parameters, from a world's name or from a config.pbtxt of `denoise`.

    Raises:
        InvalidInputError: neither is there, or the file is no model configuration.
    """
    name = config.replace("-", "_")
    if name in WORLDS:
        return name, {}
    path = Path(config)
    if not path.is_file():
        raise InvalidInputError(f"config: wanted one of {', '.join(WORLDS)} or a config.pbtxt, got {config}")
    try:
        parsed = text_format.Parse(path.read_text(encoding="utf-8"), model_config_pb2.ModelConfig())
    except (text_format.ParseError, UnicodeDecodeError) as error:
        raise InvalidInputError(f"config: {path.name} is no model configuration: {error}") from None
    parameters = {key: value.string_value.strip() for key, value in parsed.parameters.items()}
    name = parameters.pop("configuration", "") or "embedded"
    if name not in WORLDS:
        raise InvalidInputError(f"config: {path.name} is of the world {name!r}; wanted one of {', '.join(WORLDS)}")
    return name, parameters


def with_parameters(world: WorldSizes, parameters: Mapping[str, str]) -> WorldSizes:
    """The same world with those parameters of `denoise` that decide on bytes; an empty value changes nothing.

    Raises:
        InvalidInputError: a value of the wrong form.
    """
    changes = {
        key: _value(key, text, getattr(world, key)) for key, text in parameters.items() if key in _SETTABLE and text
    }
    changed = replace(world, **changes)
    for name, words in _WORDS.items():
        if getattr(changed, name) not in words:
            raise InvalidInputError(f"{name}: wanted one of {', '.join(words)}, got {getattr(changed, name)!r}")
    grid = SPATIAL_STRIDE * PATCH
    if changed.height_px % grid or changed.width_px % grid:
        raise InvalidInputError(f"size: wanted multiples of {grid} px, got {changed.height_px}x{changed.width_px}")
    if changed.window_latent_frames < changed.sink_latent_frames + changed.chunk_latent_frames:
        raise InvalidInputError(
            f"window_latent_frames: wanted at least sink and chunk, {changed.sink_latent_frames} + "
            f"{changed.chunk_latent_frames}, got {changed.window_latent_frames}"
        )
    return changed


def check_settings(settings: Mapping[str, str]) -> None:
    """Refuse a setting by hand that would change nothing.

    Raises:
        InvalidInputError: it names another one.
    """
    for key in settings:
        if key not in _SETTABLE:
            raise InvalidInputError(f"--set: {key!r} decides on no bytes; those that do: {', '.join(_SETTABLE)}")


def _value(key: str, text: str, sample: Any) -> Any:
    least = 0 if key in ("sink_latent_frames", "conditioner_budget_bytes", "picture_cache_bytes") else 1
    try:
        if isinstance(sample, bool):
            return _TRUTHS[text.lower()]
        if isinstance(sample, int):
            value = int(text)
            if value < least:
                raise ValueError(text)
            return value
        return text.partition(":")[0]  # cuda:1 is as large as cuda
    except (ValueError, KeyError):
        wanted = "true or false" if isinstance(sample, bool) else f"a number of {least} or more"
        raise InvalidInputError(f"{key}: wanted {wanted}, got {text!r}") from None
