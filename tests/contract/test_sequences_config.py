"""denoise/configs/sequences.pbtxt: the default configuration and Triton's sequence batcher."""

from pathlib import Path

import pytest
from google.protobuf import text_format
from tritonclient.grpc import model_config_pb2
from worldmodel.serving import read_parameters

DENOISE = Path(__file__).parents[2] / "model_repository" / "denoise"


def read(file):
    return text_format.Parse((DENOISE / file).read_text(encoding="utf-8"), model_config_pb2.ModelConfig())


@pytest.fixture
def config():
    return read("configs/sequences.pbtxt")


@pytest.fixture
def serving(config):
    return read_parameters({key: value.string_value for key, value in config.parameters.items()})[1]


def test_it_lets_as_many_sequences_in_as_requests_may_wait(config, serving):
    assert config.sequence_batching.oldest.max_candidate_sequences == serving.max_requests == 64


def test_triton_forgets_a_sequence_when_the_model_forgets_its_session(config, serving):
    assert config.sequence_batching.max_sequence_idle_microseconds == 1_000_000 * serving.session_idle_timeout_s


def test_all_else_is_the_default_configuration(config):
    assert config.HasField("sequence_batching")
    config.ClearField("sequence_batching")
    assert config == read("config.pbtxt")


def test_its_lines_are_those_of_the_default_but_for_the_batcher():
    default, sequences = ((DENOISE / file).read_text("utf-8") for file in ("config.pbtxt", "configs/sequences.pbtxt"))
    _, default_rest = default.split("\n", 1)
    _, sequences_rest = sequences.split("\n", 1)
    before, _, after = sequences_rest.partition("\n# Under it Triton refuses requests")
    _, _, after = after.partition("\n}\n")
    assert before + after == default_rest
