"""Whole sessions of keys and poses, against a reference that multiplies their whole history out in float64.

The reference knows no state and no chunks: it lists where the camera should be at every latent frame, by inverses and
products of 4 x 4 matrices and turns about an axis (Rodrigues), and takes differences at the end.
"""

import dataclasses
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from worldmodel import camera as cam
from worldmodel.config import EMBEDDED
from worldmodel.request import Envelope, parse_request
from worldmodel.serving import ServingConfig
from worldmodel.world import Controls

from tests.unit.worlds import TINY, picture, tiny_world

CHUNK = EMBEDDED.chunk_latent_frames
STILL = None
# Positions of some thousand units are rounded at 1e-12, and a step is the difference of two.
TOLERANCE = 1e-9


def turn(axis, degrees):
    """Rodrigues' formula: a turn about a unit axis, [3, 3]."""
    x, y, z = axis
    cross = np.array([[0, -z, y], [z, 0, -x], [-y, x, 0]])
    angle = np.radians(degrees)
    return np.eye(3) + np.sin(angle) * cross + (1 - np.cos(angle)) * cross @ cross


def rigid(rotation, position):
    out = np.eye(4)
    out[:3, :3], out[:3, 3] = rotation, position
    return out


def elevation_deg(pose):
    return np.degrees(np.arcsin(np.clip(-pose[1, 2], -1, 1)))


def pressed_reference(pose, keys, unit):
    """Where keys, held for one latent frame, take the camera; unit is the length of a model unit."""
    up_or_down = ("i" in keys) - ("k" in keys)
    pitch = up_or_down * 4.0
    most = max(85.0, abs(elevation_deg(pose)))
    pitch = min(most, max(-most, elevation_deg(pose) + pitch)) - elevation_deg(pose)
    yaw = 6.0 * (("l" in keys) - ("j" in keys))
    rotation = turn((0, 1, 0), yaw) @ pose[:3, :3] @ turn((1, 0, 0), pitch)
    ahead = rotation[:, 2] * (1, 0, 1) / np.linalg.norm(rotation[:, 2] * (1, 0, 1))
    aside = np.cross((0, 1, 0), ahead)
    way = ahead * (("w" in keys) - ("s" in keys)) + aside * (("d" in keys) - ("a" in keys))
    if np.linalg.norm(way) > 0:
        way *= unit / np.linalg.norm(way)
    return rigid(rotation, pose[:3, 3] + way)


def nearest(pose):
    left, _, right = np.linalg.svd(pose[:3, :3].astype(np.float64))
    return rigid(left @ right, pose[:3, 3].astype(np.float64))


def reference(requests, unit, size=CHUNK):
    """Every latent frame's step in model units, [T, 4, 4]."""
    here, client_to_session, history = np.eye(4), None, []
    for request in requests:
        if isinstance(request, np.ndarray):
            poses = [nearest(pose) for pose in request]
            if client_to_session is None:
                client_to_session = here @ np.linalg.inv(poses[0])
            poses += [poses[-1]] * (-len(poses) % size)
            history += [client_to_session @ pose for pose in poses]
        else:
            entries = [""] * size if request is STILL else [*request, *[""] * (-len(request) % size)]
            for keys in entries:
                here = pressed_reference(here, keys, unit)
                history.append(here)
            if any(entries):
                client_to_session = None
        here = history[-1]
    history[0] = np.eye(4)  # the picture itself cannot move
    before = [history[0], *history[:-1]]
    steps = np.stack([np.linalg.inv(a) @ b for a, b in zip(before, history, strict=True)])
    steps[:, :3, 3] /= unit
    return steps


class Driven:
    """A session's camera, asked as a client asks and moved as the world moves it, chunk by chunk."""

    def __init__(self, scale, size=CHUNK):
        self.config = EMBEDDED.replace(chunk_latent_frames=size)
        self.state = cam.start_camera(np.array([10.0, 10.0, 8.0, 8.0]), scale)
        self.steps = []

    def ask(self, request):
        tensors = {}
        if isinstance(request, np.ndarray):
            tensors["cam_to_world"] = request
        elif request is not STILL:
            tensors["actions"] = np.array([keys.encode() for keys in request], dtype=object)
        asked = parse_request(tensors, Envelope("a"), self.config, ServingConfig())
        for chunk in range(asked.num_chunks):
            self.steps.append(self.move(asked.controls(chunk, self.config.chunk_latent_frames)))

    def move(self, controls):
        is_first = not self.steps
        still = ("",) * self.config.chunk_latent_frames
        if controls.cam_to_world is not None:
            relative, state = cam.follow_poses(self.state, controls.cam_to_world, is_first)
        else:
            relative, state = cam.follow_actions(self.state, controls.actions or still, self.config, is_first)
        relative, self.state = cam.to_model_units(relative, state, self.config, controls.clip_step)
        return relative


