"""The thread that answers: device -> host copies and all sending, so that the next chunk is computed meanwhile.

One thread sends everything that the engine answers, so the answers to a request keep their order. Knows how a chunk's
frames become responses; knows nothing of sessions' state, turns, or Triton.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from dataclasses import dataclass, replace
from typing import Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from worldmodel.encoding import Encoder, FrameEncoding, parts_of
from worldmodel.errors import WorldError, internal_error
from worldmodel.metrics import ChunkTimes
from worldmodel.pixels import Pixels
from worldmodel.reporter import Reporter
from worldmodel.streams import CpuStreams, Decoding, Streams, Timings

log = logging.getLogger("worldstream")

DEPTH = 4  # chunks between computing and sending; computing waits beyond
RECEIPT = -1  # in place of a part's index

Opens = Literal["session", "request", "nothing"]


@dataclass(frozen=True)
class Batch:
    """One response: some frames of one chunk, and the header tensors."""

    frames: Pixels  # [n, H, W, 3]; [0, H, W, 3] where they are encoded
    frame_index: NDArray[np.int64]  # [n]
    chunk: tuple[int, int, int]  # chunk_index, part_index, num_parts; of a receipt: chunk_index, RECEIPT, num_ahead
    event_id: int
    timings_ms: tuple[float, ...]  # queued, condition, denoise, decode, transfer, total
    is_last: bool  # carries the final flag
    encoded: tuple[bytes, ...] | None = None  # n files; None: the frames are raw
    snapshot: Pixels | None = None  # a part of a session's file, where one was asked for


class Reply(Protocol):
    """Where the answers to one request go. Exactly one call carries the final flag: `fail`, or a batch that is last."""

    def send(self, batch: Batch) -> None:
        """Send one response."""

    def fail(self, error: WorldError) -> None:
        """Send the error and the final flag, once."""

    def is_cancelled(self) -> bool:
        """Whether the client has gone or cancelled."""


@dataclass
class Delivery:
    """The way of one request's answers; once it is lost, nobody waits for more of them."""

    reply: Reply
    encoding: FrameEncoding | None = None  # None: raw
    is_lost: bool = False


@dataclass(frozen=True)
class Frames:
    """A chunk to be sent, once it is decoded."""

    delivery: Delivery
    decoding: Decoding
    first_frame: int
    chunk_index: int
    event_id: int
    queued_ms: float
    began_s: float  # monotonic
    is_last: bool
    opens: Opens  # what this chunk is the first of


@dataclass(frozen=True)
class Receipt:
    """A request was accepted: what the client hears before any frame of it."""

    delivery: Delivery
    frame_px: tuple[int, int]
    chunk_index: int  # that it will steer first, if what is ahead of it runs to its end
    num_ahead: int  # unanswered requests of its session before it
    event_id: int


@dataclass(frozen=True)
class Nothing:
    """An answer without frames: what was asked for has come true."""

    delivery: Delivery
    frame_px: tuple[int, int]
    chunk_index: int
    event_id: int


@dataclass(frozen=True)
class Part:
    """Some bytes of a session's file."""

    delivery: Delivery
    frame_px: tuple[int, int]
    place: tuple[int, int, int]  # chunk_index, part_index, num_parts
    content: Pixels
    event_id: int
    is_last: bool


@dataclass(frozen=True)
class Failure:
    """A refusal or failure to be sent."""

    delivery: Delivery
    error: WorldError


Answer = Frames | Receipt | Nothing | Part | Failure


def _empty(answer: Receipt | Nothing | Part, place: tuple[int, int, int], is_last: bool) -> Batch:
    nothing = np.zeros((0, *answer.frame_px, 3), np.uint8)
    encoded = None if answer.delivery.encoding is None else ()
    return Batch(nothing, np.zeros(0, np.int64), place, answer.event_id, (0.0,) * 6, is_last, encoded)


