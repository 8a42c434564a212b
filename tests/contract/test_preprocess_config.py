"""What `preprocess` writes in its configuration against the contract and the code that reads it: no server."""

import dataclasses
from pathlib import Path

from google.protobuf import text_format
from ingest import Limits
from tritonclient.grpc import model_config_pb2

CONFIG = text_format.Parse(
    (Path(__file__).parents[2] / "model_repository/preprocess/config.pbtxt").read_text(encoding="utf-8"),
    model_config_pb2.ModelConfig(),
)
PARAMETERS = {key: value.string_value for key, value in CONFIG.parameters.items()}


def shape_of(tensor):
    return model_config_pb2.DataType.Name(tensor.data_type), list(tensor.dims)


def test_preprocess_takes_and_gives_the_tensors_of_the_contract():
    assert {tensor.name: shape_of(tensor) for tensor in CONFIG.input} == {
        "image": ("TYPE_STRING", [-1]),
        "size": ("TYPE_INT32", [2]),
    }
    assert all(tensor.optional for tensor in CONFIG.input)
    assert {tensor.name: shape_of(tensor) for tensor in CONFIG.output} == {
        "pixels": ("TYPE_UINT8", [-1, -1, -1, 3]),
        "image_digest": ("TYPE_STRING", [-1]),
        "camera_name": ("TYPE_STRING", [-1]),
    }


def test_preprocess_is_unary_and_its_queue_is_bounded():
    assert not CONFIG.model_transaction_policy.decoupled
    policy = CONFIG.dynamic_batching.default_queue_policy
    assert policy.max_queue_size == 64
    assert policy.timeout_action == policy.REJECT


def test_every_limit_is_written_out_and_every_parameter_is_a_limit():
    assert set(PARAMETERS) == {field.name for field in dataclasses.fields(Limits)}


def test_the_written_limits_are_the_defaults_of_the_code():
    assert Limits.from_parameters(PARAMETERS) == Limits()
