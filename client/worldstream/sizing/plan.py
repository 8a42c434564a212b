"""How many bytes a world takes and how many sessions fit: the server's arithmetic, without the server or torch. Pure.

What is exact (weights, a session's state, the conditioner) equals what the server reserves, byte for byte; the peak of
a pass is an estimate. Letters: L tokens of a chunk, h x w latent cells of a picture.
"""

import itertools
from dataclasses import dataclass, fields, replace
from typing import Any

from worldstream.errors import InvalidInputError
from worldstream.sizing.worlds import GIB, ITEM_BYTES, PATCH, SPATIAL_STRIDE, TIME_STRIDE, WorldSizes

DEFAULT_RESERVE_BYTES = GIB
_MASK_CHANNELS, _RAY_CHANNELS = 4, 6
_SPARE_TOKENS = 1  # the key-value buffer has one token that nothing is written to
_FLOAT32 = 4
DEFAULT_BUDGET = "the default"
# Wan 2.1's VAE and TAEHV as published: their parameters, and the numbers that a session keeps for each latent cell.
_FOREIGN_CODECS = {"wan": (126_892_531, 151_328), "taehv": (11_315_539, 5_376)}
_UMT5_PARAMETERS = 5_680_910_336  # of the encoder of umt5-xxl
_LEAST_BARE_BYTES = 1 << 20  # of a size without a unit; less is one whose unit was forgotten
_PREFIXES = {"k": 1, "m": 2, "g": 3, "t": 4}
# Of shared memory, as serve.py and preprocess are set: a region a process, which begins with so much and ends at one
# and a half times its largest request and answer. docker/README.md has the formula.
_REGION_BYTES, _MOST_BODY_BYTES, _MOST_PIXELS, _NUM_PREPROCESSES = 16 * 2**20, 64 * 2**20, 2**25, 2


@dataclass(frozen=True)
class Plan:
    """A world's bytes on its device, and the sessions that fit."""

    configuration: str
    dtype: str  # of the transformer
    transformer_bytes: int
    codec: str  # own, wan or taehv
    codec_bytes: int  # its weights
    text_encoder_bytes: int  # 0 where it is elsewhere, or none
    session_bytes: int  # what a start reserves: the five that follow
    window_bytes: int  # keys and values of the whole window
    text_bytes: int  # keys and values of the prompt
    condition_bytes: int  # latents of the picture
    codec_memory_bytes: int
    history_bytes: int  # latents of the window, for a switch of the prompt
    conditioner_chunk_bytes: int  # scale and shift of all layers
    conditioner_held_bytes: int  # the part of it that the budget lets a chunk hold
    activation_bytes: int  # the peak of a pass and of a decode beside it; an estimate
    picture_cache_bytes: int
    session_budget_bytes: int
    budget_sessions: int  # that the configured budget admits
    shm_bytes: int  # of host memory: /dev/shm
    memory_bytes: int | None = None  # of the device
    reserve_bytes: int = DEFAULT_RESERVE_BYTES  # for the runtime itself: context, kernels, compiled code, slack
    free_bytes: int | None = None  # for sessions; below 0 the world itself does not fit
    sessions: int | None = None  # that fit
    budget_source: str = DEFAULT_BUDGET  # of session_budget_bytes; else --set, or a file's name

    @property
    def fixed_bytes(self) -> int:
        """What is taken before the first session comes."""
        return (
            self.transformer_bytes
            + self.codec_bytes
            + self.text_encoder_bytes
            + self.conditioner_held_bytes
            + self.activation_bytes
            + self.picture_cache_bytes
            + self.reserve_bytes
        )

    def to_dict(self) -> dict[str, Any]:
        """All numbers, ready for JSON."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        return {**values, "fixed_bytes": self.fixed_bytes}


def plan_world(
    configuration: str,
    world: WorldSizes,
    memory_bytes: int | None = None,
    reserve_bytes: int = DEFAULT_RESERVE_BYTES,
    budget_source: str = DEFAULT_BUDGET,
) -> Plan:
    """Count a world's bytes.

    Args:
        configuration: what to call it.
        memory_bytes: of the device; None leaves open how many sessions fit.
        reserve_bytes: of it, for what is not counted here.
        budget_source: where the world's session_budget_bytes is from, in words.
    """
    parts = _session_parts(world)
    session = sum(parts.values())
    chunk = _conditioner_bytes(world, world.num_layers)
    plan = Plan(
        configuration=configuration,
        dtype=world.served_dtype,
        transformer_bytes=transformer_bytes(world),
        codec=world.served_codec,
        codec_bytes=codec_bytes(world),
        text_encoder_bytes=text_encoder_bytes(world),
        session_bytes=session,
        **parts,
        conditioner_chunk_bytes=chunk,
        conditioner_held_bytes=_held_conditioner_bytes(world),
        activation_bytes=activation_bytes(world),
        picture_cache_bytes=world.picture_cache_bytes,
        session_budget_bytes=world.session_budget_bytes,
        budget_sessions=world.session_budget_bytes // session,
        shm_bytes=shm_bytes(world),
        memory_bytes=memory_bytes,
        reserve_bytes=reserve_bytes,
        budget_source=budget_source,
    )
    if memory_bytes is None:
        return plan
    free = memory_bytes - plan.fixed_bytes
    return replace(plan, free_bytes=free, sessions=max(0, free // session))


def transformer_bytes(world: WorldSizes) -> int:
    """Bytes of the transformer's parameters; time embedding and modulations stay float32 whatever the dtype."""
    dim = world.dim
    square = dim * dim + dim
    block = 12 * square + 4 * dim + 2 * dim + 2 * dim * world.ffn_dim + world.ffn_dim + dim
    patch = (2 * world.latent_channels + _MASK_CHANNELS) * PATCH**2 * dim + dim
    camera = _camera_values(world) * dim + dim + 2 * square
    text = world.text_dim * dim + dim + square
    head = (dim + 1) * world.latent_channels * PATCH**2
    narrow = world.num_layers * block + patch + camera + text + head
    time = world.freq_dim * dim + dim + square + 6 * square
    wide = time + (6 * world.num_layers + 2) * dim
    return narrow * world.item_bytes + wide * _FLOAT32


