"""A file that cannot be a session of this world is refused by name: damaged, of another model, or made up."""

from __future__ import annotations

import json
import tracemalloc

import numpy as np
import pytest
import torch
from worldmodel import snapshot
from worldmodel.errors import InvalidInputError, TooLargeError
from worldmodel.snapshot_file import pack

from tests.unit.snapshots import changed, contents, go, load, save, walk, with_checksum
from tests.unit.worlds import START_RAYS, TINY, picture, tiny_world


@pytest.fixture(scope="module")
def world():
    return tiny_world()


@pytest.fixture(scope="module")
def data(world):
    session = world.start(picture(), "a street", seed=5)
    go(world, session, actions=("w", "l", ""))
    go(world, session, cam_to_world=walk(0))
    return save(session, world)


def refusal(data, world):
    with pytest.raises(InvalidInputError, match=r"^snapshot: ") as caught:
        load(data, world)
    return str(caught.value)


def replaced(data, old, new):
    return np.frombuffer(data.tobytes().replace(old, new), np.uint8)


def test_another_version_is_named(data, world):
    other = replaced(data, b"worldstream session 1", b"worldstream session 2")
    assert "wanted version 1, got version 2" in refusal(other, world)


@pytest.mark.parametrize("content", [b"", b"\x00" * 8, b"\x89PNG\r\n\x1a\n" + b"x" * 200, b"{}" * 100])
def test_what_is_no_snapshot_at_all_is_said_to_be_none(world, content):
    assert "do not begin like one" in refusal(np.frombuffer(content, np.uint8), world)


def test_bytes_that_follow_are_damage(data, world):
    assert "checksum" in refusal(np.concatenate([data, np.zeros(8, np.uint8)]), world)


def test_200_flipped_bits_and_cuts_are_all_refused(data, world):
    random = np.random.default_rng(20261129)
    for _ in range(200):
        damaged = data.copy()
        if random.integers(2):
            # Half of them where the header is, which is small.
            place = random.integers(len(data) if random.integers(2) else 4000)
            damaged[place] ^= 1 << random.integers(8)
        else:
            damaged = damaged[: random.integers(len(data))]
        refusal(damaged, world)


def test_a_header_that_lies_under_a_right_checksum_never_harms(data, world):
    random = np.random.default_rng(7)
    length = int.from_bytes(data[:8].tobytes(), "little")
    for _ in range(200):
        crafted = data.copy()
        for _ in range(random.integers(1, 4)):
            crafted[random.integers(150, 8 + length)] = random.integers(32, 127)
        try:
            session = load(with_checksum(crafted), world)
        except InvalidInputError:
            continue
        go(world, session)  # what was changed means nothing, or something that may be


def test_a_file_over_the_limit_is_refused_before_it_is_looked_at(world):
    with pytest.raises(TooLargeError, match=r"^snapshot: wanted at most 100 bytes .*, got 101$"):
        snapshot.open_snapshot(np.zeros(101, np.uint8), world.config, 100)


@pytest.mark.parametrize("claimed", [(1 << 63) - 8, 1 << 40, 1 << 21])
def test_a_header_that_claims_too_much_allocates_nothing(data, world, claimed):
    crafted = data.copy()
    crafted[:8] = np.frombuffer(claimed.to_bytes(8, "little"), np.uint8)
    crafted = with_checksum(crafted)
    tracemalloc.start()
    assert f"claims {claimed} bytes" in refusal(crafted, world)
    assert tracemalloc.get_traced_memory()[1] < 2 * len(data)
    tracemalloc.stop()


@pytest.mark.parametrize("shape", [[1 << 40, 1 << 40], [0, 1 << 61], [1 << 61] * 8, [-1], [2.0], "", [[1]]])
def test_hostile_shapes_are_refused(data, world, shape):
    length = int.from_bytes(data[:8].tobytes(), "little")
    header = json.loads(data[8 : 8 + length].tobytes())
    header["condition"]["shape"] = shape
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    crafted = np.frombuffer(len(text).to_bytes(8, "little") + text + data[8 + length :].tobytes(), np.uint8)
    assert "condition" in refusal(with_checksum(crafted), world)


@pytest.mark.parametrize(
    ("change", "name"),
    [
        ({"shift": 6.0}, "shift"),
        ({"timesteps": (1000.0, 500.0)}, "timesteps"),
        ({"translation_scale": 0.5}, "translation_scale"),
        ({"translation_rule": "clip_max"}, "translation_rule"),
        ({"window_latent_frames": 12}, "window_latent_frames"),
        ({"sink_latent_frames": 0}, "sink_latent_frames"),
        ({"move_per_frame": 2.0}, "move_per_frame"),
        ({"vocabulary": ("street",)}, "vocabulary"),
        ({"name": "other"}, "name"),
    ],
)
def test_another_configuration_is_refused_by_the_setting_that_differs(data, change, name):
    assert refusal(data, tiny_world(TINY.replace(**change))).startswith(f"snapshot: {name}: it was made with ")


