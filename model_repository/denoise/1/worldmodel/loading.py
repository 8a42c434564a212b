"""From the two configurations to a world on its device. The only place that decides device, dtype and weights."""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch

from worldmodel.acceleration import mount_and_compile, warm_up
from worldmodel.checkpoint import load_strict
from worldmodel.checkpoint_files import CheckpointError, named
from worldmodel.codec_choice import empty_codec_at, fill_codec, seeded_codec
from worldmodel.config import WorldConfig
from worldmodel.layers import seed_parameters
from worldmodel.prompt import NoTextEncoder, TextEncoder
from worldmodel.prompt_cache import PromptCache
from worldmodel.published import CODEC_FILES, Parts, find_codec, find_parts
from worldmodel.published_names import original_name
from worldmodel.room import check_budget, check_free, check_sessions, free_bytes, need_of
from worldmodel.serving import ParameterError, ServingConfig
from worldmodel.text_encoder import load_umt5
from worldmodel.transformer import CausalWorldTransformer, dtype_of
from worldmodel.world import World, hashed_words

log = logging.getLogger("worldstream")


@dataclass(frozen=True)
class Instance:
    """The kind of instance that Triton made (CPU, GPU or MODEL), and the GPU that goes with it."""

    kind: str
    device_id: int


def load_world(config: WorldConfig, serving: ServingConfig, version_folder: Path, instance: Instance) -> World:
    """Build the modules, fill them, put them on the device.

    Args:
        version_folder: where a relative `checkpoint` is looked for.
        instance: its device counts where `serving.device` is "auto".

    Raises:
        CheckpointError: the files do not fit.
        ParameterError: a device that is not there, or where the world has no room.
    """
    began = time.monotonic()
    device, dtype = choose_device(serving, instance)
    if device.type == "cuda":
        settle_cuda(device, dtype)
    folder = version_folder / serving.checkpoint if serving.checkpoint else None
    parts = find_parts(folder) if folder else None
    # First, so that what it takes of the device is no longer counted as free.
    prompts = PromptCache(_text_encoder(config, serving, parts, device), serving.prompt_cache_bytes)
    found = find_codec(folder, serving.codec) if folder else None
    codec = empty_codec_at(config, serving, *found) if found else seeded_codec(config, serving)
    need = need_of(config, serving, dtype, codec)
    check_budget(need, serving)
    check_free(need, free_bytes(device), device)
    if parts and found:
        transformer = _loaded(config, parts.transformer, device, dtype)
        fill_codec(codec, found[1], device)
    else:
        transformer = _seeded(config, serving.weights_seed)
    step_cache, compilation = mount_and_compile(transformer, device, serving)
    world = World(
        config,
        transformer,
        codec,
        device,
        dtype,
        serving.held_conditioner_bytes,
        serving.picture_cache_bytes,
        step_cache,
        serving.step_cache_settings,
        compilation,
        prompts,
    )
    _warm_up(world)
    if device.type == "cuda":  # a host may use its memory for other things as well, and lend it again
        check_sessions(serving, free_bytes(device), device)
    num_parameters = sum(parameter.numel() for parameter in transformer.parameters())
    log.info(
        "%s: %.1f M transformer parameters (%s) on %s as %s in %.1f s; a session takes %.1f MiB",
        config.name,
        num_parameters / 1e6,
        "checkpoint" if serving.checkpoint else f"seed {serving.weights_seed}",
        device,
        dtype,
        time.monotonic() - began,
        world.session_bytes() / 2**20,
    )
    return world


def _seeded(config: WorldConfig, seed: int) -> CausalWorldTransformer:
    transformer = CausalWorldTransformer(config.transformer)
    seed_parameters(transformer, seed)
    return transformer


def _loaded(config: WorldConfig, source: Path, device: torch.device, dtype: torch.dtype) -> CausalWorldTransformer:
    """That of a checkpoint, straight on the device: it is empty until its tensors come."""
    with torch.device("meta"):
        transformer = CausalWorldTransformer(config.transformer)
    with named("transformer"):
        load_strict(transformer, source, original_name, device, partial(dtype_of, dtype=dtype), CODEC_FILES)
    return transformer


def _warm_up(world: World) -> None:
    try:
        warm_up(world)
    except FloatingPointError as error:
        raise CheckpointError(f"the weights are finite, what {world.dtype} makes of them is not: {error}") from error


def _text_encoder(
    config: WorldConfig, serving: ServingConfig, parts: Parts | None, world_device: torch.device
) -> TextEncoder:
    """What reads prompts. Unless told otherwise: hashed words in a world of ours, else what the checkpoint brings."""
    kind = serving.text_encoder
    if kind == "auto":
        kind = "words" if parts is None or parts.is_own else "none" if parts.text_encoder is None else "umt5"
    if kind == "words":
        return hashed_words(config)
    if kind == "none":
        return NoTextEncoder(config.transformer.text_dim)
    if parts is None or parts.text_encoder is None:
        raise CheckpointError("parameter text_encoder: umt5 is wanted, the checkpoint has no folder text_encoder")
    named = serving.text_device
    device = world_device if named == "auto" else _present("text_device", torch.device(named))
    return load_umt5(parts.text_encoder, parts.tokenizer, config.transformer, device)


def choose_device(serving: ServingConfig, instance: Instance) -> tuple[torch.device, torch.dtype]:
    """The explicit device and dtype of everything: bfloat16 on a GPU, float32 on a CPU, unless told otherwise."""
    device = _instance_device(instance) if serving.device == "auto" else torch.device(serving.device)
    device = _present("device", device)
    if serving.dtype == "auto":
        return device, torch.bfloat16 if device.type == "cuda" else torch.float32
    return device, getattr(torch, serving.dtype)


def _present(name: str, device: torch.device) -> torch.device:
    """A device that a parameter names, with its index."""
    if device.type != "cuda":
        return device
    if not torch.cuda.is_available():
        raise ParameterError(f"parameter {name}: wanted {device}, but torch sees no GPU")
    device = torch.device("cuda", device.index or 0)
    if device.index >= torch.cuda.device_count():
        raise ParameterError(f"parameter {name}: wanted {device}, but torch sees {torch.cuda.device_count()} GPUs")
    return device


def settle_cuda(device: torch.device, dtype: torch.dtype) -> None:
    """Say what torch keeps for this thread and this process instead of taking its defaults; on the compute thread."""
    # Triton sets no device: what asks for "the" GPU (compiled code, pinned memory) would mean the first one.
    torch.cuda.set_device(device)
    # Who asks for float32 gets it. In a bfloat16 world the codec alone is float32 (and the time embedding, a few
    # numbers a pass): TF32 keeps ten bits in its convolutions, a pixel has eight.
    torch.backends.cudnn.allow_tf32 = dtype == torch.bfloat16
    torch.backends.cuda.matmul.allow_tf32 = False
    # One algorithm a shape, chosen by rule: equal inputs give equal bytes after a restart too, and no request waits for
    # a search.
    torch.backends.cudnn.benchmark = False
    torch.backends.cudnn.deterministic = True


def _instance_device(instance: Instance) -> torch.device:
    if instance.kind == "CPU" or (instance.kind == "MODEL" and not torch.cuda.is_available()):
        return torch.device("cpu")
    return torch.device("cuda", instance.device_id if instance.kind == "GPU" else 0)
