"""Camera paths, intrinsics and key presses against values worked out by hand."""

import numpy as np
import pytest
from worldstream import InvalidInputError, paths
from worldstream.chunks import num_frames
from worldstream.plan import chunks_that_fit, plan_film
from worldstream.steering import Steering, parse_scale

# cos and sin of these angles are whole up to float32 rounding.
TOLERANCE = 1e-6


def position(pose):
    return pose[:3, 3]


def looks(pose):
    """The direction in which a camera looks: its z axis in the world."""
    return pose[:3, 2]


def test_standing_is_the_identity_every_time():
    np.testing.assert_array_equal(paths.stand(2), np.stack([np.eye(4), np.eye(4)]))
    assert paths.stand(2).dtype == np.float32


def test_walking_straight_goes_along_z():
    path = paths.walk(3, step=0.5)

    np.testing.assert_allclose(path[:, :3, 3], [[0, 0, 0], [0, 0, 0.5], [0, 0, 1]], atol=TOLERANCE)
    np.testing.assert_array_equal(path[:, :3, :3], np.tile(np.eye(3), (3, 1, 1)))


def test_walking_with_right_turns_walks_a_square():
    path = paths.walk(5, step=2, turn_deg=90)

    wanted = [[0, 0, 0], [0, 0, 2], [2, 0, 2], [2, 0, 0], [0, 0, 0]]
    np.testing.assert_allclose(path[:, :3, 3], wanted, atol=TOLERANCE)
    np.testing.assert_allclose(looks(path[1]), [1, 0, 0], atol=TOLERANCE)
    np.testing.assert_allclose(looks(path[2]), [0, 0, -1], atol=TOLERANCE)


def test_panning_turns_right_without_moving():
    path = paths.pan(4, deg_per_frame=90)

    np.testing.assert_allclose(path[:, :3, 2], [[0, 0, 1], [1, 0, 0], [0, 0, -1], [-1, 0, 0]], atol=TOLERANCE)
    np.testing.assert_allclose(path[:, :3, 1], np.tile([0, 1, 0], (4, 1)), atol=TOLERANCE)
    np.testing.assert_array_equal(path[:, :3, 3], np.zeros((4, 3)))


def test_positive_pitch_looks_up_which_is_minus_y():
    path = paths.pan(2, deg_per_frame=0, pitch_deg_per_frame=90)

    np.testing.assert_allclose(looks(path[1]), [0, -1, 0], atol=TOLERANCE)


def test_pitch_is_about_the_turned_cameras_own_right():
    path = paths.pan(2, deg_per_frame=90, pitch_deg_per_frame=30)

    np.testing.assert_allclose(path[1][:3, 0], [0, 0, -1], atol=TOLERANCE)  # right of a camera that faces x
    np.testing.assert_allclose(looks(path[1]), [np.sqrt(3) / 2, -0.5, 0], atol=TOLERANCE)


def test_an_orbit_keeps_its_distance_and_faces_the_centre():
    path = paths.orbit(4, radius=2, deg_per_frame=90)

    np.testing.assert_allclose(path[:, :3, 3], [[0, 0, 0], [-2, 0, 2], [0, 0, 4], [2, 0, 2]], atol=TOLERANCE)
    for pose in path:
        np.testing.assert_allclose(position(pose) + 2 * looks(pose), [0, 0, 2], atol=TOLERANCE)


@pytest.mark.parametrize("make", [paths.stand, paths.walk])
def test_a_path_has_at_least_one_pose(make):
    with pytest.raises(InvalidInputError, match="wanted 1 or more latent frames, got 0"):
        make(0)


def test_poses_of_frames_give_every_fourth(tmp_path):
    poses = np.tile(np.eye(4), (9, 1, 1))
    poses[:, 0, 3] = np.arange(9)
    np.save(tmp_path / "poses.npy", poses)

    assert paths.load_poses(tmp_path / "poses.npy", rate="frame")[:, 0, 3].tolist() == [0, 4, 8]
    assert paths.load_poses(tmp_path / "poses.npy")[:, 0, 3].tolist() == list(range(9))


