"""The model configurations against the code that reads them, as text: no server."""

import ast
import dataclasses
from pathlib import Path

import pytest
from google.protobuf import text_format
from tritonclient.grpc import model_config_pb2
from worldmodel.errors import WorldError
from worldmodel.serving import WORLD_OVERRIDES, ServingConfig, read_parameters

REPOSITORY = Path(__file__).parents[2] / "model_repository"
MODELS = ("preprocess", "denoise", "world")


def config_of(model):
    text = (REPOSITORY / model / "config.pbtxt").read_text(encoding="utf-8")
    return text_format.Parse(text, model_config_pb2.ModelConfig())


def shape_of(tensor):
    return model_config_pb2.DataType.Name(tensor.data_type), list(tensor.dims)


def parameters_of(model):
    return {key: value.string_value for key, value in config_of(model).parameters.items()}


@pytest.mark.parametrize("model", MODELS)
def test_a_model_folder_is_complete_by_itself(model):
    assert config_of(model).name == model
    assert (REPOSITORY / model / "1").is_dir()
    assert config_of(model).max_batch_size == 0


def test_only_models_live_in_the_repository():
    assert sorted(folder.name for folder in REPOSITORY.iterdir()) == sorted(MODELS)


@pytest.mark.parametrize("model", MODELS)
def test_no_model_needs_a_gpu_to_load(model):
    assert all(group.kind != model_config_pb2.ModelInstanceGroup.KIND_GPU for group in config_of(model).instance_group)


def test_denoise_takes_and_gives_the_tensors_of_the_contract():
    config = config_of("denoise")
    assert {tensor.name: shape_of(tensor) for tensor in config.input} == {
        "pixels": ("TYPE_UINT8", [-1, -1, -1, 3]),
        "snapshot": ("TYPE_UINT8", [-1]),
        "cam_to_world": ("TYPE_FP32", [-1, 4, 4]),
        "intrinsics": ("TYPE_FP32", [-1, 4]),
        "translation_scale": ("TYPE_FP32", [1]),
        "actions": ("TYPE_STRING", [-1]),
        "prompt": ("TYPE_STRING", [1]),
        "prompt_embeds": ("TYPE_FP32", [-1, -1]),
        "num_chunks": ("TYPE_INT32", [1]),
        "num_steps": ("TYPE_INT32", [1]),
        "seed": ("TYPE_INT64", [1]),
        "event_id": ("TYPE_INT64", [1]),
    }
    assert all(tensor.optional for tensor in config.input)
    assert {tensor.name: shape_of(tensor) for tensor in config.output} == {
        "frames": ("TYPE_UINT8", [-1, -1, -1, 3]),
        "encoded_frames": ("TYPE_STRING", [-1]),
        "frame_index": ("TYPE_INT64", [-1]),
        "chunk": ("TYPE_INT32", [3]),
        "event_id": ("TYPE_INT64", [1]),
        "timings": ("TYPE_FP32", [6]),
        "snapshot": ("TYPE_UINT8", [-1]),
    }
    assert config.model_transaction_policy.decoupled


def test_world_takes_what_its_steps_take_and_gives_what_denoise_gives_but_for_snapshots():
    world, denoise = config_of("world"), config_of("denoise")
    pictures = {tensor.name: shape_of(tensor) for tensor in config_of("preprocess").input}
    rest = {tensor.name: shape_of(tensor) for tensor in denoise.input if tensor.name not in ("pixels", "snapshot")}
    assert {tensor.name: shape_of(tensor) for tensor in world.input} == {**pictures, **rest}
    assert all(tensor.optional for tensor in world.input)
    # An ensemble has one name space for inputs and outputs: the echoed event id cannot have the input's name.
    renamed = {"event_id": "applied_event_id"}
    kept = [tensor for tensor in denoise.output if tensor.name != "snapshot"]
    wanted = {renamed.get(tensor.name, tensor.name): shape_of(tensor) for tensor in kept}
    assert {tensor.name: shape_of(tensor) for tensor in world.output} == wanted


def test_every_parameter_is_written_out_and_every_written_one_is_known():
    known = {"configuration", *WORLD_OVERRIDES, *(field.name for field in dataclasses.fields(ServingConfig))}
    assert set(parameters_of("denoise")) == known


def test_the_written_parameters_are_the_defaults_of_the_code():
    config, serving = read_parameters(parameters_of("denoise"))
    default_config, default_serving = read_parameters({})
    assert config == default_config
    assert serving == dataclasses.replace(default_serving, checkpoint="weights")  # what is shipped beside the code
    folder = REPOSITORY / "denoise" / "1" / serving.checkpoint
    assert {"transformer.safetensors", "codec.safetensors", "MODEL_CARD.md"} <= {path.name for path in folder.iterdir()}


def test_every_error_word_has_a_triton_code():
    source = (REPOSITORY / "denoise" / "1" / "model.py").read_text(encoding="utf-8")
    table = next(
        ast.literal_eval(node.value)
        for node in ast.parse(source).body
        if isinstance(node, ast.Assign) and node.targets[0].id == "TRITON_CODES"
    )
    assert set(table) == {error.code for error in WorldError.__subclasses__()}
