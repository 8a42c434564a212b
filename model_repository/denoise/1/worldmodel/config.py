"""What a world is: sizes, window, schedule. Frozen values, read once at the edge; no file access, no torch."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass, field
from typing import Any

# Fixed by the architecture: rays have six channels, and the codec shrinks pictures 8x in space and 4x in time.
RAY_CHANNELS = 6
SPATIAL_STRIDE = 8
TIME_STRIDE = 4
PATCH = 2
MASK_CHANNELS = 4


@dataclass(frozen=True)
class TransformerConfig:
    """Sizes of the causal diffusion transformer, in LingBot-World's terms."""

    dim: int
    ffn_dim: int
    num_heads: int
    num_layers: int
    freq_dim: int
    text_dim: int
    text_len: int
    latent_channels: int = 16
    eps: float = 1e-6
    rope_theta: float = 10000.0
    has_start_rays: bool = False  # rays also in the session's first camera, not only in the camera before

    def __post_init__(self) -> None:
        for name in ("dim", "ffn_dim", "num_heads", "num_layers", "freq_dim", "text_dim", "text_len"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name}: wanted 1 or more, got {getattr(self, name)}")
        if not (math.isfinite(self.eps) and self.eps > 0):
            raise ValueError(f"eps: wanted more than 0, got {self.eps}")
        if self.dim % self.num_heads or (self.dim // self.num_heads) % 2:
            raise ValueError(f"dim {self.dim} does not split into {self.num_heads} heads of even size")

    @property
    def head_dim(self) -> int:
        """Channels of one attention head."""
        return self.dim // self.num_heads

    @property
    def in_channels(self) -> int:
        """Channels that the transformer reads: noisy latent, first-frame mask, picture latent."""
        return self.latent_channels + MASK_CHANNELS + self.latent_channels

    @property
    def camera_channels(self) -> int:
        """Channels of the camera's rays on the latent grid: 384, and 768 with start rays."""
        return RAY_CHANNELS * SPATIAL_STRIDE**2 * (2 if self.has_start_rays else 1)


@dataclass(frozen=True)
class CodecConfig:
    """Sizes of the streaming codec; one width and one block count a stage, from the latent size outwards."""

    latent_channels: int = 16
    decoder_widths: tuple[int, int, int] = (128, 64, 32)
    decoder_blocks: tuple[int, int, int] = (3, 3, 3)
    encoder_widths: tuple[int, int, int] = (32, 64, 96)
    encoder_blocks: tuple[int, int, int] = (1, 2, 2)


@dataclass(frozen=True)
class WorldConfig:
    """One world: its modules' sizes, its causal window, its schedule, and how far a key press moves."""

    name: str
    transformer: TransformerConfig
    codec: CodecConfig
    height_px: int
    width_px: int
    chunk_latent_frames: int = 3
    window_latent_frames: int = 18  # includes the sink and the chunk itself
    sink_latent_frames: int = 3
    shift: float = 5.0
    timesteps: tuple[float, ...] = (1000.0, 750.0, 500.0, 250.0)  # unshifted indices of the few-step list
    is_distilled: bool = False  # distilled for `timesteps`: no other step count
    flow_from_steps: int = 8  # fewer steps noise anew after each; so many and more follow the flow (Euler)
    translation_scale: float = 1.0  # client units in one model unit
    translation_rule: str = "fixed"  # fixed | first_moving_chunk | clip_max
    start_ray_scale: float = 16.0  # model units in one unit of start rays, which reach farther than a step does
    horizontal_fov_deg: float = 79.0
    move_per_frame: float = 1.0  # model units in one latent frame of a held key
    yaw_deg_per_frame: float = 6.0
    pitch_deg_per_frame: float = 4.0
    pitch_limit_deg: float = 85.0
    condition_latent_frames: int = 6  # of "picture, then black": the last one is repeated for ever
    max_steps: int = 50
    vocabulary: tuple[str, ...] = field(default=())  # prompt words that the world knows; empty: all
    further_sizes: tuple[tuple[int, int], ...] = ()  # height and width in px, that a session may ask for instead

    def __post_init__(self) -> None:
        grid = SPATIAL_STRIDE * PATCH
        for height, width in self.sizes:
            if height % grid or width % grid or height < grid or width < grid:
                raise ValueError(f"{self.name}: {height}x{width} px is not a multiple of {grid}")
        if len(set(self.sizes)) != len(self.sizes):
            raise ValueError(f"{self.name}: further_sizes names a size twice")
        if self.chunk_latent_frames < 1 or self.sink_latent_frames < 0:
            raise ValueError(f"{self.name}: chunk must be 1 or more latent frames, sink 0 or more")
        if self.window_latent_frames < self.sink_latent_frames + self.chunk_latent_frames:
            raise ValueError(
                f"{self.name}: a window of {self.window_latent_frames} latent frames cannot hold a sink of "
                f"{self.sink_latent_frames} and a chunk of {self.chunk_latent_frames}"
            )
        if self.translation_rule not in ("fixed", "first_moving_chunk", "clip_max"):
            raise ValueError(f"{self.name}: translation_rule {self.translation_rule!r} is unknown")
        if not self.timesteps or list(self.timesteps) != sorted(set(self.timesteps), reverse=True):
            raise ValueError(f"{self.name}: timesteps must fall strictly, got {self.timesteps}")
        if not (self.timesteps[-1] > 0 and self.timesteps[0] <= 1000):
            raise ValueError(f"{self.name}: timesteps lie in (0, 1000], got {self.timesteps}")
        positive = ("shift", "translation_scale", "start_ray_scale", "move_per_frame")
        for name in (*positive, "yaw_deg_per_frame", "pitch_deg_per_frame"):
            value = getattr(self, name)
            if not (math.isfinite(value) and value > 0):
                raise ValueError(f"{self.name}: {name} must be positive, got {value}")
        for name in ("condition_latent_frames", "max_steps", "flow_from_steps"):
            if getattr(self, name) < 1:
                raise ValueError(f"{self.name}: {name} must be 1 or more, got {getattr(self, name)}")
        if not 0 < self.pitch_limit_deg < 90:
            raise ValueError(f"{self.name}: pitch_limit_deg must lie in (0, 90), got {self.pitch_limit_deg}")
        if self.codec.latent_channels != self.transformer.latent_channels:
            raise ValueError(f"{self.name}: codec and transformer must have the same latent_channels")
        if not 0 < self.horizontal_fov_deg < 180:
            raise ValueError(f"{self.name}: horizontal_fov_deg must lie in (0, 180), got {self.horizontal_fov_deg}")

    @property
    def sizes(self) -> tuple[tuple[int, int], ...]:
        """Every size that is served, height and width in px; the usual one first."""
        return ((self.height_px, self.width_px), *self.further_sizes)

    def at_size(self, size: tuple[int, int] | None) -> WorldConfig:
        """The same world at another height and width in px; None is the usual size."""
        return self if size is None else self.replace(height_px=size[0], width_px=size[1], further_sizes=())

    @property
    def latent_height(self) -> int:
        """Rows of the latent grid."""
        return self.height_px // SPATIAL_STRIDE

    @property
    def latent_width(self) -> int:
        """Columns of the latent grid."""
        return self.width_px // SPATIAL_STRIDE

    @property
    def tokens_per_frame(self) -> int:
        """Tokens that one latent frame becomes."""
        return (self.latent_height // PATCH) * (self.latent_width // PATCH)

    def replace(self, **changes: Any) -> WorldConfig:
        """A copy with these fields changed, checked again."""
        return dataclasses.replace(self, **changes)


def frames_of_chunk(chunk_latent_frames: int, chunk_index: int) -> int:
    """Pixel frames that a chunk decodes to: the first latent frame of a session is one picture, the others four."""
    return TIME_STRIDE * chunk_latent_frames - (TIME_STRIDE - 1 if chunk_index == 0 else 0)


EMBEDDED = WorldConfig(
    name="embedded",
    transformer=TransformerConfig(
        dim=192, ffn_dim=512, num_heads=3, num_layers=6, freq_dim=256, text_dim=32, text_len=8, has_start_rays=True
    ),
    codec=CodecConfig(),
    height_px=96,
    width_px=160,
    # Not distilled: of four steps, those at much noise came nearest to the truth, on walks kept for choosing them.
    timesteps=(1000.0, 980.0, 960.0, 900.0),
    translation_scale=0.25,
)

# The published causal model, v1 "fast": Apache-2.0 code and weights. Numbers from its configuration files.
LINGBOT_WORLD_FAST = WorldConfig(
    name="lingbot_world_fast",
    transformer=TransformerConfig(
        dim=5120, ffn_dim=13824, num_heads=40, num_layers=40, freq_dim=256, text_dim=4096, text_len=512
    ),
    codec=CodecConfig(),
    height_px=480,
    width_px=832,
    sink_latent_frames=9,
    shift=10.0,
    timesteps=(1000.0, 821.0, 642.0, 321.0),
    is_distilled=True,
    translation_rule="first_moving_chunk",
)

# The published causal model, v2 (CC BY-NC-SA 4.0): the same sizes. Chunk, window and sink are the defaults of its own
# program; in the layout for diffusers config.json says three latent frames a chunk, and has the last word.
LINGBOT_WORLD_V2 = LINGBOT_WORLD_FAST.replace(
    name="lingbot_world_v2",
    chunk_latent_frames=4,
    sink_latent_frames=6,
    timesteps=(1000.0, 750.0, 500.0, 250.0),
)

# For benchmarks, there are no weights: the published model's widths, heads, tokens and prompt length by ten, so that
# attention, linear layers and conditioner keep their shares of the work; a fifth of its layers. 12 x 13 tokens a frame.
LINGBOT_WORLD_MINI = LINGBOT_WORLD_FAST.replace(
    name="lingbot_world_mini",
    transformer=TransformerConfig(
        dim=512, ffn_dim=1382, num_heads=4, num_layers=8, freq_dim=256, text_dim=410, text_len=51
    ),
    height_px=192,
    width_px=208,
    is_distilled=False,
)

PRESETS = {config.name: config for config in (EMBEDDED, LINGBOT_WORLD_FAST, LINGBOT_WORLD_V2, LINGBOT_WORLD_MINI)}
