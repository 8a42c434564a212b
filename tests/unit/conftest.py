"""What unit tests share: the small server of the client's tests and a client of it, and engines. No tritonserver."""

from __future__ import annotations

import queue
from collections.abc import Iterator

import pytest
from worldmodel.engine import Engine
from worldmodel.serving import ServingConfig
from worldstream import WorldClient
from worldstream.testing import FakeServer

from tests.unit.worlds import tiny_world


@pytest.fixture
def server() -> Iterator[FakeServer]:
    with FakeServer() as fake:
        yield fake


@pytest.fixture
def client(server: FakeServer) -> Iterator[WorldClient]:
    with WorldClient(server.url, timeout_s=5) as client:
        yield client


@pytest.fixture
def make_engine():
    engines = []

    def make(stats=None, **serving):
        world = tiny_world()
        changes = stats if stats is not None else queue.SimpleQueue()
        engine = Engine(lambda: world, ServingConfig(**serving), changes.put)
        engine.start()
        engines.append(engine)
        return engine, world

    yield make
    for engine in engines:
        engine.close()
