"""The courtyard's renderer against hand-worked projections and a slow, finely sampled reference."""

import math

import numpy as np
import pytest
import torch

from model_repository.denoise.training.courtyard import scene
from model_repository.denoise.training.courtyard.paths import Stance, pose
from model_repository.denoise.training.courtyard.renderer import default_intrinsics, render

HEIGHT, WIDTH = 96, 160
FOCAL = 80 / math.tan(math.radians(39.5))  # 79 degrees across 160 px


def _picture(stance, variant="day", height=HEIGHT, width=WIDTH, **options):
    cam_to_world = torch.from_numpy(pose(stance))[None]
    return render(cam_to_world, default_intrinsics(1, height, width), height, width, variant, **options)[0].float()


def _ball_extent(row):
    """Left and right edge of the golden ball in a row of pixels [n, 3]."""
    golden = _is_golden(row).nonzero().squeeze(1)
    return int(golden.min()), int(golden.max()) + 1


def _is_golden(pixels):
    red, green, blue = pixels.unbind(-1)
    return (red - blue > 60) & (red > 1.1 * green)


def test_the_default_field_of_view_is_79_degrees():
    fx, fy, cx, cy = default_intrinsics(1, HEIGHT, WIDTH)[0].tolist()

    assert math.degrees(2 * math.atan(80 / fx)) == pytest.approx(79.0)
    assert (fx, cx, cy) == (fy, 80.0, 48.0)


def test_the_golden_ball_is_where_a_hand_worked_projection_puts_it():
    # Eye 1.4 m high and 3 m before the ball, whose centre is 1.2 m high: 0.2 m below the axis.
    picture = _picture(Stance(0, -3, 0))
    row = round(48 + FOCAL * 0.2 / 3)

    left, right = _ball_extent(picture[row, 55:105])

    half_width_px = FOCAL * 0.5 / math.sqrt(3**2 + 0.2**2 - 0.5**2)
    assert left + 55 == pytest.approx(80 - half_width_px, abs=1)
    assert right + 55 == pytest.approx(80 + half_width_px, abs=1)


def test_a_wall_meets_the_floor_at_the_row_that_its_distance_gives():
    # Looking south from 3 m before the red wall: its foot is 1.4 m below the eye.
    column = _picture(Stance(0, -1.5, 180))[:, 80]

    is_wall = column[:, 1] < 90  # the wall is dark red, the floor sandy

    foot = 48 + FOCAL * 1.4 / 3
    assert is_wall[50 : math.floor(foot)].all()
    assert not is_wall[math.ceil(foot) :].any()


def test_turning_right_moves_things_left_and_walking_makes_them_grow():
    ahead, turned, nearer = (_picture(s)[50] for s in (Stance(0, -3, 0), Stance(0, -3, 6), Stance(0, -2.5, 0)))

    left, right = _ball_extent(ahead[55:105])
    turned_left, _ = _ball_extent(turned[45:95])
    near_left, near_right = _ball_extent(nearer[50:110])

    assert turned_left + 45 == pytest.approx(left + 55 - FOCAL * math.tan(math.radians(6)), abs=2)
    assert near_right - near_left > 1.15 * (right - left)


def test_looking_up_moves_things_down():
    level, up = _picture(Stance(0, -3, 0)), _picture(Stance(0, -3, 0, pitch_deg=8))

    shift_px = round(FOCAL * math.tan(math.radians(8)))
    # The ball's top, seen against the green wall, is the highest golden pixel of the middle column.
    tops = [int(_is_golden(p[:, 80]).nonzero()[0]) for p in (level, up)]
    assert tops[1] - tops[0] == pytest.approx(shift_px, abs=2)


def test_a_pillar_hides_the_ball_behind_it():
    pillar = scene.PILLARS[0]
    length = math.hypot(pillar.x, pillar.z)
    stance = Stance(pillar.x * (1 + 0.9 / length), pillar.z * (1 + 0.9 / length), math.degrees(math.atan2(2.7, 2.2)))

    middle = _picture(stance)[48, 80]

    assert middle[0] - middle[2] < 100  # white or brick, not golden


@pytest.mark.parametrize("stance", [Stance(0, -3, 20), Stance(-2.3, 2.5, 5), Stance(2.3, 7.6, 170), Stance(0, 3, 180)])
def test_pictures_agree_with_eight_by_eight_rays_a_pixel(stance):
    fine = _picture(stance, height=8 * HEIGHT, width=8 * WIDTH, edge_samples=1)
    reference = fine.view(HEIGHT, 8, WIDTH, 8, 3).mean((1, 3))

    error = (_picture(stance) - reference).abs()

    # Rounding to 8 bits alone gives a mean of 0.25; nine rays at an edge leave at most a tenth of its contrast.
    assert error.mean() < 0.7
    assert 10 * math.log10(255**2 / error.square().mean()) > 38


def test_an_edge_moves_by_parts_of_a_pixel():
    cam_to_world = torch.from_numpy(pose(Stance(0, -3, 0)))[None]
    sums = []
    for shift_px in (0.0, 1 / 3, 2 / 3, 1.0):
        intrinsics = default_intrinsics(1, HEIGHT, WIDTH) + torch.tensor([0, 0, shift_px, 0])
        row = render(cam_to_world, intrinsics, HEIGHT, WIDTH)[0, 75, 50:68, 2].float()  # the pedestal's left edge
        sums.append(float(row.sum()))

    steps = np.diff(sums)

    assert steps == pytest.approx(np.full(3, steps.mean()), rel=0.25)
    assert abs(sums[3] - sums[0]) > 20


def test_a_frame_is_the_same_alone_and_among_others():
    poses = torch.stack([torch.from_numpy(pose(Stance(0.1 * i, -3, 40 * i))) for i in range(3)])
    intrinsics = default_intrinsics(3, 48, 80)

    together = render(poses, intrinsics, 48, 80, ["day", "night", "snow"])

    assert torch.equal(together[1], render(poses[1:2], intrinsics[:1], 48, 80, "night")[0])
    assert torch.equal(together, render(poses, intrinsics, 48, 80, ["day", "night", "snow"]))


def test_each_look_has_the_colour_that_its_name_says():
    poses = torch.stack([torch.from_numpy(pose(Stance(0, -1.5, yaw))) for yaw in range(0, 360, 45)])
    mean = {
        name: render(poses, default_intrinsics(1, 48, 80), 48, 80, name).float().mean((0, 1, 2))
        for name in scene.VARIANTS
    }

    assert mean["night"].mean() < 0.6 * mean["day"].mean()
    assert mean["snow"].mean() > mean["day"].mean() + 10
    assert mean["dusk"][0] - mean["dusk"][2] > mean["day"][0] - mean["day"][2] + 30
    assert mean["snow"][2] - mean["snow"][0] > mean["day"][2] - mean["day"][0] + 30


def test_wrong_input_is_named():
    poses, intrinsics = torch.eye(4)[None], default_intrinsics(1, 48, 80)

    with pytest.raises(ValueError, match=r"cam_to_world: wanted \[T, 4, 4\], got \[1, 3, 4\]"):
        render(poses[:, :3], intrinsics, 48, 80)
    with pytest.raises(ValueError, match=r"intrinsics: wanted \[1, 4\] or \[1, 4\], got \[2, 4\]"):
        render(poses, intrinsics.repeat(2, 1), 48, 80)
    with pytest.raises(ValueError, match="unknown \\['fog'\\]"):
        render(poses, intrinsics, 48, 80, "fog")
