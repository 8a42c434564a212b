"""Walks through the courtyard and the data sets made of them."""

import numpy as np
import pytest
from worldmodel.camera import follow_actions, relative_to_previous, start_camera
from worldmodel.config import EMBEDDED

from model_repository.denoise.training.courtyard import dataset
from model_repository.denoise.training.courtyard.paths import (
    STYLES,
    Stance,
    follow_keys,
    frame_poses,
    is_free,
    pose,
    sample_walk,
)

TINY = dataset.DatasetSpec("train", seed=3, num_latent_frames=4, height_px=16, width_px=32)


def test_a_held_key_walks_a_quarter_of_a_metre_and_turns_six_degrees():
    walked = follow_keys(Stance(0, -3, 90), ["w"] * 4)[-1]
    turned = follow_keys(Stance(0, -3, 0), ["l"] * 15)[-1]

    assert (walked.x, walked.z) == pytest.approx((1.0, -3.0))
    assert turned.yaw_deg == pytest.approx(90.0)


def test_keys_lead_where_the_served_model_thinks_they_lead():
    actions = ["w", "wl", "wl", "j", "sd", "a", "", "i", "wi", "k"]
    walk = np.stack([pose(stance) for stance in follow_keys(Stance(0.4, -2, 25), actions)])

    # One client unit is a metre here; the session's first latent frame is the picture and takes no key.
    config = EMBEDDED.replace(move_per_frame=1.0, translation_scale=0.25)
    served, _ = follow_actions(start_camera(np.ones(4), None), ["", *actions], config, is_first=True)

    np.testing.assert_allclose(served[1:], relative_to_previous(walk[1:], walk[0]), atol=1e-9)


def test_the_camera_looks_along_z_with_y_down():
    looking = pose(Stance(1, 2, 90, pitch_deg=30))

    forward, down = looking[:3, 2], looking[:3, 1]
    assert forward == pytest.approx([np.cos(np.pi / 6), -0.5, 0])
    assert down[1] == pytest.approx(np.cos(np.pi / 6))
    assert looking[:3, 3] == pytest.approx([1, -1.4, 2])
    assert np.linalg.det(looking[:3, :3]) == pytest.approx(1)


@pytest.mark.parametrize("style", STYLES)
def test_walks_stay_clear_of_everything(style):
    for number in range(20):
        walk = sample_walk(np.random.default_rng(number), 24, style)
        assert len(walk) == 24
        assert all(is_free(stance.x, stance.z) for stance in walk)


def test_the_middle_of_things_is_not_free():
    assert not is_free(0, 0)  # the pedestal
    assert not is_free(-2.7, -2.2)  # a pillar
    assert not is_free(0, 4.65)  # the wall between yard and rooms
    assert not is_free(-2.3, 4.65)  # the door in it: rooms are not entered
    assert not is_free(-4.4, 0)  # at the outer wall


def test_pixel_frames_lie_evenly_between_latent_frames():
    walk = [Stance(0, 0, 0), Stance(1, 2, 8)]

    poses = frame_poses(walk)

    assert poses.shape == (5, 4, 4)
    np.testing.assert_allclose(poses[2], pose(Stance(0.5, 1.0, 4)))
    np.testing.assert_allclose(poses[[0, 4]], [pose(walk[0]), pose(walk[1])])


def test_a_clip_is_the_same_whenever_it_is_drawn_and_differs_between_splits():
    first = dataset.draw_clip("train", 0, 7, 24)

    assert first == dataset.draw_clip("train", 0, 7, 24)
    assert first.walk != dataset.draw_clip("held_out", 0, 7, 24).walk
    assert first.walk != dataset.draw_clip("train", 0, 8, 24).walk


def test_walks_to_learn_from_stand_still_more_often_than_those_to_measure_with():
    def standing(split):
        walks = [dataset.draw_clip(split, 0, number, 24).walk for number in range(240)]
        return np.mean([walk.count(walk[0]) == len(walk) for walk in walks])

    assert standing("held_out") < 0.06
    assert 1 / 12 < standing("train") < 0.06 + 1 / 12


def test_looks_change_between_chunks_only():
    clips = [dataset.draw_clip("train", 0, number, 24) for number in range(200)]
    switches = [[i for i in range(1, 24) if c.variants[i] != c.variants[i - 1]] for c in clips]

    assert all(len(at) <= 1 and all(i % 3 == 0 for i in at) for at in switches)
    assert 0.15 < np.mean([len(at) for at in switches]) < 0.35
    assert len({c.variants[0] for c in clips}) == 4


def test_the_first_latent_frame_is_one_picture_and_the_others_four():
    clip = dataset.Clip([Stance(0, -3, 0)] * 3, ("day", "day", "snow"))

    assert clip.frame_variants() == ["day"] * 5 + ["snow"] * 4
    assert len(clip.poses()) == 9


def test_a_data_set_is_read_back_as_it_was_rendered(tmp_path):
    dataset.write_shard(tmp_path, TINY, 1)

    store = dataset.ClipStore(tmp_path, TINY)

    assert len(store) == 8
    assert store.numbers[2] == 10
    np.testing.assert_array_equal(store.frames(2), TINY.clip(10).render(16, 32))
    np.testing.assert_array_equal(store.frames(2, 5, 4), TINY.clip(10).render(16, 32)[5:9])
    assert store.clip(2) == TINY.clip(10)


@pytest.mark.parametrize("content", [b"", b"no array", b"half", b"other"])
def test_a_damaged_shard_is_told_by_its_place(tmp_path, content):
    path = dataset.shard_path(tmp_path, TINY, 3)
    path.parent.mkdir(parents=True)
    shape = (8, TINY.num_frames, 16, 32, 3)
    np.save(path, np.zeros(shape, np.int8 if content == b"other" else np.uint8))
    if content == b"half":
        content = path.read_bytes()[:5000]
    if content != b"other":
        path.write_bytes(content)
    with pytest.raises(OSError, match=r"00003\.npy: cannot be read as a shard of train-3-4x16x32-v3, it is damaged;"):
        dataset.ClipStore(tmp_path, TINY)


def test_a_broken_run_keeps_whole_shards_and_ignores_broken_ones(tmp_path):
    whole = dataset.write_shard(tmp_path, TINY, 0)
    written_at = whole.stat().st_mtime_ns
    (whole.parent / "00001.99.part").write_bytes(b"half a shard")

    dataset.write_shard(tmp_path, TINY, 0)

    assert whole.stat().st_mtime_ns == written_at
    assert len(dataset.ClipStore(tmp_path, TINY)) == 8
