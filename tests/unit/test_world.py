"""A session's chunks, without threads: determinism, staging, conditioner reuse, steering."""

import dataclasses
import types

import numpy as np
import pytest
import torch
from worldmodel.errors import CancelledError
from worldmodel.pixels import fit_picture, to_uint8
from worldmodel.sampler import predict
from worldmodel.session import Noise
from worldmodel.world import Controls

from tests.unit.worlds import TINY, picture, tiny_world


def run(world, session, num_chunks, controls=None, **changes):
    """Compute and commit chunks; their frames joined."""
    frames = []
    for _ in range(num_chunks):
        chunk = world.next_chunk(session, controls or Controls(**changes), lambda: None)
        session.commit(chunk.staged)
        frames.append(chunk.frames.numpy())
    return np.concatenate(frames)


def test_the_first_chunk_has_nine_frames_and_later_ones_twelve():
    world = tiny_world()
    session = world.start(picture())
    assert [len(run(world, session, 1)) for _ in range(3)] == [9, 12, 12]
    assert (session.next_frame, session.next_latent_frame, session.chunk_index) == (33, 9, 3)


def test_equal_inputs_give_equal_bytes_past_the_roll():
    one, two = tiny_world(), tiny_world()
    assert np.array_equal(
        run(one, one.start(picture(), "day", 5), 5, actions=("w", "wl", "")),
        run(two, two.start(picture(), "day", 5), 5, actions=("w", "wl", "")),
    )


@pytest.mark.parametrize("reuse_budget", [0, 7_000])
def test_frames_are_bit_equal_without_conditioner_reuse(reuse_budget):
    with_reuse, without = tiny_world(), tiny_world(conditioner_budget_bytes=reuse_budget)
    assert np.array_equal(
        run(with_reuse, with_reuse.start(picture()), 5, actions=("w", "l", "w")),
        run(without, without.start(picture()), 5, actions=("w", "l", "w")),
    )


@pytest.mark.parametrize(
    # 3 layers, 5 passes (4 steps and the context). Scale and shift of a layer: 2 x 18 tokens x 48 x 4 B = 6,912 B.
    ("budget", "misses", "hits"),
    [(None, 3, 12), (0, 15, 0), (7000, 1 + 10, 4), (6911, 15, 0)],
)
def test_each_layers_conditioner_runs_once_a_chunk_as_far_as_the_budget_holds(budget, misses, hits):
    world = tiny_world(conditioner_budget_bytes=budget)
    run(world, world.start(picture()), 1)
    assert (world.counters.conditioner_misses, world.counters.conditioner_hits) == (misses, hits)
    assert (world.counters.denoising_steps, world.counters.context_passes) == (4, 1)


def test_nothing_of_a_chunk_stays_bound_to_the_blocks():
    world = tiny_world()
    run(world, world.start(picture()), 1)
    assert all(block.camera_scale is None and block.kv_keys is None for block in world.blocks)
    assert world.counters.conditioner_peak_bytes == 3 * 6912


@pytest.mark.parametrize("step", [0, 2, 4])
def test_a_chunk_given_up_at_any_step_leaves_the_session_as_it_was(step):
    world = tiny_world()
    plain, disturbed = world.start(picture(), seed=3), world.start(picture(), seed=3)
    wanted = run(world, plain, 6, actions=("w", "l", "w"))
    calls = 0

    def give_up():
        nonlocal calls
        calls += 1
        if calls > step:
            raise CancelledError("stop")

    got = []
    for _ in range(6):
        calls = 0
        with pytest.raises(CancelledError):
            world.next_chunk(disturbed, Controls(actions=("s", "s", "j"), prompt="other"), give_up)
        got.append(run(world, disturbed, 1, actions=("w", "l", "w")))
    assert np.array_equal(np.concatenate(got), wanted)
    assert all(block.camera_scale is None and block.kv_keys is None for block in world.blocks)


def test_a_finished_chunk_that_is_not_committed_changes_nothing():
    world = tiny_world()
    session = world.start(picture())
    run(world, session, 4)
    once = world.next_chunk(session, Controls(actions=("w",) * 3), lambda: None)
    again = world.next_chunk(session, Controls(actions=("w",) * 3), lambda: None)
    assert torch.equal(once.frames, again.frames)