def _camera_values(world: WorldSizes) -> int:
    """Numbers that a token is told of its rays."""
    return (2 if world.has_start_rays else 1) * _RAY_CHANNELS * SPATIAL_STRIDE**2 * PATCH**2


def codec_bytes(world: WorldSizes) -> int:
    """Bytes of the codec's parameters, and of its latents' mean and deviation, which stay float32."""
    served = world.served_codec
    parameters = _FOREIGN_CODECS[served][0] if served in _FOREIGN_CODECS else _own_codec_parameters(world)
    return parameters * world.codec_item_bytes + 2 * world.latent_channels * _FLOAT32


def _own_codec_parameters(world: WorldSizes) -> int:
    widths, into = world.encoder_widths, world.decoder_widths
    encoder = _conv(12, widths[0]) + _conv(widths[-1], world.latent_channels)
    encoder += sum(2 * width * width for width in widths[:-1])
    encoder += sum(_conv(one, other) for one, other in itertools.pairwise(widths))
    decoder = _conv(world.latent_channels, into[0]) + _conv(into[-1], 12)
    decoder += sum(2 * width * width for width in into[:-1])
    decoder += sum(9 * one * other for one, other in itertools.pairwise(into))
    blocks = [*zip(widths, world.encoder_blocks, strict=True), *zip(into, world.decoder_blocks, strict=True)]
    return encoder + decoder + sum(count * (_conv(2 * width, width) + _conv(width, width)) for width, count in blocks)


def text_encoder_bytes(world: WorldSizes) -> int:
    """Bytes of UMT5's parameters where it lies on the world's device: bfloat16 on a GPU, float32 on a CPU."""
    if not world.has_text_encoder:
        return 0
    return _UMT5_PARAMETERS * ITEM_BYTES["float32" if world.device == "cpu" else "bfloat16"]


def session_bytes(world: WorldSizes) -> int:
    """Bytes that the server reserves for a session when it starts."""
    return sum(_session_parts(world).values())


def activation_bytes(world: WorldSizes) -> int:
    """The peak of one pass through the transformer, and of a decode or an encode beside it; an estimate.

    Counted by hand from the code, eager, one chunk: in a block the residual, what is modulated from it in float32,
    queries, keys and values, and both sides of the GELU. Attention's own workspace (none of note in its fused kernels),
    that of convolutions, and the step cache are left out.
    """
    narrow, dim = world.item_bytes, world.dim
    block = 2 * world.ffn_dim * narrow + 6 * dim * narrow + 4 * dim * _FLOAT32
    camera = 2 * _camera_values(world) * narrow
    return world.chunk_tokens * max(block, camera) + codec_activation_bytes(world)


