"""From configurations to a world: devices, seeded weights, strict checkpoints."""

import json
import os
import struct
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from worldmodel.checkpoint import load_strict
from worldmodel.checkpoint_files import CheckpointError
from worldmodel.loading import Instance, choose_device, load_world
from worldmodel.serving import ParameterError, ServingConfig
from worldmodel.transformer import CausalWorldTransformer

from tests.unit.worlds import TINY, tiny_world

CPU = Instance("CPU", 0)


def tensors(module):
    return {name: value.clone(memory_format=torch.contiguous_format) for name, value in module.state_dict().items()}


def test_without_a_checkpoint_the_weights_come_from_a_seed(tmp_path):
    one, same, other = (load_world(TINY, ServingConfig(weights_seed=seed), tmp_path, CPU) for seed in (3, 3, 4))
    weight = [world.transformer.head.head.weight for world in (one, same, other)]
    assert torch.equal(weight[0], weight[1])
    assert not torch.equal(weight[0], weight[2])


def test_a_checkpoint_in_the_version_folder_is_loaded(tmp_path):
    trained = tiny_world(seed=9)
    (tmp_path / "weights").mkdir()
    save_file(tensors(trained.transformer), tmp_path / "weights" / "transformer.safetensors")
    save_file(tensors(trained.codec), tmp_path / "weights" / "codec.safetensors")
    world = load_world(TINY, ServingConfig(checkpoint="weights"), tmp_path, CPU)
    assert torch.equal(world.transformer.head.head.weight, trained.transformer.head.head.weight)
    assert torch.equal(world.codec.decoder.inlet.weight, trained.codec.decoder.inlet.weight)


def test_shards_with_an_index_are_one_checkpoint(tmp_path):
    wanted = tensors(tiny_world(seed=9).transformer)
    names = sorted(wanted)
    parts = {"a.safetensors": names[:20], "b.safetensors": names[20:]}
    for file, keys in parts.items():
        save_file({key: wanted[key] for key in keys}, tmp_path / file)
    listed = ", ".join(f'"{key}": "{file}"' for file, keys in parts.items() for key in keys)
    index = tmp_path / "model.safetensors.index.json"
    index.write_text('{"weight_map": {' + listed + "}}", encoding="utf-8")
    module = CausalWorldTransformer(TINY.transformer)
    load_strict(module, tmp_path)
    assert all(torch.equal(value, wanted[name]) for name, value in module.state_dict().items())


def test_missing_surplus_and_misshapen_keys_are_named(tmp_path):
    file = tmp_path / "x.safetensors"
    wanted = tensors(tiny_world().transformer)
    module = CausalWorldTransformer(TINY.transformer)

    save_file({k: v for k, v in wanted.items() if k != "head.modulation"} | {"extra": torch.zeros(1)}, file)
    with pytest.raises(CheckpointError, match=r"1 keys missing \(head.modulation\); 1 keys not known \(extra\)"):
        load_strict(module, file)

    save_file(wanted | {"head.modulation": torch.zeros(1, 2, 7)}, file)
    with pytest.raises(CheckpointError, match=r"head.modulation: wanted shape \[1, 2, 48\], the file has \[1, 2, 7\]"):
        load_strict(module, file)


def test_a_damaged_or_absent_file_is_an_error_that_tells_no_path(tmp_path):
    module = CausalWorldTransformer(TINY.transformer)
    with pytest.raises(CheckpointError, match=r"no .safetensors file found") as absent:
        load_strict(module, tmp_path)
    (tmp_path / "x.safetensors").write_bytes(b"not a checkpoint")
    with pytest.raises(CheckpointError, match=r"x.safetensors: cannot be read as safetensors") as damaged:
        load_strict(module, tmp_path)
    assert str(tmp_path) not in f"{absent.value} {damaged.value}"


@pytest.mark.parametrize("number", [float("nan"), float("inf"), float("-inf"), 1e300])
def test_a_number_that_is_not_finite_is_told_with_its_key_and_file(tmp_path, number):
    # It was a FloatingPointError while warming up, which named neither; the last one is finite in float64 alone.
    wanted = tensors(tiny_world().transformer)
    wanted["head.head.weight"] = wanted["head.head.weight"].double()
    wanted["head.head.weight"][3, 5] = number
    save_file(wanted, tmp_path / "x.safetensors")
    message = r"^head\.head\.weight: wanted numbers that are finite in torch\.float32, x\.safetensors has others$"
    with pytest.raises(CheckpointError, match=message):
        load_strict(CausalWorldTransformer(TINY.transformer), tmp_path)


def test_finite_weights_whose_sums_are_not_are_told_as_the_checkpoints(tmp_path):
    trained = tiny_world()
    trained.transformer.head.head.weight.fill_(1e38)
    save_file(tensors(trained.transformer), tmp_path / "transformer.safetensors")
    save_file(tensors(trained.codec), tmp_path / "codec.safetensors")
    with pytest.raises(CheckpointError, match=r"the weights are finite, what torch\.float32 makes of them is not"):
        load_world(TINY, ServingConfig(checkpoint=str(tmp_path)), tmp_path, CPU)


