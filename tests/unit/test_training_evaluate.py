"""What the evaluation measures with: its recogniser against rendered moves, its controls and bars by hand."""

import hashlib
import json
import math
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from worldmodel.config import EMBEDDED

from tests.unit.worlds import TINY, picture, tiny_world

TRAINING = Path(__file__).parents[2] / "model_repository" / "denoise" / "training"
sys.path.append(str(TRAINING))  # the scripts there import one another by name

import evaluate  # noqa: E402
import measures  # noqa: E402
import streaming  # noqa: E402
from courtyard.dataset import VARIANT_NAMES  # noqa: E402
from courtyard.paths import Motion, Stance, follow_keys, frame_poses, move, pose  # noqa: E402


@pytest.mark.parametrize("script", ["draw_walk", "evaluate", "render_dataset", "train", "train_world"])
def test_a_script_starts_as_a_program_of_its_own(script):
    # One imported what the tests' own paths find and a program's do not.
    command = [sys.executable, str(TRAINING / f"{script}.py"), "--help"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_every_rendered_move_is_recognised():
    for number, start in enumerate(measures.sample_open_starts(6, seed=11)):
        look = VARIANT_NAMES[number % 4]
        first = measures.picture_of(start, look, EMBEDDED)
        for name, motion in measures.MOVES.items():
            last = measures.picture_of(move(move(start, motion), motion), look, EMBEDDED)
            assert measures.is_recognised(name, first, last, EMBEDDED), (number, name)


def test_a_move_that_goes_the_other_way_is_not_recognised():
    start = Stance(0.4, -2.0, 25.0)
    first = measures.picture_of(start, "day", EMBEDDED)
    last = measures.picture_of(move(start, Motion(yaw_deg=12.0)), "day", EMBEDDED)
    assert measures.is_recognised("right", first, last, EMBEDDED)
    assert not measures.is_recognised("left", first, last, EMBEDDED)


@pytest.mark.parametrize("name", measures.MOVES)
def test_in_pictures_of_one_colour_no_move_is_recognised(name):
    # Rounding decided, and half of them were.
    flat = np.full((32, 48, 3), 128, np.uint8)
    assert not measures.is_recognised(name, flat, flat, EMBEDDED)


@pytest.mark.parametrize(
    ("keys", "mirrored"), [("l", "j"), ("d", "a"), ("w", "w"), ("s", "s"), ("wl", "wj"), ("i", "i")]
)
def test_a_mirrored_path_turns_and_steps_the_other_way(keys, mirrored):
    start = Stance(0.4, -2.0, 25.0, 4.0)
    path, wanted = (np.stack([pose(stance) for stance in follow_keys(start, [key] * 3)]) for key in (keys, mirrored))
    got = measures.mirrored_poses(path)
    np.testing.assert_allclose(got[0], path[0], atol=1e-12)
    # From a level camera the mirror is exact; here the start looks up a little, and the ground is followed.
    np.testing.assert_allclose(got, wanted, atol=0.06)


def test_a_level_path_is_mirrored_exactly():
    start = Stance(-1.0, 0.5, -40.0)
    path = np.stack([pose(stance) for stance in follow_keys(start, ["wl", "d", "w", "j"])])
    wanted = np.stack([pose(stance) for stance in follow_keys(start, ["wj", "a", "w", "l"])])
    np.testing.assert_allclose(measures.mirrored_poses(path), wanted, atol=1e-12)


def test_what_counts_begins_with_the_second_moving_chunk():
    keys = [""] * 2 + ["w"] + [""] * 3 + ["l"] * 3 + [""] * 3  # chunks: moves (last frame), stands, moves, stands
    poses = np.stack([pose(stance) for stance in follow_keys(Stance(0, -3, 0), keys)])[1:]
    assert measures.from_second_moving_chunk(poses, TINY) == [False, False, True, True]


def test_psnr_of_a_constant_error_is_the_worked_figure():
    truth = np.full((21, 4, 4, 3), 100, np.uint8)
    frames = truth.copy()
    frames[9:] += 10
    assert streaming.chunk_psnr(frames, truth, TINY) == [100.0, pytest.approx(20 * math.log10(255 / 10))]


def test_a_streamed_walk_is_whole_chunks_and_follows_its_poses():
    world = tiny_world()
    poses = frame_poses(follow_keys(Stance(0, -3, 0), ["w"] * 7))[::4]  # 8: two chunks and a rest
    forward = streaming.stream_walk(world, picture(), poses, ["day"] * 8, seed=1)
    again = streaming.stream_walk(world, picture(), poses, ["day"] * 8, seed=1)
    elsewhere = streaming.stream_walk(world, picture(), poses[::-1], ["day"] * 8, seed=1)
    switched = streaming.stream_walk(world, picture(), poses, ["day"] * 3 + ["night"] * 5, seed=1)
    assert forward.shape == (21, 32, 48, 3)
    assert np.array_equal(forward, again)
    assert not np.array_equal(forward[:9], elsewhere[:9])
    assert np.array_equal(forward[:9], switched[:9])
    assert not np.array_equal(forward[9:], switched[9:])


def test_standing_and_prompts_are_measured_on_any_world():
    world, start = tiny_world(), Stance(0, -3, 0)
    drift, rows = measures.standing_drift(world, start, "day", 4, seed=0)
    is_named, share, more = measures.prompt_switch(world, start, ("day", "night"), seed=0)
    assert drift > 0
    assert [row.shape for row in rows + more] == [(3, 32, 48, 3), (5, 32, 48, 3)]
    assert isinstance(is_named, bool)
    assert math.isfinite(share)


RESULTS = {
    "codec_db": 30.0,
    "model_db": [25.0, 22.0, 20.0, 19.0, 18.0, 18.0, 18.0, 17.0],
    "still_db": [20.0, 15.0, 14.0, 13.0, 12.0, 12.0, 12.0, 12.0],
    "margin_over_still_db": [None, 7.0, 6.0, 6.0, 6.0, 6.0, 6.0, 5.0],
    "margin_over_mirrored_db": [None, None, 3.0, 6.0, 6.0, 6.0, 6.0, 5.0],
    "turns_recognised": 0.95,
    "turns_recognised_in_truth": 1.0,
    "walks_recognised": 0.9,
    "walks_recognised_in_truth": 1.0,
    "standing_chunks": 16,
    "drift_worst": 8.0,
    "prompt_switches_recognised": 0.9,
}


def test_results_on_the_bars_hold():
    bars = evaluate.wanted(RESULTS)
    assert len(bars) == 19
    assert [bar["what"] for bar in bars if not bar["holds"]] == []


@pytest.mark.parametrize(
    ("change", "fails"),
    [
        ({"codec_db": 29.9}, "codec, dB"),
        ({"model_db": [25.0, 22.0, 20.0, 19.0, 18.0, 18.0, 18.0, 16.9]}, "chunk 8, dB"),
        ({"still_db": [20.0, 15.0, 14.1, 13.0]}, "the first frame repeated, chunks 3 and on, dB"),
        ({"margin_over_mirrored_db": [None, 2.9]}, "least margin over the mirrored path, dB"),
        ({"drift_worst": 8.1}, "drift over 16 chunks of standing still"),
        ({"turns_recognised": 0.94}, "turns recognised"),
    ],
)
def test_each_bar_can_fail(change, fails):
    assert [bar["what"] for bar in evaluate.wanted({**RESULTS, **change}) if not bar["holds"]] == [fails]


def test_what_was_measured_is_told_of_the_weights_that_were_and_where_sheets_cannot_be_written(
    monkeypatch, tmp_path, capsys
):
    weights = tmp_path / "transformer.safetensors"
    weights.write_bytes(b"measured")

    def measured(world, clips, options, results, sheets):
        weights.write_bytes(b"shipped meanwhile")
        results.update(RESULTS)
        sheets["walks"] = [np.zeros((2, 4, 4, 3), np.uint8)]

    monkeypatch.setattr(evaluate, "load", lambda _: tiny_world())
    monkeypatch.setattr(evaluate, "held_out_clips", lambda *_: None)
    monkeypatch.setattr(evaluate, "measure_walks", measured)
    for name in ("measure_motions", "measure_standing", "measure_prompts"):
        monkeypatch.setattr(evaluate, name, lambda *_: None)
    (tmp_path / "walks.png").mkdir()
    with pytest.raises(IsADirectoryError):
        evaluate.main(["--weights", str(tmp_path), "--sheets", str(tmp_path)])
    document = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert document["results"]["model_db"] == RESULTS["model_db"]
    assert document["weights_sha256"] == {weights.name: hashlib.sha256(b"measured").hexdigest()}
    assert document["results"]["window_latent_frames"] == TINY.window_latent_frames


def test_what_is_measured_has_no_commit_where_there_is_no_git(monkeypatch):
    monkeypatch.setenv("PATH", "")
    assert evaluate.origin_of(None) == {"commit": "", "weights_sha256": None}


def test_the_report_is_a_table_and_one_json_document(capsys, tmp_path):
    (tmp_path / "transformer.safetensors").write_bytes(b"weights")
    document = evaluate.report(tiny_world(), RESULTS, evaluate.wanted(RESULTS), evaluate.origin_of(tmp_path))
    assert list(document) == ["bench", "machine", "commit", "weights_sha256", "results", "wanted"]
    assert json.loads(json.dumps(document)) == document
    bar = {"what": "codec, dB", "value": 30.0, "sense": "at least", "bar": 30.0, "holds": True}
    assert document["wanted"][0] == bar
    assert document["weights_sha256"] == {"transformer.safetensors": hashlib.sha256(b"weights").hexdigest()}
    assert "holds  codec, dB" in capsys.readouterr().out
