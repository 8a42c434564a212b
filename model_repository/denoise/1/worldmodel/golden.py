"""Hold this code against vectors that other implementations made: `python -m worldmodel.golden FOLDER`.

A folder has config.json, weights.safetensors (official key names) and vectors.safetensors. There are two kinds, told
apart by their config: "window" (LingBot-World's own modules, one window of latent frames) and "stream" (a causal
implementation, chunk by chunk, through our session, cache and sampler, with the given noise). Prints the largest error
of each vector and exits with 1 if one is beyond its tolerance.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file
from torch import Tensor

from worldmodel import camera as cam
from worldmodel.checkpoint import load_strict
from worldmodel.clip_poses import latent_frame_poses, published_relative_poses
from worldmodel.codec import StreamingCodec
from worldmodel.conditioner import condition_chunk
from worldmodel.config import PATCH, SPATIAL_STRIDE, CodecConfig, TransformerConfig, WorldConfig
from worldmodel.layers import rotary_table
from worldmodel.rays import camera_latent, ray_map
from worldmodel.sampler import predict, sample_chunk
from worldmodel.session import Session, Staged
from worldmodel.transformer import CausalWorldTransformer
from worldmodel.world import World

WINDOW_TOLERANCE = 2e-4
CAMERA_TOLERANCE = 1e-5
STREAM_TOLERANCE = 1e-3
INTRINSICS_TOLERANCE = 1e-4  # pixels: some hundreds of them, held in float32
PUBLISHED_PX = (480, 832)  # height and width that the published intrinsics are given for


@dataclass(frozen=True)
class Result:
    """One vector, held against ours."""

    name: str
    error: float
    tolerance: float

    @property
    def holds(self) -> bool:
        """Whether the error is within the tolerance (a NaN is not)."""
        return self.error <= self.tolerance


def check(folder: Path) -> list[Result]:
    """Compute every vector of a folder and compare."""
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    vectors = load_file(folder / "vectors.safetensors")
    world = _world(config, folder / "weights.safetensors")
    with torch.inference_mode():
        if "chunks" in config:
            return list(_check_stream(world, config, vectors))
        return [*_check_camera(world, vectors), *_check_window(world, vectors)]


def _world(config: Mapping[str, Any], weights: Path) -> World:
    sizes = TransformerConfig(
        dim=config["dim"],
        ffn_dim=config["ffn"],
        num_heads=config["heads"],
        num_layers=config["layers"],
        freq_dim=config["freq_dim"],
        text_dim=config["text_dim"],
        text_len=config["text_len"],
    )
    chunk = config.get("chunk_latent_frames", config.get("latent_frames"))
    window = config.get("window_latent_frames", chunk)
    if window < 0:  # as published: no window, everything stays
        window = chunk * config.get("chunks", 1)
    world_config = WorldConfig(
        name="golden",
        transformer=sizes,
        codec=CodecConfig(),
        height_px=config["height"],
        width_px=config["width"],
        chunk_latent_frames=chunk,
        window_latent_frames=window,
        sink_latent_frames=config.get("sink_latent_frames", 0),
    )
    transformer = CausalWorldTransformer(sizes)
    load_strict(transformer, weights)
    return World(world_config, transformer, StreamingCodec(CodecConfig()), torch.device("cpu"), torch.float32)


def _check_camera(world: World, vectors: Mapping[str, Tensor]) -> Iterator[Result]:
    config = world.config
    poses = latent_frame_poses(vectors["poses_full_rate"].double().numpy())
    relative = published_relative_poses(poses)
    given = vectors["intrinsics_832x480"].double().numpy()[:1]
    intrinsics = cam.fit_intrinsics(given, PUBLISHED_PX, (config.height_px, config.width_px), "stretch")
    lenses = np.tile(intrinsics, (len(poses), 1))
    rays = ray_map(relative.double().numpy(), lenses, config.height_px, config.width_px, world.device)
    ours = {
        "poses_per_latent_frame": poses,
        "relative_poses": relative,
        "intrinsics_model": torch.from_numpy(intrinsics[0]),
        "rays": rays,
        "camera_latent": camera_latent(rays)[None],
    }
    for name, value in ours.items():
        if name in vectors:
            yield _compare(
                name, value, vectors[name], INTRINSICS_TOLERANCE if "intrinsics" in name else CAMERA_TOLERANCE
            )


def _check_window(world: World, vectors: Mapping[str, Tensor]) -> Iterator[Result]:
    conditioning = condition_chunk(world.transformer, world.blocks, vectors["camera_latent"], None)
    yield _compare("camera_tokens", conditioning.camera_tokens, vectors["camera_tokens"], CAMERA_TOLERANCE)
    for layer, pair in enumerate(conditioning.held):
        for name, value in zip(("scale", "shift"), pair or (), strict=False):
            if f"block{layer}_{name}" in vectors:
                wanted = vectors[f"block{layer}_{name}"]
                yield _compare(f"block{layer}_{name}", value, wanted, CAMERA_TOLERANCE)
    prompt = world.prompt_from_vectors(vectors["text"])
    latent, condition = vectors["noise_latent"][None], vectors["condition"][None]
    cos, sin = _rotation(world, latent.shape[2])
    for layer, block in enumerate(world.blocks):
        block.bind(rotary_cos=cos, rotary_sin=sin, text_keys=prompt.keys[layer], text_values=prompt.values[layer])
    for name in sorted(key for key in vectors if key.startswith("out_t")):
        timestep, _, without = name.removeprefix("out_t").partition("_")
        conditioning.bind(world.blocks)
        if without == "no_camera":
            for block in world.blocks:
                block.bind(camera_scale=None, camera_shift=None)
        velocity = predict(world.transformer, world.blocks, latent, condition, float(timestep) / 1000)
        yield _compare(name, velocity[0], vectors[name], WINDOW_TOLERANCE)


def _check_stream(world: World, config: Mapping[str, Any], vectors: Mapping[str, Tensor]) -> Iterator[Result]:
    session = _stream_session(world, vectors)
    sigmas = tuple(timestep / 1000 for timestep in config["timesteps"])
    for chunk in range(config["chunks"]):
        frames = slice(session.next_latent_frame, session.next_latent_frame + world.config.chunk_latent_frames)
        velocities: list[Tensor] = []
        noises = iter(vectors["noise"][chunk])
        placement = session.cache.stage(session.next_latent_frame, world.config.chunk_latent_frames)
        conditioning = condition_chunk(
            world.transformer, world.blocks, vectors["camera_latent"][:, :, frames], world.conditioner_budget_bytes
        )
        world.bind_chunk(session.config, session.cache, placement, session.prompt, conditioning)
        clean = sample_chunk(
            world.transformer,
            world.blocks,
            session.condition_of_next_chunk(),
            sigmas,
            lambda noises=noises: next(noises)[None],  # type: ignore[misc]
            lambda: None,
            lambda _, velocity, seen=velocities: seen.append(velocity[0]),  # type: ignore[misc]
        )
        world.unbind_chunk()
        for step, velocity in enumerate(velocities):
            name = f"velocity[chunk {chunk}, step {step}]"
            yield _compare(name, velocity, vectors["velocity"][chunk, step], STREAM_TOLERANCE)
        yield _compare(f"x0[chunk {chunk}]", clean[0], vectors["x0"][chunk], STREAM_TOLERANCE)
        session.commit(Staged(placement, session.decoder_memory or (), session.camera, session.prompt, session.noise))


def _stream_session(world: World, vectors: Mapping[str, Tensor]) -> Session:
    config = world.config
    intrinsics = cam.default_intrinsics(config.height_px, config.width_px, config.horizontal_fov_deg)
    return Session(
        config,
        world.new_cache(config),
        vectors["condition"],
        cam.start_camera(intrinsics, 1.0),
        world.prompt_from_vectors(vectors["text"]),
        seed=0,
        picture_px=(config.height_px, config.width_px),
        fit="crop",
    )


def _rotation(world: World, num_frames: int) -> tuple[Tensor, Tensor]:
    config, sizes = world.config, world.config.transformer
    rows, columns = (size // SPATIAL_STRIDE // PATCH for size in (config.height_px, config.width_px))
    return rotary_table(0, num_frames, rows, columns, sizes.head_dim, sizes.rope_theta)


def _compare(name: str, ours: Tensor, wanted: Tensor, tolerance: float) -> Result:
    if ours.shape != wanted.shape:
        raise ValueError(f"{name}: our shape {list(ours.shape)}, the vector's {list(wanted.shape)}")
    return Result(name, float((ours.double() - wanted.double()).abs().max()), tolerance)


def main(arguments: list[str]) -> int:
    """Print a line per vector; the exit status says whether all hold."""
    if len(arguments) != 1 or not Path(arguments[0]).is_dir():
        print("usage: python -m worldmodel.golden FOLDER (with config.json, weights and vectors)", file=sys.stderr)
        return 2
    results = check(Path(arguments[0]))
    for result in results:
        verdict = "ok" if result.holds else "BEYOND TOLERANCE"
        print(f"{result.name:32} largest error {result.error:.3e}  tolerance {result.tolerance:.0e}  {verdict}")
    failed = sum(not result.holds for result in results)
    print(f"{len(results)} vectors, {failed} beyond tolerance")
    return 1 if failed or not results else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
