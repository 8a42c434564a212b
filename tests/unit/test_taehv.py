"""TAEHV in pieces against its published architecture on whole clips, restated here from the layout of its files."""

import os
from fractions import Fraction

import pytest
import torch
from safetensors.torch import save_file
from torch.nn import functional
from worldmodel.checkpoint import fill_strict
from worldmodel.checkpoint_files import CheckpointError
from worldmodel.codec_choice import empty_codec_at, fill_codec
from worldmodel.config import LINGBOT_WORLD_FAST
from worldmodel.published import find_codec
from worldmodel.serving import ServingConfig
from worldmodel.taehv_codec import TaehvCodec

from tests.unit.codecs import assert_interleaved_sessions_equal_each_alone, decoded, latents

CPU = torch.device("cpu")
WIDTH, WIDTHS = 8, (16, 12, 8, 8)
PUBLISHED_WIDTH, PUBLISHED_WIDTHS = 64, (256, 128, 64, 64)
# Equal arithmetic in other orders of summing, in float32; a grey value is 8e-3.
CLOSE = {"atol": 2e-4, "rtol": 1e-5}


def published_shapes(width, widths, first_grow=1):
    """Every key of a file, in its layout: numbers count the layers, those without weights too."""
    shapes = {"encoder.0": (width, 3, 3), "encoder.17": (16, width, 3)}
    for pool, stride in ((2, 2), (7, 2), (12, 1)):
        shapes |= {f"encoder.{pool}.conv": (width, stride * width, 1), f"encoder.{pool + 1}": (width, width, 3)}
        shapes |= {f"encoder.{pool + block}": width for block in (2, 3, 4)}
    shapes |= {"decoder.1": (widths[0], 16, 3), "decoder.22": (3, widths[3], 3)}
    for stage, (first, stride) in enumerate(((3, first_grow), (9, 2), (15, 2))):
        one, two = widths[stage : stage + 2]
        shapes |= {f"decoder.{first + block}": one for block in (0, 1, 2)}
        shapes |= {f"decoder.{first + 4}.conv": (stride * one, one, 1), f"decoder.{first + 5}": (two, one, 3)}
    without_bias = [f"encoder.{each}" for each in (3, 8, 13)] + [f"decoder.{each}" for each in (8, 14, 20)]
    keys = {}
    for name, shape in shapes.items():
        if isinstance(shape, int):
            for place, channels in ((0, 2 * shape), (2, shape), (4, shape)):
                keys |= {f"{name}.conv.{place}.weight": (shape, channels, 3, 3), f"{name}.conv.{place}.bias": (shape,)}
            continue
        keys[f"{name}.weight"] = (*shape, shape[2])
        if not name.endswith(".conv") and name not in without_bias:
            keys[f"{name}.bias"] = shape[:1]
    return keys


def published_file(width=WIDTH, widths=WIDTHS, first_grow=1):
    """Random weights that keep signals about as large as they come."""
    generator, tensors = torch.Generator().manual_seed(3), {}
    for key, shape in published_shapes(width, widths, first_grow).items():
        fan_in = shape[1] * shape[2] * shape[3] if len(shape) == 4 else 16
        tensors[key] = torch.randn(shape, generator=generator) * (1.5 / fan_in) ** 0.5
    return tensors


