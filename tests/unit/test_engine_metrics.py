"""What the engine reports, and when: before the last answer, while a chunk runs, and after one that came to nothing."""

import weakref

import pytest
from worldmodel.engine import Engine
from worldmodel.errors import CancelledError, InternalError, SessionNotFoundError
from worldmodel.metrics import ChunkTimes
from worldmodel.serving import ServingConfig

from tests.unit.engines import WAIT_S, Gate, ask, go_on, start
from tests.unit.worlds import accelerated_world, tiny_world
from tests.waiting import wait_for

LAYER_BYTES = 2 * 18 * 48 * 4  # scale and shift; tokens of a chunk, dim, float32
NUM_LAYERS, NUM_STEPS = 3, 4


@pytest.fixture
def make():
    """A function that starts an engine and gives all that it reports, in order."""
    engines = []

    def make(world, on_chunk=lambda _: None, on_error=lambda _: None, **serving):
        reports = []
        engine = Engine(lambda: world, ServingConfig(**serving), reports.append, on_chunk, on_error)
        engine.start()
        engines.append(engine)
        return engine, reports

    yield make
    for engine in engines:
        engine.close()


@pytest.mark.parametrize(
    ("budget", "num_bytes"), [(None, 3 * LAYER_BYTES), (LAYER_BYTES + 1, LAYER_BYTES), (LAYER_BYTES - 1, 0)]
)
def test_the_conditioners_bytes_are_shown_while_a_chunk_runs_and_then_gone(make, budget, num_bytes):
    world = tiny_world(conditioner_budget_bytes=budget)
    engine, reports = make(world)
    gate = Gate(world)
    gate.close()
    reply = ask(engine, start("a", 1))
    assert gate.reached.wait(WAIT_S)
    wait_for(lambda: reports and reports[-1].active_sessions == 1 and reports[-1].conditioner_bytes == num_bytes)
    gate.open.set()
    reply.frames()
    assert (reports[-1].conditioner_bytes, reports[-1].conditioner_peak_bytes) == (0, num_bytes)


def test_the_conditioners_bytes_are_gone_after_an_error_within_a_chunk(make):
    world = tiny_world()
    engine, reports = make(world)
    inner, passes = world.transformer.forward, iter(range(1000))

    def forward(*inputs):
        wait_for(lambda: reports and reports[-1].conditioner_bytes == 3 * LAYER_BYTES)
        assert next(passes) != 2
        return inner(*inputs)

    world.transformer.forward = forward
    with pytest.raises(InternalError):
        ask(engine, start("a", 1)).frames()
    assert reports[-1].conditioner_bytes == 0
    assert all(block.camera_scale is None for block in world.blocks)


def test_the_conditioners_bytes_are_gone_after_a_cancel_within_a_chunk(make):
    world = tiny_world()
    engine, reports = make(world)
    ask(engine, start("a", 1)).frames()
    gate = Gate(world)
    gate.close()
    stopped = ask(engine, go_on("a", 5))
    assert gate.reached.wait(WAIT_S)
    wait_for(lambda: reports[-1].conditioner_bytes == 3 * LAYER_BYTES)
    stopped.cancelled.set()
    gate.open.set()
    with pytest.raises(CancelledError):
        stopped.frames()
    assert reports[-1].conditioner_bytes == 0


def test_the_conditioners_tensors_are_freed_before_the_decoder_runs(make):
    world = tiny_world()
    engine, _ = make(world)
    condition, decode = world.camera_conditioning, world.codec.decode
    made, alive = [], []

    def remember(*views):
        conditioning = condition(*views)
        made.extend(weakref.ref(part) for pair in conditioning.held for part in pair)
        return conditioning

    def look(*inputs):
        alive.extend(part() is not None for part in made)
        return decode(*inputs)

    world.camera_conditioning, world.codec.decode = remember, look
    ask(engine, start("a", 1)).frames()
    assert alive == [False] * 2 * NUM_LAYERS


def test_counts_add_up_to_layers_times_passes(make):
    engine, _ = make(tiny_world())
    ask(engine, start("a", 2)).frames()
    stats = engine.stats()
    assert (stats.conditioner_misses, stats.conditioner_hits) == (NUM_LAYERS * 2, NUM_LAYERS * NUM_STEPS * 2)
    assert stats.step_cache_computed_blocks == NUM_LAYERS * (NUM_STEPS + 1) * 2
    assert (stats.step_cache_skipped_blocks, stats.compiled_blocks, stats.recompiles) == (0, 0, 0)


def test_skipped_blocks_are_told_from_computed_ones(make):
    engine, _ = make(accelerated_world(step_cache="1011"))
    ask(engine, start("a", 2)).frames()
    stats = engine.stats()
    # The mask skips one step of each chunk, but for its first block.
    assert stats.step_cache_skipped_blocks == (NUM_LAYERS - 1) * 2
    assert stats.step_cache_computed_blocks == NUM_LAYERS * (NUM_STEPS + 1) * 2 - (NUM_LAYERS - 1) * 2


def test_each_chunks_times_are_told_once_and_before_the_last_answer(make):
    journal = []
    engine, _ = make(tiny_world(), journal.append, response_bytes=5 * 32 * 48 * 3)
    reply = ask(engine, start("a", 2), journal)
    reply.frames()
    # 9 and 12 frames, five in a response.
    assert len(reply.batches) == 2 + 3
    assert journal[-1] is reply
    times = [each for each in journal[:-1] if isinstance(each, ChunkTimes)]
    for each, batch in zip(times, (reply.batches[1], reply.batches[-1]), strict=True):
        assert each.stages_s == pytest.approx([ms / 1e3 for ms in batch.timings_ms])
    first = reply.batches[0].timings_ms
    assert times[0].first_frame_s == pytest.approx((first[0] + first[-1]) / 1e3)
    assert times[1].first_frame_s is None


def test_only_an_accepted_start_has_a_first_frame(make):
    times = []
    engine, _ = make(tiny_world(), times.append)
    ask(engine, start("a", 2)).frames()
    ask(engine, go_on("a", 2)).frames()
    ask(engine, start(None, 1)).frames()
    assert [each.first_frame_s is not None for each in times] == [True, False, False, False, True]


def test_an_error_is_told_before_the_client_has_it(make):
    codes = []
    world = tiny_world()
    engine, _ = make(world, on_error=codes.append)
    world.transformer.forward = None  # a bug: no chunk can be computed
    with pytest.raises(InternalError):
        ask(engine, start("a", 1)).frames()
    assert codes == ["INTERNAL"]


def test_a_refusal_is_told_too(make):
    codes = []
    engine, _ = make(tiny_world(), on_error=codes.append)
    with pytest.raises(SessionNotFoundError) as refusal:
        ask(engine, go_on("nobody"))
    engine.note_refusal(refusal.value)
    wait_for(lambda: codes == ["SESSION_NOT_FOUND"])


def test_times_that_cannot_be_told_do_not_stop_the_engine(make, caplog):
    def broken(_):
        raise OSError("the page is gone")

    engine, _ = make(tiny_world(), broken)
    assert len(ask(engine, start(None, 2)).frames()) == 21
    assert "could not be brought up to date" in caplog.text
