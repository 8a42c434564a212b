"""The GPU's checks and benchmarks: all of it runs where there is no GPU, and no section takes another with it."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parents[2] / "perf"))

import gpu_check
import gpu_lab
import gpu_order
from gpu_lab import NotHereError


@pytest.fixture(scope="module")
def tiny_run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("gpu_check")
    file, scratch = folder / "results" / "gpu.json", folder / "scratch"
    scratch.mkdir()
    command = [sys.executable, gpu_check.__file__, "--tiny", "--minutes", "3"]
    command += ["--output", str(file), "--scratch", str(scratch)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, capture_output=True, text=True, timeout=200, check=True, env=environment)
    assert list(scratch.iterdir()) == [], "the checkpoint has to go"
    return done.stdout.splitlines(), json.loads(file.read_text(encoding="utf-8"))


def test_every_section_runs_at_a_tiny_size_on_the_cpu(tiny_run):
    lines, written = tiny_run
    document = json.loads(lines[-1])
    assert document == written
    assert document["bench"] == "gpu_check"
    results = document["results"]
    assert list(results) == [
        *("environment", "tests", "equality"),
        *("tiny: stages", "tiny: overlap", "tiny: conditioner"),
        *(f"tiny published: {name}" for name in ("files", "as in memory", "Wan VAE", "TAEHV")),
        *("text encoder", "tiny: step cache", "tiny: step cache, few steps", "tiny: compiled", "tiny: first request"),
    ]
    assert {name: result["error"] for name, result in results.items() if "error" in result} == {}
    assert results["tests"]["skipped"] == "there is no GPU"


def test_what_a_cpu_can_hold_holds(tiny_run):
    results, checks = tiny_run[1]["results"], tiny_run[1]["checks"]
    assert [entry["what"] for entry in checks if not entry["holds"]] == []
    assert results["equality"]["float32 from the CPU's, most of 255"] == 0
    assert all(results["tiny: conditioner"][f"window {window}"]["bit_equal"] for window in (3, 6))
    assert results["tiny: compiled"]["default"]["recompiles"] == 0
    # Nine of twenty steps, one of four; a pass more writes the context, and the first of two layers always runs.
    assert results["tiny: step cache"]["every second step"]["blocks_skipped"] == pytest.approx(9 / (21 * 2), abs=1e-3)
    assert results["tiny: step cache, few steps"]["one of four"]["blocks_skipped"] == pytest.approx(1 / (5 * 2))
    assert all(results[f"tiny published: {name}"]["recompiles"] == 0 for name in ("Wan VAE", "TAEHV"))


def test_what_is_written_streams_what_the_same_weights_stream_in_memory(tiny_run):
    results = tiny_run[1]["results"]
    same = results["tiny published: as in memory"]
    assert same["from the same weights in memory, differing bytes"] == 0
    assert same["frames"] == 9 + 12
    assert same["the frames' standard deviation, of 255"] > 10


def test_the_sections_on_loading_name_their_bytes(tiny_run):
    results = tiny_run[1]["results"]
    written = results["tiny published: files"]
    num_parameters = counted_parameters(gpu_lab.TINY.transformer)
    assert written["parameters"] == num_parameters
    assert 2 * num_parameters < written["transformer_bytes"] < 2 * num_parameters + (1 << 16)  # names, and config.json
    assert written["shards"] > 1
    codecs = {"Wan VAE": (written["vae_bytes"], NUM_TINY_VAE), "TAEHV": (written["taehv_bytes"], NUM_TAEHV)}
    for name, (codec_bytes, num_codec) in codecs.items():
        loaded = results[f"tiny published: {name}"]
        assert loaded["file_bytes"] == written["transformer_bytes"] + codec_bytes
        assert loaded["weight_bytes"] == 4 * (num_parameters + num_codec)  # float32, on a CPU
        assert 0 < loaded["load_s"] <= loaded["ready_s"]
        assert loaded["counted_gib"]["weights"] == round(loaded["weight_bytes"] / 2**30, 3)
        assert loaded["in_all_gib"] == pytest.approx(sum(loaded["counted_gib"].values()), abs=3e-3)  # each is rounded


# Of diffusers' AutoencoderKLWan with base_dim 4, and of taew2_1.
NUM_TINY_VAE, NUM_TAEHV = 243_583, 11_315_539


def counted_parameters(sizes):
    """By hand, from the published module: twelve square layers a block, of which four steer."""
    dim, ffn, text, freq = sizes.dim, sizes.ffn_dim, sizes.text_dim, sizes.freq_dim
    square = dim * dim + dim
    block = 12 * square + 2 * dim * ffn + ffn + dim + 4 * dim + 2 * dim + 6 * dim
    outer = (36 * 4 + 1) * dim + (1536 + 1) * dim + 2 * square  # patches of latents, and of rays
    outer += (text + 1) * dim + square + (freq + 1) * dim + square + 6 * square
    return sizes.num_layers * block + outer + (dim + 1) * 64 + 2 * dim


@pytest.mark.parametrize("codec", ["Wan VAE", "TAEHV"])
def test_a_published_world_is_measured_by_stage(tiny_run, codec):
    measured = tiny_run[1]["results"][f"tiny published: {codec}"]
    stages_ms = [measured[f"{stage}_ms"] for stage in ("condition", "denoise", "decode", "transfer")]
    assert min(stages_ms) > 0
    assert measured["chunks"] == 2
    assert measured["stages_ms"] == pytest.approx(2 * sum(stages_ms), rel=0.05)  # a median of two is their mean
    assert measured["frames_per_s"] == pytest.approx(24e3 / measured["wall_ms"], rel=0.01)
    assert measured["starts"] == 4
    assert measured["first_over_steady"] == pytest.approx(measured["first_ms"] / measured["steady_ms"], abs=1e-3)


def test_prompts_are_read_once(tiny_run):
    text = tiny_run[1]["results"]["text encoder"]
    assert (text["tokens"], text["finite"], text["rounds"]) == (512, True, 2)
    assert (text["encoded"], text["from_the_cache"]) == (1 + 2 + 2, 2)
    assert text["cached_ms"] < text["short_ms"] < text["long_ms"]


def section(name, run, seconds=5.0):
    return gpu_check.Section(name, seconds, run)


def fail(budget):
    raise RuntimeError("the device failed")


def not_here(budget):
    raise NotHereError("too little memory")


def never_end(budget):
    while True:
        time.sleep(0.01)


def test_a_section_that_fails_or_never_ends_does_not_lose_the_others():
    saved = []
    sections = [
        section("one", lambda budget: {"value": 1}),
        section("failed", fail),
        section("not here", not_here),
        section("endless", never_end, seconds=1.0),
        section("last", lambda budget: {"value": 2}),
    ]
    results = gpu_check.run(sections, time.monotonic() + 30, 2, lambda results: saved.append(dict(results)))
    assert results["one"]["value"] == 1
    assert results["failed"]["error"] == "RuntimeError: the device failed"
    assert results["not here"]["skipped"] == "too little memory"
    assert results["endless"]["error"] == "not done after 1 s"
    assert results["last"]["value"] == 2
    assert [len(each) for each in saved] == [1, 2, 3, 4, 5]  # written after each


def test_sections_that_no_time_is_left_for_are_said_to_be_skipped():
    sections = [section("late", fail), section("cut short", never_end)]
    results = gpu_check.run(sections[:1], time.monotonic(), 2, lambda _: None)
    assert results == {"late": {"skipped": "0 s were left, 1 are needed"}}
    # It had asked for more than was left: not its failure.
    results = gpu_check.run(sections[1:], time.monotonic() + 1.2, 2, lambda _: None)
    assert results["cut short"]["skipped"] == "not done after 1 s"


def test_what_another_section_has_found_is_not_looked_for_again():
    again = gpu_check.Section("again", 5.0, fail, unless="before")
    found, failed = section("before", lambda budget: {"value": 1}), section("before", not_here)
    results = gpu_check.run([found, again], time.monotonic() + 30, 2, lambda _: None)
    assert results["again"] == {"skipped": "'before' has found it"}
    results = gpu_check.run([failed, again], time.monotonic() + 30, 2, lambda _: None)
    assert results["again"]["error"] == "RuntimeError: the device failed"


def test_on_a_gpu_sections_come_in_an_order_in_which_each_finds_what_it_needs():
    sections = gpu_order.sections_of(gpu_lab.Lab(torch.device("cpu"), torch.bfloat16, False))
    names = [each.name for each in sections]
    assert len(set(names)) == len(names)
    assert all(each.unless in ("", *names[:index]) for index, each in enumerate(sections))
    # By worth: what a smaller world can say comes before a checkpoint of 38 GB, and no size is left out.
    worth = ["equality", "1.3B: stages", "1.3B published: Wan VAE", "text encoder", "LingBot 14B/18B published: files"]
    worth += [
        "LingBot 14B/18B: conditioner",
        "LingBot 14B/18B: step cache, few steps",
        "LingBot 14B/18B: first request",
    ]
    assert [name for name in names if name in worth] == worth


def test_a_world_that_does_not_fit_is_skipped_before_it_is_made():
    class SmallLab(gpu_lab.Lab):
        def free_bytes(self):
            return 40 << 30

    lab = SmallLab(torch.device("cpu"), torch.bfloat16, False)
    gpu_order.check_memory(lab, gpu_lab.WAN_1_3B)
    # 18 G parameters in two bytes each are 34 GiB, the window of 18 latent frames 21, scale and shift of a chunk 4.
    with pytest.raises(NotHereError, match=r"LingBot 14B/18B takes about 7\d GiB, 40 GiB are free"):
        gpu_order.check_memory(lab, gpu_lab.LINGBOT)
