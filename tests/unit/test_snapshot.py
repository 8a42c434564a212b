"""A session that is saved and restored goes on byte for byte, at any moment, also in another world."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from worldmodel import snapshot

from tests.unit.snapshots import contents, go, load, save, walk
from tests.unit.worlds import START_RAYS, TINY, accelerated_world, picture, tiny_world

# Every kind of control, long enough for the window to fill, to roll, and to roll again.
PLAN = (
    {},
    {"actions": ("w", "wl", "")},
    {"cam_to_world": walk(0)},
    {"cam_to_world": walk(3), "prompt": "a garden"},
    {"actions": ("", "i", "s"), "intrinsics": np.tile((40.0, 41.0, 23.0, 17.0), (3, 1))},
    {"actions": ("a", "", ""), "prompt": "a harbour at night", "is_recached": True},
    {"num_steps": 2, "cam_to_world": walk(0)},
    {"prompt": ""},
)
UNALIGNED = TINY.replace(window_latent_frames=11, sink_latent_frames=2, chunk_latent_frames=3)
MOVING = TINY.replace(translation_rule="first_moving_chunk")


def start(world, **changes):
    return world.start(picture(3, 50, 70), "a street", seed=-7, **changes)


@pytest.fixture(
    scope="module",
    params=[TINY, UNALIGNED, MOVING, START_RAYS],
    ids=["fixed", "unaligned", "first_moving", "start_rays"],
)
def uninterrupted(request):
    """The configuration, every chunk of the plan, and the snapshot before each."""
    world = tiny_world(request.param)
    session, frames, files = start(world), [], []
    for controls in PLAN:
        files.append(save(session, world))
        frames.append(go(world, session, **controls))
    return request.param, frames, files


@pytest.mark.parametrize("moment", range(len(PLAN)))
def test_a_resumed_session_equals_the_uninterrupted_one(uninterrupted, moment):
    config, frames, files = uninterrupted
    world = tiny_world(config)
    session = load(files[moment], world)
    for controls, wanted in zip(PLAN[moment:], frames[moment:], strict=True):
        np.testing.assert_array_equal(go(world, session, **controls), wanted)


def test_saving_a_restored_session_gives_the_same_file(uninterrupted):
    config, _, files = uninterrupted
    world = tiny_world(config)
    for file in files:
        np.testing.assert_array_equal(save(load(file, world), world), file)


def test_the_original_goes_on_beside_its_restored_twin():
    world = tiny_world()
    one = start(world)
    go(world, one, actions=("w", "w", "l"))
    other = load(save(one, world), world)
    for controls in PLAN[1:]:
        np.testing.assert_array_equal(go(world, one, **controls), go(world, other, **controls))


def test_what_a_session_does_afterwards_does_not_change_what_was_taken():
    world = tiny_world()
    session = start(world)
    for controls in PLAN[:5]:
        go(world, session, **controls)
    wanted = save(session, world)
    taken = snapshot.take(session, world)
    go(world, session)
    go(world, session)
    np.testing.assert_array_equal(np.concatenate(taken.pieces(world)), wanted)


def test_taking_a_snapshot_leaves_the_session_as_it_was():
    world, other = tiny_world(), tiny_world()
    one, untouched = start(world), start(other)
    for controls in PLAN:
        save(one, world)
        np.testing.assert_array_equal(go(world, one, **controls), go(other, untouched, **controls))


def test_what_a_failed_chunk_left_behind_does_not_spoil_the_snapshot():
    """A chunk whose numbers ran over has written where the next one will: NaN in the file would have it refused."""
    world, other = tiny_world(), tiny_world()
    session = start(world)
    for controls in PLAN[:5]:
        go(world, session, **controls)
    slots = session.cache.stage(session.next_latent_frame, 3).slots
    with torch.inference_mode():
        for buffer in (*session.cache.keys, *session.cache.values):
            buffer[:, :, :54].unflatten(2, (9, -1))[:, :, list(slots)] = torch.nan
    restored = load(save(session, world), other)
    for controls in PLAN[5:]:
        np.testing.assert_array_equal(go(other, restored, **controls), go(world, session, **controls))


def test_a_snapshot_of_a_further_size_makes_frames_of_that_size():
    config = TINY.replace(further_sizes=((48, 64),))
    world, other = tiny_world(config), tiny_world(config)
    session = start(world, size=(48, 64), fit="stretch", translation_scale=0.5)
    go(world, session, cam_to_world=walk(0))
    restored = load(save(session, world), other)
    wanted = go(world, session, cam_to_world=walk(3))
    assert wanted.shape[1:] == (48, 64, 3)
    np.testing.assert_array_equal(go(other, restored, cam_to_world=walk(3)), wanted)


def test_the_scale_stays_open_until_something_moves_and_then_stays_shut():
    world = tiny_world(MOVING)
    session = start(world)
    go(world, session)
    assert load(save(session, world), world).camera.scale is None
    go(world, session, cam_to_world=walk(0, step=0.3))
    scale = session.camera.scale
    assert scale is not None
    assert load(save(session, world), world).camera.scale == scale


def test_motion_that_the_first_frame_still_owes_is_kept():
    config = TINY.replace(chunk_latent_frames=1, window_latent_frames=5)
    world, other = tiny_world(config), tiny_world(config)
    session = start(world)
    go(world, session, actions=("w",))
    assert session.camera.pending is not None
    restored = load(save(session, world), other)
    np.testing.assert_array_equal(restored.camera.pending, session.camera.pending)
    np.testing.assert_array_equal(go(other, restored, actions=("l",)), go(world, session, actions=("l",)))


def test_sessions_under_a_step_cache_and_in_bfloat16_resume_too():
    options = {"step_cache": "1011", "dtype": "bfloat16"}
    world, other = accelerated_world(**options), accelerated_world(**options)
    session = start(world)
    for controls in PLAN[:5]:
        go(world, session, **controls)
    restored = load(save(session, world), other)
    for controls in PLAN[5:]:
        np.testing.assert_array_equal(go(other, restored, **controls), go(world, session, **controls))


def test_a_restored_session_makes_no_compiled_block_compile_again():
    world = accelerated_world(compile="on", compile_backend="aot_eager", compile_cache="none")
    session = start(world)
    for controls in PLAN[:2]:
        go(world, session, **controls)
    restored = load(save(session, world), world)
    for controls in PLAN[2:]:
        np.testing.assert_array_equal(go(world, restored, **controls), go(world, session, **controls))
    assert world.compilation.recompiles() == 0
    torch._dynamo.reset()


def test_the_file_is_read_by_the_library_that_defines_its_format():
    world = tiny_world()
    session = start(world)
    for controls in PLAN[:4]:
        go(world, session, **controls)
    tensors, document = contents(save(session, world))
    torch.testing.assert_close(tensors["condition"], session.condition, rtol=0, atol=0)
    sink = slice(0, 3 * 2 * 3)  # latent frames, rows and columns of patches
    torch.testing.assert_close(tensors["keys.1"][:, :, sink], session.cache.keys[1][:, :, sink], rtol=0, atol=0)
    torch.testing.assert_close(tensors["prompt.values.2"], session.prompt.values[2], rtol=0, atol=0)
    np.testing.assert_array_equal(tensors["camera.cam_to_origin"].numpy(), session.camera.cam_to_origin)
    assert document["chunk_index"] == 4
    assert document["slots"] == list(session.cache.frames)


def test_a_window_that_is_not_full_is_saved_as_far_as_it_is():
    world = tiny_world()
    session = start(world)
    go(world, session)
    tensors, _ = contents(save(session, world))
    num_tokens = 3 * 2 * 3  # latent frames, rows and columns of patches
    assert tensors["keys.0"].shape == (1, 2, num_tokens, 24)


def test_a_full_session_makes_the_longest_file_that_is_taken():
    world = tiny_world()
    session = start(world)
    for controls in PLAN:
        go(world, session, **controls)
    assert world.session_bytes() < len(save(session, world)) <= snapshot.most_bytes(world)


def test_the_weights_have_one_digest_with_and_without_acceleration():
    plain = accelerated_world().weights_digest
    assert len(plain) == 32
    assert accelerated_world(step_cache="auto").weights_digest == plain
    assert accelerated_world(compile="on", compile_backend="eager").weights_digest == plain


@pytest.mark.parametrize("part", ["transformer", "codec"])
def test_one_changed_bit_of_a_weight_changes_the_digest(part):
    world, other = tiny_world(), tiny_world()
    parameter = next(each for each in getattr(other, part).parameters() if each.ndim == 1)
    parameter[0] = torch.nextafter(parameter[0], torch.tensor(9.0))
    assert other.weights_digest != world.weights_digest
