"""Poses of other programs become the server's.

Each program's own camera is written down by hand: where it stands, where its axes point in its own world. What it
should see is worked out from those axes and a point of that world alone, never from the converter.
"""

import numpy as np
import pytest
from worldmodel.camera import relative_to_previous
from worldstream import InvalidInputError, conventions, paths
from worldstream.conventions import to_opencv


def written(columns, position):
    """A camera-to-world matrix [4, 4] from where the camera's own x, y and z point."""
    matrix = np.eye(4)
    matrix[:3, :3], matrix[:3, 3] = np.transpose(columns), position
    return matrix


# One camera everywhere: it stands, walks 2 ahead, and turns right by 90 degrees on the spot.
OPENCV = np.stack(
    [  # x right, y down, z forward, in a world with the same axes
        written([(1, 0, 0), (0, 1, 0), (0, 0, 1)], (0, 0, 0)),
        written([(1, 0, 0), (0, 1, 0), (0, 0, 1)], (0, 0, 2)),
        written([(0, 0, -1), (0, 1, 0), (1, 0, 0)], (0, 0, 2)),
    ]
)
OPENGL = np.stack(
    [  # x right, y up, looks along its -z, in a y-up world; ahead is world -z, right is world +x
        written([(1, 0, 0), (0, 1, 0), (0, 0, 1)], (0, 0, 0)),
        written([(1, 0, 0), (0, 1, 0), (0, 0, 1)], (0, 0, -2)),
        written([(0, 0, 1), (0, 1, 0), (-1, 0, 0)], (0, 0, -2)),  # looks along +x; its right is +z
    ]
)
BLENDER = np.stack(
    [  # the same camera axes in a z-up world; ahead is world +y, right is world +x
        written([(1, 0, 0), (0, 0, 1), (0, -1, 0)], (5, 7, 1)),
        written([(1, 0, 0), (0, 0, 1), (0, -1, 0)], (5, 9, 1)),
        written([(0, -1, 0), (0, 0, 1), (-1, 0, 0)], (5, 9, 1)),  # looks along +x; its right is -y
    ]
)
UNREAL = np.stack(
    [  # x forward, y right, z up in a left-handed z-up world, in centimetres; ahead is world +x, right is +y
        written([(1, 0, 0), (0, 1, 0), (0, 0, 1)], (300, 0, 160)),
        written([(1, 0, 0), (0, 1, 0), (0, 0, 1)], (500, 0, 160)),
        written([(0, 1, 0), (-1, 0, 0), (0, 0, 1)], (500, 0, 160)),  # yaw 90: looks along +y; its right is -x
    ]
)
# World to camera: the identity; a world that has come 2 nearer; and one that has turned left, then lies 2 to the right
# of the camera. The last quaternion is a turn by -90 degrees about y, w first.
COLMAP_Q = [(1, 0, 0, 0), (2, 0, 0, 0), (np.sqrt(0.5), 0, -np.sqrt(0.5), 0)]
COLMAP_T = [(0, 0, 0), (0, 0, -2), (2, 0, 0)]
COLMAP = conventions.matrices_from_quaternions(COLMAP_Q, COLMAP_T)

ALL = [
    ("opencv", OPENCV),
    ("opengl", OPENGL),
    ("nerf", OPENGL),
    ("blender", BLENDER),
    ("unreal", UNREAL),
    ("colmap", COLMAP),
]


def steps(poses):
    return relative_to_previous(poses, poses[0])


@pytest.mark.parametrize(("convention", "poses"), ALL)
def test_one_camera_moves_alike_in_every_convention(convention, poses):
    moved = steps(to_opencv(poses, convention))
    np.testing.assert_allclose(moved[0], np.eye(4), atol=1e-12)
    np.testing.assert_allclose(moved[1], written(np.eye(3), (0, 0, 2)), atol=1e-12)  # ahead
    # A right turn: the new forward is the old right, and the new right the old backwards.
    np.testing.assert_allclose(moved[2], written([(0, 0, -1), (0, 1, 0), (1, 0, 0)], (0, 0, 0)), atol=1e-12)


