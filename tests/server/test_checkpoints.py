"""Checkpoints in the published layout, written by diffusers, on the real server: its frames are diffusers' own."""

import itertools
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

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


def write_nan(folder: Path) -> None:
    file = folder / "transformer" / "camera.safetensors"
    tensors = load_file(file)
    tensors["blocks.1.cam_scale_layer.bias"][3] = torch.nan
    save_file(tensors, file)


def cut_off(folder: Path) -> None:
    weights = folder / "vae" / "diffusion_pytorch_model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-100])


def say_half_a_pair(folder: Path) -> None:
    (folder / "transformer" / "config.json").write_text('{"num_layers": "\\ud800"}', encoding="utf-8")


@pytest.mark.parametrize(
    ("change", "wanted"),
    [
        (
            cut_off,
            "vae: diffusion_pytorch_model.safetensors: cannot be read as safetensors, it is damaged or not whole",
        ),
        (
            write_nan,
            "transformer: blocks.1.cam_scale_layer.bias: wanted numbers that are finite in torch.float32, "
            "camera.safetensors has others",
        ),
        (say_half_a_pair, "transformer: config.json: num_layers: wanted a whole number from 1 to 1000, got "),
    ],
)
def test_what_does_not_fit_makes_the_server_say_which_model_is_not_ready_and_why(
    folder: Path, tmp_path: Path, change: Callable[[Path], None], wanted: str
) -> None:
    shutil.copytree(folder, tmp_path / "checkpoint")
    change(tmp_path / "checkpoint")

    log = tmp_path / "server.log"
    with pytest.raises(RuntimeError, match="the server ended while it started"):
        running_server(log, overrides=settings(tmp_path / "checkpoint")).__enter__()

    said = log.read_text(encoding="utf-8")
    assert "failed to load 'denoise' version 1" in said
    last_line = said.splitlines()[-1]  # what an operator sees
    assert wanted in last_line
    assert str(tmp_path) not in last_line
