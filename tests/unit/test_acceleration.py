"""Mount, compile, warm up: afterwards nothing that requests do makes another graph. With a quick compiler backend."""

import dataclasses
import os

import numpy as np
import pytest
import torch
from worldmodel.acceleration import keep_compiled_code
from worldmodel.compilation import Compilation
from worldmodel.step_cache_settings import StepCacheSettings
from worldmodel.world import Controls

from tests.unit.worlds import TINY, accelerated_world, picture, tiny_world

SIZES = ((32, 48), (48, 32), (64, 64), (32, 96))
CONFIG = TINY.replace(further_sizes=SIZES[1:])


@pytest.fixture(scope="module")
def compiled():
    torch._dynamo.reset()
    return accelerated_world(CONFIG, compile="on", compile_backend="eager", step_cache="off")


def stream(world, moves, seed=0, size=None):
    session, frames = world.start(picture(seed), "day", seed, size=size), []
    for move in moves:
        chunk = world.next_chunk(session, move, lambda: None)
        session.commit(chunk.staged)
        frames.append(chunk.frames.numpy())
    return np.concatenate(frames)


MIXTURE = [
    Controls(),
    Controls(actions=("w", "l", "")),
    Controls(num_steps=2),
    Controls(prompt="night"),
    Controls(prompt="snow", is_recached=True),
    Controls(step_cache=StepCacheSettings("1011")),
    Controls(num_steps=9, step_cache=StepCacheSettings("dynamic", threshold=0.9)),
    Controls(cam_to_world=np.tile(np.eye(4), (3, 1, 1))),
]


def test_nothing_is_recompiled_after_warming_up(compiled):
    sessions = [compiled.start(picture(i), "day", i, size=SIZES[i % 4]) for i in range(8)]
    for move in MIXTURE:
        for session in sessions:
            session.commit(compiled.next_chunk(session, move, lambda: None).staged)
    assert compiled.compilation.recompiles() == 0
    assert 0 < compiled.compilation.num_graphs() <= 2 * len(SIZES)


def test_a_block_that_was_not_warmed_up_would_be_counted(compiled):
    compiled.compilation.mark_ready()
    compiled.conditioner_budget_bytes = 0  # blocks then evaluate the conditioner themselves: another graph
    stream(compiled, [Controls()])
    compiled.conditioner_budget_bytes = None
    assert compiled.compilation.recompiles() > 0
    compiled.compilation.mark_ready()


def test_every_computed_block_ran_as_compiled_code(compiled):
    compiled.forget_counts()
    compiled.compilation.mark_ready()
    for size in SIZES:
        stream(compiled, MIXTURE, size=size)
    computed, skipped = compiled.block_runs()
    assert skipped > 0
    assert compiled.compilation.calls == computed


def test_compiled_code_is_kept_in_a_folder_of_its_owner(tmp_path, monkeypatch):
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "elsewhere"))
    folder = tmp_path / "deep" / "compiled"
    keep_compiled_code(str(folder))
    assert os.environ["TORCHINDUCTOR_CACHE_DIR"] == str(folder)
    assert folder.stat().st_mode & 0o777 == 0o700


def test_a_folder_that_cannot_be_made_is_done_without(tmp_path, monkeypatch, caplog):
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "elsewhere"))
    (tmp_path / "file").write_text("")
    keep_compiled_code(str(tmp_path / "file" / "folder"))
    assert os.environ["TORCHINDUCTOR_CACHE_DIR"] == str(tmp_path / "elsewhere")
    assert caplog.messages == ["compiled code is not kept: compile_cache cannot be made (Not a directory)"]


def test_compiled_frames_are_those_of_the_plain_world(compiled):
    moves = MIXTURE[:4]
    difference = np.abs(stream(compiled, moves).astype(int) - stream(tiny_world(), moves)).max()
    assert difference <= 1


def test_warming_up_is_nobodys_work():
    world = accelerated_world()
    assert world.counters.denoising_steps == 0
    world.start(np.zeros((32, 48, 3), np.uint8))
    assert (world.counters.pictures_encoded, world.counters.picture_cache_hits) == (1, 0)


def graphs_of(num_layers):
    config = TINY.replace(transformer=dataclasses.replace(TINY.transformer, num_layers=num_layers))
    torch._dynamo.reset()
    before = Compilation.num_graphs()
    accelerated_world(config, compile="on", compile_backend="eager")
    return Compilation.num_graphs() - before


def test_more_layers_are_not_more_graphs():
    # One for all layers, and for every length of the window: what is bound differs in its data alone.
    assert graphs_of(num_layers=12) == graphs_of(num_layers=1) == 1


@pytest.mark.parametrize(("backend", "mode"), [("inductor", "reduce-overhead"), ("eager", "default")])
def test_a_compile_mode_reaches_inductor_alone(monkeypatch, backend, mode):
    asked = []

    def compiler(self, name, mode):
        asked.append((name, mode))
        return lambda graph, inputs: graph

    monkeypatch.setattr(Compilation, "backend", compiler)
    accelerated_world(compile="on", compile_backend=backend, compile_mode="reduce-overhead", compile_cache="none")
    assert asked == [(backend, mode)]
