"""The thread that makes files of sessions: checksum and cutting into parts, beside computing and sending.

A snapshot that was taken waits here on the host. Its parts go through the emitter like all answers, a few at a time, so
that other sessions' frames pass between them. Knows no turns, no table and no Triton.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from worldmodel.emitter import Delivery, Emitter, Failure, Part
from worldmodel.errors import CancelledError, internal_error
from worldmodel.pixels import Pixels
from worldmodel.snapshot import Taken
from worldmodel.world import World


@dataclass(frozen=True)
class Saving:
    """A snapshot to be sent."""

    delivery: Delivery
    taken: Taken
    frame_px: tuple[int, int]
    chunk_index: int
    event_id: int


class Saver:
    """Turns what it is given into parts of bounded size, in order, on a thread of its own."""

    def __init__(self, emitter: Emitter, part_bytes: int) -> None:
        """Prepare; parts go to this emitter."""
        self._emitter = emitter
        self._part_bytes = part_bytes
        self._queue: queue.SimpleQueue[Saving | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="worldstream-saver", daemon=True)
        self._lock = threading.Lock()
        self._num_bytes = 0

    @property
    def num_bytes(self) -> int:
        """Bytes of snapshots that have been taken and not yet been sent."""
        with self._lock:
            return self._num_bytes

    def start(self, world: World) -> None:
        """Begin; the snapshots are of this world's sessions."""
        self._world = world
        self._thread.start()

    def put(self, saving: Saving) -> None:
        """Send this after all that came before."""
        self._hold(saving.taken.num_bytes)
        self._queue.put(saving)

    def close(self, timeout_s: float) -> None:
        """Send what is left, then stop."""
        if self._thread.is_alive():
            self._queue.put(None)
            self._thread.join(timeout_s)

    def _hold(self, num_bytes: int) -> None:
        with self._lock:
            self._num_bytes += num_bytes

    def _run(self) -> None:
        while self._send_next():
            pass

    def _send_next(self) -> bool:
        """Send one snapshot; a method of its own, so that nothing of it stays alive while the thread waits."""
        saving = self._queue.get()
        if saving is None:
            return False
        num_bytes = saving.taken.num_bytes
        try:
            self._send(saving)
        except Exception:
            self._emitter.put(Failure(saving.delivery, internal_error("the snapshot could not be made")))
        finally:
            self._hold(-num_bytes)
        return True

    def _send(self, saving: Saving) -> None:
        pieces = saving.taken.pieces(self._world)
        num_parts = -(-sum(len(piece) for piece in pieces) // self._part_bytes)
        for index, content in enumerate(cut(pieces, self._part_bytes)):
            if saving.delivery.is_lost:
                return  # the emitter has said so
            if saving.delivery.reply.is_cancelled():
                gone = CancelledError("request: cancelled by the client; the session is as it was")
                self._emitter.put(Failure(saving.delivery, gone))
                return
            place = (saving.chunk_index, index, num_parts)
            is_last = index + 1 == num_parts
            self._emitter.put(Part(saving.delivery, saving.frame_px, place, content, saving.event_id, is_last))


def cut(pieces: list[Pixels], part_bytes: int) -> Iterator[Pixels]:
    """The same bytes in parts of this size, the last one perhaps smaller: one part at a time in memory."""
    held: list[Pixels] = []
    room = part_bytes
    for piece in pieces:
        begin = 0
        while begin < len(piece):
            held.append(piece[begin : begin + room])
            begin += len(held[-1])
            room -= len(held[-1])
            if room == 0:
                yield np.concatenate(held)
                held, room = [], part_bytes
    if held:
        yield np.concatenate(held)
