"""Prompts in the engine: as text or as vectors, read beside computing, refused where nothing reads them."""

import queue
import threading

import numpy as np
import pytest
from worldmodel.engine import Engine
from worldmodel.errors import BusyError, CancelledError, InternalError, InvalidInputError
from worldmodel.prompt import HashedWords, NoTextEncoder
from worldmodel.prompt_cache import PromptCache
from worldmodel.serving import ServingConfig
from worldmodel.snapshot import most_bytes, open_snapshot

from tests.unit.engines import WAIT_S, Gate, ask, bare_end, go_on, start
from tests.unit.snapshots import go, save
from tests.unit.worlds import TINY, picture, tiny_world
from tests.waiting import wait_for

WORDS = HashedWords(TINY.transformer.text_len, TINY.transformer.text_dim)


class SlowWords:
    """Hashed words that take until a test lets them go; "broken" cannot be read."""

    def __init__(self):
        self.reached, self.open = threading.Event(), threading.Event()
        self.asked = []

    def encode(self, text):
        self.asked.append(text)
        if text:
            self.reached.set()
            assert self.open.wait(WAIT_S)
        if text == "broken":
            raise RuntimeError(text)
        return WORDS.encode(text)


@pytest.fixture
def engine_with():
    """A function that makes an engine whose world reads prompts with an encoder."""
    engines = []

    def make(encoder, stats=None, **serving):
        world = tiny_world()
        world.prompts = PromptCache(encoder, 1 << 20)
        changes = stats if stats is not None else queue.SimpleQueue()
        engines.append(Engine(lambda: world, ServingConfig(**serving), changes.put))
        engines[-1].start()
        return engines[-1], world

    yield make
    for engine in engines:
        engine.close()


def last_stats(changes):
    stats = None
    while not changes.empty():
        stats = changes.get()
    return stats


def test_vectors_give_the_frames_that_their_text_gives(make_engine):
    engine, _ = make_engine()
    night, snow = WORDS.encode("night rain"), WORDS.encode("snow")
    answers = [
        [
            ask(engine, start(name, 1, prompt=one)).frames(),
            ask(engine, go_on(name, 2, prompt=two, actions=("w",) * 3)).frames(),
            ask(engine, go_on(name, 1, prompt=one, is_recached=True)).frames(),
            ask(engine, go_on(name, 1, is_end=True)).frames(),
        ]
        for name, one, two in (("text", "night rain", "snow"), ("vectors", night, snow))
    ]
    for by_text, by_vectors in zip(*answers, strict=True):
        np.testing.assert_array_equal(by_vectors, by_text)
    plain = ask(engine, start("plain", 1)).frames()
    assert not np.array_equal(plain, answers[0][0])


def test_no_rows_are_the_prompt_of_a_start_without_one(make_engine):
    engine, _ = make_engine()
    bare = ask(engine, start(None, 1)).frames()
    np.testing.assert_array_equal(ask(engine, start(None, 1, prompt=np.zeros((0, 16), np.float32))).frames(), bare)
    np.testing.assert_array_equal(ask(engine, start(None, 1, prompt="")).frames(), bare)


def test_a_session_by_vectors_is_saved_and_restored_byte_for_byte(make_engine):
    engine, world = make_engine()
    other = tiny_world()
    files = []
    for prompt in ("night", WORDS.encode("night")):
        session = other.start(picture(), prompt, 5)
        go(other, session, actions=("w",) * 3)
        files.append(save(session, other))
    np.testing.assert_array_equal(*files)

    def restored(name, prompt):
        snapshot = open_snapshot(files[1], world.config, most_bytes(world))
        changes = {"picture": None, "snapshot": snapshot, "is_resumed": True, "size": snapshot.size}
        return ask(engine, start(name, 1, prompt=prompt, is_end=True, **changes)).frames()

    wanted = go(other, session)
    np.testing.assert_array_equal(restored("a", None), wanted)
    np.testing.assert_array_equal(restored("b", WORDS.encode("snow")), restored("c", "snow"))
    assert not np.array_equal(restored("d", "snow"), wanted)


def test_others_and_what_is_ahead_go_on_while_a_prompt_is_read(engine_with):
    encoder = SlowWords()
    engine, world = engine_with(encoder)
    ask(engine, start("a")).frames()
    gate = Gate(world)
    gate.close()
    ahead = ask(engine, go_on("a", 2))
    switch = ask(engine, go_on("a", 1, prompt="night"))
    assert encoder.reached.wait(WAIT_S)  # beside the chunk that stands before its first step
    behind = ask(engine, go_on("a", 1))
    gate.open.set()
    assert len(ahead.frames()) == 24
    assert len(ask(engine, start("b", 3)).frames()) == 33
    assert not switch.batches
    encoder.open.set()
    assert [reply.frames().shape[0] for reply in (switch, behind)] == [12, 12]

    twin = tiny_world()
    session = twin.start(picture())
    wanted = [go(twin, session, prompt="night" if chunk == 3 else None) for chunk in range(5)]
    np.testing.assert_array_equal(switch.frames(), wanted[3])
    np.testing.assert_array_equal(behind.frames(), wanted[4])
    assert encoder.asked == ["", "night"]


