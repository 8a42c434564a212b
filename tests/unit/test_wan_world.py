"""A whole world from files that diffusers wrote: its frames, sessions and snapshots, and files that do not fit."""

import json

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from worldmodel.checkpoint_files import CheckpointError
from worldmodel.loading import Instance, load_world
from worldmodel.published import checkpoint_config
from worldmodel.room import need_of
from worldmodel.serving import ServingConfig
from worldmodel.world import Controls

from tests.unit.oracles import PRESET, first_chunk, tiny_transformer, tiny_vae, write_transformer, write_vae
from tests.unit.snapshots import go, load, save
from tests.unit.worlds import picture

WEIGHTS = "diffusion_pytorch_model.safetensors"
MOVES = ({"actions": ("", "w", "w")}, {"actions": ("l", "", "")}, {}, {"actions": ("s", "j", "")}, {})


@pytest.fixture(scope="module")
def oracles():
    return tiny_transformer(), tiny_vae()


@pytest.fixture(scope="module")
def folder(oracles, tmp_path_factory):
    made = tmp_path_factory.mktemp("checkpoint")
    write_transformer(oracles[0], made)
    write_vae(oracles[1], made)
    return made


def loaded(folder, **serving):
    config = checkpoint_config(PRESET, folder)
    return load_world(config, ServingConfig(checkpoint=str(folder), **serving), folder, Instance("CPU", 0))


@pytest.fixture(scope="module")
def world(folder):
    return loaded(folder)


def start(world, number):
    return world.start(picture(number), seed=number)


def test_the_first_frames_are_those_of_diffusers_modules(oracles, world):
    frames = go(world, start(world, 3))
    wanted = first_chunk(*oracles, picture(3), seed=3)
    assert wanted.std() > 25, "the oracle's frames must show something"
    # Float32 in other orders of summing, through four steps and a decoder; then rounding.
    assert np.abs(frames.astype(int) - wanted.astype(int)).max() <= 1


def test_interleaved_sessions_equal_their_solo_runs(world):
    def alone(number):
        session = start(world, number)
        return [go(world, session, **move) for move in MOVES]

    wanted = [alone(number) for number in (1, 2)]
    sessions = [start(world, number) for number in (1, 2)]
    for chunk, move in enumerate(MOVES):
        for session, frames in zip(sessions, wanted, strict=True):
            np.testing.assert_array_equal(go(world, session, **move), frames[chunk])


def test_a_chunk_that_is_given_up_leaves_no_trace(world):
    session, twin = start(world, 1), start(world, 1)
    for each in (session, twin):
        go(world, each)
    world.next_chunk(session, Controls(actions=("w",) * 3), lambda: None)  # decoded, and not committed
    np.testing.assert_array_equal(go(world, session), go(world, twin))


@pytest.mark.parametrize("moment", [0, 1, 3])
def test_a_restored_session_goes_on_byte_for_byte(folder, world, moment):
    session = start(world, 4)
    for move in MOVES[:moment]:
        go(world, session, **move)
    file = save(session, world)
    assert len(file) < world.session_bytes() + 2**20
    twin = load(file, world)
    np.testing.assert_array_equal(save(twin, world), file)
    for move in MOVES[moment:]:
        np.testing.assert_array_equal(go(world, twin, **move), go(world, session, **move))


def test_a_session_takes_the_bytes_that_were_announced(world):
    session = start(world, 1)
    for move in MOVES[:2]:
        go(world, session, **move)
    taken = sum(part.untyped_storage().nbytes() for part in session.decoder_memory)
    assert taken == world.codec.decoder_memory_bytes(32, 48)


def test_what_is_foretold_counts_this_codec(world):
    need = need_of(world.config, ServingConfig(), torch.float32, world.codec)
    assert need.session == world.session_bytes()
    assert need.weights == sum(each.nbytes for part in (world.transformer, world.codec) for each in part.parameters())


