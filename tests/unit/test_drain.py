"""A server that is to run empty: starts are refused, live sessions go on; and the file that says so."""

from __future__ import annotations

import logging
import queue
import threading
from pathlib import Path

import numpy as np
import pytest
from worldmodel.drain import DrainFile
from worldmodel.engine import Engine
from worldmodel.errors import UnavailableError
from worldmodel.serving import ServingConfig

from tests.unit.engines import Recorder, ask, bare_end, go_on, start
from tests.unit.worlds import tiny_world
from tests.waiting import wait_for


@pytest.fixture
def draining() -> threading.Event:
    return threading.Event()


@pytest.fixture
def engine(draining: threading.Event):
    made = Engine(tiny_world, ServingConfig(), queue.SimpleQueue().put, is_draining=draining.is_set)
    made.start()
    yield made
    made.close()


@pytest.mark.parametrize("name", ["b", None], ids=["a session", "a session of one request"])
def test_a_draining_engine_starts_no_session(engine: Engine, draining: threading.Event, name: str | None) -> None:
    ask(engine, start("a")).frames()
    draining.set()

    with pytest.raises(UnavailableError, match="this server is draining"):
        engine.submit(start(name), Recorder())

    assert engine.stats().active_sessions == 1


def test_live_sessions_go_on_to_the_same_frames_while_it_drains(engine: Engine, draining: threading.Event) -> None:
    ask(engine, start("a")).frames()
    ask(engine, start("b")).frames()
    before = ask(engine, go_on("a")).frames()
    draining.set()

    during = ask(engine, go_on("b")).frames()
    ask(engine, bare_end("a")).frames()
    ask(engine, bare_end("b")).frames()

    np.testing.assert_array_equal(during, before)  # both walk alike from the same picture
    wait_for(lambda: engine.stats().active_sessions == 0)


def test_an_engine_that_drains_no_more_starts_sessions_again(engine: Engine, draining: threading.Event) -> None:
    draining.set()
    with pytest.raises(UnavailableError):
        engine.submit(start("a"), Recorder())
    draining.clear()
    assert len(ask(engine, start("a")).frames()) == 9


def test_the_file_drains_while_it_is_there_and_is_logged_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "drain"
    file = DrainFile.named_by({"WORLDSTREAM_DRAIN_FILE": str(path)})
    caplog.set_level(logging.INFO, "worldstream")

    assert not file.is_draining()
    path.touch()
    assert file.is_draining()
    assert file.is_draining()
    path.unlink()
    assert not file.is_draining()

    assert caplog.messages == ["draining: no new sessions", "not draining any more: new sessions are welcome"]


def test_a_server_without_a_drain_file_never_drains() -> None:
    assert not DrainFile.named_by({}).is_draining()
    assert not DrainFile.named_by({"WORLDSTREAM_DRAIN_FILE": ""}).is_draining()