def codec_activation_bytes(world: WorldSizes) -> int:
    """The peak of the codec: of a chunk's decode, or of a picture's encode if that is more; an estimate.

    In planes, one channel of one picture each. Those of Wan's VAE, which takes one latent frame at a time, and those of
    TAEHV were read off a trace of their modules.
    """
    decoded, encoded = TIME_STRIDE * world.chunk_latent_frames, TIME_STRIDE * world.condition_latent_frames
    if world.served_codec == "wan":
        planes = 8000 + 6 * max(decoded, encoded)
    elif world.served_codec == "taehv":
        planes = max(143 * decoded, 134 * encoded)
    else:  # the widest stage, at half the picture's height and width, seven times; beside a picture four times
        planes = max(7 * world.decoder_widths[-1] * decoded, (7 * world.encoder_widths[0] + 48) * encoded) // 4
    return planes * world.height_px * world.width_px * world.codec_item_bytes


def shm_bytes(world: WorldSizes) -> int:
    """Shared memory of the host, where nothing lets a body of more than 64 MiB through."""
    preprocess = 3 * (_MOST_BODY_BYTES + 3 * _MOST_PIXELS) // 2 + _REGION_BYTES
    denoise = 3 * (_MOST_BODY_BYTES + world.response_bytes) // 2 + _REGION_BYTES
    return _NUM_PREPROCESSES * preprocess + denoise


def _session_parts(world: WorldSizes) -> dict[str, int]:
    """The summands of a session's bytes, by their names in `Plan`."""
    token = 2 * world.num_layers * world.dim * world.item_bytes  # keys and values of all layers
    window = world.window_latent_frames * world.tokens_per_frame + _SPARE_TOKENS
    # Past chunks: where the window does not end with a chunk, one more at either end.
    size, behind_sink = world.chunk_latent_frames, world.window_latent_frames - world.sink_latent_frames
    past = size * (-(-world.sink_latent_frames // size) - (-behind_sink // size))
    condition = (_MASK_CHANNELS + world.latent_channels) * world.cells * world.condition_latent_frames
    served = world.served_codec
    kept = _FOREIGN_CODECS[served][1] if served in _FOREIGN_CODECS else _own_codec_memory(world)
    return {
        "window_bytes": token * window,
        "text_bytes": token * world.text_len,
        "condition_bytes": condition * world.item_bytes,
        "codec_memory_bytes": kept * world.cells * world.codec_item_bytes,
        "history_bytes": past * world.latent_channels * world.cells * _FLOAT32,
    }


def _own_codec_memory(world: WorldSizes) -> int:
    """Numbers that a session keeps for each latent cell: stages are at once, twice and four times its resolution."""
    stages = zip(world.decoder_widths, world.decoder_blocks, (1, 2, 4), strict=True)
    return sum(width * count * scale * scale for width, count, scale in stages)


def _conditioner_bytes(world: WorldSizes, num_layers: int) -> int:
    return 2 * num_layers * world.chunk_tokens * world.dim * world.item_bytes


def _held_conditioner_bytes(world: WorldSizes) -> int:
    """Of whole layers, as many as the budget holds."""
    if not world.conditioner_reuse:
        return 0
    layer = _conditioner_bytes(world, 1)
    return layer * min(world.num_layers, world.conditioner_budget_bytes // layer)


def _conv(channels_in: int, channels_out: int) -> int:
    """Parameters of a 3x3 convolution with bias."""
    return (9 * channels_in + 1) * channels_out


def parse_bytes(name: str, text: str) -> int:
    """Read a size such as 80GiB, 141GB, 24G or 24Gi (both binary) or 1073741824.

    Raises:
        InvalidInputError: it is no such size, or a number of bytes so small that a unit must have been forgotten.
    """
    number, unit = text.strip(), ""
    while number and not number[-1].isdigit():
        number, unit = number[:-1], number[-1] + unit
    unit = unit.strip().lower()
    prefix, ending = unit[:1], unit[1:]
    try:
        if prefix in ("", "b") and not ending:
            scale = 1
        elif ending in ("", "i", "ib"):
            scale = 1024 ** _PREFIXES[prefix]
        elif ending == "b":
            scale = 1000 ** _PREFIXES[prefix]
        else:
            raise KeyError(unit)
        size = int(float(number) * scale)
        if size < 0:
            raise ValueError(number)
    except (KeyError, ValueError, OverflowError):
        raise InvalidInputError(f"{name}: wanted a size such as 80GiB or 141GB, got {text!r}") from None
    if not unit and 0 < size < _LEAST_BARE_BYTES:
        raise InvalidInputError(f"{name}: {text.strip()} without a unit is bytes; wanted a size such as 80GiB or 141GB")
    return size


def tell_bytes(num_bytes: int) -> str:
    """A size for people: 1.2 GiB."""
    size, unit = float(num_bytes), "B"
    for larger in ("KiB", "MiB", "GiB", "TiB"):
        if abs(size) < 1024:
            break
        size, unit = size / 1024, larger
    return f"{num_bytes} B" if unit == "B" else f"{size:.1f} {unit}"