def test_a_start_waits_for_its_own_prompt_alone(engine_with):
    encoder = SlowWords()
    engine, _ = engine_with(encoder)
    slow = ask(engine, start("slow", prompt="night"))
    assert encoder.reached.wait(WAIT_S)
    assert len(ask(engine, start("quick")).frames()) == 9
    encoder.open.set()
    np.testing.assert_array_equal(slow.frames(), ask(engine, start("vectors", prompt=WORDS.encode("night"))).frames())


def test_who_gives_up_while_a_prompt_is_read_is_answered_at_once(engine_with):
    encoder = SlowWords()
    engine, _ = engine_with(encoder)
    for name in ("cancelled", "ended"):
        ask(engine, start(name)).frames()
    ask(engine, start("first", prompt="night"))
    assert encoder.reached.wait(WAIT_S)
    cancelled, ended = (ask(engine, go_on(name, prompt=name)) for name in ("cancelled", "ended"))
    cancelled.cancelled.set()
    ask(engine, bare_end("ended")).frames()
    for reply in (cancelled, ended):
        with pytest.raises(CancelledError):
            reply.frames()
    encoder.open.set()
    assert len(ask(engine, go_on("cancelled")).frames()) == 12
    assert encoder.asked == ["", "night"]  # nobody waits for the others any more


def test_a_prompt_that_cannot_be_read_leaves_its_session_as_it_was(engine_with, caplog):
    encoder = SlowWords()
    encoder.open.set()
    engine, _ = engine_with(encoder)
    wanted = ask(engine, start("twin", 2)).frames()
    first = ask(engine, start("a")).frames()
    with pytest.raises(InternalError, match="the prompt could not be encoded; the server's log has it as"):
        ask(engine, go_on("a", prompt="broken")).frames()
    np.testing.assert_array_equal(np.concatenate([first, ask(engine, go_on("a")).frames()]), wanted)
    with pytest.raises(InternalError, match="the prompt could not be encoded"):
        ask(engine, start("b", prompt="broken")).frames()
    ask(engine, start("b")).frames()  # it had left no session


def test_an_engine_that_closes_answers_whoever_waits_for_a_prompt(engine_with):
    encoder = SlowWords()
    engine, _ = engine_with(encoder)
    waiting = ask(engine, start("a", prompt="night"))
    assert encoder.reached.wait(WAIT_S)
    closing = threading.Thread(target=engine.close)
    closing.start()
    assert waiting.done.wait(WAIT_S)
    assert waiting.error.code == "UNAVAILABLE"
    encoder.open.set()
    closing.join(WAIT_S)
    assert not closing.is_alive()


def test_without_a_text_encoder_words_are_refused_and_vectors_served(engine_with, make_engine):
    engine, _ = engine_with(NoTextEncoder(TINY.transformer.text_dim))
    for request in (start("a", prompt="night"), start(None, prompt="")):
        with pytest.raises(InvalidInputError, match="prompt: this server has no text encoder; wanted prompt_embeds"):
            ask(engine, request)
    frames = ask(engine, start("a", prompt=WORDS.encode("night"))).frames()
    reader, _ = make_engine()
    np.testing.assert_array_equal(frames, ask(reader, start("a", prompt="night")).frames())
    np.testing.assert_array_equal(ask(engine, start("b")).frames(), ask(reader, start("b")).frames())


def test_prompts_are_counted(engine_with):
    changes = queue.SimpleQueue()
    engine, _ = engine_with(WORDS, changes)
    for name, prompt in (("a", "night"), ("b", "night"), ("c", None), ("d", WORDS.encode("night"))):
        ask(engine, start(name, prompt=prompt)).frames()
    ask(engine, go_on("a", prompt="snow")).frames()
    stats = last_stats(changes)
    assert (stats.prompts_encoded, stats.prompt_cache_hits) == (2, 1)


def test_vectors_that_wait_are_bounded(make_engine):
    row = WORDS.encode("night")
    engine, world = make_engine(max_waiting_picture_bytes=2 * row.nbytes)
    ask(engine, start("a")).frames()
    gate = Gate(world)
    gate.close()
    running = ask(engine, go_on("a"))
    assert gate.reached.wait(WAIT_S)
    replies = [running, *(ask(engine, go_on("a", prompt=row)) for _ in range(2))]
    with pytest.raises(BusyError, match=r"prompt_embeds: 128 bytes of pictures, .* wait, this one has 64"):
        ask(engine, go_on("a", prompt=row))
    gate.open.set()
    assert [len(reply.frames()) for reply in replies] == [12, 12, 12]
    wait_for(lambda: len(ask(engine, go_on("a", prompt=row)).frames()) == 12)