class Emitter:
    """Sends what it is given, in order, on a thread of its own."""

    def __init__(self, response_bytes: int, reporter: Reporter) -> None:
        """Prepare; the reporter hears of each chunk, and tells what it knows before a request's last response."""
        self._response_bytes = response_bytes
        self._reporter = reporter
        self._queue: queue.SimpleQueue[Answer | None] = queue.SimpleQueue()
        # For what is large; the rest is small, and bounded by the requests.
        self._rooms: dict[type[Answer], threading.BoundedSemaphore] = {
            kind: threading.BoundedSemaphore(DEPTH) for kind in (Frames, Part)
        }
        self._thread = threading.Thread(target=self._run, name="worldstream-emitter", daemon=True)
        self._streams: Streams = CpuStreams()
        self._encoder = Encoder()

    def start(self, streams: Streams) -> None:
        """Begin to send; frames come from this device."""
        self._streams = streams
        self._thread.start()

    def put(self, answer: Answer) -> None:
        """Send this after all that came before; frames, and parts of files, wait while too many are under way."""
        if type(answer) in self._rooms:
            self._rooms[type(answer)].acquire()
        self._queue.put(answer)

    def close(self, timeout_s: float) -> None:
        """Send what is left, then stop."""
        if self._thread.is_alive():
            self._queue.put(None)
            self._thread.join(timeout_s)
        self._encoder.close()

    def _run(self) -> None:
        while self._answer_next():
            pass

    def _answer_next(self) -> bool:
        """Send one answer; a method of its own, so that nothing sent stays alive while the thread waits."""
        answer = self._queue.get()
        if answer is None:
            return False
        try:
            if not answer.delivery.is_lost:
                self._send(answer)
        except Exception:
            self._give_up(answer.delivery)
        finally:
            if type(answer) in self._rooms:
                self._rooms[type(answer)].release()
        return True

    def _give_up(self, delivery: Delivery) -> None:
        """The client is gone, or Triton refused a response: this request ends here, and the next one is not harmed."""
        delivery.is_lost = True
        error = internal_error("an answer could not be sent")
        self._reporter.note_error(error.code)
        try:
            delivery.reply.fail(error)
        except Exception:
            log.exception("nor could its failure")

    def _send(self, answer: Answer) -> None:
        reply = answer.delivery.reply
        if isinstance(answer, Failure):
            self._reporter.note_error(answer.error.code)
            self._reporter.tell()
            reply.fail(answer.error)
        elif isinstance(answer, Receipt):
            place = (answer.chunk_index, RECEIPT, answer.num_ahead)
            reply.send(_empty(answer, place, is_last=False))
        elif isinstance(answer, Part):
            if answer.is_last:
                self._reporter.tell()
            reply.send(replace(_empty(answer, answer.place, answer.is_last), snapshot=answer.content))
        elif isinstance(answer, Nothing):
            self._reporter.tell()
            reply.send(_empty(answer, (answer.chunk_index, 0, 1), is_last=True))
        else:
            self._send_frames(answer)

    def _send_frames(self, answer: Frames) -> None:
        # Here, not on the compute thread: it has gone on to the next chunk.
        decoded, stages = answer.decoding.wait(), answer.decoding.timings()
        began_s = time.monotonic()
        frames = self._streams.to_host(decoded)
        encoding = answer.delivery.encoding
        # A whole chunk, before its first part goes: how many parts there are depends on all of its sizes.
        files = None if encoding is None else self._encoder.encode(frames, encoding)
        sizes = [frame.nbytes for frame in frames] if files is None else [len(file) for file in files]
        parts = parts_of(sizes, self._response_bytes)
        first_ms = 0.0
        for part, place in enumerate(parts):
            timings_ms = _timings_ms(answer, stages, began_s)
            first_ms = first_ms or timings_ms[0] + timings_ms[5]
            is_last_part = part + 1 == len(parts)
            if is_last_part:
                self._note_chunk(answer, timings_ms, first_ms)
            batch = Batch(
                frames[place] if files is None else frames[:0],
                answer.first_frame + np.arange(place.start, place.stop, dtype=np.int64),
                (answer.chunk_index, part, len(parts)),
                answer.event_id,
                timings_ms,
                is_last=answer.is_last and is_last_part,
                encoded=None if files is None else tuple(files[place]),
            )
            answer.delivery.reply.send(batch)

    def _note_chunk(self, answer: Frames, timings_ms: tuple[float, ...], first_ms: float) -> None:
        """Before its last part goes: the times that it carries, and how long the client waited for the first part."""
        first_frame_s = first_ms / 1e3 if answer.opens == "session" else None
        control_s = first_ms / 1e3 if answer.opens == "request" else None
        self._reporter.note_chunk(ChunkTimes(tuple(each / 1e3 for each in timings_ms), first_frame_s, control_s))
        if answer.is_last:
            self._reporter.tell()


def _timings_ms(answer: Frames, stages: Timings, began_s: float) -> tuple[float, ...]:
    """In the order of Batch's; transfer is what has passed since the emitter took the frames up."""
    now_s = time.monotonic()
    transfer_ms, total_ms = 1e3 * (now_s - began_s), 1e3 * (now_s - answer.began_s)
    return answer.queued_ms, stages.condition_ms, stages.denoise_ms, stages.decode_ms, transfer_ms, total_ms
