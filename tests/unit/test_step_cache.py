"""The step cache on our blocks: what it skips, what it never touches, and that no state crosses chunks or sessions."""

import threading

import numpy as np
import pytest
from worldmodel.engine import Engine
from worldmodel.errors import CancelledError, InvalidInputError
from worldmodel.serving import ServingConfig
from worldmodel.step_cache_settings import StepCacheSettings
from worldmodel.world import Controls

from tests.unit.engines import ask, start
from tests.unit.worlds import TINY, accelerated_world, picture


@pytest.fixture(scope="module")
def mounted():
    return accelerated_world(step_cache="off")


@pytest.fixture(scope="module")
def plain():
    return accelerated_world()


def stream(world, num_chunks=4, seed=1, **controls):
    session, frames = world.start(picture(seed), seed=seed), []
    for _ in range(num_chunks):
        chunk = world.next_chunk(session, Controls(**controls), lambda: None)
        session.commit(chunk.staged)
        frames.append(chunk.frames.numpy())
    return np.concatenate(frames)


def runs(world):
    """Block runs computed and skipped since the last look."""
    computed, skipped = world.block_runs()
    world.forget_counts()
    return computed, skipped


def test_a_mounted_cache_that_is_off_changes_no_bit(mounted, plain):
    assert np.array_equal(stream(mounted), stream(plain))


def test_a_mask_that_computes_every_step_changes_no_bit(mounted, plain):
    # Under a mount each block still finds its own keys, values, scale and shift: nothing is handed to it by a loop.
    assert np.array_equal(stream(mounted, step_cache=StepCacheSettings("1111")), stream(plain))


@pytest.mark.parametrize(
    # 3 layers, of which the first always runs; 4 steps and the context pass a chunk, 2 chunks.
    ("mask", "skipped_steps"),
    [("1111", 0), ("1011", 1), ("1001", 2), ("1000", 3)],
)
def test_a_mask_skips_its_zeros_and_never_the_context_pass(mounted, mask, skipped_steps):
    runs(mounted)
    stream(mounted, 2, step_cache=StepCacheSettings(mask))
    assert runs(mounted) == (2 * (5 * 3 - 2 * skipped_steps), 2 * 2 * skipped_steps)


@pytest.mark.parametrize("num_steps", [2, 8])
def test_a_mask_skips_nothing_of_a_chunk_that_has_another_number_of_steps(mounted, plain, num_steps):
    # The server's own mask, which no request has asked for, was laid on the first steps of any chunk.
    runs(mounted)
    frames = stream(mounted, 1, num_steps=num_steps, step_cache=StepCacheSettings("1000"))
    assert runs(mounted) == ((num_steps + 1) * 3, 0)
    assert np.array_equal(frames, stream(plain, 1, num_steps=num_steps))


def test_skipping_changes_the_frames_a_little(mounted, plain):
    exact, skipped = stream(plain), stream(mounted, step_cache=StepCacheSettings("1011"))
    difference = np.abs(exact.astype(float) - skipped).mean()
    assert 0 < difference < 20


def test_first_and_last_blocks_always_run(mounted):
    runs(mounted)
    stream(mounted, 1, step_cache=StepCacheSettings("1011", first_blocks=1, last_blocks=1))
    assert runs(mounted) == (14, 1)


def test_many_steps_are_skipped_where_they_change_little(mounted):
    runs(mounted)
    stream(mounted, 1, num_steps=20, step_cache=StepCacheSettings("auto", threshold=0.99, warmup_steps=2))
    computed, skipped = runs(mounted)
    assert skipped > 0
    assert computed + skipped == 21 * 3


def test_steps_along_the_flow_are_skipped_at_the_usual_threshold(mounted):
    runs(mounted)
    stream(mounted, 2, num_steps=20, step_cache=StepCacheSettings("auto"))
    computed, skipped = runs(mounted)
    assert skipped > 0
    assert computed + skipped == 2 * 21 * 3


def test_steps_that_are_noised_anew_never_are():
    # The first block's residual changes by most of its size: what the published few-step samplers cannot get around.
    renoised = accelerated_world(TINY.replace(flow_from_steps=51), step_cache="off")
    stream(renoised, 2, num_steps=20, step_cache=StepCacheSettings("dynamic"))
    assert runs(renoised) == (2 * 21 * 3, 0)


def test_no_more_steps_in_a_row_are_skipped_than_allowed(mounted):
    skipped = []
    for most in (1, 2):
        runs(mounted)
        settings = StepCacheSettings("dynamic", threshold=0.99, warmup_steps=2, max_continuous=most)
        stream(mounted, 1, num_steps=20, step_cache=settings)
        skipped.append(runs(mounted)[1])
    # Of the 18 steps behind the warm-up every second one, and two of three; two blocks each.
    assert skipped == [2 * 9, 2 * 12]


def test_few_steps_are_never_skipped_by_themselves(mounted):
    runs(mounted)
    stream(mounted, 1, step_cache=StepCacheSettings("auto", threshold=0.99, warmup_steps=0))
    assert runs(mounted) == (15, 0)