def pixel_by_hand(position, right, down, ahead, point):
    """Where a camera with these axes sees a point: focal length 100, centre (80, 48)."""
    offset = np.subtract(point, position)
    return 80 + 100 * (offset @ right) / (offset @ ahead), 48 + 100 * (offset @ down) / (offset @ ahead)


def pixel_by_pose(cam_to_world, point):
    x, y, z = np.linalg.solve(cam_to_world, [*point, 1])[:3]
    return 80 + 100 * x / z, 48 + 100 * y / z


@pytest.mark.parametrize(("convention", "sign"), [("opencv", 1), ("opengl", -1), ("blender", -1), ("nerf", -1)])
def test_a_point_of_a_right_handed_world_falls_on_the_same_pixel(convention, sign):
    generator = np.random.default_rng(0)
    for _ in range(20):
        rotation = np.linalg.qr(generator.normal(size=(3, 3)))[0]
        rotation *= np.sign(np.linalg.det(rotation))
        pose = written(rotation.T, generator.normal(size=3))
        axes = rotation[:, 0], sign * rotation[:, 1], sign * rotation[:, 2]  # right, down, ahead
        point = pose[:3, 3] + axes[2] * 5 + generator.normal(size=3)
        wanted = pixel_by_hand(pose[:3, 3], *axes, point)
        np.testing.assert_allclose(pixel_by_pose(to_opencv(pose, convention)[0], point), wanted, rtol=1e-9)


def test_a_point_of_unreals_world_falls_on_the_same_pixel():
    generator = np.random.default_rng(1)
    for _ in range(20):
        rotation = np.linalg.qr(generator.normal(size=(3, 3)))[0]
        rotation *= np.sign(np.linalg.det(rotation))
        pose = written(rotation.T, 300 * generator.normal(size=3))
        ahead, right, up = rotation.T
        point = pose[:3, 3] + 500 * ahead + 100 * generator.normal(size=3)
        wanted = pixel_by_hand(pose[:3, 3], right, -up, ahead, point)
        # The same point in the mirrored world: right, down, ahead of Unreal's origin, in metres.
        mirrored = np.array([point[1], -point[2], point[0]]) / 100
        np.testing.assert_allclose(pixel_by_pose(to_opencv(pose, "unreal")[0], mirrored), wanted, rtol=1e-9)


def test_a_point_falls_where_colmaps_own_formula_puts_it():
    # COLMAP: x = R(q) X + t, by Hamilton's product q X q* and not by a matrix.
    q, t, point = np.array([0.9, 0.1, -0.3, 0.2]), np.array([0.3, -0.2, 4.0]), np.array([0.5, 0.4, 1.0])
    w, v = q[0] / np.linalg.norm(q), q[1:] / np.linalg.norm(q)
    x, y, z = point + 2 * np.cross(v, np.cross(v, point) + w * point) + t
    pose = to_opencv(conventions.matrices_from_quaternions(q, t), "colmap")[0]
    np.testing.assert_allclose(pixel_by_pose(pose, point), (80 + 100 * x / z, 48 + 100 * y / z), rtol=1e-12)


@pytest.mark.parametrize(("convention", "poses"), [each for each in ALL if each[0] != "colmap"])
def test_the_axes_of_the_world_make_no_difference_to_how_the_camera_moves(convention, poses):
    generator = np.random.default_rng(2)
    turned = np.linalg.qr(generator.normal(size=(3, 3)))[0]
    elsewhere = written(turned * np.sign(np.linalg.det(turned)), (10, -20, 30))
    here, there = to_opencv(poses, convention), to_opencv(elsewhere @ poses, convention)
    np.testing.assert_allclose(steps(there), steps(here), atol=1e-12)