def drive(requests, scale, size=CHUNK):
    driven = Driven(scale, size)
    for request in requests:
        driven.ask(request)
    return np.concatenate(driven.steps), driven.state


KEYS = st.sets(st.sampled_from("wasdijkl")).map("".join)


@st.composite
def client_poses(draw):
    """A path in a world of the client's own, which has its own axes; its cameras roll, but none looks straight up."""
    generator = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    count = draw(st.integers(1, 7))
    home = rigid(turn((0, 1, 0), generator.uniform(-180, 180)), generator.uniform(-50, 50, 3))
    poses = []
    for _ in range(count):
        heading, height, roll = generator.uniform((-180, -60, -20), (180, 60, 20))
        rotation = turn((0, 1, 0), heading) @ turn((1, 0, 0), height) @ turn((0, 0, 1), roll)
        poses.append(home @ rigid(rotation, generator.uniform(-3, 3, 3)))
    return np.stack(poses).astype(np.float32)


REQUESTS = st.lists(
    st.one_of(st.just(STILL), st.lists(KEYS, min_size=1, max_size=7), client_poses()), min_size=1, max_size=8
)


@settings(max_examples=80, deadline=None, derandomize=True)
@given(requests=REQUESTS, scale=st.sampled_from([1.0, 0.25, 40.0]), size=st.sampled_from([1, 3, 4]))
def test_keys_and_poses_in_any_order_move_as_their_whole_history_says(requests, scale, size):
    steps, state = drive(requests, scale, size)
    np.testing.assert_allclose(steps, reference(requests, scale, size), atol=TOLERANCE * max(1, 100 / scale))
    rotation = state.cam_to_origin[:3, :3]
    np.testing.assert_allclose(rotation @ rotation.T, np.eye(3), atol=1e-14)


@settings(max_examples=30, deadline=None, derandomize=True)
@given(entries=st.lists(KEYS, min_size=1, max_size=8), cut=st.integers(0, 8))
def test_it_makes_no_difference_how_keys_are_cut_into_requests_of_whole_chunks(entries, cut):
    cut = min(cut, len(entries)) // CHUNK * CHUNK
    parts = [part for part in (entries[:cut], entries[cut:]) if part]
    np.testing.assert_array_equal(drive(parts, 1.0)[0], drive([entries], 1.0)[0])


def test_keys_then_poses_then_keys_continue_from_where_the_camera_is():
    # 1: two steps ahead. 2: from there, in a world whose camera looks along x, one unit ahead and a right turn.
    # 3: one step ahead is now to the first camera's right.
    along_x = turn((0, 1, 0), 90)
    poses = [rigid(along_x, (100, 0, 0)), rigid(along_x, (101, 0, 0)), rigid(turn((0, 1, 0), 180), (101, 0, 0))]
    _, state = drive([["", "w", "w"], np.stack(poses).astype(np.float32), ["w", "", ""]], 0.5)
    # Two key steps of half a unit, one pose step of a whole one, and one key step to the right.
    np.testing.assert_allclose(state.cam_to_origin, rigid(along_x, (0.5, 0, 2)), atol=1e-6)


def test_a_pose_that_is_off_by_the_tolerance_does_not_add_up_over_a_session():
    rough = rigid(turn((0, 1, 0), 30), (1, 2, 3))
    rough[:3, :3] *= 1.0004
    path = np.stack([rough] * CHUNK).astype(np.float32)
    steps, state = drive([path, ["l", "j", "w"]] * 500, 1.0)
    np.testing.assert_allclose(np.linalg.det(steps[:, :3, :3]), 1, atol=1e-12)
    np.testing.assert_allclose(np.linalg.det(state.cam_to_origin[:3, :3]), 1, atol=1e-12)
    # The client's poses stand still, and each time one key step goes ahead.
    np.testing.assert_allclose(np.linalg.norm(state.cam_to_origin[:3, 3]), 500, atol=1e-9)