def test_intrinsics_of_one_row_or_many_are_read(tmp_path):
    np.save(tmp_path / "one.npy", np.array([50.0, 51.0, 4.0, 3.0]))
    np.save(tmp_path / "many.npy", np.arange(20.0).reshape(5, 4))

    assert paths.load_intrinsics(tmp_path / "one.npy").tolist() == [[50, 51, 4, 3]]
    assert paths.load_intrinsics(tmp_path / "many.npy", rate="frame").tolist() == [[0, 1, 2, 3], [16, 17, 18, 19]]


@pytest.mark.parametrize(
    ("array", "complaint"),
    [
        (np.zeros((3, 4)), r"poses.npy: wanted \[N, 4, 4\], got \[3, 4\]"),
        (np.zeros((0, 4, 4)), r"poses.npy: wanted \[N, 4, 4\], got \[0, 4, 4\]"),
        (np.full((2, 4, 4), np.nan), "poses.npy: row 0 holds a number that is not finite"),
        (np.array(["north"]), "poses.npy: wanted a .npy file of numbers"),
    ],
)
def test_files_of_other_things_are_refused(tmp_path, array, complaint):
    np.save(tmp_path / "poses.npy", array)

    with pytest.raises(InvalidInputError, match=complaint):
        paths.load_poses(tmp_path / "poses.npy")


def test_files_that_cannot_be_read_are_refused_by_name(tmp_path):
    (tmp_path / "text.npy").write_text("no numbers")
    (tmp_path / "empty.npy").write_bytes(b"")
    (tmp_path / "archive.npy").write_bytes(b"PK\x03\x04")  # as savez writes them, cut off
    np.save(tmp_path / "endless.npy", np.zeros((100, 4, 4)))
    content = (tmp_path / "endless.npy").read_bytes()
    claim = b"(100" + 11 * b"0" + b", 4, 4), }"
    (tmp_path / "endless.npy").write_bytes(content.replace(b"(100, 4, 4), }" + 11 * b" ", claim))

    with pytest.raises(InvalidInputError, match=r"^missing.npy: cannot read it: No such file or directory$"):
        paths.load_poses(tmp_path / "missing.npy")
    with pytest.raises(InvalidInputError, match=r"^text\.npy: "):
        paths.load_poses(tmp_path / "text.npy")
    for name in ("empty", "archive", "endless"):
        with pytest.raises(InvalidInputError, match=rf"^{name}\.npy: wanted a \.npy file of numbers$"):
            paths.load_poses(tmp_path / f"{name}.npy")


def test_a_pickle_is_not_opened(tmp_path):
    np.save(tmp_path / "poses.npy", np.array([{"a": 1}], dtype=object), allow_pickle=True)

    with pytest.raises(InvalidInputError, match=r"wanted a \.npy file of numbers"):
        paths.load_poses(tmp_path / "poses.npy")


def test_intrinsics_scale_with_each_side_of_the_picture():
    scaled = paths.scale_intrinsics([[500.0, 400.0, 416.0, 240.0]], from_size=(832, 480), to_size=(416, 120))

    assert scaled.tolist() == [[250, 100, 208, 60]]
    assert scaled.dtype == np.float32


@pytest.mark.parametrize(
    ("text", "entries"),
    [
        ("wwl", ["w", "w", "l"]),
        ("w.l", ["w", "", "l"]),
        ("w[wl]l", ["w", "wl", "l"]),
        ("[]s", ["", "s"]),
        ("w,w,wl,,l", ["w", "w", "wl", "", "l"]),
        ("w,.", ["w", ""]),
        (" w a\ns d ", ["w", "a", "s", "d"]),
        ("ijkl", ["i", "j", "k", "l"]),
        ("", []),
    ],
)
def test_key_presses_are_read_one_latent_frame_each(text, entries):
    assert paths.actions_from_text(text) == entries


