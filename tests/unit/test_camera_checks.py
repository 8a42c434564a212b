"""What is refused of poses, intrinsics and key presses, and which mistakes are named."""

import numpy as np
import pytest
from worldmodel.camera_checks import check_actions, check_intrinsics, checked_poses
from worldmodel.errors import InvalidInputError

HALF = np.sqrt(0.5)
TURNED = np.array([[HALF, 0, HALF], [0, 1, 0], [-HALF, 0, HALF]])  # to the right by 45 degrees


def pose(rotation=TURNED, translation=(3.0, 4.0, 5.0)):
    out = np.eye(4)
    out[:3, :3], out[:3, 3] = rotation, translation
    return out


def with_bottom(*row):
    out = pose()
    out[3] = row
    return out


def refusal(bad):
    """The message about a bad pose that stands between good ones, from where it speaks of the pose."""
    with pytest.raises(InvalidInputError) as caught:
        checked_poses(np.stack([pose(), bad, pose()]))
    head, _, rest = str(caught.value).partition("frame 1")
    assert head == "cam_to_world: "
    return rest


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_a_number_that_is_not_finite_is_refused_with_its_place(value):
    bad = pose()
    bad[2, 3] = value
    assert refusal(bad) == f" has a number that is not finite: {value} in row 2, column 3"


@pytest.mark.parametrize(
    ("bad", "says"),
    [
        (with_bottom(0, 0, 0, 0.9), ": wanted the bottom row 0 0 0 1, got 0 0 0 0.9"),
        (with_bottom(0, 0, 0, 0), ": wanted the bottom row 0 0 0 1, got 0 0 0 0"),
        (with_bottom(1, 2, 3, 1), ": wanted the bottom row 0 0 0 1, got 1 2 3 1"),
        (
            pose().T,
            ": wanted the bottom row 0 0 0 1, got 3 4 5 1; the matrix looks transposed, with its translation in the "
            "bottom row",
        ),
        (
            2.5 * pose(),
            ": wanted the bottom row 0 0 0 1, got 0 0 0 2.5; the matrix looks scaled as a whole by 2.5",
        ),
        (
            np.array([[1.5, 0, 0, 0], [0, 2, 0, 0], [0, 0, -1.01, -0.2], [0, 0, -1, 0]]),
            ": wanted the bottom row 0 0 0 1, got 0 0 -1 0; the matrix looks like a projection, not a pose",
        ),
    ],
)
def test_a_bad_bottom_row_is_refused(bad, says):
    assert refusal(bad) == says


@pytest.mark.parametrize(
    ("rotation", "says"),
    [
        (1.01 * TURNED, "it looks scaled by 1.01"),
        (-2 * TURNED, "it looks scaled by 2 and mirrored"),
        (TURNED * (1, 2, 3), "its axes look scaled by 1 2 3"),
        (np.diag((1, 2, 3)) @ TURNED, "its rows look scaled by 1 2 3"),
        (np.zeros((3, 3)), "it is all zeros"),
        ([[500, 0, 320], [0, 510, 240], [0, 0, 1]], "it looks like intrinsics"),
    ],
)
def test_a_matrix_that_is_no_rotation_is_refused_with_what_its_numbers_show(rotation, says):
    message = refusal(pose(rotation))
    assert message.startswith(" is not a rotation (R R^T is ")
    assert message.endswith(f"): wanted orthonormal within 0.001; {says}")


@pytest.mark.parametrize(
    "rotation",
    [
        [[1, 0, 0], [0, 1, 0], [1, 0, 0]],  # two axes are one
        [[1, 0.1, 0], [0, 1, 0], [0, 0, 1]],  # sheared
        [[0.7, 0, 0.71], [0, 1, 0], [-0.71, 0, 0.7]],  # printed with too few digits
        [[1, 0, 0], [0, 1, 0], [0, 0, 0]],
        np.random.default_rng(0).normal(size=(3, 3)),
    ],
)
def test_no_mistake_is_named_where_the_numbers_show_none(rotation):
    assert refusal(pose(rotation)).endswith("): wanted orthonormal within 0.001")


@pytest.mark.parametrize("flip", [(-1, 1, 1), (1, -1, 1), (1, 1, -1), (-1, -1, -1)])
def test_a_mirrored_axis_is_told_from_the_determinant(flip):
    message = refusal(pose(TURNED * flip))
    assert message.startswith(" is not a rotation (det = -1.000): an axis is mirrored")
    assert "wanted OpenCV axes, x right, y down, z forward" in message


