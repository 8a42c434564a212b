"""`denoise` on the real server: the frames of a session, and what changes them. Compared byte for byte."""

import itertools
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

from tests.server.raw import Array, Stream, ask, join, make_request, mean_difference, picture, walk

pytestmark = pytest.mark.server

PICTURE = picture()
START: dict[str, Any] = {"pixels": PICTURE, "num_steps": 2}
OTHER = 0.5  # gray values, mean over all pixels: far above rounding, far below what any input changes
IDS = itertools.count(1000)


def two_chunks(server: Any, **inputs: Any) -> Array:
    return join(ask(server.grpc, make_request("denoise", {**START, "num_chunks": 2, **inputs})))


@pytest.fixture(scope="module")
def usual(server: Any) -> Array:
    """Two chunks that stand still; seed 0, no prompt."""
    return two_chunks(server)


def test_chunks_have_nine_then_twelve_frames_with_all_five_outputs(server: Any) -> None:
    responses = ask(server.grpc, make_request("denoise", {**START, "num_chunks": 3, "event_id": 4}))
    assert [response["frames"].shape for response in responses] == [(9, 96, 160, 3), (12, 96, 160, 3), (12, 96, 160, 3)]
    assert [response["chunk"].tolist() for response in responses] == [[0, 0, 1], [1, 0, 1], [2, 0, 1]]
    assert join(responses, "frame_index").tolist() == list(range(33))
    assert join(responses, "event_id").tolist() == [4, 4, 4]
    assert {name: (tensor.dtype.name, tensor.shape) for name, tensor in responses[1].tensors.items()} == {
        "frames": ("uint8", (12, 96, 160, 3)),
        "frame_index": ("int64", (12,)),
        "chunk": ("int32", (3,)),
        "event_id": ("int64", (1,)),
        "timings": ("float32", (6,)),
    }


@pytest.mark.parametrize(
    ("steering", "num_frames"),
    [
        ({}, 9),
        ({"actions": [""]}, 9),
        ({"actions": ["w"] * 4}, 21),
        ({"cam_to_world": walk(3)}, 9),
        ({"cam_to_world": walk(4)}, 21),
        ({"actions": ["w"], "num_chunks": 2}, 21),
    ],
)
def test_a_request_makes_as_many_chunks_as_its_steering_fills(server: Any, steering: Any, num_frames: int) -> None:
    assert len(join(ask(server.grpc, make_request("denoise", {**START, "num_steps": 1, **steering})))) == num_frames


def test_event_id_is_echoed_by_the_request_that_had_it_alone(server: Any) -> None:
    name = next(IDS)
    responses = ask(
        server.grpc,
        make_request("denoise", {**START, "event_id": 2**62}, sequence_id=name, sequence_start=True),
        make_request("denoise", {"num_steps": 1}, sequence_id=name),
        make_request("denoise", {"num_steps": 1, "event_id": 0}, sequence_id=name),
        make_request("denoise", {"num_steps": 1, "num_chunks": 1, "event_id": 8}, sequence_id=name, sequence_end=True),
    )
    assert [response["event_id"].tolist() for response in responses] == [[2**62], [-1], [0], [8]]
    assert [response.is_final for response in responses] == [True] * 4


def test_timings_add_up(server: Any) -> None:
    timings = join(ask(server.grpc, make_request("denoise", {**START, "num_chunks": 2})), "timings").reshape(2, 6)
    _, condition, denoise, decode, transfer, total = timings.T
    assert np.isfinite(timings).all()
    assert (timings >= 0).all()
    assert (np.stack([condition, denoise, decode]) > 0).all()
    # What is between the parts is nobody's; the clocks are read one after the other, hence 1 ms.
    assert (total + 1 >= condition + denoise + decode + transfer).all()


@pytest.mark.parametrize("name", [next(IDS), "robot", "Täst 🌸"])
def test_frame_index_goes_on_over_the_requests_of_a_session(server: Any, name: int | str) -> None:
    start = make_request("denoise", {**START, "num_chunks": 2}, sequence_id=name, sequence_start=True)
    more = make_request("denoise", {"num_steps": 1}, sequence_id=name)
    last = make_request("denoise", {"num_steps": 1, "num_chunks": 2}, sequence_id=name, sequence_end=True)
    responses = [*ask(server.grpc, start), *ask(server.grpc, more), *ask(server.grpc, last)]
    indices = np.concatenate([response["frame_index"] for response in responses])
    assert indices.tolist() == list(range(9 + 4 * 12))
    assert [int(response["chunk"][0]) for response in responses] == [0, 1, 2, 3, 4]