def test_interleaved_sessions_equal_their_solo_runs():
    world = tiny_world()
    moves = [Controls(actions=("w", "w", "l")), Controls(actions=("a", "", "k"), num_steps=2), Controls(prompt="night")]
    solo = [run(world, world.start(picture(i), seed=i), 5, move) for i, move in enumerate(moves)]
    sessions = [world.start(picture(i), seed=i) for i in range(3)]
    parts = [[], [], []]
    for _ in range(5):
        for i, session in enumerate(sessions):
            parts[i].append(run(world, session, 1, moves[i]))
    for wanted, got in zip(solo, parts, strict=True):
        assert np.array_equal(np.concatenate(got), wanted)


def difference(a, b):
    return np.abs(a.astype(float) - b.astype(float)).mean()


def test_what_steers_a_session_shows_in_its_frames():
    world = tiny_world()
    base = run(world, world.start(picture(), "day", 1), 2, actions=("w",) * 3)
    others = {
        "seed": run(world, world.start(picture(), "day", 2), 2, actions=("w",) * 3),
        "picture": run(world, world.start(np.full_like(picture(), 255), "day", 1), 2, actions=("w",) * 3),
        "actions": run(world, world.start(picture(), "day", 1), 2, actions=("l",) * 3),
        "prompt": run(world, world.start(picture(), "night", 1), 2, actions=("w",) * 3),
        "steps": run(world, world.start(picture(), "day", 1), 2, Controls(actions=("w",) * 3, num_steps=7)),
        "intrinsics": run(
            world,
            world.start(picture(), "day", 1),
            2,
            Controls(actions=("w",) * 3, intrinsics=np.tile([15.0, 15, 24, 16], (3, 1))),
        ),
    }
    assert {name: difference(base, frames) > 0.5 for name, frames in others.items()} == dict.fromkeys(others, True)


def test_a_camera_that_turns_in_the_second_chunk_leaves_the_first_alone():
    world = tiny_world()
    one, two = world.start(picture()), world.start(picture())
    assert np.array_equal(run(world, one, 1), run(world, two, 1))
    assert difference(run(world, one, 1, actions=("l",) * 3), run(world, two, 1, actions=("j",) * 3)) > 1


def test_a_picture_seen_before_is_not_encoded_again():
    world = tiny_world()
    first, second = world.start(picture()), world.start(picture())
    world.start(picture(1))
    world.start(picture(), fit="stretch")
    assert (world.counters.pictures_encoded, world.counters.picture_cache_hits) == (3, 1)
    assert torch.equal(first.condition, second.condition)


def test_the_picture_cache_keeps_to_its_budget():
    # A condition: 20 channels x 6 latent frames x 4 x 6 cells x 4 B = 11,520 B; two fit.
    world = tiny_world(picture_cache_bytes=25_000)
    for seed in (0, 1, 0, 2):  # 1 is the least recently used when 2 comes
        world.start(picture(seed))
    assert (world.counters.pictures_encoded, world.counters.picture_cache_hits) == (3, 1)
    world.start(picture(0))
    world.start(picture(1))
    assert (world.counters.pictures_encoded, world.counters.picture_cache_hits) == (4, 2)


def test_a_session_weighs_what_was_announced():
    world = tiny_world()
    session = world.start(picture(), "day")
    run(world, session, 5)
    tensors = [
        *(past.latent for past in session.history),
        *session.cache.keys,
        *session.cache.values,
        *session.prompt.keys,
        *session.prompt.values,
        *(session.decoder_memory or ()),
        session.condition,
    ]
    # Whole storages: a view of a few bytes can keep megabytes alive.
    storages = {tensor.untyped_storage().data_ptr(): tensor.untyped_storage().nbytes() for tensor in tensors}
    assert sum(storages.values()) == world.session_bytes()