def convolved(x, weights, key, stride=1):
    weight = weights[f"{key}.weight"]
    return functional.conv2d(x, weight, weights.get(f"{key}.bias"), stride=stride, padding=weight.shape[2] // 2)


def remembered(x, weights, key):
    """[T, C, H, W]: each frame beside the one before it, the first beside nothing."""
    y = torch.cat([x, torch.cat([torch.zeros_like(x[:1]), x[:-1]])], dim=1)
    y = convolved(y, weights, f"{key}.conv.0").relu()
    y = convolved(y, weights, f"{key}.conv.2").relu()
    return (convolved(y, weights, f"{key}.conv.4") + x).relu()


def whole_frames(weights, latents):
    """[t, 16, h, w] -> [1 + 4 (t - 1), 3, H, W] in [0, 1], as `decode_video` does."""
    x = convolved(3 * torch.tanh(latents / 3), weights, "decoder.1").relu()
    for first, stride in ((3, 1), (9, 2), (15, 2)):
        for block in range(3):
            x = remembered(x, weights, f"decoder.{first + block}")
        x = x.repeat_interleave(2, dim=2).repeat_interleave(2, dim=3)
        x = convolved(x, weights, f"decoder.{first + 4}.conv").reshape(stride * len(x), -1, *x.shape[2:])
        x = convolved(x, weights, f"decoder.{first + 5}")
    return convolved(x.relu(), weights, "decoder.22").clamp(0, 1)[3:]


def whole_latents(weights, frames):
    """[T, 3, H, W] in [0, 1] -> [T / 4 rounded up, 16, h, w], as `encode_video` does."""
    frames = torch.cat([frames, *[frames[-1:]] * (-len(frames) % 4)])
    x = convolved(frames, weights, "encoder.0").relu()
    for pool, stride in ((2, 2), (7, 2), (12, 1)):
        x = convolved(x.reshape(len(x) // stride, -1, *x.shape[2:]), weights, f"encoder.{pool}.conv")
        x = convolved(x, weights, f"encoder.{pool + 1}", stride=2)
        for block in (2, 3, 4):
            x = remembered(x, weights, f"encoder.{pool + block}")
    return convolved(x, weights, "encoder.17")


@pytest.fixture(scope="module")
def weights():
    return published_file()


@pytest.fixture(scope="module")
def codec(weights, tmp_path_factory):
    with torch.device("meta"):
        made = TaehvCodec(16, WIDTH, WIDTHS)
    fill_strict(made, weights, tmp_path_factory.getbasetemp() / "taew2_1.safetensors", CPU)
    return made.place(CPU)


@pytest.mark.parametrize("sizes", [[7], [3, 4], [1, 1, 5], [3, 3, 1]])
def test_decoding_chunk_by_chunk_equals_the_published_decoder_on_the_whole_clip(weights, codec, sizes):
    wanted = whole_frames(weights, latents(0)[0])
    assert wanted.shape == (25, 3, 32, 48)
    assert wanted.std() > 0.1, "the oracle's frames must show something"
    frames = decoded(codec, latents(0), sizes)
    torch.testing.assert_close(frames[0].clamp(-1, 1), wanted * 2 - 1, **CLOSE)


@pytest.mark.parametrize("num_frames", [1, 5, 21])
def test_encoding_equals_the_published_encoder(weights, codec, num_frames):
    clip = torch.rand(num_frames, 3, 32, 48, generator=torch.Generator().manual_seed(1))
    wanted = whole_latents(weights, clip)
    assert wanted.shape == (1 + num_frames // 4, 16, 4, 6)
    encoded, _ = codec.encode(clip[None] * 2 - 1)
    torch.testing.assert_close(encoded[0], wanted, **CLOSE)


def test_interleaved_sessions_are_bit_equal_to_each_alone(codec):
    assert_interleaved_sessions_equal_each_alone(codec)


def test_a_decode_that_is_dropped_changes_nothing(codec):
    _, memory = codec.decode(latents(0)[:, :3])
    once, _ = codec.decode(latents(0)[:, 3:], memory)
    twice, _ = codec.decode(latents(0)[:, 3:], memory)
    assert torch.equal(once, twice)


def test_the_memory_weighs_what_is_announced(codec):
    _, memory = codec.decode(latents(0, 1))
    assert [tuple(part.shape) for part in memory] == codec.decoder_memory_shapes(32, 48)
    assert sum(part.untyped_storage().nbytes() for part in memory) == codec.decoder_memory_bytes(32, 48)


# Files, in the published size: 11 million numbers.


def loaded(folder, **serving):
    kind, place = find_codec(folder, "taehv")
    codec = empty_codec_at(LINGBOT_WORLD_FAST, ServingConfig(**serving), kind, place)
    fill_codec(codec, place, CPU)
    return codec.place(CPU)


@pytest.fixture(scope="module")
def published():
    return {key: value.half() for key, value in published_file(PUBLISHED_WIDTH, PUBLISHED_WIDTHS).items()}


@pytest.mark.parametrize("suffix", [".safetensors", ".pth"])
def test_a_published_file_is_loaded_whole(published, tmp_path, suffix):
    write = save_file if suffix == ".safetensors" else torch.save
    write(published, tmp_path / f"taew2_1{suffix}")
    frames, _ = loaded(tmp_path).decode(latents(0, 2)[..., :2, :2])
    wanted = whole_frames({key: value.float() for key, value in published.items()}, latents(0, 2)[0, ..., :2, :2])
    torch.testing.assert_close(frames[0].clamp(-1, 1), wanted * 2 - 1, **CLOSE)


def test_where_the_first_stage_is_stored_as_if_it_grew_the_second_frame_counts(published, tmp_path):
    key = "decoder.7.conv.weight"
    save_file(published | {key: torch.cat([published[key] * 0, published[key]])}, tmp_path / "taew2_1.safetensors")
    assert torch.equal(loaded(tmp_path).get_parameter(key), published[key].float())


def test_the_codec_has_the_dtype_that_is_configured(published, tmp_path):
    save_file(published, tmp_path / "taew2_1.safetensors")
    codec = loaded(tmp_path, codec_dtype="bfloat16")
    assert {each.dtype for each in codec.parameters()} == {torch.bfloat16}
    assert {each.dtype for each in codec.decode(latents(0, 1)[..., :2, :2])[1]} == {torch.bfloat16}


@pytest.mark.parametrize(
    "changed",
    [
        *("missing", "surplus", "shape", "kind", "nan", "too large", "numbered", "sparse", "meta", "stretched"),
        *("truncated", "empty", "pickle", "list", "pipe"),
    ],
)
def test_what_does_not_fit_is_one_clear_error(published, tmp_path, changed):
    file, tensors = tmp_path / "taew2_1.pth", dict(published)
    wanted = {
        "missing": r"1 keys missing \(decoder\.22\.bias\)",
        "surplus": r"1 keys not known \(decoder\.23\.weight\)",
        "shape": r"encoder\.0\.weight: wanted shape \[64, 3, 3, 3\], the file has \[64, 12, 3, 3\]",
        "kind": r"encoder\.0\.bias: wanted one of F64, F32, F16, BF16, the file has torch\.int64",
        "nan": r"decoder\.22\.bias: wanted numbers that are finite in torch\.float32, taew2_1\.pth has others",
        "too large": r"decoder\.22\.bias: wanted numbers that are finite in torch\.float32, taew2_1\.pth has others",
        "numbered": r"wanted tensors by their names, got something else",
        "sparse": r"encoder\.0\.weight: wanted a plain tensor, got torch\.sparse_coo on cpu",
        "meta": r"encoder\.0\.weight: wanted a plain tensor, got torch\.strided on meta",
        "stretched": r"encoder\.0\.weight: wanted shape \[64, 3, 3, 3\], the file has \[1000000, 1000000, 3, 3\]",
        "empty": r"cannot be read as torch's weights",
        "pipe": r"wanted a file, this is a folder or something else",  # to open it once took for ever
        "truncated": r"cannot be read as torch's weights",
        "pickle": r"cannot be read as torch's weights, it is .*more than tensors",
        "list": r"wanted tensors by their names, got something else",
    }
    if changed == "missing":
        del tensors["decoder.22.bias"]
    elif changed == "surplus":
        tensors["decoder.23.weight"] = torch.zeros(3)
    elif changed == "shape":
        tensors["encoder.0.weight"] = torch.zeros(64, 12, 3, 3)
    elif changed == "kind":
        tensors["encoder.0.bias"] = torch.zeros(64, dtype=torch.int64)
    elif changed == "nan":
        tensors["decoder.22.bias"] = torch.tensor([0, torch.nan, 0])
    elif changed == "too large":
        tensors["decoder.22.bias"] = torch.tensor([0, 1e300, 0], dtype=torch.float64)
    elif changed == "numbered":
        tensors[1] = torch.zeros(3)
    elif changed == "sparse":
        tensors["encoder.0.weight"] = tensors["encoder.0.weight"].to_sparse()
    elif changed == "meta":
        tensors["encoder.0.weight"] = tensors["encoder.0.weight"].to("meta")
    elif changed == "stretched":  # one number in the file
        tensors["encoder.0.weight"] = torch.zeros(1, 1, 1, 1).expand(10**6, 10**6, 3, 3)
    torch.save({"pickle": {"x": Fraction(1)}, "list": [torch.zeros(1)]}.get(changed, tensors), file)
    if changed == "truncated":
        file.write_bytes(file.read_bytes()[:-1000])
    elif changed == "empty":
        file.write_bytes(b"")
    elif changed == "pipe":
        file.unlink()
        os.mkfifo(file)
    with pytest.raises(CheckpointError, match=rf"taew2_1\.pth: {wanted[changed]}|{wanted[changed]}") as refused:
        loaded(tmp_path)
    assert str(refused.value).startswith("taew2_1.pth: ")
    assert str(tmp_path) not in str(refused.value)