def test_with_one_latent_frame_a_chunk_the_frames_are_the_same_clip(folder, oracles):
    config = checkpoint_config(PRESET, folder).replace(chunk_latent_frames=1)
    world = load_world(config, ServingConfig(checkpoint=str(folder)), folder, Instance("CPU", 0))
    session = start(world, 2)
    frames = [go(world, session) for _ in range(3)]
    assert [len(each) for each in frames] == [1, 4, 4]
    latents = torch.cat([past.latent for past in session.history], dim=2).transpose(1, 2)
    whole, _ = world.codec.decode(latents)
    grey = ((whole[0] + 1) * 127.5).round().clamp(0, 255).permute(0, 2, 3, 1).numpy()
    np.testing.assert_array_equal(np.concatenate(frames), grey.astype(np.uint8))


def test_a_codec_in_bfloat16_has_half_the_memory(folder, world):
    narrow = loaded(folder, codec_dtype="bfloat16")
    assert 2 * narrow.codec.decoder_memory_bytes(32, 48) == world.codec.decoder_memory_bytes(32, 48)
    session = start(narrow, 3)
    file = save(session, narrow)
    np.testing.assert_array_equal(go(narrow, load(file, narrow)), go(narrow, session))


@pytest.mark.parametrize(
    "changed", ["missing", "surplus", "shape", "truncated", "no weights", "no config", "no json", "channels", "none"]
)
def test_what_does_not_fit_is_one_clear_error(oracles, folder, tmp_path, changed):
    (tmp_path / "transformer").symlink_to(folder / "transformer")
    write_vae(oracles[1], tmp_path)
    file, config = tmp_path / "vae" / WEIGHTS, tmp_path / "vae" / "config.json"
    tensors, said = load_file(file), json.loads(config.read_text())
    wanted = {
        "missing": r"^vae: 1 keys missing \(decoder\.conv_in\.bias\)",
        "surplus": r"^vae: .*1 keys not known \(decoder\.conv_mid\.bias\)",
        "shape": r"^vae: quant_conv\.bias: wanted shape \[32\], the file has \[31\]",
        "truncated": r"^vae: diffusion_pytorch_model\.safetensors: cannot be read as safetensors, it is damaged",
        "no weights": r"^vae: no \.safetensors file found",
        "no config": r"^vae: config\.json: no such file",
        "no json": r"^vae: config\.json: cannot be read as JSON",
        "channels": r"^vae: config\.json: latents_mean: wanted 8 numbers, got 16",
        "none": r"^codec auto: wanted codec\.safetensors or vae or .* or taew2_1\.pth in the checkpoint's folder",
    }
    if changed == "missing":
        del tensors["decoder.conv_in.bias"]
    elif changed == "surplus":
        tensors["decoder.conv_mid.bias"] = torch.zeros(3)
    elif changed == "shape":
        tensors["quant_conv.bias"] = torch.zeros(31)
    elif changed == "channels":
        said["z_dim"] = 8
    save_file(tensors, file)
    config.write_text("{" if changed == "no json" else json.dumps(said))
    if changed == "truncated":
        file.write_bytes(file.read_bytes()[:-4])
    if changed in ("no weights", "none"):
        file.unlink()
    if changed in ("no config", "none"):
        config.unlink()
    if changed == "none":
        (tmp_path / "vae").rmdir()
    with pytest.raises(CheckpointError, match=wanted[changed]) as refused:
        loaded(tmp_path)
    assert str(tmp_path) not in str(refused.value)


def test_a_vae_of_other_latents_than_the_transformers_is_refused(oracles, folder, tmp_path):
    (tmp_path / "transformer").symlink_to(folder / "transformer")
    write_vae(oracles[1], tmp_path)
    config = tmp_path / "vae" / "config.json"
    changes = {"z_dim": 8, "latents_mean": [0.0] * 8, "latents_std": [1.0] * 8}
    config.write_text(json.dumps(json.loads(config.read_text()) | changes))
    with pytest.raises(CheckpointError, match=r"^vae: wanted latents of 16 channels, as the transformer.*, got 8"):
        loaded(tmp_path)
