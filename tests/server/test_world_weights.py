"""The shipped weights through the real server: it goes where it is steered, and a prompt changes the light."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from model_repository.denoise.training.courtyard.dataset import VARIANT_NAMES
from model_repository.denoise.training.courtyard.paths import (
    Stance,
    follow_keys,
    frame_poses,
    is_free,
    pose,
    sample_start,
)
from model_repository.denoise.training.courtyard.renderer import HORIZONTAL_FOV_DEG, default_intrinsics, render
from model_repository.denoise.training.motion import turned_right, walked_forward
from tests.conftest import running_server
from tests.server.raw import Array, ask, join, make_request

WEIGHTS = Path(__file__).parents[2] / "model_repository" / "denoise" / "1" / "weights"
pytestmark = [
    pytest.mark.server,
    pytest.mark.skipif(
        not (WEIGHTS / "transformer.safetensors").exists(),
        reason="no trained weights in model_repository/denoise/1/weights; `make train` makes them",
    ),
]
SIZE = (96, 160)
SEEDS = range(6)


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """A server with the shipped weights, whatever the configuration's default is."""
    log = tmp_path_factory.mktemp("trained") / "server.log"
    with running_server(log, overrides={"denoise.checkpoint": "weights"}) as running:
        yield running


def place(seed: int) -> Stance:
    """Somewhere from where half a metre ahead and behind is free."""
    rng = np.random.default_rng([11, seed])
    while True:
        start = sample_start(rng)
        ends = [follow_keys(start, [key, key])[-1] for key in "ws"]
        if all(is_free(end.x, end.z) for end in ends):
            return start


def walks(seed: int) -> list[list[Stance]]:
    """Four chunks of a walk that turns right, and the same with left for right: 12 stances each."""
    rng, keys = np.random.default_rng([12, seed]), [*"llllwwwllww"]
    while True:
        start = sample_start(rng)
        both = [follow_keys(start, [key.replace("l", side) for key in keys]) for side in "lj"]
        if all(is_free(stance.x, stance.z) for walk in both for stance in walk):
            return both


def psnr_db(frames: Array, truth: Array) -> float:
    """Of all chunks but the first, which is still near its picture."""
    error = (frames[9:].astype(np.float64) - truth[9:]) / 255
    return float(-10 * np.log10(np.square(error).mean()))


def rendered(stance: Stance, look: str) -> Array:
    """The truth, [H, W, 3] uint8."""
    return render(torch.from_numpy(pose(stance))[None], default_intrinsics(1, *SIZE), *SIZE, look)[0].numpy()


def told(tell: Callable[[Array, Array, float], float], server: Any, seed: int, key: str) -> float:
    """What is told from the start and the last of the first chunk's frames, under a key held for two latent frames."""
    look = VARIANT_NAMES[seed % len(VARIANT_NAMES)]
    first = rendered(place(seed), look)
    inputs = {"pixels": first[None], "actions": ["", key, key], "prompt": look, "seed": seed}
    last = join(ask(server.grpc, make_request("denoise", inputs)))[-1]
    return tell(first, last, HORIZONTAL_FOV_DEG)


def test_turning_keys_turn_the_picture_their_way(trained: Any) -> None:
    right = [told(turned_right, trained, seed, "l") for seed in SEEDS]
    left = [told(turned_right, trained, seed, "j") for seed in SEEDS]
    assert min(right) > 0 > max(left), (right, left)


def test_walking_keys_make_the_picture_grow_and_shrink(trained: Any) -> None:
    forward = [told(walked_forward, trained, seed, "w") for seed in SEEDS]
    back = [told(walked_forward, trained, seed, "s") for seed in SEEDS]
    # One in twelve may go wrong: far walls hardly grow in half a metre.
    num_right = sum(each > 0 for each in forward) + sum(each < 0 for each in back)
    assert num_right >= 2 * len(SEEDS) - 1, (forward, back)


def test_a_walk_is_nearer_to_what_is_there_than_its_start_and_than_the_walk_in_a_mirror(trained: Any) -> None:
    over_start, over_mirrored = [], []
    for seed in SEEDS:
        look = VARIANT_NAMES[seed % len(VARIANT_NAMES)]
        walk, mirrored = walks(seed)
        truth = render(torch.from_numpy(frame_poses(walk)), default_intrinsics(1, *SIZE), *SIZE, look).numpy()
        streamed = []
        for each in (walk, mirrored):
            poses = np.stack([pose(stance) for stance in each])
            inputs = {"pixels": truth[:1], "cam_to_world": poses, "prompt": look, "seed": seed}
            streamed.append(join(ask(trained.grpc, make_request("denoise", inputs))))
        model, mirror, start = (psnr_db(frames, truth) for frames in (*streamed, np.repeat(truth[:1], len(truth), 0)))
        over_start.append(model - start)
        over_mirrored.append(model - mirror)
    assert np.mean(over_start) > 3, over_start
    assert np.mean(over_mirrored) > 3, over_mirrored


def test_where_it_is_steered_shows_in_rendered_frames_too() -> None:
    for seed in SEEDS:
        look = VARIANT_NAMES[seed % len(VARIANT_NAMES)]
        start = place(seed)
        ends = {key: rendered(follow_keys(start, [key, key])[-1], look) for key in "ljws"}
        first = rendered(start, look)
        assert (
            turned_right(first, ends["l"], HORIZONTAL_FOV_DEG) > 0 > turned_right(first, ends["j"], HORIZONTAL_FOV_DEG)
        )
        forward, back = (walked_forward(first, ends[key], HORIZONTAL_FOV_DEG) for key in "ws")
        assert forward > 0 > back


@pytest.mark.parametrize(
    ("before", "after"),
    [("day", "night"), ("night", "day"), ("day", "dusk"), ("dusk", "snow"), ("day", "snow"), ("snow", "day")],
)
def test_a_new_prompt_changes_the_mean_colour_to_what_it_names(trained: Any, before: str, after: str) -> None:
    start = place(20)
    wanted = {look: rendered(start, look).reshape(-1, 3).mean(0) for look in (before, after)}
    session = {"sequence_id": f"{before} to {after}"}
    inputs = {"pixels": rendered(start, before)[None], "prompt": before, "num_chunks": 1}
    join(ask(trained.grpc, make_request("denoise", inputs, **session, sequence_start=True)))
    switch = make_request("denoise", {"prompt": after, "num_chunks": 3}, **session, sequence_end=True)
    colour = join(ask(trained.grpc, switch))[-1].reshape(-1, 3).mean(0)
    to_before, to_after = (float(np.linalg.norm(colour - wanted[look])) for look in (before, after))
    assert to_after < to_before, f"mean colour {colour}, wanted {wanted[after]}, was {wanted[before]}"
