"""How LingBot-World's checkpoints are laid out: which folder holds what, and what their small JSON files say.

Knows our own layout, the original one and that of diffusers. Reads no weights.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from worldmodel.checkpoint import INDEX
from worldmodel.checkpoint_files import CheckpointError, Range, looking, named, read_object, shown
from worldmodel.config import EMBEDDED, MASK_CHANNELS, WorldConfig

OWN_TRANSFORMER = "transformer.safetensors"  # what `make train` writes, beside the codec and training.json
TRANSFORMER_FOLDERS = ("transformer", "transformers", ".")  # diffusers, v2, v1
BASE_FOLDERS = ("high_noise_model", "low_noise_model")  # two experts of a model that is not causal
CODECS = ("own", "wan", "taehv")
# Where each codec's weights lie, the usual place first: our own file, diffusers' folder or the file of the published
# code, and TAEHV's file.
CODEC_PLACES = {
    "own": ("codec.safetensors",),
    "wan": ("vae", "Wan2.1_VAE.pth"),
    "taehv": ("taew2_1.safetensors", "taew2_1.pth"),
}
CODEC_FILES = frozenset(place for places in CODEC_PLACES.values() for place in places)
# config.json's word -> the field of TransformerConfig. Original, then diffusers.
SIZE_NAMES = {
    "dim": "dim",
    "ffn_dim": "ffn_dim",
    "num_heads": "num_heads",
    "num_attention_heads": "num_heads",
    "num_layers": "num_layers",
    "freq_dim": "freq_dim",
    "text_dim": "text_dim",
    "text_len": "text_len",
    "out_dim": "latent_channels",
    "out_channels": "latent_channels",
    "eps": "eps",
}
# The same of WorldConfig: how it streams.
STREAMING_NAMES = {
    "num_frames_per_block": "chunk_latent_frames",
    "num_frame_per_block": "chunk_latent_frames",
    "sink_size": "sink_latent_frames",
    "sliding_window_num_frames": "window_latent_frames",
    "local_attn_size": "window_latent_frames",
    "sample_shift": "shift",
}
# What such a number can be; the most is some ten times what is published.
SIZE = Range(1, 1 << 17)
RANGES = {
    "num_layers": Range(1, 1000),
    "num_heads": Range(1, 1000),
    "eps": Range(1e-12, 0.1, is_whole=False),
    "sink_latent_frames": Range(0, 1 << 17),
    "shift": Range(1e-3, 1e3, is_whole=False),
}


@dataclass(frozen=True)
class Parts:
    """Where a checkpoint's parts lie."""

    transformer: Path  # a file, or a folder of shards
    config: Path | None  # of the transformer; None where there is none
    scheduler: Path | None = None  # diffusers' scheduler_config.json
    text_encoder: Path | None = None  # a folder, as transformers writes it
    tokenizer: Path | None = None  # the same

    @property
    def is_own(self) -> bool:
        """Whether `make train` wrote it."""
        return self.transformer.name == OWN_TRANSFORMER


def find_parts(folder: Path) -> Parts:
    """Look for a transformer, in our own layout or in a published one.

    Raises:
        CheckpointError: there is none, or one that cannot stream.
    """
    with named("parameter checkpoint"), looking(folder):
        if not folder.is_dir():
            raise CheckpointError(f"there is no folder {folder.name!r} where it points to")
        return _found_parts(folder)


def _found_parts(folder: Path) -> Parts:
    own = folder / OWN_TRANSFORMER
    if _existing(own):
        return Parts(own, _existing(folder / "training.json"))
    for name in TRANSFORMER_FOLDERS:
        inner = folder / name
        if _has_weights(inner):
            scheduler = _existing(folder / "scheduler" / "scheduler_config.json")
            tokenizer = _existing(folder / "tokenizer") or _existing(folder / "google" / "umt5-xxl")
            text_encoder = _existing(folder / "text_encoder")
            return Parts(inner, _existing(inner / "config.json"), scheduler, text_encoder, tokenizer)
    if any((folder / name).is_dir() for name in BASE_FOLDERS):
        raise CheckpointError(
            f"wanted a causal checkpoint, found {' and '.join(BASE_FOLDERS)}: LingBot-World's base model reads whole "
            "clips and cannot stream"
        )
    raise CheckpointError(
        f"wanted {OWN_TRANSFORMER}, or .safetensors files in {' or '.join(TRANSFORMER_FOLDERS[:2])} or in the folder "
        "itself; found neither"
    )


def _has_weights(folder: Path) -> bool:
    """Whether a transformer lies in it; a codec beside it is none."""
    return any(folder.glob(INDEX)) or any(file.name not in CODEC_FILES for file in folder.glob("*.safetensors"))


