"""An engine over a real tiny world, replies that record, and a gate in front of each pass through the transformer."""

from __future__ import annotations

import threading

import numpy as np
from worldmodel.request import Request

from tests.unit.worlds import picture

WAIT_S = 30


class Recorder:
    """A reply that keeps what it is sent."""

    def __init__(self, journal=None):
        self.batches = []
        self.error = None
        self.num_finals = 0
        self.cancelled = threading.Event()
        self.done = threading.Event()
        self.first = threading.Event()
        self.journal = journal

    def send(self, batch):
        assert not self.done.is_set()
        self.batches.append(batch)
        if self.journal is not None:
            self.journal.append(self)
        self.first.set()
        self._finish(batch.is_last)

    def fail(self, error):
        assert not self.done.is_set()
        self.error = error
        self._finish(True)

    def _finish(self, is_last):
        if is_last:
            self.num_finals += 1
            self.done.set()

    def is_cancelled(self):
        return self.cancelled.is_set()

    def frames(self):
        assert self.done.wait(WAIT_S)
        if self.error is not None:
            raise self.error
        return np.concatenate([batch.frames for batch in self.batches])


class Gate:
    """Holds the compute thread before a denoising step, so that a test can act while a chunk runs."""

    def __init__(self, world):
        self.reached, self.open = threading.Event(), threading.Event()
        self.open.set()
        inner = world.transformer.forward

        def forward(*inputs):
            if not self.open.is_set():
                self.reached.set()
                assert self.open.wait(WAIT_S)
            return inner(*inputs)

        world.transformer.forward = forward

    def close(self):
        self.reached.clear()
        self.open.clear()


def start(name, num_chunks=1, **changes):
    changes.setdefault("picture", picture())
    session = None if name is None else ("name", name)
    changes.setdefault("is_end", name is None)
    return Request(session=session, is_start=True, num_chunks=num_chunks, **changes)


def go_on(name, num_chunks=1, **changes):
    changes.setdefault("is_end", False)
    return Request(session=("name", name), is_start=False, num_chunks=num_chunks, **changes)


def bare_end(name):
    return go_on(name, num_chunks=0, is_end=True)


def ask(engine, request, journal=None):
    reply = Recorder(journal)
    engine.submit(request, reply)
    return reply
