import dataclasses

import numpy as np
import pytest
import torch
from worldmodel import camera as cam
from worldmodel.clip_poses import published_relative_poses
from worldmodel.config import EMBEDDED
from worldmodel.errors import InvalidInputError

from tests.unit.poses import pose


def start(scale=1.0):
    return cam.start_camera(np.array([10.0, 10.0, 8.0, 8.0]), scale)


def test_a_step_is_seen_from_the_camera_that_takes_it():
    # Turned right by 90 degrees, world +x is straight ahead.
    steps = cam.relative_to_previous(np.stack([pose(yaw_deg=90), pose(x=2, yaw_deg=90)]), pose(yaw_deg=90))
    np.testing.assert_allclose(steps[0], np.eye(4), atol=1e-12)
    np.testing.assert_allclose(steps[1][:3, 3], [0, 0, 2], atol=1e-12)


def test_every_fourth_pose_stands_for_a_latent_frame_and_a_rest_is_cut_off():
    rate = np.stack([pose(x=i) for i in range(12)])
    assert cam.every_fourth(rate)[:, 0, 3].tolist() == [0, 4, 8]
    assert cam.every_fourth(rate[:9])[:, 0, 3].tolist() == [0, 4, 8]


def test_the_published_rule_makes_the_longest_step_one():
    path = torch.from_numpy(np.stack([pose(z=0), pose(z=1), pose(z=5)])).float()
    assert published_relative_poses(path)[:, 2, 3].tolist() == [0, 0.25, 1]


def test_the_published_rule_leaves_a_clip_that_stands_still():
    path = torch.from_numpy(np.stack([pose(x=3)] * 3)).float()
    torch.testing.assert_close(published_relative_poses(path), torch.eye(4).repeat(3, 1, 1))


def test_what_is_beyond_the_farthest_is_told_as_that_far_in_its_direction():
    told = cam.start_ray_poses(np.stack([pose(x=3, z=4), pose(x=300, z=400)]), scale=5.0)
    np.testing.assert_allclose(told[:, :3, 3], [[0.6, 0, 0.8], [1.8, 0, 2.4]])


def test_steps_lead_on_from_the_last_camera_and_stay_rotations():
    placed = cam.followed(pose(z=2, yaw_deg=90), np.stack([pose(z=1), pose(yaw_deg=-90), pose(z=1)]))
    np.testing.assert_allclose(placed, np.stack([pose(1, 0, 2, 90), pose(1, 0, 2), pose(1, 0, 3)]), atol=1e-12)

    bent = np.eye(4) + 1e-7
    turned = cam.followed(bent, np.eye(4)[None])[0, :3, :3]
    np.testing.assert_allclose(turned @ turned.T, np.eye(3), atol=1e-12)


def test_a_crop_scales_intrinsics_and_moves_the_centre():
    # 1280 x 720 to 160 x 96: scaled by 96 / 720 to 170.67 wide, 5.33 px cut from each side.
    fitted = cam.fit_intrinsics(np.array([[900.0, 900.0, 640.0, 360.0]]), (720, 1280), (96, 160), "crop")
    np.testing.assert_allclose(fitted, [[120, 120, 80, 48]], atol=1e-9)


def test_a_stretch_scales_each_side_by_itself():
    fitted = cam.fit_intrinsics(np.array([[832.0, 480.0, 416.0, 240.0]]), (480, 832), (96, 160), "stretch")
    np.testing.assert_allclose(fitted, [[160, 96, 80, 48]], atol=1e-9)


def test_the_default_field_of_view_reaches_the_picture_edge():
    focal, _, centre, _ = cam.default_intrinsics(96, 160, 90.0)
    assert focal == pytest.approx(80)
    assert centre == 80


def test_the_first_pose_of_a_session_is_its_origin_and_later_requests_go_on_from_the_last():
    path = np.stack([pose(x=7, z=i) for i in range(4)])
    first, state = cam.follow_poses(start(), path[:2], is_first=True)
    then, _ = cam.follow_poses(state, path[2:], is_first=False)
    assert first[:, 2, 3].tolist() == [0, 1]
    assert then[:, 2, 3].tolist() == [1, 1]


