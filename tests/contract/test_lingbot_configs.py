"""denoise/configs/lingbot_world_*.pbtxt: the GPU's configuration but for the model, its checkpoint and its room."""

from pathlib import Path

import pytest
from google.protobuf import text_format
from tritonclient.grpc import model_config_pb2
from worldmodel.config import PRESETS
from worldmodel.serving import read_parameters
from worldstream.sizing.command import make_plan

DENOISE = Path(__file__).parents[2] / "model_repository" / "denoise"
OWN = ("configuration", "checkpoint", "chunk_latent_frames", "session_budget_bytes", "conditioner_budget_bytes")
NAMES = ("lingbot_world_fast", "lingbot_world_v2")


def read(name):
    text = (DENOISE / "configs" / f"{name}.pbtxt").read_text(encoding="utf-8")
    return text_format.Parse(text, model_config_pb2.ModelConfig())


def parameters(name):
    return {key: value.string_value for key, value in read(name).parameters.items()}


@pytest.mark.parametrize("name", NAMES)
def test_all_else_is_the_gpus_configuration(name):
    config, gpu = read(name), read("gpu")
    for each in (config, gpu):
        for own in OWN:
            each.parameters.pop(own)
    assert config == gpu


@pytest.mark.parametrize("name", NAMES)
def test_it_serves_the_published_world_and_leaves_chunks_to_its_checkpoint(name):
    config, serving = read_parameters(parameters(name))
    assert config == PRESETS[name]
    assert serving.checkpoint.startswith("/checkpoints/lingbot-world-")


@pytest.mark.parametrize("name", NAMES)
def test_its_budgets_hold_one_session_and_a_whole_chunk(name):
    plan = make_plan(str(DENOISE / "configs" / f"{name}.pbtxt"), [], "141GB", None)
    assert plan.budget_sessions == 1
    assert plan.conditioner_held_bytes == plan.conditioner_chunk_bytes
    assert plan.sessions >= 1
