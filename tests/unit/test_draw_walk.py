"""The demo's truth: rendered where the served camera is, for the keys as they are typed."""

import importlib.util
import sys
from pathlib import Path

import numpy as np
import pytest
from worldmodel.camera import follow_actions, relative_to_previous, start_camera
from worldmodel.config import EMBEDDED
from worldstream.paths import actions_from_text

TRAINING = Path(__file__).parents[2] / "model_repository" / "denoise" / "training"


@pytest.fixture(scope="module")
def draw_walk():
    sys.path.insert(0, str(TRAINING))
    try:
        spec = importlib.util.spec_from_file_location("draw_walk", TRAINING / "draw_walk.py")
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        yield module
    finally:
        sys.path.remove(str(TRAINING))


@pytest.mark.parametrize("text", [".wwwl[wl]", "ww", "[wl]j.s", "w, ,l,wj,", "l"])
def test_the_truth_stands_where_the_served_camera_stands(draw_walk, text):
    entries = actions_from_text(text)
    walk = draw_walk.served_walk(draw_walk.START, entries)
    assert len(walk) % EMBEDDED.chunk_latent_frames == 0
    poses = np.stack([draw_walk.pose(stance) for stance in walk])
    keys = entries + [""] * (len(walk) - len(entries))
    config = EMBEDDED.replace(move_per_frame=1.0, translation_scale=0.25)
    served, _ = follow_actions(start_camera(np.ones(4), None), keys, config, is_first=True)
    scaled = relative_to_previous(poses, poses[0])
    np.testing.assert_allclose(served[1:], scaled[1:], atol=1e-9)


def test_it_is_as_long_as_the_film_and_of_its_size(draw_walk, tmp_path):
    draw_walk.main(["--actions", ".l", "--chunks", "2", "--prompt", "a night", "--truth", str(tmp_path / "truth.npy")])
    truth = np.load(tmp_path / "truth.npy")
    assert (truth.dtype, truth.shape) == (np.uint8, (21, 96, 160, 3))
    assert not np.array_equal(truth[0], truth[-1])


def test_a_prompt_names_its_look_and_day_is_the_rest(draw_walk):
    looks = [draw_walk.look_of(text) for text in ("a Night walk", "snow, then dusk", "a street", "")]
    assert looks == ["night", "snow", "day", "day"]


def test_the_shipped_start_is_where_the_walk_begins(draw_walk, tmp_path):
    draw_walk.main(["--picture", str(tmp_path / "start.png")])
    shipped = TRAINING.parents[2] / "client" / "pictures" / "start.png"
    drawn, known = (
        np.asarray(draw_walk.Image.open(path), dtype=np.int16) for path in (tmp_path / "start.png", shipped)
    )
    assert np.abs(drawn - known).max() <= 1