@pytest.mark.parametrize("convention", conventions.CONVENTIONS)
def test_world_to_camera_is_the_inverse_in_every_convention(convention):
    poses = BLENDER
    np.testing.assert_allclose(
        to_opencv(np.linalg.inv(poses), convention, is_world_to_camera=True),
        to_opencv(poses, convention, is_world_to_camera=False),
        atol=1e-12,
    )


def test_the_input_stays_as_it_is_and_one_pose_is_enough():
    poses = UNREAL.copy()
    assert to_opencv(poses[1], "unreal").shape == (1, 4, 4)
    to_opencv(poses, "opencv")[:] = 0
    np.testing.assert_array_equal(poses, UNREAL)


def test_a_path_seen_from_its_first_camera_keeps_small_steps_in_float32():
    far = OPENCV.copy()
    far[:, :3, 3] = far[:, :3, 3] / 1000 + 4e6
    near = conventions.seen_from_first(far).astype(np.float32)
    np.testing.assert_allclose(near[0], np.eye(4), atol=1e-12)
    np.testing.assert_allclose(near[1, :3, 3], (0, 0, 0.002), atol=1e-9)  # float64 holds 4e6 to 5e-10
    assert far.astype(np.float32)[1, 2, 3] == far.astype(np.float32)[0, 2, 3]


def test_a_walk_that_goes_backwards_all_the_way_is_worth_a_look():
    walk = paths.walk(6, step=0.5, turn_deg=3).astype(np.float64)
    assert conventions.advice(walk) == ""
    assert "backwards" in conventions.advice(walk @ np.diag([1.0, -1, -1, 1]))
    assert "backwards" in conventions.advice(np.linalg.inv(walk))
    assert conventions.advice(paths.stand(6).astype(np.float64)) == ""
    assert conventions.advice(paths.pan(6, 5).astype(np.float64)) == ""
    assert conventions.advice(paths.orbit(6, 2, 5).astype(np.float64)) == ""
    assert conventions.advice(OPENCV[:1]) == ""


def test_quaternions_that_are_no_numbers_are_refused_by_name():
    with pytest.raises(InvalidInputError, match=r"^qvec: wanted an array of numbers, got \['north', .*\]$"):
        conventions.matrices_from_quaternions(["north"] * 4, [0, 0, 0])
    with pytest.raises(InvalidInputError, match=r"^tvec: wanted an array of numbers, got one that is too large$"):
        conventions.matrices_from_quaternions([1, 0, 0, 0], [10**400, 0, 0])


@pytest.mark.parametrize(
    ("poses", "says"),
    [
        (np.eye(3), r"poses: wanted \[N, 4, 4\] or \[4, 4\], got \[3, 3\]"),
        (np.zeros((0, 4, 4)), r"poses: wanted \[N, 4, 4\] or \[4, 4\], got \[0, 4, 4\]"),
        ("north", "poses: wanted an array of numbers, got 'north'$"),
        ([[10**400] * 4] * 4, "poses: wanted an array of numbers, got one that is too large$"),
        (np.stack([np.eye(4), np.full((4, 4), np.nan)]), "pose 1 holds a number that is not finite"),
        (
            np.stack([np.eye(4), np.diag([2.0, 2, 2, 1])]),
            "pose 1: wanted a rotation .* got det = 8 and 0 0 0 1$",
        ),
        (np.diag([1.0, 1, -1, 1]), "pose 0: wanted a rotation .* got det = -1 and 0 0 0 1$"),
        (UNREAL[1].T, "got det = 1 and 500 0 160 1; it looks transposed, with its translation in the bottom row"),
    ],
)
def test_what_are_no_poses_is_refused(poses, says):
    with pytest.raises(InvalidInputError, match=says):
        to_opencv(poses, "unreal")


def test_an_unknown_convention_is_refused():
    with pytest.raises(
        InvalidInputError, match="convention: wanted one of opencv, opengl, nerf, blender, unreal, colmap, got 'maya'"
    ):
        to_opencv(OPENCV, "maya")