def test_ten_thousand_latent_frames_of_keys_end_where_sines_and_cosines_say():
    generator = np.random.default_rng(5)
    entries = ["".join(np.array(list("wasdijkl"))[generator.random(8) < 0.3]) for _ in range(9_999)]
    _, state = drive([[""] * CHUNK, *(entries[first : first + 192] for first in range(0, 9_999, 192))], 0.25)
    yaw_deg, pitch_deg, position = 0.0, 0.0, np.zeros(3)
    for keys in entries:
        yaw_deg += 6 * (("l" in keys) - ("j" in keys))
        pitch_deg = min(85, max(-85, pitch_deg + 4 * (("i" in keys) - ("k" in keys))))
        ahead, aside = ("w" in keys) - ("s" in keys), ("d" in keys) - ("a" in keys)
        if ahead or aside:
            way = np.radians(yaw_deg) + np.arctan2(aside, ahead)
            position += 0.25 * np.array([np.sin(way), 0, np.cos(way)])
    wanted = turn((0, 1, 0), yaw_deg) @ turn((1, 0, 0), pitch_deg)
    np.testing.assert_allclose(state.cam_to_origin[:3, :3], wanted, atol=1e-10)
    np.testing.assert_allclose(state.cam_to_origin[:3, 3], position, atol=1e-9)
    np.testing.assert_allclose(state.cam_to_origin[:3, :3].T @ state.cam_to_origin[:3, :3], np.eye(3), atol=1e-15)


def calls_of(work):
    """How many Python and C functions a piece of work calls."""
    count = 0

    def see(_frame, event, _argument):
        nonlocal count
        count += event in ("call", "c_call")

    before = sys.getprofile()
    sys.setprofile(see)
    try:
        work()
    finally:
        sys.setprofile(before)
    return count


def numbers_held(state):
    """How many numbers a state is made of."""
    return sum(np.size(value) for value in dataclasses.astuple(state) if value is not None)


@pytest.mark.parametrize("is_by_poses", [False, True])
def test_a_chunk_costs_the_same_however_long_the_session_is(is_by_poses):
    keys, poses = ("w", "wl", "i"), np.stack([rigid(turn((0, 1, 0), 6 * i), (i, 0, 0)) for i in range(CHUNK)])
    controls = Controls(cam_to_world=poses, clip_step=1.0) if is_by_poses else Controls(actions=keys)
    driven = Driven(1.0)
    driven.steps.append(driven.move(controls))
    early, size = calls_of(lambda: driven.move(controls)), numbers_held(driven.state)
    for _ in range(3_333):
        driven.move(controls)
    assert calls_of(lambda: driven.move(controls)) == early
    assert numbers_held(driven.state) == size <= 16 + 4 + 1 + 16


def test_a_world_looks_through_each_requests_intrinsics_while_keys_and_poses_take_turns():
    world = tiny_world()
    session = world.start(picture(), translation_scale=0.5)
    walk = np.stack([rigid(np.eye(3), (0, 0, step)) for step in range(3)])
    wide, narrow = np.tile([[12.0, 12, 24, 16]], (3, 1)), np.array([[30.0 + i, 40, 20, 10] for i in range(3)])
    asked = [
        Controls(actions=("", "w", "w"), intrinsics=wide),
        Controls(cam_to_world=walk, intrinsics=narrow, clip_step=1.0),
        Controls(actions=("w", "", "")),
    ]
    views = []
    for controls in asked:
        chunk = world.next_chunk(session, controls, lambda: None)
        session.commit(chunk.staged)
        views.append(chunk.staged.past.views)
    # The picture has the world's size, so its intrinsics stay as they are; the last row holds on.
    np.testing.assert_array_equal(views[0].intrinsics, wide)
    np.testing.assert_array_equal(views[1].intrinsics, narrow)
    np.testing.assert_array_equal(views[2].intrinsics, narrow[[2, 2, 2]])
    # A key goes one model unit, a pose step of one client unit two; the first pose is where the camera is.
    assert [view.relative[:, 2, 3].tolist() for view in views] == [[0, 1, 1], [0, 2, 2], [1, 0, 0]]
    assert [view.cam_to_origin[:, 2, 3].tolist() for view in views] == [[0, 1, 2], [2, 4, 6], [7, 7, 7]]


def test_a_scale_that_is_found_late_does_not_move_where_the_camera_was_told_to_be():
    world = tiny_world(TINY.replace(translation_rule="first_moving_chunk"))
    session = world.start(picture())
    walk = np.stack([rigid(np.eye(3), (0, 0, 4.0 * step)) for step in (0, 1, 2, 3, 3, 3)])  # four client units a step
    told = []
    for controls in (Controls(actions=("", "w", "w")), Controls(walk[:3], clip_step=4.0), Controls(walk[3:])):
        chunk = world.next_chunk(session, controls, lambda: None)
        session.commit(chunk.staged)
        told += chunk.staged.past.views.cam_to_origin[:, 2, 3].tolist()
    assert told == [0, 1, 2, 2, 3, 4, 5, 5, 5]
