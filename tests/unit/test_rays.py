import dataclasses

import numpy as np
import pytest
import torch
from worldmodel import camera as cam
from worldmodel.config import EMBEDDED
from worldmodel.rays import camera_input, camera_latent, ray_map

from tests.unit.poses import pose

CPU = torch.device("cpu")


def any_cameras(count):
    """Poses and lenses that have nothing in common."""
    rng = np.random.default_rng(0)
    poses = np.tile(np.eye(4), (count, 1, 1))
    poses[:, :3, :3] = np.linalg.qr(rng.normal(size=(count, 3, 3)))[0]
    poses[:, :3, 3] = rng.normal(size=(count, 3))
    return poses, rng.uniform(2, 5, (count, 4))


def test_the_middle_ray_points_ahead_and_the_corner_ray_as_worked_by_hand():
    # 2 x 2 pixels, focal length 0.5, centre (1, 1): the first pixel's middle is half a pixel left of and above it.
    rays = ray_map(np.eye(4)[None], np.array([[0.5, 0.5, 1.0, 1.0]]), 2, 2, CPU)
    root = np.sqrt(3)
    np.testing.assert_allclose(rays[0, 0, 0], [0, 0, 0, -1 / root, -1 / root, 1 / root], atol=1e-6)
    np.testing.assert_allclose(rays[0, 1, 1], [0, 0, 0, 1 / root, 1 / root, 1 / root], atol=1e-6)


def test_rays_carry_the_step_as_origin_and_turn_with_the_camera():
    moved = pose(x=1, z=3, yaw_deg=90)
    rays = ray_map(moved[None], np.array([[4.0, 4.0, 0.5, 0.5]]), 1, 1, CPU)
    np.testing.assert_allclose(rays[0, 0, 0], [1, 0, 3, 1, 0, 0], atol=1e-6)


def test_each_ray_is_its_own_camera_s():
    poses, lenses = any_cameras(3)
    rays = ray_map(poses, lenses, 4, 5, CPU)
    for frame, row, column in np.ndindex(3, 4, 5):
        fx, fy, cx, cy = lenses[frame]
        ahead = np.array([(column + 0.5 - cx) / fx, (row + 0.5 - cy) / fy, 1])
        ray = poses[frame, :3, :3] @ ahead / np.linalg.norm(ahead)
        np.testing.assert_allclose(rays[frame, row, column], [*poses[frame, :3, 3], *ray], atol=1e-6)


def test_cameras_are_told_in_the_one_before_and_where_it_is_wanted_in_the_first_one():
    config = EMBEDDED.replace(start_ray_scale=2.0)
    path = np.stack([pose(), pose(z=1), pose(z=1, yaw_deg=90), pose(x=1, z=1, yaw_deg=90)])
    lens = cam.default_intrinsics(96, 160, 90.0)
    views = cam.Views(cam.relative_to_previous(path, path[0]), path, np.tile(lens, (4, 1)))
    told = camera_input(views, config, CPU)
    without = dataclasses.replace(config.transformer, has_start_rays=False)
    alone = camera_input(views, config.replace(transformer=without), CPU)

    rays = told.reshape(2, 6, 64, 4, 12, 20).numpy()
    assert alone.shape == (384, 4, 12, 20)
    assert torch.equal(told[:384], alone)
    assert rays[:, :3, 0, :, 0, 0].round(6).tolist() == [
        [[0, 0, 0, 0], [0, 0, 0, 0], [0, 1, 0, 1]],  # a step ahead each time, seen from the camera that takes it
        [[0, 0, 0, 0.5], [0, 0, 0, 0], [0, 0.5, 0.5, 0.5]],  # halved by the scale
    ]
    turned = rays[1, 3:, :, 2]  # x is what was ahead
    np.testing.assert_allclose(turned, np.stack([rays[1, 5, :, 0], rays[1, 4, :, 0], -rays[1, 3, :, 0]]), atol=1e-6)


def test_camera_channels_are_ordered_ray_channel_then_row_then_column():
    rays = torch.arange(16 * 24 * 6, dtype=torch.float32).reshape(1, 16, 24, 6)
    latent = camera_latent(rays)
    assert latent.shape == (384, 1, 2, 3)
    for channel, row, column in ((0, 0, 0), (5, 7, 7), (2, 3, 4)):
        assert latent[channel * 64 + row * 8 + column, 0, 1, 2] == rays[0, 8 + row, 16 + column, channel]


@pytest.mark.gpu
def test_a_gpu_makes_the_same_rays_bit_for_bit():
    poses, lenses = any_cameras(4)
    lenses *= 100
    on_host = ray_map(poses, lenses, 96, 160, CPU)
    assert torch.equal(ray_map(poses, lenses, 96, 160, torch.device("cuda")).cpu(), on_host)