def test_a_session_goes_on_past_the_end_of_the_published_position_table():
    world = tiny_world(dataclasses.replace(TINY, timesteps=(1000.0,)))
    session = world.start(picture())
    session.next_latent_frame = 1023  # the published table ends at 1024
    session.cache.frames = (0, 1, 2, 1017, 1018, 1019, 1020, 1021, 1022)
    assert len(run(world, session, 2)) == 21


def test_a_session_runs_chunk_by_chunk_past_1024_latent_frames():
    world = tiny_world(dataclasses.replace(TINY, timesteps=(1000.0,)))
    session = world.start(picture())
    frames = run(world, session, 345)
    assert (session.next_latent_frame, len(frames)) == (1035, 9 + 344 * 12)
    assert session.cache.frames == (0, 1, 2, *range(1029, 1035))
    # Still a moving picture, no frozen or saturated one.
    late = frames[-24:].astype(np.int16)
    assert np.abs(np.diff(late, axis=0)).mean() > 0
    assert late.std() > 1


def test_numbers_that_run_over_fail_the_chunk_and_not_the_session():
    world = tiny_world()
    session = world.start(picture())
    weight = world.transformer.head.head.weight
    weight[0, 0] = torch.inf
    with pytest.raises(FloatingPointError):
        world.next_chunk(session, Controls(), lambda: None)
    weight[0, 0] = 0
    assert len(run(world, session, 1)) == 9


def test_the_condition_settles_into_black_and_its_last_frame_repeats():
    world = tiny_world()
    session = world.start(picture())
    assert session.condition.shape == (20, 6, 4, 6)
    assert session.condition[:4, 0].eq(1).all()
    assert session.condition[:4, 1:].eq(0).all()
    session.next_latent_frame = 300
    late = session.condition_of_next_chunk()
    assert late.shape == (1, 20, 3, 4, 6)
    assert torch.equal(late[0, :, 2], session.condition[:, 5])


def test_a_crop_keeps_the_middle_of_a_wide_picture():
    wide = torch.zeros(4, 16, 3, dtype=torch.uint8)
    wide[:, 4:12] = 255
    assert fit_picture(wide, 4, 8, "crop").eq(1).all()
    assert not fit_picture(wide, 4, 8, "stretch").eq(1).all()


def test_a_picture_of_one_pixel_fits_any_size():
    one = torch.full((1, 1, 3), 255, dtype=torch.uint8)
    for size in ((16, 160), (160, 16)):
        assert fit_picture(one, *size, "crop").eq(1).all()


def test_fitting_averages_what_it_shrinks():
    checks = torch.tensor([[0, 255], [255, 0]], dtype=torch.uint8).repeat(8, 8)[..., None].expand(16, 16, 3)
    assert fit_picture(checks, 4, 4, "crop").abs().max() < 0.2


def test_pixels_are_rounded_not_cut_off():
    frames = torch.tensor([-2.0, -1.0, -1 + 0.6 / 127.5, 0.0, 1.0, 2.0]).view(1, 1, 1, 6).expand(1, 3, 1, 6)
    assert to_uint8(frames)[0, 0, :, 0].tolist() == [0, 0, 1, 128, 255, 255]


def test_floats_that_become_pixels_stay_as_they_are():
    frames = torch.linspace(-2, 2, 48).view(1, 3, 4, 4)
    to_uint8(frames)
    assert torch.equal(frames, torch.linspace(-2, 2, 48).view(1, 3, 4, 4))


def test_every_bit_of_a_seed_counts():
    noises = [Noise(seed).draw((8,)) for seed in (0, 1, -1, 2**32, -(2**63), 2**63 - 1)]
    assert len({tuple(noise.tolist()) for noise in noises}) == 6


def test_noise_goes_on_from_a_copy_without_moving_the_original():
    noise = Noise(5)
    noise.draw((3,))
    first = noise.copy().draw((4,))
    assert torch.equal(noise.draw((4,)), first)
    assert not torch.equal(noise.draw((4,)), first)


def test_a_session_of_another_size_is_what_a_world_of_that_size_streams():
    served = tiny_world(TINY.replace(further_sizes=((48, 32), (64, 96))))
    for size in ((32, 48), (48, 32), (64, 96)):
        alone = tiny_world(TINY.replace(height_px=size[0], width_px=size[1]))
        moves = Controls(actions=("w", "l", ""))
        wanted = run(alone, alone.start(picture(), "day", 4), 4, moves)
        assert np.array_equal(run(served, served.start(picture(), "day", 4, size=size), 4, moves), wanted)
        assert served.session_bytes(size) == alone.session_bytes()


