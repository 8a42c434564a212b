"""denoise/configs/gpu.pbtxt: the default configuration but for what it states."""

from pathlib import Path

from google.protobuf import text_format
from tritonclient.grpc import model_config_pb2
from worldmodel.serving import read_parameters

DENOISE = Path(__file__).parents[2] / "model_repository" / "denoise"
OWN = ("FORCE_CPU_ONLY_INPUT_TENSORS", "step_cache")


def read(file):
    return text_format.Parse((DENOISE / file).read_text(encoding="utf-8"), model_config_pb2.ModelConfig())


def values(config):
    return {key: value.string_value for key, value in config.parameters.items()}


def test_it_asks_for_one_gpu_and_takes_inputs_from_either_side():
    config = read("configs/gpu.pbtxt")
    [group] = config.instance_group
    assert (group.kind, group.count, list(group.gpus)) == (model_config_pb2.ModelInstanceGroup.KIND_GPU, 1, [0])
    chosen = values(config)
    assert {name: chosen[name] for name in (*OWN, "compile", "device", "dtype")} == {
        "FORCE_CPU_ONLY_INPUT_TENSORS": "no",
        "step_cache": "auto",
        "compile": "auto",
        "device": "auto",
        "dtype": "auto",
    }


def test_all_else_is_the_default_configuration():
    gpu, default = read("configs/gpu.pbtxt"), read("config.pbtxt")
    for config in (gpu, default):
        config.ClearField("instance_group")
        for name in OWN:
            config.parameters.pop(name, None)
    assert gpu == default


def test_its_lines_are_those_of_the_default_but_for_the_stated_places():
    default, gpu = ((DENOISE / file).read_text(encoding="utf-8") for file in ("config.pbtxt", "configs/gpu.pbtxt"))
    changed = set(default.splitlines()) ^ set(gpu.splitlines())
    # The first line, the instance group with its comment, the step cache; and two lines of inputs from either side.
    assert len(changed) == 2 * 4 + 2


def test_the_code_takes_its_parameters():
    _, serving = read_parameters(values(read("configs/gpu.pbtxt")))
    assert serving.step_cache == "auto"
