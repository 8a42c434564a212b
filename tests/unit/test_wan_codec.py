"""Wan's VAE in pieces, with its memory in the caller's hand, against diffusers on whole clips."""

import json
import sys

import pytest
import torch
from worldmodel.checkpoint import fill_strict
from worldmodel.checkpoint_files import CheckpointError
from worldmodel.published_names import vae_name
from worldmodel.wan_codec import WanCodec

from tests.unit.codecs import assert_interleaved_sessions_equal_each_alone, decoded, latents
from tests.unit.oracles import tiny_vae, whole_frames, whole_latents

# Equal arithmetic in other orders of summing, in float32; a grey value is 8e-3.
CLOSE = {"atol": 1e-4, "rtol": 1e-5}


@pytest.fixture(scope="module")
def vae():
    return tiny_vae()


@pytest.fixture(scope="module")
def codec(vae):
    made = WanCodec(vae.config)
    made.vae.load_state_dict(vae.state_dict())
    return made.place(torch.device("cpu"))


def clip(seed, frames=13):
    return torch.rand(1, frames, 3, 32, 48, generator=torch.Generator().manual_seed(seed)) * 2 - 1


@pytest.mark.parametrize("sizes", [[7], [3, 4], [3, 3, 1], [1, 1, 5], [2, 2, 3]])
def test_decoding_chunk_by_chunk_equals_diffusers_on_the_whole_clip(vae, codec, sizes):
    frames = decoded(codec, latents(0), sizes)
    assert frames.shape == (1, 25, 3, 32, 48)
    wanted = whole_frames(vae, latents(0))
    assert wanted.std() > 0.2, "the oracle's frames must show something"
    torch.testing.assert_close(frames.clamp(-1, 1), wanted, **CLOSE)


def test_how_a_clip_is_cut_into_chunks_changes_no_bit(codec):
    whole = decoded(codec, latents(0), [7])
    for sizes in ([3, 4], [1, 1, 1, 4], [2, 5]):
        assert torch.equal(decoded(codec, latents(0), sizes), whole), sizes


def test_encoding_piece_by_piece_equals_diffusers_on_the_whole_clip(vae, codec):
    wanted = whole_latents(vae, clip(1))
    assert wanted.std() > 0.1, "the oracle's latents must differ"
    whole, _ = codec.encode(clip(1))
    torch.testing.assert_close(whole, wanted, **CLOSE)
    first, memory = codec.encode(clip(1)[:, :5])
    rest, _ = codec.encode(clip(1)[:, 5:], memory)
    assert torch.equal(torch.cat([first, rest], dim=1), whole)


def test_one_picture_is_one_latent(vae, codec):
    torch.testing.assert_close(codec.encode(clip(2, 1))[0], whole_latents(vae, clip(2, 1)), **CLOSE)


def test_interleaved_sessions_are_bit_equal_to_each_alone(codec):
    assert_interleaved_sessions_equal_each_alone(codec)


@pytest.mark.parametrize("num_before", [1, 3])
def test_a_decode_that_is_dropped_or_fails_leaves_no_trace(codec, monkeypatch, num_before):
    _, memory = codec.decode(latents(0)[:, :num_before])
    kept = [part.clone() for part in memory]
    once, _ = codec.decode(latents(0)[:, 3:], memory)

    def fail(*_):
        raise RuntimeError("in the middle of the decoder")

    with monkeypatch.context() as broken:
        broken.setattr(codec.vae.decoder.norm_out, "forward", fail)
        with pytest.raises(RuntimeError, match="in the middle"):
            codec.decode(latents(5), memory)
    assert all(torch.equal(part, before) for part, before in zip(memory, kept, strict=True))
    twice, _ = codec.decode(latents(0)[:, 3:], memory)
    assert torch.equal(once, twice)


@pytest.mark.parametrize("num_latents", [1, 2, 5])
def test_the_memory_is_as_announced_from_the_first_latent_on(codec, num_latents):
    _, memory = codec.decode(latents(0, num_latents))
    assert [tuple(part.shape) for part in memory] == codec.decoder_memory_shapes(32, 48)
    assert sum(part.untyped_storage().nbytes() for part in memory) == codec.decoder_memory_bytes(32, 48)


def test_clips_of_a_batch_are_independent(codec):
    both, memory = codec.decode(latents(4, 1, batch=2))
    more, _ = codec.decode(latents(5, 2, batch=2), memory)
    _, own = codec.decode(latents(4, 1, batch=2)[1:])
    torch.testing.assert_close(more[1:], codec.decode(latents(5, 2, batch=2)[1:], own)[0], **CLOSE)
    assert both.shape[:2] == (2, 1)


def test_in_bfloat16_the_frames_are_about_the_same(vae):
    narrow = WanCodec(vae.config)
    narrow.vae.load_state_dict(vae.state_dict())
    narrow.cast(torch.bfloat16)
    frames, memory = narrow.decode(latents(0, 3))
    assert {part.dtype for part in memory} == {torch.bfloat16}
    # Some forty layers of eight bits each, whose weights are at random and keep no error small: ten grey values.
    assert (frames.float().clamp(-1, 1) - whole_frames(vae, latents(0, 3))).abs().mean() < 0.08
    assert narrow.decoder_memory_bytes(32, 48) == sum(part.nbytes for part in memory)


