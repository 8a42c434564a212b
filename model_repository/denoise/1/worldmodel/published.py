"""How LingBot-World's checkpoints are laid out: which folder holds what, and what their small JSON files say.

Knows our own layout, the original one and that of diffusers. Reads no weights.
"""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from worldmodel.checkpoint import INDEX, CheckpointError
from worldmodel.config import MASK_CHANNELS, WorldConfig

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
    if not folder.is_dir():
        raise CheckpointError(f"parameter checkpoint: there is no folder {folder.name!r} where it points to")
    own = folder / OWN_TRANSFORMER
    if own.exists():
        return Parts(own, _existing(folder / "training.json"))
    for name in TRANSFORMER_FOLDERS:
        inner = folder / name
        if any(inner.glob(INDEX)) or any(inner.glob("*.safetensors")):
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
    for kind, place in places:
        if place.exists():
            return kind, place
    wanted = " or ".join(place.name for _, place in places)
    raise CheckpointError(f"codec {choice}: wanted {wanted} in the checkpoint's folder; nothing of it is there")


def vae_config(place: Path) -> dict[str, Any]:
    """What is said of Wan's VAE; nothing where it is one file.

    Raises:
        CheckpointError: config.json is missing or no JSON object.
    """
    if not place.is_dir():
        return {}
    return _read(place / "config.json")


def checkpoint_config(preset: WorldConfig, folder: Path) -> WorldConfig:
    """The preset with everything that the checkpoint's own JSON files say of it.

    Raises:
        CheckpointError: as `find_parts`; a file is no JSON, or says what cannot be served.
    """
    parts = find_parts(folder)
    said = _read(parts.config)
    if parts.transformer.name == OWN_TRANSFORMER:
        return preset.replace(vocabulary=_words(said.get("vocabulary", list(preset.vocabulary))))
    try:
        sizes = dataclasses.replace(preset.transformer, **_sizes(said))
        return preset.replace(transformer=sizes, **_streaming(said), **_schedule(_read(parts.scheduler)))
    except (ValueError, TypeError, OverflowError) as error:
        raise CheckpointError(f"config.json: {error}") from error


def _words(vocabulary: Any) -> tuple[str, ...]:
    if not isinstance(vocabulary, list) or not all(isinstance(word, str) for word in vocabulary):
        raise CheckpointError("training.json: vocabulary: wanted a list of words")
    return tuple(vocabulary)


def _sizes(said: dict[str, Any]) -> dict[str, Any]:
    sizes = {ours: said[theirs] for theirs, ours in SIZE_NAMES.items() if said.get(theirs) is not None}
    if "attention_head_dim" in said and "num_heads" in sizes:
        sizes["dim"] = said["attention_head_dim"] * sizes["num_heads"]
    for name, value in sizes.items():
        _check_number(name, value, is_whole=name != "eps")
    in_channels = said.get("in_dim", said.get("in_channels"))
    latent = sizes.get("latent_channels", 16)
    if in_channels is not None and in_channels != 2 * latent + MASK_CHANNELS:
        raise ValueError(
            f"in_channels: wanted {2 * latent + MASK_CHANNELS} (noise, first-frame mask, picture), got {in_channels}"
        )
    return sizes


def _streaming(said: dict[str, Any]) -> dict[str, Any]:
    # -1 stands for "without a bound", which no session can have: the preset's stays.
    found = {theirs: said[theirs] for theirs in STREAMING_NAMES if said.get(theirs) is not None and said[theirs] != -1}
    for theirs, value in found.items():
        _check_number(theirs, value, is_whole=STREAMING_NAMES[theirs] != "shift")
    return {STREAMING_NAMES[theirs]: value for theirs, value in found.items()}


def _check_number(name: str, value: Any, is_whole: bool) -> None:
    """Also against true, which Python takes for 1, and 3.0, of which no range can be made."""
    wanted = int if is_whole else (int, float)
    if isinstance(value, bool) or not isinstance(value, wanted):
        raise ValueError(f"{name}: wanted a {'whole ' if is_whole else ''}number, got {value!r}")


def _schedule(said: dict[str, Any]) -> dict[str, Any]:
    shift = said.get("flow_shift", said.get("shift"))
    return {} if shift is None else {"shift": float(shift)}


def _existing(path: Path) -> Path | None:
    return path if path.exists() else None


def _read(path: Path | None) -> dict[str, Any]:
    if path is None:
        return {}
    try:
        said = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, OSError, RecursionError) as error:
        raise CheckpointError(f"{path.name}: cannot be read as JSON ({type(error).__name__})") from error
    if not isinstance(said, dict):
        raise CheckpointError(f"{path.name}: wanted an object, got {type(said).__name__}")
    return said
