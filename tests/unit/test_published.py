"""Checkpoints in the published layouts, written by diffusers and by hand: names, sizes, velocities, errors."""

import json

import pytest
import torch
from safetensors.torch import load_file, save_file
from worldmodel.checkpoint import CheckpointError, load_strict
from worldmodel.conditioner import condition_chunk
from worldmodel.config import EMBEDDED
from worldmodel.published import checkpoint_config, find_parts
from worldmodel.published_names import original_name
from worldmodel.sampler import predict
from worldmodel.transformer import CausalWorldTransformer

from tests.unit.oracles import PRESET, TEXT_DIM, TEXT_LEN, tiny_transformer, write_transformer
from tests.unit.worlds import tiny_world


@pytest.fixture(scope="module")
def oracle():
    return tiny_transformer()


@pytest.fixture
def folder(oracle, tmp_path):
    write_transformer(oracle, tmp_path)
    return tmp_path


def loaded(folder):
    config = checkpoint_config(PRESET, folder)
    with torch.device("meta"):
        module = CausalWorldTransformer(config.transformer)
    load_strict(module, find_parts(folder).transformer, original_name, dtype_of=lambda _: torch.float32)
    return config, module


def test_config_json_says_how_large_it_is_and_how_it_streams(folder):
    config = checkpoint_config(PRESET, folder)
    sizes = config.transformer
    assert (sizes.dim, sizes.num_heads, sizes.num_layers, sizes.ffn_dim) == (48, 2, 3, 96)
    assert (sizes.freq_dim, sizes.text_dim, sizes.text_len, sizes.eps) == (32, 16, 8, 1e-6)
    assert (config.chunk_latent_frames, config.sink_latent_frames, config.window_latent_frames) == (3, 6, 12)
    assert (config.shift, config.timesteps) == (PRESET.shift, PRESET.timesteps)


def test_the_scheduler_of_a_diffusers_folder_says_the_shift(folder):
    (folder / "scheduler").mkdir()
    (folder / "scheduler" / "scheduler_config.json").write_text('{"flow_shift": 5.0}')
    assert checkpoint_config(PRESET, folder).shift == 5.0


def test_the_velocity_is_that_of_diffusers(oracle, folder):
    config, module = loaded(folder)
    world = tiny_world(config)
    world.transformer.load_state_dict(module.state_dict())
    generator = torch.Generator().manual_seed(1)
    noisy, condition = (torch.randn(1, channels, 3, 4, 6, generator=generator) for channels in (16, 20))
    text = torch.randn(5, TEXT_DIM, generator=generator)
    sigma = 0.7
    padded = torch.cat([text, torch.zeros(TEXT_LEN - len(text), TEXT_DIM)])[None]
    with torch.inference_mode():
        (wanted,) = oracle(torch.cat([noisy, condition], 1), torch.tensor([1000 * sigma]), padded, return_dict=False)
        cache = world.new_cache(world.config)
        camera = torch.randn(1, 384, 3, 4, 6, generator=generator)
        conditioning = condition_chunk(world.transformer, world.blocks, camera, None)
        world.bind_chunk(world.config, cache, cache.stage(0, 3), world.prompt_from_vectors(text), conditioning)
        velocity = predict(world.transformer, world.blocks, noisy, condition, sigma)
    torch.testing.assert_close(velocity, wanted, atol=2e-4, rtol=2e-4)


def test_the_original_layout_beside_its_config_is_the_same_model(oracle, folder, tmp_path):
    _, wanted = loaded(folder)
    original = tmp_path / "original"
    original.mkdir()
    tensors = {name: value.bfloat16() for name, value in wanted.state_dict().items()}
    save_file(tensors, original / "diffusion_pytorch_model.safetensors")
    sizes = {"dim": 48, "num_heads": 2, "num_layers": 3, "ffn_dim": 96, "freq_dim": 32, "text_dim": 16, "text_len": 8}
    (original / "config.json").write_text(json.dumps({**sizes, "in_dim": 36, "out_dim": 16, "model_type": "i2v"}))
    _, module = loaded(original)
    for name, value in module.state_dict().items():
        assert torch.equal(value, tensors[name].float()), name