def published_names(vae):
    """diffusers' key -> that of the published file, worked out from the published module's own numbering."""
    inner = {"norm1": "residual.0", "conv1": "residual.2", "norm2": "residual.3", "conv2": "residual.6"}
    inner |= {"conv_shortcut": "shortcut"}
    middle = {"resnets.0": "middle.0", "attentions.0": "middle.1", "resnets.1": "middle.2"}
    names = {}
    for key in vae.state_dict():
        side, _, rest = key.partition(".")
        parts = rest.split(".")
        if side == "quant_conv":
            names[key] = f"conv1.{rest}"
        elif side == "post_quant_conv":
            names[key] = f"conv2.{rest}"
        elif parts[0] in ("conv_in", "norm_out", "conv_out"):
            place = {"conv_in": "conv1", "norm_out": "head.0", "conv_out": "head.2"}[parts[0]]
            names[key] = f"{side}.{place}.{parts[1]}"
        elif parts[0] == "mid_block":
            leaf = [inner.get(part, part) for part in parts[3:]]
            names[key] = ".".join([side, middle[f"{parts[1]}.{parts[2]}"], *leaf])
        elif parts[0] == "down_blocks":
            names[key] = ".".join([side, "downsamples", parts[1], *(inner.get(part, part) for part in parts[2:])])
        else:
            place = 4 * int(parts[1]) + (int(parts[3]) if parts[2] == "resnets" else 3)
            names[key] = ".".join([side, "upsamples", str(place), *(inner.get(part, part) for part in parts[4:])])
    return names


def test_the_published_files_names_are_those_of_diffusers_converter(vae):
    utils = pytest.importorskip("diffusers.loaders.single_file_utils")
    published = {name: key for key, name in published_names(vae).items()}
    assert len(published) == len(vae.state_dict())
    converted = utils.convert_wan_vae_to_diffusers(dict(published))  # each name's value is the key it must become
    assert all(key == wanted for key, wanted in converted.items())
    assert {name: vae_name(name) for name in published} == published


def test_the_published_layout_is_the_same_codec(vae, codec, tmp_path):
    names = published_names(vae)
    with torch.device("meta"):
        made = WanCodec(vae.config)
    tensors = {vae_name(names[key]): tensor for key, tensor in vae.state_dict().items()}
    fill_strict(made.vae, tensors, tmp_path / "Wan2.1_VAE.pth", torch.device("cpu"))
    assert torch.equal(made.decode(latents(0, 2))[0], codec.decode(latents(0, 2))[0])


@pytest.mark.parametrize(
    ("changes", "wanted"),
    [
        (
            {"_class_name": "AutoencoderKLLTXVideo"},
            "config.json: wanted the class AutoencoderKLWan, got 'AutoencoderKLL",
        ),
        ({"patch_size": 2}, "config.json: patch_size: wanted None, as in Wan 2.1, got 2"),
        ({"scale_factor_spatial": 16}, "config.json: scale_factor_spatial: wanted 8, as in Wan 2.1, got 16"),
        ({"dim_mult": [1, 2, 4]}, r"config.json: dim_mult: wanted 4 numbers, got \[1, 2, 4\]"),
        ({"dim_mult": []}, r"config.json: dim_mult: wanted 4 numbers, got \[\]"),
        ({"dim_mult": [10**9] * 4}, "config.json: dim_mult: wanted a whole number from 1 to 64, got 1000000000"),
        # This once made modules for hours.
        ({"num_res_blocks": 10**9}, "config.json: num_res_blocks: wanted a whole number from 1 to 16, got 1000000000"),
        ({"z_dim": "\ud800"}, "config.json: z_dim: wanted a whole number from 1 to 256, got '.ud800'"),
        # Its frames would have had four colours.
        ({"out_channels": 4}, "config.json: out_channels: wanted 3, got 4"),
        ({"latents_std": [1.0]}, "config.json: latents_std: wanted 16 numbers, got 1"),
        ({"latents_std": [0.0] * 16}, r"config.json: latents_std: wanted a number from 0\.001 to 1000\.0, got 0\.0"),
        ({"latents_std": [float("nan")] * 16}, "config.json: latents_std: wanted a number from .* got nan"),
        ({"latents_mean": [None] * 16}, "config.json: latents_mean: wanted a number from .* got None"),
        ({"latents_mean": [10**400] * 16}, "config.json: latents_mean: wanted a number from .* got 1000"),
        ({"latents_mean": None}, "config.json: latents_mean: wanted numbers, got None"),
        ({"base_dim": "wide"}, "config.json: base_dim: wanted a whole number from 1 to 4096, got 'wide'"),
        ({"base_dim": -1}, "config.json: base_dim: wanted a whole number from 1 to 4096, got -1"),
        ({"base_dim": None}, "config.json: no VAE can be made of it"),
    ],
)
def test_a_config_of_another_vae_says_why(vae, changes, wanted):
    said = json.loads(vae.to_json_string()) | changes
    with torch.device("meta"), pytest.raises(CheckpointError, match=wanted):
        WanCodec(said)


def test_without_diffusers_the_package_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "diffusers", None)
    with pytest.raises(CheckpointError, match=r"wanted the Python package diffusers, .* it is not installed"):
        WanCodec({})
