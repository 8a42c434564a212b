"""The transport's benchmark: its frames, what it wants, and a small run on a real server. No times are looked at."""

import gzip
import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "perf"))

import transport
from common import ROOT
from transport_served import Trip, Way, frames_of


def test_the_frames_move_and_each_has_a_noise_of_its_own():
    frames = transport.moving_frames((96, 160))
    assert (frames.shape, frames.dtype) == ((12, 96, 160, 3), np.uint8)
    # Frame 1 is frame 0 seen 3 pixels lower and 5 to the right, but for two noises of 1 gray value.
    again = frames[0, 3:, 5:].astype(np.int16) - frames[1, :-3, :-5]
    assert 0.9 < np.abs(again).mean() < 1.5
    assert np.abs(frames[0].astype(np.int16) - frames[1]).mean() > 2


def test_differences_under_gzip_become_frames_again():
    # Three frames of 1 x 1: 250, 4 (10 more, wrapped), 3.
    deltas = np.array([[250] * 3, [10] * 3, [255] * 3], np.uint8)
    outputs = {
        "frames": np.zeros((0, 1, 1, 3), np.uint8),
        "frame_index": np.arange(3),
        "encoded_frames": np.array([gzip.compress(deltas.tobytes())], np.object_),
    }
    assert frames_of(outputs, "delta-gzip").tolist() == [[[[250] * 3]], [[[4] * 3]], [[[3] * 3]]]


def test_the_published_way_is_judged_by_frames_a_second():
    frame_bytes = 1_000_000
    # 12 frames in 20 ms are 600 frames and 600 MB a second; delta-gzip's take ten times as long.
    fast, slow = Trip(0.02, 0.01, 0.01, 12, 12, 12), Trip(0.2, 0.1, 0.1, 6, 1, 12)
    trips = {transport.RAW: [fast] * 2, transport.DELTA_GZIP: [slow] * 2}
    rate, times = transport.judge(trips, frame_bytes)
    assert (rate.value, rate.holds) == (600, True)
    assert times.value == pytest.approx(10)
    slower = [Trip(0.0201, 0.01, 0.01, 12, 12, 12)] * 2
    assert [each.holds for each in transport.judge({**trips, transport.RAW: slower}, frame_bytes)] == [False, False]


def test_frames_that_changed_on_the_way_end_the_run():
    frames = transport.moving_frames((8, 16))
    transport.check(np.concatenate([frames, frames]), frames, Way("png"))
    with pytest.raises(AssertionError, match="png: other frames came"):
        transport.check(np.concatenate([frames, frames + 1]), frames, Way("png"))
    with pytest.raises(AssertionError, match="jpeg: off by"):
        transport.check(np.concatenate([frames, frames + 100]), frames, Way("jpeg"))


@pytest.mark.server
def test_a_quick_run_measures_every_way():
    command = [sys.executable, str(ROOT / "perf" / "transport.py"), "--quick"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout.splitlines()[-1])
    results = document["results"]
    assert set(results["build"]) == set(results["served"]) == set(transport.WAYS)
    assert len(document["wanted"]) == 2
    raw_bytes = 12 * 96 * 160 * 3
    assert {results["build"][name]["bytes"] for name in transport.WAYS if name.startswith("raw")} == {raw_bytes}
    for name, served in results["served"].items():
        assert served["frames_per_s"] > 0
        # What is sent is what was built, and under 1 kB of headers a message.
        headers = served["wire_bytes_per_chunk"] - results["build"][name]["bytes"]
        assert 0 < headers < 1000 * served["messages_per_chunk"]
    assert results["build"]["png"]["bytes"] < raw_bytes
