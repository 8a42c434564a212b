"""The step cache's benchmark: how it compares pictures, what it wants, and a small run. Its times are not looked at."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "perf"))

import quality
import step_cache

NUM_LAYERS, NUM_CHUNKS = 3, 2  # of the quick world; one walk
PNG_SIGNATURE = b"\x89PNG\r\n\x1a\n"


def frames(value, num_frames=2):
    return np.full((num_frames, 4, 5, 3), value, np.uint8)


def test_psnr_of_one_grey_level_is_that_of_the_textbook():
    # 20 log10(255 / 1)
    assert quality.psnr_db(1.0) == pytest.approx(48.131, abs=1e-3)


def test_equal_pictures_have_no_psnr():
    near = quality.nearness([[frames(7), frames(9)]], [[frames(7), frames(9)]])
    assert near == {"all_frames_db": None, "worst_clip_db": None, "chunk_db": [None, None], "chunk_mean_db": None}


def test_nearness_weighs_frames_and_never_wraps_around():
    # Errors of 255 would wrap to 1 in uint8. Clip 1: a chunk of 1 frame, equal, and one of 3 frames, off by 2; clip 2
    # off by 255 and equal. Mean squares: 3 and 16256.25 of clips, 32512.5 and 2 of chunk numbers, 8129.625 of all. dB
    # have three places.
    clips = [[frames(5, 1), frames(5, 3)], [frames(255, 1), frames(8, 3)]]
    references = [[frames(5, 1), frames(7, 3)], [frames(0, 1), frames(8, 3)]]
    near = quality.nearness(clips, references)
    assert near["all_frames_db"] == pytest.approx(9.030, abs=1e-3)
    assert near["worst_clip_db"] == pytest.approx(6.021, abs=1e-3)
    assert near["chunk_db"] == pytest.approx([3.0103, 45.1205], abs=1e-3)
    assert near["chunk_mean_db"] == pytest.approx((42.1102 + 0) / 2, abs=1e-3)


def test_a_held_out_walk_is_cut_into_chunks_that_begin_where_its_picture_is(tmp_path, monkeypatch):
    monkeypatch.setenv("WORLDSTREAM_CACHE", str(tmp_path))  # holds nothing: what is needed is rendered
    (walk,) = quality.held_out_walks(step_cache.config_of(is_quick=True), 1, 2)
    assert [poses.shape for poses in walk.cam_to_world] == [(3, 4, 4)] * 2
    assert [chunk.shape for chunk in walk.truth] == [(9, 32, 48, 3), (12, 32, 48, 3)]
    assert np.array_equal(walk.picture, walk.truth[0][0])
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("num_steps", "mask"),
    [(8, "11010101"), (16, "1101010101010101"), (20, "11010101010101010101")],
)
def test_every_other_step_begins_and_ends_with_a_computed_one(num_steps, mask):
    assert step_cache.every_other_step(num_steps) == mask


def entry(time, db):
    return {"time_ratio": {"median": time}, "to_uncached": {"all_frames_db": db}}


@pytest.mark.parametrize(
    ("settings", "value", "holds"),
    [
        ({"fast": entry(0.5, 29.9), "near": entry(0.7, 30.0), "slow": entry(0.9, 50.0)}, 30.0, True),
        ({"fast": entry(0.5, 29.9), "equal": entry(0.8, None)}, 20.0, False),
        ({"fast": entry(0.5, 29.9)}, 0.0, False),
    ],
)
def test_the_bar_takes_the_fastest_of_those_that_are_near_enough(settings, value, holds):
    (wanted,) = step_cache.judge({"steps": {"20": {"off": entry(1.0, None), **settings}}})
    assert (wanted.value, wanted.bar, wanted.holds) == (value, ">= 30", holds)


def test_a_server_that_is_not_near_enough_saves_nothing():
    results = {"steps": {"20": {"near": entry(0.6, 31.0)}}, "served": {"auto": entry(0.5, 29.0)}}
    assert [wanted.holds for wanted in step_cache.judge(results)] == [True, False]


@pytest.fixture(scope="module")
def quick_run(tmp_path_factory):
    """What a quick run printed last, and its picture."""
    plot = tmp_path_factory.mktemp("plot") / "curves.png"
    options = ["--quick", "--no-server", "--walks", "1", "--chunks", str(NUM_CHUNKS), "--plot", str(plot)]
    command = [sys.executable, step_cache.__file__, *options]
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    result = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    assert "NOTE: no trained weights" in result.stdout
    return json.loads(result.stdout.splitlines()[-1]), plot


def test_the_benchmark_ends_with_a_document_of_every_setting(quick_run):
    document, _ = quick_run
    results = document["results"]
    assert list(document) == ["bench", "machine", "commit", "results", "wanted"]
    assert (document["bench"], results["weights"]) == ("step_cache", "seeded")
    assert {count: len(entries) for count, entries in results["steps"].items()} == {"4": 5, "8": 12, "20": 12}
    assert [wanted["bar"] for wanted in document["wanted"]] == [">= 30"]
    assert all(
        len(entry[reference]["chunk_db"]) == NUM_CHUNKS
        for entries in results["steps"].values()
        for entry in entries.values()
        for reference in ("to_uncached", "to_truth")
    )


def test_masks_skip_their_zeros_in_all_blocks_but_the_first(quick_run):
    document, _ = quick_run
    steps = document["results"]["steps"]
    masks = {("4", mask): mask for mask in ("1111", "1011", "1101", "1001")}
    masks |= {
        (count, "every other step"): steps[count]["every other step"]["settings"]["mode"]
        for count in steps.keys() - "4"
    }
    for (count, name), mask in masks.items():
        skipped = NUM_CHUNKS * mask.count("0") * (NUM_LAYERS - 1)
        whole = NUM_CHUNKS * (int(count) + 1) * NUM_LAYERS  # the context pass too
        assert len(mask) == int(count)
        assert (steps[count][name]["computed_blocks"], steps[count][name]["skipped_blocks"]) == (
            whole - skipped,
            skipped,
        )


def test_a_setting_is_equal_to_off_just_where_it_skips_nothing(quick_run):
    document, _ = quick_run
    entries = [entry for entries in document["results"]["steps"].values() for entry in entries.values()]
    is_equal = [entry["to_uncached"]["all_frames_db"] is None for entry in entries]
    assert is_equal == [entry["skipped_blocks"] == 0 for entry in entries]
    assert document["results"]["steps"]["4"]["1111"]["to_uncached"]["chunk_db"] == [None] * NUM_CHUNKS
    assert not all(is_equal)


def test_a_cache_that_never_hits_changes_no_bit(quick_run):
    document, _ = quick_run
    overhead = document["results"]["overhead"]
    assert [(entry["is_bit_equal"], entry["skipped_blocks"]) for entry in overhead.values()] == [(True, 0)] * 4


def test_the_curves_are_a_png(quick_run):
    _, plot = quick_run
    assert plot.read_bytes().startswith(PNG_SIGNATURE)