def test_a_codec_whose_sums_are_not_finite_is_told_though_its_pixels_are_clamped(tmp_path):
    trained = tiny_world()
    for name, value in trained.codec.named_parameters():
        if name.startswith("decoder."):
            value.fill_(1e20)
    save_file(tensors(trained.transformer), tmp_path / "transformer.safetensors")
    save_file(tensors(trained.codec), tmp_path / "codec.safetensors")
    with pytest.raises(CheckpointError, match=r"is not: what the codec decodes is not finite"):
        load_world(TINY, ServingConfig(checkpoint=str(tmp_path)), tmp_path, CPU)


def entry(begin, end, shape=(2,)):
    return {"dtype": "F32", "shape": list(shape), "data_offsets": [begin, end]}


@pytest.mark.parametrize(
    ("length", "header"),
    [
        (2 << 30, "{"),
        (2**64 - 1, "{}"),
        (0, ""),
        (None, "[" * 100_000),
        (None, '{"\\ud800": 1}'),
        (None, json.dumps({"x": entry(0, 8), "y": entry(4, 12)})),
        (None, json.dumps({"x": entry(0, 8), "y": entry(12, 20)})),
        (None, json.dumps({"x": entry(0, 8, [-2])})),
        (None, json.dumps({"x": entry(0, 8, [2**40, 2**40])})),
    ],
    ids=["2 GiB", "beyond all", "empty", "deep", "half a pair", "overlap", "gap", "negative", "overflow"],
)
def test_a_header_that_cannot_be_meant_is_one_clear_error(tmp_path, length, header):
    file = tmp_path / "x.safetensors"
    text = header.encode()
    file.write_bytes(struct.pack("<Q", len(text) if length is None else length) + text + bytes(20))
    with pytest.raises(CheckpointError, match=r"^x\.safetensors: cannot be read as safetensors, it is damaged"):
        load_strict(CausalWorldTransformer(TINY.transformer), tmp_path)


@pytest.mark.parametrize(
    ("listed", "wanted"),
    [
        ("[]", r"x\.safetensors\.index\.json: wanted an object, got list"),
        ('{"weight_map": {"a": 5}}', r'index\.json: wanted {"weight_map": {key: file}}'),
        ('{"weight_map": {"a": "\\ud800"}}', r"^.ud800: no such file"),
        ('{"weight_map": {"\\ud800": "x.safetensors"}}', r"^x\.safetensors: the index promises 1 keys .*\(.ud800\)"),
    ],
)
def test_an_index_that_cannot_be_meant_is_one_clear_error(tmp_path, listed, wanted):
    # Half a surrogate pair once ended the load without a word of the file that it stood in.
    save_file({"head.modulation": torch.zeros(1)}, tmp_path / "x.safetensors")
    (tmp_path / "x.safetensors.index.json").write_text(listed)
    with pytest.raises(CheckpointError, match=wanted) as refused:
        load_strict(CausalWorldTransformer(TINY.transformer), tmp_path)
    str(refused.value).encode()


@pytest.mark.parametrize("make", [Path.mkdir, os.mkfifo])
def test_what_is_named_like_a_file_and_is_none_is_refused_at_once(tmp_path, make):
    # To open a named pipe once took for ever.
    make(tmp_path / "x.safetensors")
    with pytest.raises(CheckpointError, match=r"x\.safetensors: wanted a file, this is a folder or something else"):
        load_strict(CausalWorldTransformer(TINY.transformer), tmp_path)


@pytest.mark.parametrize("name", ["", ".", "..", "../x.safetensors", "/x.safetensors"])
def test_an_index_names_files_beside_it(tmp_path, name):
    (tmp_path / "x.safetensors.index.json").write_text(json.dumps({"weight_map": {"head.modulation": name}}))
    with pytest.raises(CheckpointError, match=r"index\.json: wanted names of files beside it"):
        load_strict(CausalWorldTransformer(TINY.transformer), tmp_path)


@pytest.mark.parametrize(
    ("has_gpu", "kind", "device", "wanted"),
    [
        (False, "MODEL", "auto", "cpu"),
        (True, "MODEL", "auto", "cuda:0"),
        (True, "CPU", "auto", "cpu"),
        (True, "GPU", "auto", "cuda:2"),
        (True, "GPU", "cpu", "cpu"),
        (True, "CPU", "cuda:1", "cuda:1"),
        (True, "CPU", "cuda", "cuda:0"),
    ],
)
def test_the_device_is_explicit(monkeypatch, has_gpu, kind, device, wanted):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: has_gpu)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 3)
    chosen, dtype = choose_device(ServingConfig(device=device), Instance(kind, 2))
    assert str(chosen) == wanted
    assert dtype == (torch.float32 if wanted == "cpu" else torch.bfloat16)


def test_a_gpu_beyond_the_last_is_refused(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    with pytest.raises(ParameterError, match="parameter device: wanted cuda:9, but torch sees 1 GPUs"):
        choose_device(ServingConfig(device="cuda:9"), CPU)


def test_a_gpu_that_is_not_there_is_refused(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(ParameterError, match="parameter device: wanted cuda, but torch sees no GPU"):
        choose_device(ServingConfig(device="cuda"), CPU)
