"""What gpu_check.py finds out on a published checkpoint's way: from files through the server's loading to frames."""

from __future__ import annotations

import dataclasses
import re
import sys
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from common import ROOT
from gpu_files import Checkpoint
from gpu_lab import Budget, Lab, NotHereError
from gpu_loads import LoadWatch, served_by
from gpu_sections import differing, starts, walk
from gpu_worlds import Served, fill, settle, stream
from sessions import MOVES

sys.path.append(str(ROOT / "client"))  # where it is not installed

# isort: split
import torch
from worldmodel.codec_choice import empty_codec
from worldmodel.config import WorldConfig
from worldmodel.loading import Instance, load_world
from worldmodel.published import checkpoint_config
from worldmodel.room import need_of
from worldmodel.serving import ServingConfig, read_parameters
from worldmodel.transformer import CausalWorldTransformer
from worldmodel.wan_codec import WanCodec
from worldmodel.world import World

SERVED_CONFIGURATION = ROOT / "model_repository" / "denoise" / "configs" / "lingbot_world_fast.pbtxt"
_PARAMETER = re.compile(r'\{ key: "(\w+)" value: \{ string_value: "([^"]*)" \} \}')
GIB = 2**30
DEVIATION = "the frames' standard deviation, of 255"


def as_in_memory(lab: Lab, checkpoint: Checkpoint, budget: Budget) -> dict[str, Any]:
    """Whether the written weights, loaded as they are served, stream what the same weights do that met no file."""
    num_chunks = 2
    config, serving = settings(lab, checkpoint, "wan", compile="off")
    check_room(lab, counted_bytes(lab, checkpoint, config, serving))
    wanted = stream(_unwritten_world(lab, checkpoint, config, serving), num_chunks, prompt="")
    lab.forget()
    with served_by(_loading(config, serving), serving) as (served, watch):
        frames = served.ask(num_chunks, keeps_frames=True, actions=MOVES * num_chunks).frames()
        found = _load(lab, checkpoint, "wan", served, watch)
    return {
        **found,
        "frames": len(frames),
        DEVIATION: round(float(wanted.std()), 2),
        "from the same weights in memory, differing bytes": differing(frames, wanted),
    }


def served_with(codec: str, lab: Lab, checkpoint: Checkpoint, budget: Budget) -> dict[str, Any]:
    """Loading, the first request, chunks by stage, and memory, through the engine and with this codec."""
    config, serving = settings(lab, checkpoint, codec)
    counted = counted_bytes(lab, checkpoint, config, serving)
    check_room(lab, counted)
    before = lab.allocated_bytes()
    with served_by(_loading(config, serving), serving) as (served, watch):
        found = _load(lab, checkpoint, codec, served, watch)
        found |= {"ready_s": round(watch.ready_s, 2), **starts(served, 1, budget.part(2))}
        found |= walk(served, budget)
        found |= {
            "session_gib": _gib(served.world.session_bytes()),
            "conditioner_gib": _gib(served.world.counters.conditioner_peak_bytes),
            **_memory(lab, before, counted),
        }
    return found


def _memory(lab: Lab, before: int, counted: Mapping[str, int]) -> dict[str, Any]:
    """The device's, against what is counted. Torch holds more than lives: each stream keeps what it has freed."""
    in_all = sum(counted.values())
    found = {"counted_gib": {name: _gib(num_bytes) for name, num_bytes in counted.items()}, "in_all_gib": _gib(in_all)}
    if not lab.is_gpu:
        return found
    peak = lab.peak_bytes() - before
    found |= {
        "peak_gib": _gib(peak),
        "reserved_gib": _gib(lab.reserved_peak_bytes()),
        "beside_torch_gib": _gib(lab.beside_torch_bytes()),
    }
    # Activations are counted by the client's package alone: without it the two cannot be compared.
    return found | ({"peak_over_counted": round(peak / in_all, 3)} if "activations" in counted else {})