def test_poses_after_actions_begin_where_the_camera_is():
    _, state = cam.follow_actions(start(), ["", "w", "l"], EMBEDDED, is_first=True)
    relative, after = cam.follow_poses(state, np.stack([pose(x=100), pose(x=101)]), is_first=False)
    np.testing.assert_allclose(relative[0], np.eye(4), atol=1e-12)
    np.testing.assert_allclose(relative[1][:3, 3], [1, 0, 0], atol=1e-12)
    np.testing.assert_allclose(after.cam_to_origin[:3, :3], state.cam_to_origin[:3, :3], atol=1e-12)


def test_standing_still_between_poses_keeps_the_clients_world():
    _, state = cam.follow_poses(start(), np.stack([pose(x=1), pose(x=2)]), is_first=True)
    _, state = cam.follow_actions(state, ["", "", ""], EMBEDDED, is_first=False)
    relative, _ = cam.follow_poses(state, pose(x=5)[None], is_first=False)
    np.testing.assert_allclose(relative[0][:3, 3], [3, 0, 0], atol=1e-12)


def test_forward_walks_one_model_unit_along_the_view():
    relative, state = cam.follow_actions(start(0.25), ["", "w", "w"], EMBEDDED, is_first=True)
    scaled, _ = cam.to_model_units(relative, state, EMBEDDED, None)
    np.testing.assert_allclose(scaled[:, :3, 3], [[0, 0, 0], [0, 0, 1], [0, 0, 1]], atol=1e-12)
    np.testing.assert_allclose(state.cam_to_origin[:3, 3], [0, 0, 0.5], atol=1e-12)


def test_l_turns_right_and_i_looks_up():
    right, _ = cam.follow_actions(start(), ["l"], EMBEDDED, is_first=False)
    assert right[0][0, 2] == pytest.approx(np.sin(np.radians(6)))  # the view axis leans to +x
    up, _ = cam.follow_actions(start(), ["i"], EMBEDDED, is_first=False)
    assert up[0][1, 2] == pytest.approx(-np.sin(np.radians(4)))  # and to -y, which is up


def test_two_keys_walk_no_faster_than_one_and_opposite_keys_stand_still():
    both, _ = cam.follow_actions(start(), ["wd", "ws"], EMBEDDED, is_first=False)
    np.testing.assert_allclose(both[0][:3, 3], [np.sqrt(0.5), 0, np.sqrt(0.5)], atol=1e-12)
    np.testing.assert_allclose(both[1], np.eye(4), atol=1e-12)


def test_walking_while_looking_up_stays_on_the_ground():
    _, state = cam.follow_actions(start(), ["i"] * 10 + ["w"] * 3, EMBEDDED, is_first=False)
    np.testing.assert_allclose(state.cam_to_origin[:3, 3], [0, 0, 3], atol=1e-9)


@pytest.mark.parametrize("look", [-1, 1])
def test_walking_while_looking_straight_down_or_up_goes_to_the_pictures_top_or_foot(look):
    # Down (look = 1): the view axis is +y and the picture's top is ahead, +z. Up: its foot is.
    rotation = np.array([[1, 0, 0], [0, 0, look], [0, -look, 0]], float)
    state = dataclasses.replace(start(), cam_to_origin=np.block([[rotation, np.zeros((3, 1))], [0, 0, 0, 1]]))
    _, state = cam.follow_actions(state, ["w", "d", "d"], EMBEDDED, is_first=False)
    np.testing.assert_allclose(state.cam_to_origin[:3, 3], [2, 0, 1], atol=1e-12)


