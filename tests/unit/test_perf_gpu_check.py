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
import gpu_worlds
from gpu_sections import NotHereError


@pytest.fixture(scope="module")
def tiny_run(tmp_path_factory):
    file = tmp_path_factory.mktemp("gpu_check") / "results" / "gpu.json"
    command = [sys.executable, gpu_check.__file__, "--tiny", "--minutes", "1", "--output", str(file)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, check=True, env=environment)
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
        *("tiny: step cache", "tiny: compiled", "tiny: first request"),
    ]
    assert {name: result["error"] for name, result in results.items() if "error" in result} == {}
    assert results["tests"]["skipped"] == "there is no GPU"


def test_what_a_cpu_can_hold_holds(tiny_run):
    results, checks = tiny_run[1]["results"], tiny_run[1]["checks"]
    assert [entry["what"] for entry in checks if not entry["holds"]] == []
    assert results["equality"]["float32 from the CPU's, most of 255"] == 0
    assert all(results["tiny: conditioner"][f"window {window}"]["bit_equal"] for window in (3, 6))
    assert results["tiny: compiled"]["default"]["recompiles"] == 0
    assert results["tiny: step cache"]["every second step"]["blocks_skipped"] > 0


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
    assert results["endless"]["error"] == "OverBudgetError: not done after 1 s"
    assert results["last"]["value"] == 2
    assert [len(each) for each in saved] == [1, 2, 3, 4, 5]  # written after each


def test_sections_that_no_time_is_left_for_are_said_to_be_skipped():
    results = gpu_check.run([section("late", fail)], time.monotonic(), 2, lambda _: None)
    assert results == {"late": {"skipped": "no time was left"}}


def test_a_world_that_does_not_fit_is_skipped_before_it_is_made():
    class SmallLab(gpu_worlds.Lab):
        def free_bytes(self):
            return 40 << 30

    lab = SmallLab(torch.device("cpu"), torch.bfloat16, False)
    gpu_check.check_memory(lab, gpu_worlds.WAN_1_3B)
    # 18 G parameters in two bytes each are 34 GiB, the window of 18 latent frames 21, scale and shift of a chunk 4.
    with pytest.raises(NotHereError, match=r"LingBot 14B/18B takes about 7\d GiB, 40 GiB are free"):
        gpu_check.check_memory(lab, gpu_worlds.LINGBOT)