@pytest.mark.parametrize(
    ("qvec", "tvec", "says"),
    [
        ((1, 0, 0), (0, 0, 0), r"qvec, tvec: wanted \[N, 4\] and \[N, 3\], got \[1, 3\] and \[1, 3\]"),
        (COLMAP_Q, COLMAP_T[:2], r"wanted \[N, 4\] and \[N, 3\], got \[3, 4\] and \[2, 3\]"),
        ((0, 0, 0, 0), (0, 0, 0), "row 0: wanted finite numbers and a quaternion that is not 0"),
        ((1, 0, 0, 0), (0, np.nan, 0), "row 0: wanted finite numbers"),
    ],
)
def test_what_are_no_quaternions_is_refused(qvec, tvec, says):
    with pytest.raises(InvalidInputError, match=says):
        conventions.matrices_from_quaternions(qvec, tvec)


IMAGES = """# Image list with two lines of data per image:
#   IMAGE_ID, QW, QX, QY, QZ, TX, TY, TZ, CAMERA_ID, NAME
#   POINTS2D[] as (X, Y, POINT3D_ID)
2 1 0 0 0 0 0 -2 1 b 2.png

1 2 0 0 0 0 0 0 1 a.png
10.5 20.5 -1 11 12 7
3 0.70710678118654752 0 -0.70710678118654752 0 2 0 0 1 c.png

"""


def test_colmaps_images_are_read_in_the_order_of_their_names(tmp_path):
    (tmp_path / "images.txt").write_text(IMAGES)

    matrices, names = conventions.read_colmap_images(tmp_path / "images.txt")

    assert names == ["a.png", "b 2.png", "c.png"]
    np.testing.assert_allclose(steps(to_opencv(matrices, "colmap")), steps(OPENCV), atol=1e-12)
    np.testing.assert_allclose(
        paths.load_poses(tmp_path / "images.txt", convention="colmap"), to_opencv(matrices, "colmap")
    )


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "images.txt: wanted COLMAP's images.txt, it names no picture"),
        ("# only words\n", "it names no picture"),
        ("1 1 0 0 0 0 0 0 1\n\n", "images.txt: line 1: wanted IMAGE_ID QW QX"),
        ("# a\n1 1 0 0 zero 0 0 0 1 a.png\n\n", "images.txt: line 2: wanted IMAGE_ID QW QX"),
        ("1 1 0 0 0 0 0 0 1 a.png\n2 1 0 0 0 0 0 0 1 b.png\n", "images.txt: line 2: wanted a picture's points"),
        ("1 0 0 0 0 0 0 0 1 a.png\n\n", "images.txt: qvec, tvec: row 0: wanted finite numbers and a quaternion"),
    ],
)
def test_a_file_that_is_not_colmaps_is_refused_with_its_line(tmp_path, text, says):
    (tmp_path / "images.txt").write_text(text)
    with pytest.raises(InvalidInputError, match=says):
        conventions.read_colmap_images(tmp_path / "images.txt")


def test_a_file_that_is_no_text_or_not_there_is_refused_by_name(tmp_path):
    (tmp_path / "images.bin").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(InvalidInputError, match=r"^images.bin: wanted COLMAP's images.txt, a text file$"):
        conventions.read_colmap_images(tmp_path / "images.bin")
    with pytest.raises(InvalidInputError, match=r"^images.txt: cannot read it: No such file or directory$"):
        conventions.read_colmap_images(tmp_path / "images.txt")


def test_a_file_of_matrices_is_converted_and_its_bad_pose_is_named(tmp_path):
    np.save(tmp_path / "poses.npy", UNREAL.astype(np.float32))
    moved = steps(paths.load_poses(tmp_path / "poses.npy", convention="unreal"))
    np.testing.assert_allclose(moved, steps(OPENCV), atol=1e-6)
    np.save(tmp_path / "poses.npy", np.stack([UNREAL[0], UNREAL[1].T]))
    with pytest.raises(InvalidInputError, match=r"^poses.npy: pose 1: wanted a rotation .* it looks transposed"):
        paths.load_poses(tmp_path / "poses.npy", convention="unreal")