def test_opengl_axes_and_world_to_camera_cannot_be_told_and_pass():
    path = np.stack([pose(translation=(0, 0, step)) for step in range(4)])
    for wrong in (path @ np.diag([1.0, -1, -1, 1]), np.linalg.inv(path)):
        np.testing.assert_allclose(checked_poses(wrong), wrong, atol=1e-15)


def test_the_first_bad_frame_is_named():
    with pytest.raises(InvalidInputError, match="cam_to_world: frame 2 "):
        checked_poses(np.stack([pose(), pose(), pose(2 * TURNED), pose(3 * TURNED)]))


@pytest.mark.parametrize("size", [1e30, 1e-30])
def test_numbers_out_of_all_measure_are_refused_without_a_warning(size):
    assert "is not a rotation" in refusal(pose(size * TURNED))
    checked_poses(pose(translation=(size, -size, 0))[None])


def test_float32_and_printed_matrices_pass_and_become_the_nearest_rotation():
    generator = np.random.default_rng(1)
    turned = np.linalg.qr(generator.normal(size=(50, 3, 3)))[0]
    turned *= np.sign(np.linalg.det(turned))[:, None, None]
    printed = np.tile(np.eye(4), (50, 1, 1))
    printed[:, :3, :3] = np.round(turned, 4) * (1 + 1e-4)
    printed[:, :3, 3] = generator.normal(size=(50, 3))
    printed[:, 3] += generator.uniform(-9e-4, 9e-4, (50, 4))

    poses = checked_poses(printed)

    left, _, right = np.linalg.svd(printed[:, :3, :3])
    np.testing.assert_allclose(poses[:, :3, :3], left @ right, atol=1e-14)
    np.testing.assert_array_equal(poses[:, :3, 3], printed[:, :3, 3])
    np.testing.assert_array_equal(poses[:, 3], np.tile([0, 0, 0, 1], (50, 1)))


def test_an_exact_pose_stays_as_it_is():
    quarter = pose([[0, 0, 1], [0, 1, 0], [-1, 0, 0]])[None]
    np.testing.assert_array_equal(checked_poses(quarter), quarter)


@pytest.mark.parametrize(
    ("row", "says"),
    [
        ((0, 3, 1, 1), "intrinsics: row 1: wanted positive focal lengths fx, fy, got 0, 3"),
        ((500, -500, 320, 240), "intrinsics: row 1: wanted positive focal lengths fx, fy, got 500, -500"),
        ((500, 500, np.inf, 240), "intrinsics: row 1 has a number that is not finite: cx"),
        ((np.nan, 500, 320, 240), "intrinsics: row 1 has a number that is not finite: fx"),
        (
            (0.8, 1.2, 0.5, 0.5),
            "intrinsics: row 1: wanted fx, fy, cx, cy in pixels of the sent picture, got 0.8 1.2 0.5 0.5; "
            "they look normalised to the picture's size",
        ),
    ],
)
def test_what_are_no_intrinsics_in_pixels_is_refused_with_its_row(row, says):
    with pytest.raises(InvalidInputError) as caught:
        check_intrinsics(np.array([(500.0, 500, 320, 240), row]))
    assert str(caught.value) == says


def test_a_principal_point_may_lie_anywhere_and_a_picture_may_be_small():
    check_intrinsics(np.array([(500.0, 500, -5000, 9000), (3, 3, 4, 4), (1, 1, -5, 0), (5, 5, 0, 0)]))


@pytest.mark.parametrize(
    ("actions", "says"),
    [
        (["w", "", "wx"], "frame 2: key 'x' is unknown; wanted w a s d to move, i j k l to look"),
        (
            ["W"],
            "frame 0: key 'W' is unknown; wanted w a s d to move, i j k l to look; keys are lower case: w",
        ),
        (
            ["w", "w l"],
            "frame 1: key ' ' is unknown; wanted w a s d to move, i j k l to look; "
            "keys held together are written without a space",
        ),
        (["w\n"], "frame 0: key '\\n' is unknown; wanted w a s d to move, i j k l to look; keys held together"),
        (["."], "frame 0: key '.' is unknown"),
        (["\u00fc"], "frame 0: key '\\xfc' is unknown"),
        (["\0"], "frame 0: key '\\x00' is unknown"),
        (["ww"], "frame 0: key 'w' comes twice; wanted one entry a latent frame"),
        (["w", "wlw"], "frame 1: key 'w' comes twice; wanted one entry a latent frame"),
    ],
)
def test_an_entry_that_cannot_be_meant_is_refused_with_its_frame_and_key(actions, says):
    with pytest.raises(InvalidInputError) as caught:
        check_actions(actions)
    assert str(caught.value).startswith(f"actions: {says}")


def test_all_keys_at_once_in_any_order_are_an_entry():
    check_actions(["wasdijkl", "lkjidsaw", ""])