@pytest.mark.parametrize("changed", ["missing", "surplus", "shape", "kind", "twice", "truncated", "no shard", "index"])
def test_what_does_not_fit_is_one_clear_error(folder, changed):
    inner, camera = folder / "transformer", folder / "transformer" / "camera.safetensors"
    (index,) = inner.glob("*.index.json")
    listed, tensors = json.loads(index.read_text()), load_file(camera)
    name = "blocks.1.cam_scale_layer.bias"
    wanted = {
        "missing": rf"camera\.safetensors: the index promises keys .*{name}",
        "surplus": r"0 keys missing; 1 keys not known \(blocks\.1\.cam_extra\.bias\)",
        "shape": rf"{name}: wanted shape \[48\], the file has \[47\]",
        "kind": rf"{name}: wanted one of F64, F32, F16, BF16, the file has I64",
        "twice": r"head\.modulation: is there twice",
        "truncated": r"camera\.safetensors: cannot be read as safetensors, it is damaged or not whole",
        "no shard": r"camera\.safetensors: no such file",
        "index": r"index\.json: wanted names of files beside it",
    }
    if changed == "missing":
        del tensors[name]
    elif changed == "surplus":
        tensors["blocks.1.cam_extra.bias"] = torch.zeros(3)
    elif changed == "shape":
        tensors[name] = torch.zeros(47)
    elif changed == "kind":
        tensors[name] = torch.zeros(48, dtype=torch.int64)
    elif changed == "twice":
        tensors["head.modulation"] = torch.zeros(1, 2, 48)
    elif changed == "index":
        listed["weight_map"][name] = "../camera.safetensors"
    save_file(tensors, camera)
    index.write_text(json.dumps(listed))
    if changed == "truncated":
        camera.write_bytes(camera.read_bytes()[:-4])
    elif changed == "no shard":
        camera.unlink()
    with pytest.raises(CheckpointError, match=wanted[changed]) as refused:
        loaded(folder)
    assert str(folder) not in str(refused.value)


@pytest.mark.parametrize(
    ("said", "wanted"),
    [
        ('{"num_layers": "3"}', r"config\.json: num_layers: wanted a whole number, got '3'"),
        ('{"num_frame_per_block": 2.5}', r"config\.json: num_frame_per_block: wanted a whole number, got 2\.5"),
        ('{"num_frame_per_block": NaN}', r"config\.json: num_frame_per_block: wanted a whole number, got nan"),
        ('{"sink_size": true}', r"config\.json: sink_size: wanted a whole number, got True"),
        ('{"sample_shift": "5"}', r"config\.json: sample_shift: wanted a number, got '5'"),
        (f'{{"sample_shift": 1{"0" * 400}}}', r"config\.json: int too large"),
        ('{"eps": NaN}', r"config\.json: eps: wanted more than 0, got nan"),
        ("[" * 100_000, r"config\.json: cannot be read as JSON"),
        ('{"in_channels": 16}', r"config\.json: in_channels: wanted 36 \(noise, first-frame mask, picture\), got 16"),
        ('{"num_heads": 7}', r"config\.json: dim 5120 does not split into 7 heads"),
        ('{"sink_size": 40}', r"config\.json: .*window of 18 latent frames cannot hold a sink of 40"),
        ("[1]", r"config\.json: wanted an object, got list"),
        ("{", r"config\.json: cannot be read as JSON"),
    ],
)
def test_a_config_that_cannot_be_served_says_why(folder, said, wanted):
    (folder / "transformer" / "config.json").write_text(said)
    with pytest.raises(CheckpointError, match=wanted):
        checkpoint_config(PRESET, folder)


def test_a_base_model_is_refused_by_name(tmp_path):
    (tmp_path / "high_noise_model").mkdir()
    with pytest.raises(CheckpointError, match="wanted a causal checkpoint, found high_noise_model and low_noise_model"):
        find_parts(tmp_path)


def test_an_empty_folder_says_what_was_looked_for(tmp_path):
    with pytest.raises(
        CheckpointError, match=r"wanted transformer\.safetensors, or \.safetensors files in transformer"
    ):
        checkpoint_config(EMBEDDED, tmp_path)


@pytest.mark.parametrize("vocabulary", ["5", "null", "true", '"day"', '{"day": 1}', "[1]", '[["day"]]'])
def test_words_that_are_none_are_one_clear_error(tmp_path, vocabulary):
    # Some of them were taken for words, and failed with a request's prompt.
    save_file({"x": torch.zeros(1)}, tmp_path / "transformer.safetensors")
    (tmp_path / "training.json").write_text(f'{{"vocabulary": {vocabulary}}}')
    with pytest.raises(CheckpointError, match=r"training\.json: vocabulary: wanted a list of words"):
        checkpoint_config(EMBEDDED, tmp_path)


def test_our_own_checkpoints_bring_their_words(tmp_path):
    save_file({"x": torch.zeros(1)}, tmp_path / "transformer.safetensors")
    assert checkpoint_config(EMBEDDED, tmp_path) == EMBEDDED
    (tmp_path / "training.json").write_text('{"vocabulary": ["day", "night"]}')
    assert checkpoint_config(EMBEDDED, tmp_path).vocabulary == ("day", "night")


def test_a_folder_that_is_not_there_is_named(tmp_path):
    with pytest.raises(CheckpointError, match="parameter checkpoint: there is no folder 'nowhere' where it points to"):
        checkpoint_config(EMBEDDED, tmp_path / "nowhere")