def test_an_integer_and_a_string_id_are_two_sessions(server: Any) -> None:
    for name, seed in ((7, 0), ("7", 1)):
        start = make_request("denoise", {**START, "seed": seed}, sequence_id=name, sequence_start=True)
        assert join(ask(server.grpc, start), "frame_index").tolist() == list(range(9))
    of_integer, of_string = (
        ask(server.grpc, make_request("denoise", {"num_chunks": 1}, sequence_id=name, sequence_end=True))
        for name in (7, "7")
    )
    assert join(of_integer, "frame_index").tolist() == join(of_string, "frame_index").tolist() == list(range(9, 21))
    assert mean_difference(join(of_integer), join(of_string)) > OTHER


def test_requests_give_the_frames_of_one_request(server: Any, usual: Array) -> None:
    name = next(IDS)
    responses = ask(
        server.grpc,
        make_request("denoise", START, sequence_id=name, sequence_start=True),
        make_request("denoise", {"num_steps": 2, "num_chunks": 1}, sequence_id=name, sequence_end=True),
    )
    assert np.concatenate([response["frames"] for response in responses]).tobytes() == usual.tobytes()


def test_equal_inputs_give_equal_bytes(server: Any, usual: Array) -> None:
    assert two_chunks(server).tobytes() == usual.tobytes()
    assert two_chunks(server, seed=0, actions=[""] * 6, prompt="").tobytes() == usual.tobytes()
    assert two_chunks(server, cam_to_world=np.tile(np.eye(4), (6, 1, 1))).tobytes() == usual.tobytes()


@pytest.mark.parametrize(
    "change",
    [
        {"seed": 1},
        {"seed": -1},
        {"seed": 2**32},
        {"actions": ["w"] * 6},
        {"actions": ["l"] * 6},
        {"actions": ["aj"] * 6},
        {"cam_to_world": walk(6)},
        {"prompt": "a garden in winter"},
        {"num_steps": 3},
        {"pixels": 255 - PICTURE},
        {"intrinsics": [[300, 300, 80, 48]]},
    ],
    ids=lambda change: next(iter(change)),
)
def test_each_input_changes_the_frames_of_both_chunks(server: Any, usual: Array, change: dict[str, Any]) -> None:
    changed = two_chunks(server, **change)
    assert mean_difference(changed[:9], usual[:9]) > OTHER
    assert mean_difference(changed[9:], usual[9:]) > OTHER


def test_the_frames_of_a_session_differ_from_each_other(usual: Array) -> None:
    assert mean_difference(usual[:9], usual[9:18]) > OTHER
    assert all(mean_difference(one, other) > OTHER for one, other in itertools.pairwise(usual))
    assert usual.std() > 10


def test_translation_scale_divides_the_path(server: Any) -> None:
    frames = two_chunks(server, cam_to_world=walk(6), translation_scale=0.5)
    doubled = walk(6)
    doubled[:, :3, 3] *= 2
    assert frames.tobytes() == two_chunks(server, cam_to_world=doubled, translation_scale=1.0).tobytes()
    assert mean_difference(frames, two_chunks(server, cam_to_world=walk(6), translation_scale=1.0)) > OTHER


def test_a_session_starts_at_its_first_pose_wherever_that_is(server: Any) -> None:
    # A quarter turn about the vertical and a shift, both exact in float32.
    elsewhere = np.array([[0, 0, 1, 4], [0, 1, 0, 2], [-1, 0, 0, 8], [0, 0, 0, 1]], np.float32)
    moved = two_chunks(server, cam_to_world=elsewhere @ walk(6))
    assert moved.tobytes() == two_chunks(server, cam_to_world=walk(6)).tobytes()


def test_a_prompt_in_any_script_is_taken_and_changes_the_frames(server: Any, usual: Array) -> None:
    prompts = ("Ein Garten im Frühling 🌸", "春の庭", "Ein Garten im Fruhling")
    gardens = [two_chunks(server, prompt=prompt) for prompt in prompts]
    assert all(mean_difference(one, other) > OTHER for one, other in itertools.combinations([usual, *gardens], 2))


def test_a_prompt_switch_begins_with_the_next_chunk(server: Any, usual: Array) -> None:
    name = next(IDS)
    switch = make_request(
        "denoise", {"num_steps": 2, "prompt": "snow", "num_chunks": 1}, sequence_id=name, sequence_end=True
    )
    responses = ask(server.grpc, make_request("denoise", START, sequence_id=name, sequence_start=True), switch)
    assert responses[0]["frames"].tobytes() == usual[:9].tobytes()
    assert mean_difference(responses[1]["frames"], usual[9:]) > OTHER