def test_taylorseer_extrapolates(mounted):
    settings = {"mode": "11111000", "first_blocks": 1}
    plainly = stream(mounted, 1, num_steps=8, step_cache=StepCacheSettings(**settings))
    extrapolated = stream(mounted, 1, num_steps=8, step_cache=StepCacheSettings(**settings, taylorseer_order=1))
    assert not np.array_equal(plainly, extrapolated)


def test_interleaved_sessions_equal_solo_runs_with_the_cache_on(mounted):
    moves = [
        Controls(step_cache=StepCacheSettings("1011")),
        Controls(step_cache=StepCacheSettings("dynamic", threshold=0.99, warmup_steps=1), num_steps=10),
        Controls(),
    ]
    solo = [stream(mounted, seed=i, **vars(move)) for i, move in enumerate(moves)]
    sessions = [mounted.start(picture(i), seed=i) for i in range(3)]
    parts = [[], [], []]
    for _ in range(4):
        for i, session in enumerate(sessions):
            chunk = mounted.next_chunk(session, moves[i], lambda: None)
            session.commit(chunk.staged)
            parts[i].append(chunk.frames.numpy())
    for wanted, got in zip(solo, parts, strict=True):
        assert np.array_equal(np.concatenate(got), wanted)


def test_clients_on_many_threads_get_what_each_gets_alone(plain):
    # The library is bound to one thread: two at once gave wrong frames and broke the model for good, without an error.
    world = accelerated_world(step_cache="off")
    engine = Engine(lambda: world, ServingConfig(max_requests=100), lambda stats: None)
    engine.start()
    used, replies = set(), {}
    inner = world.step_cache.step

    def step(*inputs):
        used.add(threading.get_ident())
        return inner(*inputs)

    def wish(number):
        return {"seed": number, "step_cache": StepCacheSettings(("1011", "1101", "1111", "off")[number % 4])}

    def client(number):
        replies[number] = ask(engine, start(f"s{number}", 3, **wish(number)))

    world.step_cache.step = step
    threads = [threading.Thread(target=client, args=(number,)) for number in range(12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    frames = {number: reply.frames() for number, reply in replies.items()}
    solo = {number: ask(engine, start(None, 3, **wish(number))).frames() for number in frames}
    engine.close()
    for number in frames:
        assert np.array_equal(frames[number], solo[number]), number
    session = plain.start(picture(), seed=3)
    assert np.array_equal(frames[3][:9], plain.next_chunk(session, Controls(), lambda: None).frames.numpy())
    assert len(used) == 1
    assert len(world.transformer.blocks) == 3


@pytest.mark.parametrize("step", [1, 2, 3])
def test_a_chunk_given_up_leaves_nothing_to_the_next_session(mounted, step):
    masked = {"step_cache": StepCacheSettings("1011")}
    wanted = stream(mounted, **masked)
    calls = iter(range(10))

    def give_up():
        if next(calls) == step:
            raise CancelledError("stop")

    with pytest.raises(CancelledError):
        mounted.next_chunk(mounted.start(picture(9)), Controls(**masked), give_up)
    assert np.array_equal(stream(mounted, **masked), wanted)


def test_other_step_counts_in_between_change_nothing(mounted):
    masked = {"step_cache": StepCacheSettings("1011")}
    wanted = stream(mounted, **masked)
    stream(mounted, 1, num_steps=7, step_cache=StepCacheSettings("1010101"))
    assert np.array_equal(stream(mounted, **masked), wanted)


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        (StepCacheSettings("fast"), "step_cache: wanted off, auto, dynamic or a mask of 0 and 1, got 'fast'"),
        (StepCacheSettings(""), "step_cache: wanted off, auto, dynamic or a mask"),
        (StepCacheSettings("101"), "step_cache: wanted a mask of 4 digits that begins with 1, got 101"),
        (StepCacheSettings("0111"), "step_cache: wanted a mask of 4 digits that begins with 1, got 0111"),
        (StepCacheSettings(threshold=0), "step_cache_threshold: wanted a number between 0 and 1, got 0"),
        (StepCacheSettings(threshold=float("nan")), "step_cache_threshold: wanted a number between 0 and 1, got nan"),
        (StepCacheSettings(warmup_steps=-1), "step_cache_warmup_steps: wanted 0 or more, got -1"),
        (StepCacheSettings(warmup_steps=2**31), "step_cache_warmup_steps: wanted at most 1000, got 2147483648"),
        (StepCacheSettings(max_continuous=0), "step_cache_max_continuous: wanted 1 or more, got 0"),
        (StepCacheSettings(first_blocks=0), "step_cache_first_blocks: wanted 1 or more, got 0"),
        (
            StepCacheSettings(first_blocks=2, last_blocks=2),
            "step_cache_first_blocks, step_cache_last_blocks: wanted at",
        ),
        (StepCacheSettings(taylorseer_order=3), "step_cache_taylorseer_order: wanted 0 to 2, got 3"),
    ],
)
def test_settings_that_cannot_be_meant_are_refused(settings, says):
    with pytest.raises(InvalidInputError) as caught:
        settings.check(num_steps=4, num_layers=3)
    assert str(caught.value).startswith(says)
