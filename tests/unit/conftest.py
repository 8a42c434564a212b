import queue

import pytest
from worldmodel.engine import Engine
from worldmodel.serving import ServingConfig

from tests.unit.worlds import tiny_world


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
