"""Threads, fair turns, cancel, emitting. Knows no tensors' meaning and nothing of Triton.

One compute thread owns the device: it makes the world and computes every chunk. It turns from session to session, one
chunk each; what a turn gives is `answering`'s. `submit` only asks for admission and queues; the prompt reader turns
texts into vectors, the emitter answers, the reporter tells the metrics.

Before the last answer to a request goes out, the table and the metrics say that the request is done: a client that has
its answer can start the same id again, and finds the gauges as they should be.

A session exists from its accepted start on. A start that fails in its first chunk, or is cancelled before anything was
computed, leaves no session; later cancels and errors leave it as it was before the chunk.
"""

from __future__ import annotations

import logging
import math
import queue
import threading
import time
from collections.abc import Callable

from worldmodel.admission import Admission
from worldmodel.answering import Answering
from worldmodel.emitter import Answer, Delivery, Emitter, Failure, Receipt, Reply
from worldmodel.errors import (
    CancelledError,
    InvalidInputError,
    SessionNotFoundError,
    UnavailableError,
    WorldError,
)
from worldmodel.metrics import ChunkTimes, Stats
from worldmodel.prompt_reader import PromptReader
from worldmodel.queues import Job
from worldmodel.reporter import Reporter
from worldmodel.request import Request
from worldmodel.saver import Saver, Saving
from worldmodel.serving import ServingConfig
from worldmodel.session import Entry, SessionId
from worldmodel.snapshot import check
from worldmodel.world import World

log = logging.getLogger("worldstream")

SWEEP_S = 0.5  # how often an idle engine looks for expired sessions


