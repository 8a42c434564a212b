"""Checkpoints in the published layouts, written by diffusers and by hand: names, sizes, velocities, errors."""

import json

import pytest
import torch
from safetensors.torch import load_file, save_file
from worldmodel.checkpoint import load_strict
from worldmodel.checkpoint_files import CheckpointError
from worldmodel.conditioner import condition_chunk
from worldmodel.config import EMBEDDED, LINGBOT_WORLD_FAST
from worldmodel.published import CODEC_FILES, checkpoint_config, find_parts
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
        "missing": rf"camera\.safetensors: the index promises 1 keys that it has not \({name}\)",
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
        # This once made modules, one after the other, for hours.
        ('{"num_layers": 1000000000}', r"num_layers: wanted a whole number from 1 to 1000, got 1000000000"),
        ('{"num_layers": "3"}', r"num_layers: wanted a whole number from 1 to 1000, got '3'"),
        ('{"num_layers": "\\ud800"}', r"num_layers: wanted a whole number from 1 to 1000, got '.ud800'"),
        ('{"dim": 1000000000000000000}', r"dim: wanted a whole number from 1 to 131072, got 1000000000000000000"),
        ('{"ffn_dim": -1}', r"ffn_dim: wanted a whole number from 1 to 131072, got -1"),
        ('{"text_len": [512]}', r"text_len: wanted a whole number from 1 to 131072, got \[512\]"),
        ('{"freq_dim": 31}', r"freq_dim: wanted an even number, got 31"),
        ('{"out_channels": 48}', r"out_channels: wanted 16, the channels of Wan's latents, got 48"),
        ('{"num_heads": 40, "attention_head_dim": "x"}', r"attention_head_dim: wanted a whole number .*, got 'x'"),
        ('{"num_heads": 900, "attention_head_dim": 900}', r"attention_head_dim times the heads: .*, got 810000"),
        ('{"num_heads": 40, "num_attention_heads": 20}', r"num_attention_heads: wanted 40, as it says by another name"),
        ('{"num_frame_per_block": 2.5}', r"num_frame_per_block: wanted a whole number from 1 to 131072, got 2\.5"),
        ('{"num_frame_per_block": NaN}', r"num_frame_per_block: wanted a whole number from 1 to 131072, got nan"),
        ('{"sink_size": true}', r"sink_size: wanted a whole number from 0 to 131072, got True"),
        ('{"local_attn_size": 1000000000}', r"local_attn_size: wanted a whole number from 1 to 131072, got 1000000000"),
        ('{"sample_shift": "5"}', r"sample_shift: wanted a number from 0\.001 to 1000\.0, got '5'"),
        ('{"sample_shift": -1}', r"sample_shift: wanted a number from 0\.001 to 1000\.0, got -1"),
        (f'{{"sample_shift": 1{"0" * 400}}}', r"sample_shift: wanted a number from 0\.001 to 1000\.0, got 1000"),
        ('{"eps": NaN}', r"eps: wanted a number from 1e-12 to 0\.1, got nan"),
        ("[" * 100_000, r"cannot be read as JSON"),
        ('{"in_channels": 16}', r"in_channels: wanted 36 \(noise, first-frame mask, picture\), got 16"),
        ('{"num_heads": 7}', r"dim 5120 does not split into 7 heads"),
        ('{"sink_size": 40}', r".*window of 18 latent frames cannot hold a sink of 40"),
        ("[1]", r"wanted an object, got list"),
        ("{", r"cannot be read as JSON"),
    ],
)
def test_a_config_that_cannot_be_served_says_why(folder, said, wanted):
    (folder / "transformer" / "config.json").write_text(said)
    with pytest.raises(CheckpointError, match=wanted) as refused:
        checkpoint_config(PRESET, folder)
    assert str(refused.value).startswith("transformer: config.json: ")


@pytest.mark.parametrize("value", ['"5"', "true", "NaN", "[5]", "0", "1e400"])
def test_a_shift_of_the_scheduler_that_cannot_be_meant_names_its_own_file(folder, value):
    # It was said to be in config.json; some were taken.
    (folder / "scheduler").mkdir()
    (folder / "scheduler" / "scheduler_config.json").write_text(f'{{"flow_shift": {value}}}')
    wanted = r"^scheduler: scheduler_config\.json: flow_shift: wanted a number from 0\.001 to 1000\.0, got "
    with pytest.raises(CheckpointError, match=wanted):
        checkpoint_config(PRESET, folder)


def test_a_config_whose_link_leads_nowhere_is_not_passed_over(folder):
    # As when a download cache was emptied: the sizes of the published model were taken instead.
    config = folder / "transformer" / "config.json"
    config.unlink()
    config.symlink_to("gone")
    with pytest.raises(CheckpointError, match=r"^transformer: config\.json: no such file"):
        checkpoint_config(PRESET, folder)


def test_taehvs_file_beside_the_transformers_in_the_folder_itself_is_not_taken_for_it(oracle, folder, tmp_path):
    _, wanted = loaded(folder)
    flat = tmp_path / "flat"
    flat.mkdir()
    save_file(wanted.state_dict(), flat / "model.safetensors")
    save_file({"encoder.0.weight": torch.zeros(1)}, flat / "taew2_1.safetensors")
    with torch.device("meta"):
        module = CausalWorldTransformer(checkpoint_config(PRESET, folder).transformer)
    load_strict(module, find_parts(flat).transformer, passing_over=CODEC_FILES)
    assert torch.equal(module.head.modulation, wanted.head.modulation)
    (flat / "model.safetensors").unlink()
    with pytest.raises(CheckpointError, match=r"wanted transformer\.safetensors, or .* found neither"):
        find_parts(flat)


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


def test_published_files_are_not_taken_for_a_world_of_ours(tmp_path):
    # Its frames came, at another size and by another schedule, and nothing said so.
    (tmp_path / "transformer").mkdir()
    (tmp_path / "transformer" / "config.json").write_text('{"dim": 96, "num_heads": 4}')
    save_file({"x": torch.zeros(1)}, tmp_path / "transformer" / "model.safetensors")
    with pytest.raises(
        CheckpointError, match=r"configuration=embedded .+: name lingbot_world_fast or lingbot_world_v2"
    ):
        checkpoint_config(EMBEDDED, tmp_path)
    assert checkpoint_config(LINGBOT_WORLD_FAST, tmp_path).transformer.dim == 96


def test_a_clone_without_its_large_files_is_told_so(tmp_path):
    file = tmp_path / "model.safetensors"
    file.write_text("version https://git-lfs.github.com/spec/v1\noid sha256:0000\nsize 5368709120\n")
    with pytest.raises(CheckpointError, match=r"model\.safetensors: .* it is a Git LFS pointer: fetch the file itself"):
        load_strict(torch.nn.Linear(1, 1), file)


def test_a_folder_that_is_not_there_is_named(tmp_path):
    with pytest.raises(CheckpointError, match="parameter checkpoint: there is no folder 'nowhere' where it points to"):
        checkpoint_config(EMBEDDED, tmp_path / "nowhere")
