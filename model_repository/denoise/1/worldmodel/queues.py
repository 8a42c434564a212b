"""What waits, by session, and whose turn it is. Knows no threads, no clock and no table; its owner locks.

A session's requests wait in its lane and run in their order. Sessions that have work stand in one row for their turns;
one whose turn it is stands outside of the row until that turn ends.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from worldmodel.emitter import Delivery
from worldmodel.errors import WorldError
from worldmodel.request import Request
from worldmodel.session import SessionId


@dataclass(eq=False)
class Job:
    """A request on its way, one chunk at a time."""

    request: Request
    delivery: Delivery
    waiting_since_s: float
    first_chunk: int  # of its session that it steers, if what is ahead of it runs to its end
    chunks_done: int = 0
    unread_text: str | None = None  # of its prompt: no chunk of it begins before that has been read
    error: WorldError | None = None  # what reading it came to

    @property
    def is_lost(self) -> bool:
        """Whether nobody waits for its answers any more."""
        return self.delivery.is_lost or self.delivery.reply.is_cancelled()

    @property
    def is_start_or_end(self) -> bool:
        """Whether its session begins or ends with it."""
        return self.request.is_start or self.request.is_end


class Queues:
    """The lane of each session that has work, and the row of turns."""

    def __init__(self) -> None:
        self.lanes: dict[SessionId, deque[Job]] = {}  # none is empty between two calls
        self.turns: deque[SessionId] = deque()

    def put(self, session: SessionId, job: Job) -> None:
        """Let a request wait behind the others of its session."""
        lane = self.lanes.setdefault(session, deque())
        if not lane:
            self.turns.append(session)
        lane.append(job)

    def first_unread(self) -> Job | None:
        """The oldest request whose prompt has to be read, and that somebody still waits for."""
        jobs = (job for lane in self.lanes.values() for job in lane)
        unread = [job for job in jobs if job.unread_text is not None and not job.is_lost]
        return min(unread, key=lambda job: job.waiting_since_s, default=None)

    def take_turn(self, session: SessionId) -> Job:
        """Take a session out of the row; its first request."""
        self.turns.remove(session)
        return self.lanes[session][0]

    def end_turn(self, session: SessionId) -> None:
        """Put a session at the end of the row, if it still has work."""
        if self.lanes[session]:
            self.turns.append(session)
        else:
            del self.lanes[session]

    def finish_first(self, session: SessionId, next_chunk: int) -> None:
        """The request whose turn it is is done, perhaps early: those behind it steer from next_chunk on."""
        self.lanes[session].popleft()
        _renumber(self.lanes[session], next_chunk)

    def clear(self, session: SessionId) -> list[Job]:
        """Take all requests of a session whose turn it is."""
        jobs = list(self.lanes[session])
        self.lanes[session].clear()
        return jobs

    def drop_lost(self, session: SessionId, next_chunk: int) -> list[Job]:
        """Take the requests of a session that nobody waits for any more, before their turn.

        Not one that runs, and none that begins or ends its session: their turn does more than answer.

        Args:
            next_chunk: of the session, if nothing of its lane runs now.
        """
        lane = self.lanes[session]
        running = None if session in self.turns else lane[0]
        lost = [job for job in lane if job is not running and job.is_lost and not job.is_start_or_end]
        first_chunk = next_chunk if lane[0] in lost else lane[0].first_chunk
        for job in lost:
            lane.remove(job)
        _renumber(lane, first_chunk)
        if not lane:
            self.turns.remove(session)
            del self.lanes[session]
        return lost

    def num_waiting_of(self, session: SessionId) -> int:
        """Requests of a session that are not done."""
        return len(self.lanes.get(session, ()))

    def num_waiting(self) -> int:
        """Requests of all sessions that are not done."""
        return sum(len(lane) for lane in self.lanes.values())

    def waiting_bytes(self) -> int:
        """Bytes of pictures and snapshots that sessions are still to start from, and of prompts' vectors."""
        return sum(job.request.waiting_bytes for lane in self.lanes.values() for job in lane)

    def sessions_to_save(self) -> list[SessionId]:
        """A session as often as it is to be saved."""
        return [session for session, lane in self.lanes.items() for job in lane if job.request.is_saving]


def _renumber(lane: deque[Job], next_chunk: int) -> None:
    """Say anew what each request of a lane steers."""
    for job in lane:
        job.first_chunk = next_chunk
        next_chunk += job.request.num_chunks