@pytest.mark.parametrize(
    ("text", "frame", "key"),
    [("wwx", 2, "x"), ("w,wq", 1, "q"), ("W", 0, "W"), ("[w", 0, r"\["), ("w[w.]", 1, r"\."), ("w.u", 2, "u")],
)
def test_an_unknown_key_is_named_with_its_latent_frame(text, frame, key):
    with pytest.raises(InvalidInputError, match=f"actions: frame {frame}: '{key}' is no key"):
        paths.actions_from_text(text)


@pytest.mark.parametrize("text", ["w[lwl]", "w,lwl"])
def test_a_key_that_comes_twice_in_one_latent_frame_is_refused(text):
    with pytest.raises(InvalidInputError, match="actions: frame 1: 'l' comes twice in one latent frame"):
        paths.actions_from_text(text)


@pytest.mark.parametrize(("num_chunks", "wanted"), [(0, 0), (1, 9), (2, 21), (5, 57)])
def test_the_first_chunk_of_three_makes_nine_frames_and_later_ones_twelve(num_chunks, wanted):
    assert num_frames(num_chunks, chunk_latent_frames=3) == wanted


def test_the_first_chunk_of_four_makes_thirteen_frames_and_later_ones_sixteen():
    assert [num_frames(num, chunk_latent_frames=4) for num in (1, 2)] == [13, 29]


def test_a_film_is_cut_into_requests_of_whole_chunks():
    poses = np.tile(np.eye(4, dtype=np.float32), (11, 1, 1))
    poses[:, 0, 3] = np.arange(11)
    rows = np.arange(44, dtype=np.float32).reshape(11, 4)

    asks = plan_film(3, 2, chunk_latent_frames=3, cam_to_world=poses, intrinsics=rows)

    assert [ask.controls.num_chunks for ask in asks] == [2, 1]
    assert [ask.is_end for ask in asks] == [False, True]
    assert asks[0].controls.cam_to_world[:, 0, 3].tolist() == [0, 1, 2, 3, 4, 5]
    assert asks[1].controls.cam_to_world[:, 0, 3].tolist() == [6, 7, 8]
    assert asks[1].controls.intrinsics[:, 0].tolist() == [24, 28, 32]


def test_one_row_of_intrinsics_goes_with_each_request_and_short_actions_stand_still():
    row = np.ones((1, 4), np.float32)

    asks = plan_film(2, 1, chunk_latent_frames=3, actions=["w", "wl", "", "s"], intrinsics=row)

    assert [ask.controls.actions for ask in asks] == [("w", "wl", ""), ("s", "", "")]
    assert [ask.controls.intrinsics.tolist() for ask in asks] == [[[1, 1, 1, 1]]] * 2


def test_a_path_shorter_than_a_chunk_is_refused_with_both_numbers():
    with pytest.raises(InvalidInputError, match=r"poses.npy: one chunk needs 3 poses, it holds 2"):
        chunks_that_fit(2, 3, "poses.npy")
    assert chunks_that_fit(8, 3, "poses.npy") == 2


def test_the_longest_step_is_the_one_between_neighbours():
    path = np.tile(np.eye(4, dtype=np.float32), (4, 1, 1))
    path[:, :3, 3] = [(0, 0, 0), (3, 4, 0), (3, 4, 1), (0, 0, 0)]
    assert paths.longest_step(path) == pytest.approx(np.sqrt(26))
    assert paths.longest_step(path[:1]) == 1
    assert paths.longest_step(paths.stand(5)) == 1


@pytest.mark.parametrize(("text", "wanted"), [("auto", 5.0), ("0.5", 0.5)])
def test_a_pose_file_can_set_the_scale_by_its_longest_step(text, wanted):
    path = np.tile(np.eye(4, dtype=np.float32), (3, 1, 1))
    path[1:, :3, 3] = (3, 4, 0)
    assert parse_scale(text, Steering(1, path, is_from_file=True)) == wanted


def test_auto_needs_a_pose_file_and_other_words_are_refused():
    with pytest.raises(InvalidInputError, match="--translation-scale: auto reads a file of poses"):
        parse_scale("auto", Steering(1, paths.walk(3)))
    with pytest.raises(InvalidInputError, match="--translation-scale: wanted a number or auto, got big"):
        parse_scale("big", Steering(1, paths.walk(3)))