def test_one_row_of_intrinsics_serves_all_poses(server: Any) -> None:
    row = [100.0, 110.0, 70.0, 50.0]
    once = two_chunks(server, cam_to_world=walk(6), intrinsics=[row])
    assert two_chunks(server, cam_to_world=walk(6), intrinsics=[row] * 6).tobytes() == once.tobytes()
    zoomed = two_chunks(server, cam_to_world=walk(6), intrinsics=[row] * 3 + [[200.0, 220.0, 70.0, 50.0]] * 3)
    assert zoomed[:9].tobytes() == once[:9].tobytes()
    assert mean_difference(zoomed[9:], once[9:]) > OTHER


def test_intrinsics_are_in_pixels_of_the_sent_picture(server: Any) -> None:
    large = np.repeat(np.repeat(PICTURE, 2, axis=1), 2, axis=2)
    doubled = two_chunks(server, pixels=large, intrinsics=[[200.0, 200.0, 140.0, 100.0]])
    with_default = two_chunks(server, pixels=large)
    single = two_chunks(server, intrinsics=[[100.0, 100.0, 70.0, 50.0]])
    assert mean_difference(doubled, with_default) > OTHER
    # The rays are equal; the pictures are equal but for the antialiased scaling of edges.
    assert mean_difference(doubled, single) < mean_difference(doubled, with_default) / 4


def test_fit_stretch_differs_from_crop_and_crop_is_the_default(server: Any) -> None:
    # Twice as wide as the world: crop keeps the black middle, stretch keeps the white sides as well.
    wide = np.full((1, 96, 320, 3), 255, np.uint8)
    wide[:, :, 80:240] = 0
    by_default, crop, stretch, black = (
        join(ask(server.grpc, make_request("denoise", {**START, "pixels": pixels}, **fit)))
        for pixels, fit in ((wide, {}), (wide, {"fit": "crop"}), (wide, {"fit": "stretch"}), (wide[:, :, 80:240], {}))
    )
    assert by_default.tobytes() == crop.tobytes() == black.tobytes()
    assert mean_difference(stretch, crop) > OTHER


WALKERS: list[dict[str, Any]] = [
    {"seed": 1, "prompt": "a garden", "actions": ["w"] * 6, "num_steps": 2},
    {"seed": 2, "prompt": "a street at night", "actions": ["jd", "jd"], "num_chunks": 2, "num_steps": 3},
    {"seed": 1, "prompt": "snow", "cam_to_world": walk(5), "num_steps": 4},
]


def two_requests(walker: dict[str, Any], name: int) -> tuple[Any, Any]:
    """Two chunks that start a session, then two that end it."""
    last = {"num_chunks": 2, "actions": ["i", "w"], "num_steps": walker["num_steps"]}
    return (
        make_request("denoise", {"pixels": PICTURE, **walker}, sequence_id=name, sequence_start=True),
        make_request("denoise", last, sequence_id=name, sequence_end=True),
    )


@pytest.fixture(scope="module")
def solo_runs(server: Any) -> list[Array]:
    runs = [ask(server.grpc, *two_requests(walker, next(IDS))) for walker in WALKERS]
    return [np.concatenate([response["frames"] for response in run]) for run in runs]


@pytest.mark.parametrize("num_sessions", [2, 3])
def test_interleaved_sessions_give_the_bytes_of_solo_runs(
    server: Any, solo_runs: list[Array], num_sessions: int
) -> None:
    running: list[int] = []

    def run(index: int) -> list[Array]:
        frames = []
        with Stream(server.grpc) as stream:
            stream.send(*two_requests(WALKERS[index], next(IDS)))
            for _ in range(4):
                frames.append(stream.receive()["frames"])
                running.append(index)
        return frames

    with ThreadPoolExecutor(num_sessions) as pool:
        runs = list(pool.map(run, range(num_sessions)))
    assert set(running[:num_sessions]) == set(range(num_sessions)), "the sessions did not take turns"
    for frames, solo in zip(runs, solo_runs, strict=False):
        assert np.concatenate(frames).tobytes() == solo.tobytes()


def test_sessions_differ_from_one_another(solo_runs: list[Array]) -> None:
    assert [len(run) for run in solo_runs] == [45, 45, 45]
    assert all(mean_difference(one, other) > OTHER for one, other in itertools.combinations(solo_runs, 2))