def test_a_camera_that_rolls_and_pitches_still_strafes_square_to_its_walk():
    roll, pitch = np.radians(40), np.radians(50)
    rolled = np.array([[np.cos(roll), -np.sin(roll), 0], [np.sin(roll), np.cos(roll), 0], [0, 0, 1]])
    pitched = np.array([[1, 0, 0], [0, np.cos(pitch), -np.sin(pitch)], [0, np.sin(pitch), np.cos(pitch)]])
    tilted = np.eye(4)
    tilted[:3, :3] = pitched @ rolled
    _, state = cam.follow_actions(dataclasses.replace(start(), cam_to_origin=tilted), ["wd"], EMBEDDED, is_first=False)
    np.testing.assert_allclose(state.cam_to_origin[:3, 3], [np.sqrt(0.5), 0, np.sqrt(0.5)], atol=1e-12)


def test_pitch_stops_at_its_limit():
    _, state = cam.follow_actions(start(), ["i"] * 60, EMBEDDED, is_first=False)
    assert np.degrees(np.arcsin(-state.cam_to_origin[1, 2])) == pytest.approx(85)


def test_a_press_at_the_picture_itself_is_made_up_for_in_the_next_frame():
    relative, state = cam.follow_actions(start(), ["w", "", ""], EMBEDDED, is_first=True)
    np.testing.assert_allclose(relative[:, 2, 3], [0, 1, 0], atol=1e-12)
    # Also across a chunk's end, where chunks have one latent frame.
    _, state = cam.follow_actions(start(), ["w"], EMBEDDED, is_first=True)
    relative, _ = cam.follow_actions(state, [""], EMBEDDED, is_first=False)
    np.testing.assert_allclose(relative[0][:3, 3], [0, 0, 1], atol=1e-12)


def test_a_long_walk_in_a_circle_comes_back():
    _, state = cam.follow_actions(start(), ["wl"] * 60, EMBEDDED, is_first=False)
    np.testing.assert_allclose(state.cam_to_origin, np.eye(4), atol=1e-9)


def test_the_first_moving_chunk_freezes_the_scale():
    config = EMBEDDED.replace(translation_rule="first_moving_chunk")
    still, state = cam.follow_poses(start(None), np.stack([pose()] * 2), is_first=True)
    _, state = cam.to_model_units(still, state, config, 0.0)
    assert state.scale is None
    moving, state = cam.follow_poses(state, np.stack([pose(z=2), pose(z=6)]), is_first=False)
    scaled, state = cam.to_model_units(moving, state, config, 4.0)
    assert scaled[:, 2, 3].tolist() == [0.5, 1.0]
    assert state.scale == 4
    faster, state = cam.follow_poses(state, pose(z=14)[None], is_first=False)
    scaled, state = cam.to_model_units(faster, state, config, 8.0)
    assert scaled[:, 2, 3].tolist() == [2.0]
    assert state.scale == 4


def test_the_clip_rule_takes_the_longest_step_of_the_whole_request():
    config = EMBEDDED.replace(translation_rule="clip_max")
    relative, state = cam.follow_poses(start(None), np.stack([pose(), pose(z=2)]), is_first=True)
    scaled, state = cam.to_model_units(relative, state, config, clip_step=8.0)
    assert scaled[:, 2, 3].tolist() == [0.0, 0.25]
    assert state.scale == 8


def test_jitter_sets_no_scale():
    config = EMBEDDED.replace(translation_rule="first_moving_chunk", translation_scale=1.0)
    jitter, state = cam.follow_poses(start(None), np.stack([pose(), pose(z=1e-7)]), is_first=True)
    scaled, state = cam.to_model_units(jitter, state, config, 1e-7)
    assert state.scale is None
    assert scaled[1, 2, 3] == pytest.approx(1e-7)


def test_a_step_out_of_all_measure_is_refused():
    relative, state = cam.follow_poses(start(1e-6), np.stack([pose(), pose(z=1)]), is_first=True)
    with pytest.raises(InvalidInputError, match=r"cam_to_world: a step of 1 to frame 1 of a chunk is 1e\+06 model"):
        cam.to_model_units(relative, state, EMBEDDED, 1.0)
