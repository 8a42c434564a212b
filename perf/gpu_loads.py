"""Starts an engine as the server does, and watches it load: its seconds, by its own log, and the host's memory.

Knows no sizes and no checkpoints.
"""

from __future__ import annotations

import contextlib
import logging
import resource
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from gpu_lab import OverBudgetError
from gpu_worlds import Served

# isort: split
from worldmodel.engine import Engine
from worldmodel.serving import ServingConfig
from worldmodel.world import World

SAMPLE_EVERY_S = 0.01
LOG = logging.getLogger("worldstream")


class LoadWatch(logging.Handler):
    """When the weights were there, when all was ready, and what the host held meanwhile.

    A context of the thread that waits; the one that loads does so in `loading`.
    """

    def __init__(self) -> None:
        super().__init__(logging.INFO)
        self.ready_s = 0.0  # from the beginning on
        self._loaded_s: float | None = None
        self._is_given_up = False
        self._loader: int | None = None  # a thread
        self._began_s = time.monotonic()
        self._before_bytes = resident_bytes()
        self._samples: list[tuple[float, int]] = []  # monotonic seconds, bytes
        self._is_over = threading.Event()
        self._sampler = threading.Thread(target=self._sample, name="host memory", daemon=True)

    def loading(self, make_world: Callable[[], World]) -> World:
        """Make a world under this watch.

        Raises:
            OverBudgetError: nobody waits for it any more.
        """
        self._loader = threading.get_ident()
        LOG.setLevel(logging.INFO)  # for good: an earlier load that was given up may still listen
        LOG.addHandler(self)
        try:
            return make_world()
        finally:
            LOG.removeHandler(self)

    def emit(self, record: logging.LogRecord) -> None:
        """Take a line of the server's log; a load that was given up ends here, by the error that this raises."""
        if record.thread != self._loader:
            return
        if self._is_given_up:
            raise OverBudgetError("nobody waits for this world any more")
        # Mounting, or the first chunk of the warm-up: its line comes at its end, and says how long it took.
        if self._loaded_s is None and record.module == "acceleration" and isinstance(record.args, tuple):
            seconds = record.args[-1]
            if isinstance(seconds, float):
                self._loaded_s = time.monotonic() - seconds - self._began_s

    def __enter__(self) -> LoadWatch:
        self._sampler.start()
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        self.ready_s = time.monotonic() - self._began_s
        self._is_given_up = kind is not None
        self._is_over.set()
        self._sampler.join()

    @property
    def loaded_s(self) -> float:
        """From the beginning until the weights were on the device; never more than `ready_s`."""
        return self.ready_s if self._loaded_s is None else self._loaded_s

    @property
    def host_growth_bytes(self) -> int:
        """The most that this process held more than before, mapped files included, until the weights were there."""
        held = [num_bytes for at_s, num_bytes in self._samples if at_s - self._began_s <= self.loaded_s]
        return max(0, max(held, default=self._before_bytes) - self._before_bytes)

    def _sample(self) -> None:
        while not self._is_over.wait(SAMPLE_EVERY_S):
            self._samples.append((time.monotonic(), resident_bytes()))


def resident_bytes() -> int:
    """What this process holds of the host's memory now."""
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    return pages * resource.getpagesize()


@contextlib.contextmanager
def served_by(make_world: Callable[[], World], serving: ServingConfig) -> Iterator[tuple[Served, LoadWatch]]:
    """An engine that makes its world on its own thread, as the server's does."""
    watch = LoadWatch()
    engine = Engine(lambda: watch.loading(make_world), serving, lambda _: None)
    try:
        with watch:
            served = Served(engine)
        yield served, watch
    finally:
        engine.close()