def test_a_file_from_before_a_setting_of_a_module_came_is_told_which(data, world):
    # It showed the beginnings of both modules' settings, which were the same.
    model = contents(data)[1]["model"]
    before = {name: value for name, value in model["transformer"].items() if name != "has_start_rays"}
    wanted = "transformer.has_start_rays: it was made without this setting, this server's world has False"
    assert wanted in refusal(changed(data, {"model": {**model, "transformer": before}}), world)
    wanted = "transformer.has_start_rays: it was made with False, this server's world has True"
    assert wanted in refusal(data, tiny_world(START_RAYS))


def test_other_weights_are_refused(data):
    assert "weights: it was made with others" in refusal(data, tiny_world(seed=1))


def test_another_dtype_is_refused(data, world):
    model = {**contents(data)[1]["model"], "dtype": "bfloat16"}
    wanted = "dtype: it was made with 'bfloat16', this server's world has 'float32'"
    assert wanted in refusal(changed(data, {"model": model}), world)


def test_a_size_that_is_not_served_is_refused(data):
    other = tiny_world(TINY.replace(height_px=48, width_px=64))
    assert "its frames are [32, 48], wanted one of 48 x 64" in refusal(data, other)


def test_what_does_not_bear_on_a_running_session_may_differ(data, world):
    session, other = load(data, world), tiny_world(TINY.replace(max_steps=60, further_sizes=((48, 64),)))
    np.testing.assert_array_equal(go(other, load(data, other)), go(world, session))


def test_a_file_with_its_tensors_in_another_order_is_the_same_session(data, world):
    # The codec's memory was taken in the file's order: the next chunk failed as an internal error.
    tensors, document = contents(data)
    backwards = {name: tensors[name] for name in sorted(tensors, reverse=True)}
    other = np.concatenate(pack(backwards, document))
    np.testing.assert_array_equal(go(world, load(other, world)), go(world, load(data, world)))


JUNK = (None, True, -1, 1.5, 1 << 70, "", "zzz", [], [1], {}, [[]], {"a": 1}, [0, 1, 2, 3, 4, 99], [1e300])


@pytest.mark.parametrize("field", ["model", "size", "chunk_index", "slots", "noise", "picture_px", "fit", "strides"])
def test_junk_in_the_document_is_refused(data, world, field):
    for junk in JUNK:
        if (field, junk) != ("strides", {}):  # which is a file of the rows as they come
            refusal(changed(data, {field: junk}), world)


@pytest.mark.parametrize("key", ["state", "inc", "has_uint32", "uinteger"])
def test_a_generator_that_cannot_be_is_refused(data, world, key):
    noise = contents(data)[1]["noise"]
    for junk in ("f" * 33, "-1", "0x1", "", 7, None, *(["2"] if key != "state" and key != "uinteger" else [])):
        assert "noise" in refusal(changed(data, {"noise": {**noise, key: junk}}), world)


def test_a_window_that_does_not_follow_from_the_chunks_is_refused(data, world):
    for slots in ([0, 1, 2, 3, 4], [0, 1, 2, 3, 4, 6], [0, 1, 2, 3, 4, 4], [5, 4, 3, 2, 1, -1]):
        assert "slots" in refusal(changed(data, {"slots": slots}), world)


@pytest.mark.parametrize("index", [0, 1, 3, 1 << 30, (1 << 30) + 1, 1 << 61])
def test_a_count_that_does_not_fit_the_tensors_is_refused(data, world, index):
    refusal(changed(data, {"chunk_index": index}), world)


def test_a_missing_and_a_surplus_tensor_are_named(data, world):
    assert "keys.1: this tensor is missing" in refusal(changed(data, drop=["keys.1"]), world)
    assert "'more': no session" in refusal(changed(data, tensors={"more": torch.zeros(3)}), world)


def test_a_tensor_of_another_shape_or_dtype_is_named(data, world):
    wrong = {"values.2": torch.zeros(1, 2, 36, 12)}
    assert "values.2: wanted torch.float32 [1, 2, 36, 24]" in refusal(changed(data, tensors=wrong), world)
    half = {"condition": contents(data)[0]["condition"].half()}
    assert "condition: wanted torch.float32" in refusal(changed(data, tensors=half), world)


@pytest.mark.parametrize(
    "name", ["condition", "keys.0", "values.2", "prompt.keys.1", "decoder_memory.1", "past.1.latent"]
)
@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_numbers_that_are_not_finite_are_refused(data, world, name, value):
    tensor = contents(data)[0][name].clone()
    tensor.view(-1)[-1] = value
    assert f"{name.split('.')[0]}: a number is not finite" in refusal(changed(data, tensors={name: tensor}), world)


