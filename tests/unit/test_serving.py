import pytest
from worldmodel.serving import ParameterError, read_parameters


def test_without_parameters_the_embedded_world_is_served():
    config, serving = read_parameters({})
    assert config.name == "embedded"
    assert (config.height_px, config.width_px) == (96, 160)
    assert serving.max_chunks_per_request == 64


def test_empty_values_leave_the_configurations_own():
    config, _ = read_parameters({"configuration": "lingbot_world_fast", "shift": "", "height_px": " "})
    assert config.shift == 10
    assert config.height_px == 480


def test_values_are_read_by_their_kind():
    config, serving = read_parameters(
        {"timesteps": "1000, 500", "shift": "3", "conditioner_reuse": "off", "session_idle_timeout_s": "1.5"}
    )
    assert config.timesteps == (1000.0, 500.0)
    assert config.shift == 3.0
    assert serving.conditioner_reuse is False
    assert serving.session_idle_timeout_s == 1.5


def test_reuse_switched_off_holds_nothing():
    assert read_parameters({"conditioner_reuse": "false"})[1].held_conditioner_bytes == 0


def test_tritons_own_keys_are_passed_over():
    assert read_parameters({"FORCE_CPU_ONLY_INPUT_TENSORS": "no"}) == read_parameters({})


@pytest.mark.parametrize(
    ("parameters", "says"),
    [
        (
            {"configuration": "wan"},
            "parameter configuration: wanted one of embedded, lingbot_world_fast, lingbot_world_v2, "
            "lingbot_world_mini, got 'wan'",
        ),
        ({"chunks": "3"}, "parameter chunks: unknown"),
        ({"height_px": "tall"}, "parameter height_px: wanted an integer, got 'tall'"),
        ({"height_px": "100"}, "parameters: embedded: 100x160 px is not a multiple of 16"),
        ({"window_latent_frames": "5"}, "parameters: embedded: a window of 5 latent frames cannot hold a sink of 3"),
        ({"shift": "nan"}, "parameter shift: wanted a number, got 'nan'"),
        ({"timesteps": "500,1000"}, "parameters: embedded: timesteps must fall strictly"),
        ({"conditioner_reuse": "maybe"}, "parameter conditioner_reuse: wanted true or false, got 'maybe'"),
        ({"max_requests": "0"}, "parameters: parameter max_requests: wanted 1 or more, got 0"),
        ({"session_idle_timeout_s": "0"}, "parameters: parameter session_idle_timeout_s: wanted more than 0, got 0.0"),
        ({"condition_latent_frames": "0"}, "parameters: embedded: condition_latent_frames must be 1 or more, got 0"),
        ({"move_per_frame": "-1"}, "parameters: embedded: move_per_frame must be positive, got -1.0"),
        ({"device": "tpu"}, "parameters: parameter device: wanted auto, cpu, cuda or cuda:N, got 'tpu'"),
        ({"dtype": "fp8"}, "parameters: parameter dtype: wanted auto, float32 or bfloat16, got 'fp8'"),
        ({"codec": "vae"}, "parameters: parameter codec: wanted auto, own, wan or taehv, got 'vae'"),
        ({"codec_dtype": "half"}, "parameters: parameter codec_dtype: wanted auto, float32 or bfloat16, got 'half'"),
        (
            {"compile_mode": "fast"},
            "parameters: parameter compile_mode: wanted one of default, reduce-overhead, max-autotune-no-cudagraphs, "
            "got 'fast'",
        ),
        ({"translation_rule": "free"}, "parameters: embedded: translation_rule 'free' is unknown"),
    ],
)
def test_a_wrong_parameter_is_named(parameters, says):
    with pytest.raises(ParameterError) as caught:
        read_parameters(parameters)
    assert str(caught.value).startswith(says)