def told(world, session):
    """The keys and values that a session still sees, by latent frame, so that slots do not matter."""
    size = session.cache.tokens_per_frame
    place = {frame: slot for slot, frame in enumerate(session.cache.frames) if frame is not None}
    return {
        frame: [
            part[:, :, slot * size : (slot + 1) * size].clone() for part in (*session.cache.keys, *session.cache.values)
        ]
        for frame, slot in place.items()
    }


@pytest.mark.parametrize(("window", "sink", "num_chunks"), [(9, 3, 2), (9, 3, 3), (9, 3, 6), (8, 2, 5)])
def test_writing_the_past_again_under_the_same_prompt_gives_the_same_past(window, sink, num_chunks):
    # While nothing has left the window, the past is just what it was; later, what saw frames that are gone differs.
    world = tiny_world(TINY.replace(window_latent_frames=window, sink_latent_frames=sink))
    session = world.start(picture(), "day", 1)
    run(world, session, num_chunks, actions=("w", "l", ""))
    before = told(world, session)
    cache = world.rewritten_cache(session, session.prompt, lambda: None)
    assert set(cache.frames) == set(session.cache.frames)
    after = told(world, types.SimpleNamespace(cache=cache))
    for frame, parts in before.items():
        is_whole = 3 * num_chunks <= window or frame < sink
        if is_whole:
            for one, other in zip(parts, after[frame], strict=True):
                torch.testing.assert_close(one, other, atol=1e-5, rtol=1e-5)
    if 3 * num_chunks > window:
        assert any(not torch.equal(before[frame][1], after[frame][1]) for frame in before if frame >= sink)


def test_a_past_under_a_new_prompt_is_one_that_had_that_prompt_all_along():
    world = tiny_world()
    session = world.start(picture(), "day", 1)
    run(world, session, 2, actions=("w", "l", ""))
    latents = [past.latent for past in session.history]
    night = world.encode_prompt("night")
    rewritten = world.rewritten_cache(session, night, lambda: None)

    # The same clean latents, written by context passes of a session that only ever had "night".
    other = world.start(picture(), "night", 1)
    for latent, past in zip(latents, session.history, strict=True):
        placement = other.cache.stage(past.first_frame, 3)
        world.bind_chunk(
            world.config, other.cache, placement, other.prompt, world.camera_conditioning(past.views, world.config)
        )
        with torch.inference_mode():
            predict(world.transformer, world.blocks, latent, other.condition_from(past.first_frame), 0.0)
        world.unbind_chunk()
        other.cache.commit(placement)
    for one, same, old in zip(rewritten.keys, other.cache.keys, session.cache.keys, strict=True):
        assert torch.equal(one, same)
        if one is not rewritten.keys[0]:  # the first layer's keys come before any prompt is read
            assert not torch.equal(one, old)


def test_a_chunk_that_rewrites_its_past_and_is_given_up_changes_nothing():
    world = tiny_world()
    plain, disturbed = (world.start(picture(), "day", 1) for _ in range(2))
    for session in (plain, disturbed):
        run(world, session, 3)
    passes = iter(range(10))

    def give_up():
        if next(passes) == 2:
            raise CancelledError("stop")

    with pytest.raises(CancelledError):
        world.next_chunk(disturbed, Controls(prompt="night", is_recached=True), give_up)
    assert np.array_equal(run(world, disturbed, 2), run(world, plain, 2))


def test_a_prompt_over_the_past_steers_more_than_one_over_the_future():
    world = tiny_world()
    frames = []
    for controls in (Controls(), Controls(prompt="night"), Controls(prompt="night", is_recached=True)):
        session = world.start(picture(), "day", 1)
        run(world, session, 3)
        frames.append(run(world, session, 1, controls))
    assert not np.array_equal(frames[0], frames[1])
    assert not np.array_equal(frames[1], frames[2])