@pytest.mark.parametrize(
    ("name", "tensor"),
    [
        ("camera.cam_to_origin", torch.full((4, 4), torch.nan, dtype=torch.float64)),
        ("camera.cam_to_origin", torch.eye(4, dtype=torch.float64) * 2),
        ("camera.alignment", torch.zeros(4, 4, dtype=torch.float64)),
        ("camera.pending", torch.ones(4, 4, dtype=torch.float64)),
        ("camera.intrinsics", torch.tensor([0.0, 1, 1, 1], dtype=torch.float64)),
        ("camera.intrinsics", torch.tensor([1.0, 1, torch.inf, 1], dtype=torch.float64)),
        ("camera.scale", torch.tensor([0.0], dtype=torch.float64)),
        ("camera.scale", torch.tensor([torch.nan], dtype=torch.float64)),
        ("past.0.relative", torch.zeros(3, 4, 4, dtype=torch.float64)),
        (
            "past.0.relative",
            torch.tensor([[1.0, 0, 0, 2e3], [0, 1, 0, 0], [0, 0, 1, 0], [0, 0, 0, 1]]).double().repeat(3, 1, 1),
        ),
        ("past.1.intrinsics", torch.zeros(3, 4, dtype=torch.float64)),
    ],
)
def test_a_camera_that_cannot_be_is_refused(data, world, name, tensor):
    message = refusal(changed(data, tensors={name: tensor}), world)
    assert f"snapshot: {name}: " in message
    assert "cam_to_world" not in message


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        # A step has at most a thousand model units, a chunk three: the second chunk is at most six thousand away.
        ("past.1.cam_to_origin", 6001.0, "wanted translations of at most 6000"),
        ("past.0.cam_to_origin", 1e160, "wanted translations of at most 3000"),
        ("past.0.relative", -1001.0, "wanted translations of at most 1000"),
        ("camera.cam_to_origin", 1e160, "wanted translations of at most 1e+50"),
        ("camera.alignment", -1e308, "wanted translations of at most 1e+50"),
    ],
)
def test_a_camera_farther_than_any_session_goes_is_refused(data, world, name, value, words):
    tensor = contents(data)[0][name].clone()
    tensor.view(-1, 4, 4)[-1, 1, 3] = value
    assert f"snapshot: {name}: {words}" in refusal(changed(data, tensors={name: tensor}), world)


def test_a_camera_as_far_as_a_session_may_go_is_taken(data, world):
    tensors = contents(data)[0]
    tensors["past.1.cam_to_origin"][-1, 1, 3] = 6000.0
    tensors["camera.cam_to_origin"][1, 3] = 3e38  # float32's last
    go(world, load(changed(data, tensors=tensors), world))


@pytest.mark.parametrize("name", ["camera.scale", "camera.intrinsics", "past.0.intrinsics"])
@pytest.mark.parametrize("value", [1e-308, 1e308])
def test_lengths_that_no_lens_and_no_scale_has_are_refused(data, world, name, value):
    # A focal length next to nothing made rays that are not finite, and the next chunk an internal error.
    tensor = torch.full_like(contents(data)[0][name], value)
    wanted = f"snapshot: {name}: wanted numbers of at most 1e+50, and lengths of at least 1e-50"
    assert wanted in refusal(changed(data, tensors={name: tensor}), world)


@pytest.mark.parametrize("name", ["keys.0", "prompt.keys.0", "past.0.latent", "decoder_memory.0"])
def test_numbers_beyond_all_measure_are_refused(data, world, name):
    tensor = contents(data)[0][name].clone()
    tensor.view(-1)[-1] = 3e38
    assert f"{name.split('.')[0]}: a number is not finite, or beyond all" in refusal(
        changed(data, tensors={name: tensor}), world
    )


def test_a_size_that_is_only_equal_to_a_served_one_is_refused(data, world):
    assert "its frames are" in refusal(changed(data, {"size": [32.0, 48.0]}), world)


def test_prompts_are_laid_out_as_this_world_does_whatever_the_file_says(data, world):
    tensor = contents(data)[0]["prompt.keys.0"]
    strides = list(tensor.contiguous().stride())
    restored = load(changed(data, {"strides": {"prompt.keys.0": strides}}), world)
    assert restored.prompt.keys[0].stride() == world.encode_prompt("").keys[0].stride()
    assert torch.equal(restored.prompt.keys[0], tensor)


@pytest.mark.parametrize("strides", [[1, 1, 1, 1], [0, 0, 0, 0], [1 << 60, 96, 24, 1], [1, 96], "x"])
def test_strides_that_take_more_memory_than_their_numbers_are_refused(data, world, strides):
    assert "strides" in refusal(changed(data, {"strides": {"prompt.keys.0": strides}}), world)


def test_a_refused_file_leaves_no_words_of_its_own_in_the_message(data, world):
    model = {**contents(data)[1]["model"], "name": "\x1b[31m" + "é" * 5000}
    message = refusal(changed(data, {"model": model}), world)
    assert message.isascii()
    assert message.isprintable()
    assert len(message) < 300