def settings(lab: Lab, checkpoint: Checkpoint, codec: str, **changes: str) -> tuple[WorldConfig, ServingConfig]:
    """As the server reads them from the published configuration: these parameters changed, and one session let in."""
    size = checkpoint.of.config
    parameters = dict(_PARAMETER.findall(SERVED_CONFIGURATION.read_text(encoding="utf-8"))) | {
        "checkpoint": str(checkpoint.folder),
        "height_px": str(size.height_px),
        "width_px": str(size.width_px),
        "device": str(lab.device),
        "codec": codec,
        "text_encoder": "none",
        "compile": "on",
        "compile_backend": lab.backend,
        "compile_cache": str(lab.scratch / "compiled"),
        **changes,
    }
    config, serving = read_parameters(parameters, lambda preset, named: checkpoint_config(preset, Path(named)))
    need = need_of(config, serving, lab.dtype, empty_codec(config, serving, checkpoint.folder))
    return config, dataclasses.replace(serving, session_budget_bytes=need.session)


def counted_bytes(lab: Lab, checkpoint: Checkpoint, config: WorldConfig, serving: ServingConfig) -> dict[str, int]:
    """What the server counts of this world with one session, and the activations that `worldstream plan` adds."""
    need = need_of(config, serving, lab.dtype, empty_codec(config, serving, checkpoint.folder))
    counted = {"weights": need.weights, "session": need.session, "conditioner": need.conditioner}
    counted["picture_cache"] = serving.picture_cache_bytes
    try:
        from worldstream.sizing.plan import activation_bytes
        from worldstream.sizing.worlds import WorldSizes
    except ImportError:
        return counted
    known = {**vars(config), **vars(config.transformer), **vars(config.codec), **vars(serving)}
    known["device"] = lab.device.type
    names = {each.name for each in dataclasses.fields(WorldSizes)}
    counted["activations"] = activation_bytes(WorldSizes(**{name: known[name] for name in names & known.keys()}))
    return counted


def check_room(lab: Lab, counted: Mapping[str, int]) -> None:
    """Give up what the device has no memory for; nothing is kept of what ran before.

    Raises:
        NotHereError: with the numbers.
    """
    lab.forget()
    wanted, free = sum(counted.values()), lab.free_bytes()
    if wanted > free:
        raise NotHereError(f"this world takes about {wanted / GIB:.1f} GiB, {free / GIB:.1f} GiB are free")


def _loading(config: WorldConfig, serving: ServingConfig) -> Callable[[], World]:
    # The instance is that of a server; its device counts only where the parameter leaves it open.
    return partial(load_world, config, serving, Path(), Instance("CPU", 0))


def _load(lab: Lab, checkpoint: Checkpoint, codec: str, served: Served, watch: LoadWatch) -> dict[str, Any]:
    """How loading went. The files were written just now: they are read from the host's page cache."""
    world = served.world
    num_bytes = checkpoint.transformer_bytes + checkpoint.codec_bytes[codec]
    weights = sum(each.nbytes for module in (world.transformer, world.codec) for each in module.parameters())
    return {
        "file_bytes": num_bytes,
        "weight_bytes": weights,
        "load_s": round(watch.loaded_s, 2),
        "load_gb_per_s": round(num_bytes / watch.loaded_s / 1e9, 2),
        "host_growth_mib": round(watch.host_growth_bytes / 2**20, 1),
        "host_growth_over_weights": round(watch.host_growth_bytes / weights, 3),
        "resident_gib": _gib(lab.allocated_bytes()),
    }


def _unwritten_world(lab: Lab, checkpoint: Checkpoint, config: WorldConfig, serving: ServingConfig) -> World:
    """The weights that were written, drawn again."""
    with torch.device("meta"):
        transformer = CausalWorldTransformer(config.transformer).to(torch.bfloat16)
    fill(transformer.to_empty(device=lab.device), lab.device)
    codec = WanCodec(checkpoint.vae.config)
    codec.vae.load_state_dict(checkpoint.vae.state_dict())
    settle(lab.device, lab.dtype)
    return World(config, transformer, codec, lab.device, lab.dtype, serving.held_conditioner_bytes)


def _gib(num_bytes: int) -> float:
    return round(num_bytes / GIB, 3)
