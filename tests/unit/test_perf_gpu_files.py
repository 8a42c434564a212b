"""Checkpoints that the GPU's check writes and loads: not where there is no room, gone afterwards, given up in time."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from safetensors import safe_open

sys.path.insert(0, str(Path(__file__).parents[2] / "perf"))

import gpu_check
import gpu_files
import gpu_loads
import gpu_order
import gpu_published
from gpu_lab import Budget, Lab, NotHereError
from worldmodel.serving import ServingConfig

CPU = torch.device("cpu")


def budget(seconds=60.0):
    return Budget(time.monotonic() + seconds, 2)


@pytest.fixture
def lab(tmp_path):
    return Lab(CPU, torch.float32, True, tmp_path)


def test_shards_and_their_index_are_in_the_original_layout(lab, tmp_path):
    _, said = gpu_files.write_checkpoint(lab, gpu_files.PUBLISHED_TINY, tmp_path, budget())
    folder = tmp_path / "transformer"
    index = json.loads((folder / "diffusion_pytorch_model.safetensors.index.json").read_text())
    found = {}
    for file in folder.glob("*.safetensors"):
        with safe_open(file, "pt") as opened:
            found |= {key: (file.name, opened.get_slice(key).get_dtype()) for key in list(opened.keys())}
    assert {key: name for key, (name, _) in found.items()} == index["weight_map"]
    assert {dtype for _, dtype in found.values()} == {"BF16"}
    assert {"blocks.0.self_attn.norm_q.weight", "blocks.1.cam_injector_layer1.bias", "head.head.weight"} <= found.keys()
    last = said["shards"]
    assert f"diffusion_pytorch_model-{last:05d}-of-{last:05d}.safetensors" in index["weight_map"].values()
    config = json.loads((folder / "config.json").read_text())
    assert (config["dim"], config["num_layers"], config["in_dim"], config["out_dim"]) == (48, 2, 36, 16)


def test_the_large_checkpoint_is_not_written_where_it_has_no_room(lab, monkeypatch):
    monkeypatch.setattr(gpu_files.shutil, "disk_usage", lambda _: SimpleNamespace(free=20 * 10**9))
    files, loaded = gpu_order.published_sections(lab, gpu_files.PUBLISHED_LINGBOT, {"files": 60, "Wan VAE": 60})
    # 18.5 G parameters in two bytes each, and the codecs.
    with pytest.raises(NotHereError, match=r"LingBot 14B/18B published takes 37\.\d GB of disk, 20\.0 GB are free"):
        files.run(budget())
    assert list(lab.scratch.iterdir()) == []
    with pytest.raises(NotHereError, match="its files were not written"):
        loaded.run(budget())


def test_a_checkpoint_that_would_take_too_long_is_given_up_and_gone(lab):
    files, *_ = gpu_order.published_sections(lab, gpu_files.PUBLISHED_TINY, {"files": 60, "Wan VAE": 60})
    with pytest.raises(NotHereError, match=r"to write the rest would take about \d+ s, -\d+ s are left"):
        files.run(budget(-1.0))
    assert list(lab.scratch.iterdir()) == []


def test_a_load_that_nobody_waits_for_ends():
    has_ended = threading.Event()

    def load():
        try:
            while True:
                gpu_loads.LOG.info("still loading")
                time.sleep(0.01)
        finally:
            has_ended.set()

    def wait_for_it(_):
        with gpu_loads.served_by(load, ServingConfig()):
            return {}

    section = gpu_check.Section("slow", 1.0, wait_for_it)
    results = gpu_check.run([section], time.monotonic() + 30, 2, lambda _: None)
    assert results["slow"]["error"] == "not done after 1 s"
    assert has_ended.wait(5)
    assert not [each for each in gpu_loads.LOG.handlers if isinstance(each, gpu_loads.LoadWatch)]


def test_where_the_host_held_more_while_it_loaded_is_told():
    def load():
        held = bytearray(512 << 20)  # much more than a process that has run other tests gives back meanwhile
        held[::4096] = b"x" * len(held[::4096])
        time.sleep(0.2)
        raise RuntimeError("no world came of it")

    watch = gpu_loads.LoadWatch()
    with pytest.raises(RuntimeError, match="no world"), watch:
        watch.loading(load)
    assert 480 << 20 < watch.host_growth_bytes < 560 << 20
    assert watch.loaded_s == watch.ready_s > 0.2


def test_when_it_is_ended_from_outside_nothing_is_left(tmp_path):
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    command = [sys.executable, gpu_check.__file__, "--tiny", "--only", "published", "--scratch", str(scratch)]
    running = subprocess.Popen(
        [*command, "--output", str(tmp_path / "gpu.json")],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    end_s = time.monotonic() + 60
    while not list(scratch.glob("*/tiny-published/transformer")) and time.monotonic() < end_s:
        time.sleep(0.02)
    running.send_signal(signal.SIGTERM)
    _, errors = running.communicate(timeout=60)
    assert (running.returncode, errors) == (1, b"ended by SIGTERM\n")
    assert list(scratch.iterdir()) == []


class CountingLab(Lab):
    """A device that says that it took more than was counted."""

    is_gpu = True

    def peak_bytes(self):
        return 7 << 30

    def reserved_peak_bytes(self):
        return 8 << 30

    def beside_torch_bytes(self):
        return 3 << 29


def test_a_device_that_takes_more_than_is_counted_fails_a_check():
    lab, counted = CountingLab(CPU, torch.bfloat16, False), {"weights": 3 << 30, "activations": 1 << 30}
    memory = gpu_published._memory(lab, 1 << 30, counted)
    assert (memory["peak_gib"], memory["peak_over_counted"], memory["beside_torch_gib"]) == (6, 1.5, 1.5)
    failed = {each.what for each in gpu_check.checks(lab, {"a world": memory}) if not each.holds}
    assert failed == {
        "a world: peak memory over what is counted",
        "a world: GiB beside torch's own, of which `worldstream plan` leaves 1",
    }
    del counted["activations"]
    assert "peak_over_counted" not in gpu_published._memory(lab, 1 << 30, counted)


def test_without_room_a_world_is_not_loaded(lab):
    with pytest.raises(NotHereError, match=r"this world takes about 2097152\.0 GiB, 1048576\.0 GiB are free"):
        gpu_published.check_room(lab, {"weights": 1 << 51})