class Engine:
    """Serves requests on one device."""

    def __init__(
        self,
        make_world: Callable[[], World],
        serving: ServingConfig,
        on_change: Callable[[Stats], None],
        on_chunk: Callable[[ChunkTimes], None] = lambda _: None,
        on_error: Callable[[str], None] = lambda _: None,
        is_draining: Callable[[], bool] = lambda: False,
    ) -> None:
        """Prepare; `start` makes the world.

        Args:
            make_world: called once, on the compute thread.
            on_change: called with new numbers, soon after a pass through the transformer, a turn or an expiry; and
                before the last answer to a request, if something is new.
            on_chunk: called with the times of a chunk that is delivered.
            on_error: called with the code word of an error that answers a request. None of the three is ever called
                at one time with another, nor on the compute thread.
            is_draining: asked at each start of a session, from the thread that submits it; where it says so, starts
                are refused, and the sessions that live go on.
        """
        self._make_world = make_world
        self._is_draining = is_draining
        self._serving = serving
        self._changed = threading.Condition()  # guards the admission and the two flags
        self._admission = Admission(serving, self._answer_dropped)
        self._table, self._queues = self._admission.table, self._admission.queues
        self._is_closing = False
        self._has_failed = False
        self._ready: queue.Queue[World | BaseException] = queue.Queue()
        self._reporter = Reporter(on_change, on_chunk, on_error)
        self._emitter = Emitter(serving.response_bytes, self._reporter)
        self._prompt_reader = PromptReader(self._changed, self._queues)
        self._saver = Saver(self._emitter, serving.response_bytes)
        self._compute = threading.Thread(target=self._run_compute, name="worldstream-compute", daemon=True)

    def start(self) -> World:
        """Make the world on the compute thread and return it (to look at: only that thread computes with it).

        Raises:
            Exception: whatever making it raised.
        """
        self._compute.start()
        made = self._ready.get()
        if isinstance(made, BaseException):
            raise made
        self._session_bytes = {size: made.session_bytes(size) for size in (None, *made.config.sizes)}
        self._reporter.start()
        self._emitter.start(made.streams)
        self._prompt_reader.start(made.prompts)
        self._saver.start(made)
        return made

    def submit(self, request: Request, reply: Reply) -> None:
        """Queue a checked request; its answers go to `reply`, from the emitter thread.

        Raises:
            WorldError: it is refused; nothing has been sent, and nothing has changed but when its session will expire.
        """
        now = time.monotonic()
        if (request.is_start or request.session is None) and self._is_draining():
            raise UnavailableError("session: this server is draining, it starts no new ones; start on another server")
        if request.snapshot is not None:
            check(request.snapshot, self._world)  # before the lock: it reads the weights, once
        if isinstance(request.prompt, str) and not self._world.prompts.reads_text:
            raise InvalidInputError("prompt: this server has no text encoder; wanted prompt_embeds, or none")
        with self._changed:
            self._check_open()
            session = self._admission.admit(request, self._session_bytes, self._saver.num_bytes, now)
            first_chunk = self._admission.chunks_before(session, request)
            job = Job(request, Delivery(reply, request.encoding), now, first_chunk)
            if request.wants_receipt and not request.is_bare_end:
                self._emitter.put(self._receipt(session, job))  # before anything that the compute thread answers
            self._prompt_reader.prepare(job)
            self._queues.put(session, job)
            self._changed.notify_all()

    def note_refusal(self, error: WorldError) -> None:
        """Count an error that a request was answered by without coming here, or that `submit` raised."""
        self._reporter.note_error(error.code)

    def close(self, timeout_s: float = 10.0) -> None:
        """Stop at the next step, refuse what waits, and end the threads."""
        with self._changed:
            self._is_closing = True
            self._changed.notify_all()
        if self._compute.is_alive():
            self._compute.join(timeout_s)
        if not self._compute.is_alive():  # else it may still have answers
            self._saver.close(timeout_s)
            self._emitter.close(timeout_s)
            self._reporter.close(timeout_s)
        self._prompt_reader.close(timeout_s)  # last, when all have been answered: it may be in the middle of a text

    def _check_open(self) -> None:
        if self._is_closing or self._has_failed:
            raise self._closed()

    def _closed(self) -> UnavailableError:
        reason = "it has failed; the server has to be restarted" if self._has_failed else "the server is shutting down"
        return UnavailableError(f"engine: {reason}")

    def _receipt(self, session: SessionId, job: Job) -> Receipt:
        frame_px = self._answering.frame_px(self._table.entries[session], job.request)
        num_ahead = self._queues.num_waiting_of(session)
        return Receipt(job.delivery, frame_px, job.first_chunk, num_ahead, job.request.event_id)

    def _answer_dropped(self, job: Job) -> None:
        cancelled = CancelledError("request: cancelled by the client; the session is as it was before it")
        self._emitter.put(Failure(job.delivery, cancelled))

    def _run_compute(self) -> None:
        try:
            self._world = self._make_world()
            self._answering = Answering(self._world, self._poll)
        except BaseException as error:
            self._ready.put(error)
            return
        self._ready.put(self._world)
        try:
            while self._take_turn():
                pass
        except Exception:
            # Our own bug, outside of any request: better to refuse than to accept what nobody serves.
            log.exception("the engine has failed")
            self._has_failed = True
        self._refuse_all()

    def _take_turn(self) -> bool:
        """Compute one chunk; a method of its own, so that nothing of it stays alive while the thread waits."""
        turn = self._next_turn()
        if turn is None:
            return False
        session, job = turn
        answer, is_done = self._answering.answer(self._table.entries[session], job)
        with self._changed:
            others = self._after_turn(session, job, answer, is_done)
        self._reporter.note(self.stats())  # before the answers: a last one brings the page up to date
        for each in (answer, *others):
            self._saver.put(each) if isinstance(each, Saving) else self._emitter.put(each)
        return True

    def _next_turn(self) -> tuple[SessionId, Job] | None:
        """The next session that has work, and its first request; None when closing."""
        while True:
            with self._changed:
                if self._is_closing:
                    return None
                now = time.monotonic()
                turn = self._due_turn(now)
                if turn is not None:
                    return turn
                has_expired = self._admission.drop_expired(now)
                if not has_expired:
                    self._changed.wait(self._idle_s(now))
            if has_expired:
                self._reporter.note(self.stats())

    def _due_turn(self, now_s: float) -> tuple[SessionId, Job] | None:
        """The session that has waited longest of those whose next chunk may begin."""
        for session in self._queues.turns:
            # What nobody wants any more is answered at once.
            if self._due_s(session) <= now_s or self._queues.lanes[session][0].is_lost:
                return session, self._queues.take_turn(session)
        return None

    def _due_s(self, session: SessionId) -> float:
        """When the session's next chunk may begin; an end, or what is paced by nothing, may at once."""
        entry, job = self._table.entries[session], self._queues.lanes[session][0]
        if entry.is_stopped:
            return 0.0
        if job.unread_text is not None:
            return math.inf  # whoever reads it tells
        return 0.0 if job.request.fps is None else entry.watched_until_s

    def _idle_s(self, now_s: float) -> float:
        """How long to sleep if nothing happens; no session has a turn that is due."""
        return min([SWEEP_S, *(self._due_s(session) - now_s for session in self._queues.turns)])

    def _poll(self, entry: Entry, job: Job) -> None:
        """Before each pass: note the numbers of now, and give the request up if nobody wants it any more."""
        self._reporter.note(self.stats())
        self._check_open()
        if entry.is_stopped:
            raise CancelledError("request: its session was ended while it ran or waited")
        if job.is_lost:
            raise CancelledError(f"request: cancelled by the client; {_what_is_left(entry, job)}")

    def _after_turn(self, session: SessionId, job: Job, answer: Answer | Saving, is_done: bool) -> list[Answer]:
        """Bring table and queues up to date; the answers to requests that have nobody left to serve them."""
        entry = self._table.entries[session]
        entry.last_used_s = time.monotonic()
        answers: list[Answer] = []
        if is_done:
            self._queues.finish_first(session, 0 if entry.session is None else entry.session.chunk_index)
            if job.request.is_end or entry.session is None or _is_failed_start(job, answer):
                answers = self._free(entry)
        self._queues.end_turn(session)
        return answers

    def _free(self, entry: Entry) -> list[Answer]:
        """Forget a session; requests that waited behind its end, or behind a start that failed, go with it."""
        self._table.remove(entry.id)
        jobs = self._queues.clear(entry.id)
        gone = SessionNotFoundError("sequence_id: the session was ended, or its start failed, before this request ran")
        # What a bare end asks for has come true.
        return [
            self._answering.nothing(entry, job) if job.request.is_bare_end else Failure(job.delivery, gone)
            for job in jobs
        ]

    def _refuse_all(self) -> None:
        with self._changed:
            self._is_closing = True
            jobs = self._admission.forget_all()
        self._reporter.note(self.stats())
        for job in jobs:
            self._emitter.put(Failure(job.delivery, self._closed()))

    def stats(self) -> Stats:
        """Counts and gauges of this moment."""
        counters = self._world.counters
        with self._changed:
            num_waiting = self._queues.num_waiting()
            num_sessions, session_bytes = len(self._table.entries), self._table.num_bytes
        computed, skipped = self._world.block_runs()
        return Stats(
            chunks=self._answering.num_chunks,
            frames=self._answering.num_frames,
            denoising_steps=counters.denoising_steps,
            conditioner_misses=counters.conditioner_misses,
            conditioner_hits=counters.conditioner_hits,
            step_cache_computed_blocks=computed,
            step_cache_skipped_blocks=skipped,
            compiled_blocks=self._world.compilation.calls,
            recompiles=self._world.compilation.recompiles(),
            pictures_encoded=counters.pictures_encoded,
            picture_cache_hits=counters.picture_cache_hits,
            prompts_encoded=self._world.prompts.num_encoded,
            prompt_cache_hits=self._world.prompts.num_hits,
            sessions_saved=self._answering.num_saved,
            sessions_restored=self._answering.num_restored,
            active_sessions=num_sessions,
            session_bytes=session_bytes,
            queued_requests=num_waiting,
            conditioner_bytes=counters.conditioner_bytes,
            conditioner_peak_bytes=counters.conditioner_peak_bytes,
        )


def _what_is_left(entry: Entry, job: Job) -> str:
    if entry.session is None:
        return "the session was not started"
    return "the session has ended with it" if job.request.is_end else "the session is as it was before this chunk"


def _is_failed_start(job: Job, answer: Answer | Saving) -> bool:
    """Whether a start came to nothing by its own fault, so that its client can only start again."""
    has_failed = isinstance(answer, Failure) and not isinstance(answer.error, CancelledError)
    return job.request.is_start and job.chunks_done == 0 and has_failed
