"""What one turn of a session gives: its next chunk, or another answer. Knows no threads, no queues and no clock's pace.

The compute thread's alone, but for `frame_px`, `nothing` and the counts, which only look.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace

from worldmodel.emitter import Answer, Failure, Frames, Nothing
from worldmodel.errors import WorldError, internal_error
from worldmodel.queues import Job
from worldmodel.request import Request
from worldmodel.saver import Saving
from worldmodel.session import Entry, Session
from worldmodel.snapshot import restore, take
from worldmodel.world import World


class Answering:
    """Answers requests out of a world, and counts what it has made."""

    def __init__(self, world: World, poll: Callable[[Entry, Job], None]) -> None:
        """Prepare.

        Args:
            world: what computes.
            poll: called before each pass through the transformer; raises WorldError to give a request up.
        """
        self._world = world
        self._poll = poll
        self._usual_size = world.config.sizes[0]
        self.num_chunks = 0
        self.num_frames = 0
        self.num_saved = 0
        self.num_restored = 0

    def answer(self, entry: Entry, job: Job) -> tuple[Answer | Saving, bool]:
        """Compute one chunk of a request, or find another answer; and whether the request is done with."""
        began = time.monotonic()
        try:
            if job.request.is_bare_end:
                return self.nothing(entry, job), True
            self._poll(entry, job)
            if job.error is not None:
                raise job.error
            if entry.session is None:
                entry.session = self._start_session(job.request)
                job.request = replace(job.request, picture=None, snapshot=None)  # it has done its part
            if job.request.is_saving:
                return self._saving(entry.session, job), True
            if job.request.num_chunks == 0:  # restored, and no more than that was asked for
                return self.nothing(entry, job), True
            return self._chunk(entry.session, entry, job, began)
        except WorldError as error:
            # Without its traceback, which would keep the chunk's tensors alive until the answer has gone.
            return Failure(job.delivery, error.with_traceback(None)), True
        except Exception:
            return Failure(job.delivery, internal_error("the chunk failed")), True

    def nothing(self, entry: Entry, job: Job) -> Nothing:
        """An answer without frames."""
        chunk_index = 0 if entry.session is None else entry.session.chunk_index
        return Nothing(job.delivery, self.frame_px(entry, job.request), chunk_index, job.request.event_id)

    def frame_px(self, entry: Entry, request: Request) -> tuple[int, int]:
        """Height and width of the session's frames, also where it is still to be made."""
        return (request.size or self._usual_size) if entry.session is None else entry.session.config.sizes[0]

    def _chunk(self, session: Session, entry: Entry, job: Job, began_s: float) -> tuple[Frames, bool]:
        controls = job.request.controls(job.chunks_done, session.config.chunk_latent_frames)
        chunk = self._world.next_chunk(session, controls, lambda: self._poll(entry, job))
        job.chunks_done += 1
        is_done = job.chunks_done == job.request.num_chunks
        frames = Frames(
            job.delivery,
            chunk.decoding,
            first_frame=session.next_frame,
            chunk_index=session.chunk_index,
            event_id=job.request.event_id,
            queued_ms=1e3 * (began_s - job.waiting_since_s),
            began_s=began_s,
            is_last=is_done,
            opens="nothing" if job.chunks_done > 1 else "session" if job.request.is_start else "request",
        )
        session.commit(chunk.staged)
        if job.request.prompt is not None:
            job.request = replace(job.request, prompt=None)  # the session has it now
        if job.request.fps is not None:
            entry.watched_until_s = began_s + chunk.decoding.num_frames / job.request.fps
        job.waiting_since_s = time.monotonic()
        self.num_chunks += 1
        self.num_frames += chunk.decoding.num_frames
        return frames, is_done

    def _saving(self, session: Session, job: Job) -> Saving:
        taken = take(session, self._world)
        self.num_saved += 1
        return Saving(job.delivery, taken, session.config.sizes[0], session.chunk_index, job.request.event_id)

    def _start_session(self, request: Request) -> Session:
        if request.snapshot is not None:
            session = restore(request.snapshot, self._world)
            self.num_restored += 1
            return session
        assert request.picture is not None
        assert request.prompt is not None, "it has been read"
        return self._world.start(
            request.picture, request.prompt, request.seed, request.translation_scale, request.fit, request.size
        )
