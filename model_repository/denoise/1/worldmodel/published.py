"""How LingBot-World's checkpoints are laid out: which folder holds what, what config.json says, how keys are named.

Two layouts are known. The original one has the key names of the published code, which are ours. That of diffusers names
the Wan parts anew; of the camera's parts it knows nothing, they keep their names. Reads small JSON files, no weights.
"""

from __future__ import annotations

import dataclasses
import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from worldmodel.checkpoint import INDEX, CheckpointError
from worldmodel.config import MASK_CHANNELS, WorldConfig

OWN_TRANSFORMER = "transformer.safetensors"  # what `make train` writes, beside the codec and training.json
TRANSFORMER_FOLDERS = ("transformer", "transformers", ".")  # diffusers, v2, v1
BASE_FOLDERS = ("high_noise_model", "low_noise_model")  # two experts of a model that is not causal

# diffusers' beginning of a key -> the original one.
OUTER_NAMES = {
    "condition_embedder.time_embedder.linear_1": "time_embedding.0",
    "condition_embedder.time_embedder.linear_2": "time_embedding.2",
    "condition_embedder.time_proj": "time_projection.1",
    "condition_embedder.text_embedder.linear_1": "text_embedding.0",
    "condition_embedder.text_embedder.linear_2": "text_embedding.2",
    "scale_shift_table": "head.modulation",
    "proj_out": "head.head",
}
# The same behind "blocks.N.". diffusers counts the norms in the order of their use: its norm2 is the original norm3.
BLOCK_NAMES = {
    **{
        f"{theirs}.{part}": f"{ours}.{name}"
        for theirs, ours in (("attn1", "self_attn"), ("attn2", "cross_attn"))
        for part, name in (
            ("to_q", "q"),
            ("to_k", "k"),
            ("to_v", "v"),
            ("to_out.0", "o"),
            ("norm_q", "norm_q"),
            ("norm_k", "norm_k"),
        )
    },
    "ffn.net.0.proj": "ffn.0",
    "ffn.net.2": "ffn.2",
    "norm2": "norm3",
    "scale_shift_table": "modulation",
}
_BLOCK = re.compile(r"(blocks\.\d+\.)(.+)")


def original_name(key: str) -> str:
    """A key in the original layout, whichever layout it comes from; what no rule knows stays as it is."""
    block = _BLOCK.fullmatch(key)
    if block is None:
        return _renamed(key, OUTER_NAMES)
    return block[1] + _renamed(block[2], BLOCK_NAMES)


# The same of Wan's VAE, the other way: its published file -> diffusers.
VAE_NAMES = {
    "conv1": "quant_conv",
    "conv2": "post_quant_conv",
    **{
        f"{side}.{theirs}": f"{side}.{name}"
        for side in ("encoder", "decoder")
        for theirs, name in (
            ("conv1", "conv_in"),
            ("middle.0", "mid_block.resnets.0"),
            ("middle.1", "mid_block.attentions.0"),
            ("middle.2", "mid_block.resnets.1"),
            ("head.0", "norm_out"),
            ("head.2", "conv_out"),
        )
    },
    "encoder.downsamples": "encoder.down_blocks",
}
VAE_PARTS = {
    ".residual.0.": ".norm1.",
    ".residual.2.": ".conv1.",
    ".residual.3.": ".norm2.",
    ".residual.6.": ".conv2.",
    ".shortcut.": ".conv_shortcut.",
}
_UPSAMPLE = re.compile(r"decoder\.upsamples\.(\d+)\.(.+)")
VAE_STAGE = 4  # the published decoder counts through its stages: three residual blocks, then what grows


def vae_name(key: str) -> str:
    """A key of Wan's VAE as diffusers has it, from the published file; what no rule knows stays as it is."""
    upsample = _UPSAMPLE.fullmatch(key)
    if upsample:
        stage, place = divmod(int(upsample[1]), VAE_STAGE)
        part = "upsamplers.0" if place == VAE_STAGE - 1 else f"resnets.{place}"
        key = f"decoder.up_blocks.{stage}.{part}.{upsample[2]}"
    key = _renamed(key, VAE_NAMES)
    for theirs, name in VAE_PARTS.items():
        key = key.replace(theirs, name)
    return key


def _renamed(key: str, names: dict[str, str]) -> str:
    for theirs, ours in names.items():
        if key == theirs or key.startswith(theirs + "."):
            return ours + key[len(theirs) :]
    return key


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


CODECS = ("own", "wan", "taehv")
# Where each codec's weights lie, the usual place first: our own file, diffusers' folder or the file of the published
# code, and TAEHV's file.
CODEC_PLACES = {
    "own": ("codec.safetensors",),
    "wan": ("vae", "Wan2.1_VAE.pth"),
    "taehv": ("taew2_1.safetensors", "taew2_1.pth"),
}


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
        return preset.replace(vocabulary=tuple(said.get("vocabulary", preset.vocabulary)))
    try:
        sizes = dataclasses.replace(preset.transformer, **_sizes(said))
        return preset.replace(transformer=sizes, **_streaming(said), **_schedule(_read(parts.scheduler)))
    except (ValueError, TypeError) as error:
        raise CheckpointError(f"config.json: {error}") from error


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


def _sizes(said: dict[str, Any]) -> dict[str, Any]:
    sizes = {ours: said[theirs] for theirs, ours in SIZE_NAMES.items() if said.get(theirs) is not None}
    if "attention_head_dim" in said and "num_heads" in sizes:
        sizes["dim"] = said["attention_head_dim"] * sizes["num_heads"]
    for name, value in sizes.items():
        wanted = (int, float) if name == "eps" else int
        if isinstance(value, bool) or not isinstance(value, wanted):
            raise ValueError(f"{name}: wanted a number, got {value!r}")
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
    return {STREAMING_NAMES[theirs]: value for theirs, value in found.items()}


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
    except (ValueError, OSError) as error:
        raise CheckpointError(f"{path.name}: cannot be read as JSON ({type(error).__name__})") from error
    if not isinstance(said, dict):
        raise CheckpointError(f"{path.name}: wanted an object, got {type(said).__name__}")
    return said