def find_codec(folder: Path, choice: str) -> tuple[str, Path]:
    """Look for a checkpoint's codec.

    Args:
        choice: "auto", which is the first of `CODECS` that is there, or one of them.

    Returns:
        Which one, and its file or folder.

    Raises:
        CheckpointError: it is not there.
    """
    kinds = CODECS if choice == "auto" else (choice,)
    places = [(kind, folder / place) for kind in kinds for place in CODEC_PLACES[kind]]
    with looking(folder):
        for kind, place in places:
            if _existing(place):
                return kind, place
    wanted = " or ".join(place.name for _, place in places)
    raise CheckpointError(f"codec {choice}: wanted {wanted} in the checkpoint's folder; nothing of it is there")


def vae_config(place: Path) -> dict[str, Any]:
    """What is said of Wan's VAE; nothing where it is one file.

    Raises:
        CheckpointError: config.json is missing or no JSON object.
    """
    return read_object(place / "config.json") if place.is_dir() else {}


def checkpoint_config(preset: WorldConfig, folder: Path) -> WorldConfig:
    """The preset with everything that the checkpoint's own JSON files say of it.

    Raises:
        CheckpointError: as `find_parts`; a file is no JSON, or says what cannot be served; a published model's files
            under the configuration of a world of ours, whose picture size and schedule are others.
    """
    parts = find_parts(folder)
    if parts.is_own:
        said = _read(parts.config)
        return preset.replace(vocabulary=_words(said.get("vocabulary", list(preset.vocabulary))))
    if preset.name == EMBEDDED.name:
        raise CheckpointError(
            f"checkpoint: a published model's files, but configuration={preset.name} serves a world of our own: "
            "name lingbot_world_fast or lingbot_world_v2 (--model-config-name, or the parameter configuration)"
        )
    with named("transformer"):
        preset = _published_config(preset, _read(parts.config))
    with named("scheduler"):
        return preset.replace(**_schedule(_read(parts.scheduler)))


def _published_config(preset: WorldConfig, said: dict[str, Any]) -> WorldConfig:
    with named("config.json"):
        try:
            sizes = dataclasses.replace(preset.transformer, **_sizes(said, preset.transformer.latent_channels))
            return preset.replace(transformer=sizes, **_streaming(said))
        except ValueError as error:  # numbers that do not go with each other
            raise CheckpointError(str(error)) from error


def _words(vocabulary: Any) -> tuple[str, ...]:
    if not isinstance(vocabulary, list) or not all(isinstance(word, str) for word in vocabulary):
        raise CheckpointError("training.json: vocabulary: wanted a list of words")
    return tuple(vocabulary)


def _sizes(said: dict[str, Any], latent_channels: int) -> dict[str, Any]:
    sizes: dict[str, Any] = {}
    for theirs, ours in SIZE_NAMES.items():
        if said.get(theirs) is None:
            continue
        RANGES.get(ours, SIZE).check(theirs, said[theirs])
        if sizes.setdefault(ours, said[theirs]) != said[theirs]:
            raise CheckpointError(f"{theirs}: wanted {sizes[ours]}, as it says by another name, got {said[theirs]}")
    if said.get("attention_head_dim") is not None and "num_heads" in sizes:
        SIZE.check("attention_head_dim", said["attention_head_dim"])
        sizes["dim"] = said["attention_head_dim"] * sizes["num_heads"]
        SIZE.check("attention_head_dim times the heads", sizes["dim"])
    if sizes.get("freq_dim", 2) % 2:
        raise CheckpointError(f"freq_dim: wanted an even number, got {sizes['freq_dim']}")
    if sizes.get("latent_channels", latent_channels) != latent_channels:
        wanted = f"{latent_channels}, the channels of Wan's latents"
        raise CheckpointError(f"out_channels: wanted {wanted}, got {sizes['latent_channels']}")
    in_channels = said.get("in_dim", said.get("in_channels"))
    wanted_channels = 2 * latent_channels + MASK_CHANNELS
    if in_channels is not None and in_channels != wanted_channels:
        wanted = f"{wanted_channels} (noise, first-frame mask, picture)"
        raise CheckpointError(f"in_channels: wanted {wanted}, got {shown(in_channels)}")
    return sizes


def _streaming(said: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for theirs, ours in STREAMING_NAMES.items():
        kind = RANGES.get(ours, SIZE)
        # -1 stands for "without a bound", which no session can have: the preset's stays.
        if said.get(theirs) is None or (kind.is_whole and said[theirs] == -1):
            continue
        kind.check(theirs, said[theirs])
        found[ours] = said[theirs]
    return found


def _schedule(said: dict[str, Any]) -> dict[str, Any]:
    for name in ("flow_shift", "shift"):
        if said.get(name) is not None:
            with named("scheduler_config.json"):
                RANGES["shift"].check(name, said[name])
            return {"shift": float(said[name])}
    return {}


def _existing(path: Path) -> Path | None:
    """The path, if something is there; a link that leads nowhere counts: what reads it says so."""
    return path if path.exists() or path.is_symlink() else None


def _read(path: Path | None) -> dict[str, Any]:
    return {} if path is None else read_object(path)
