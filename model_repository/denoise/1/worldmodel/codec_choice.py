"""Which codec a world has, and from files to its module: ours, Wan's VAE, or TAEHV."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor

from worldmodel.checkpoint import fill_strict, load_strict, read_tensors
from worldmodel.checkpoint_files import CheckpointError, named
from worldmodel.codec import Codec, StreamingCodec
from worldmodel.config import WorldConfig
from worldmodel.layers import seed_parameters
from worldmodel.published import find_codec, vae_config
from worldmodel.published_names import vae_name
from worldmodel.serving import ParameterError, ServingConfig
from worldmodel.taehv_codec import FIRST_GROW, TaehvCodec
from worldmodel.wan_codec import WanCodec


def codec_dtype(serving: ServingConfig) -> torch.dtype:
    """Float32 unless told otherwise: a pixel shows what bfloat16 rounds off."""
    dtype: torch.dtype = torch.float32 if serving.codec_dtype == "auto" else getattr(torch, serving.codec_dtype)
    return dtype


def seeded_codec(config: WorldConfig, serving: ServingConfig) -> Codec:
    """One with seeded weights.

    Raises:
        ParameterError: another than ours is asked for.
    """
    if serving.codec not in ("auto", "own"):
        raise ParameterError(f"parameter codec: {serving.codec} has weights in a checkpoint only, and none is named")
    codec = StreamingCodec(config.codec)
    seed_parameters(codec, serving.weights_seed + 1)
    codec.cast(codec_dtype(serving))
    return codec


def empty_codec(config: WorldConfig, serving: ServingConfig, folder: Path) -> Codec:
    """That of a checkpoint's folder, without its weights: on "meta".

    Raises:
        CheckpointError: there is none, or none that this world can have.
    """
    return empty_codec_at(config, serving, *find_codec(folder, serving.codec))


def empty_codec_at(config: WorldConfig, serving: ServingConfig, kind: str, place: Path) -> Codec:
    """As `empty_codec`, for one who has looked for it already.

    Args:
        kind, place: as `find_codec` found it.

    Raises:
        CheckpointError: it is none that this world can have.
    """
    with named(place.name), torch.device("meta"):
        codec = _empty(kind, place, config)
        codec.cast(codec_dtype(serving))
        wanted, given = config.transformer.latent_channels, len(codec.latent_mean)
        if given != wanted:
            raise CheckpointError(f"wanted latents of {wanted} channels, as the transformer has them, got {given}")
    return codec


def fill_codec(codec: Codec, place: Path, device: torch.device) -> None:
    """Give it its weights, on the device.

    Raises:
        CheckpointError: the files do not fit.
    """
    with named(place.name):
        if isinstance(codec, TaehvCodec):
            fill_strict(codec, _one_first_grow(read_tensors(place), codec), place, device)
        elif isinstance(codec, WanCodec) and place.is_file():
            tensors = {vae_name(key): tensor for key, tensor in read_tensors(place).items()}
            fill_strict(codec.vae, tensors, place, device)
        else:
            load_strict(codec.vae if isinstance(codec, WanCodec) else codec, place, device=device)
        if not (codec.latent_std > 0).all():
            raise CheckpointError("latent_std: wanted numbers more than 0")


def _empty(kind: str, place: Path, config: WorldConfig) -> Codec:
    if kind == "wan":
        return WanCodec(vae_config(place))
    if kind == "taehv":
        return TaehvCodec(config.transformer.latent_channels)
    return StreamingCodec(config.codec)


def _one_first_grow(tensors: dict[str, Tensor], codec: TaehvCodec) -> dict[str, Tensor]:
    """The first stage does not grow in time. Some files have it as if it did: the second frame's weights count."""
    weight = tensors.get(FIRST_GROW)
    if weight is None or not weight.dim():
        return tensors
    num_rows = codec.get_parameter(FIRST_GROW).shape[0]
    return {**tensors, FIRST_GROW: weight[-num_rows:] if len(weight) == 2 * num_rows else weight}
