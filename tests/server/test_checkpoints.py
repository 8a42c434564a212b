"""Checkpoints in the published layout, written by diffusers, on the real server: its frames are diffusers' own."""

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.conftest import running_server
from tests.server.raw import ask, join, make_request, picture
from tests.unit.oracles import first_chunk, tiny_transformer, tiny_vae, write_transformer, write_vae

pytestmark = pytest.mark.server
SIZE = (32, 48)


@pytest.fixture(scope="module")
def oracles() -> tuple[Any, Any]:
    return tiny_transformer(), tiny_vae()


@pytest.fixture(scope="module")
def folder(oracles: tuple[Any, Any], tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("checkpoint")
    write_transformer(oracles[0], made)
    write_vae(oracles[1], made)
    return made


def settings(folder: Path) -> dict[str, str]:
    values = {
        "configuration": "lingbot_world_fast",
        "checkpoint": str(folder),
        "height_px": str(SIZE[0]),
        "width_px": str(SIZE[1]),
    }
    return {f"denoise.{name}": value for name, value in values.items()}


@pytest.fixture(scope="module")
def loaded(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    log = tmp_path_factory.mktemp("loaded") / "server.log"
    with running_server(log, overrides=settings(folder)) as running:
        yield running


def test_the_first_frames_are_those_of_diffusers_modules(oracles: tuple[Any, Any], loaded: Any) -> None:
    pixels = picture(*SIZE)
    frames = join(ask(loaded.grpc, make_request("denoise", {"pixels": pixels, "seed": 5, "num_chunks": 1})))
    wanted = first_chunk(*oracles, pixels[0], seed=5)
    assert wanted.std() > 25, "the oracle's frames must show something"
    # Float32 in other orders of summing, through four steps and a decoder; then rounding.
    assert np.abs(frames.astype(int) - wanted.astype(int)).max() <= 1


def test_a_session_goes_on_past_its_window(loaded: Any) -> None:
    frames = join(ask(loaded.grpc, make_request("denoise", {"pixels": picture(*SIZE), "num_chunks": 6})))
    assert frames.shape == (9 + 5 * 12, *SIZE, 3)
    assert all(np.abs(one.astype(int) - two).max() > 0 for one, two in itertools.pairwise(frames))


def test_a_damaged_file_makes_the_server_say_which_model_is_not_ready_and_why(folder: Path, tmp_path: Path) -> None:
    for part in ("transformer", "vae"):
        (tmp_path / part).mkdir()
        for file in (folder / part).iterdir():
            (tmp_path / part / file.name).write_bytes(file.read_bytes())
    weights = tmp_path / "vae" / "diffusion_pytorch_model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-100])

    log = tmp_path / "server.log"
    with pytest.raises(RuntimeError, match="the server ended while it started"):
        running_server(log, overrides=settings(tmp_path)).__enter__()

    said = log.read_text(encoding="utf-8")
    assert "failed to load 'denoise' version 1" in said
    assert "vae: diffusion_pytorch_model.safetensors: cannot be read as safetensors, it is damaged or not whole" in said
