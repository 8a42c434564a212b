"""Who may come in: the table of sessions, what waits for them, and the limits on both. Its owner locks.

Decides, and answers nobody: a refusal is raised, and whoever gives up a place is handed to `on_dropped`. Knows no
threads and nothing that is computed.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping

from worldmodel.errors import BusyError
from worldmodel.queues import Job, Queues
from worldmodel.request import Request
from worldmodel.serving import ServingConfig
from worldmodel.session import Entry, SessionId, SessionTable

log = logging.getLogger("worldstream")


class Admission:
    """The sessions that live, and the requests that wait."""

    def __init__(self, serving: ServingConfig, on_dropped: Callable[[Job], None]) -> None:
        """Prepare.

        Args:
            on_dropped: called with each cancelled request that makes room before its turn.
        """
        self._serving = serving
        self._on_dropped = on_dropped
        self._num_single = 0
        self.table = SessionTable(serving.session_budget_bytes, serving.session_idle_timeout_s)
        self.queues = Queues()

    def admit(
        self, request: Request, session_bytes: Mapping[tuple[int, int] | None, int], saved_bytes: int, now_s: float
    ) -> SessionId:
        """Take a request in, or refuse it.

        Args:
            session_bytes: of a session at each size, None being the usual one.
            saved_bytes: of the snapshots that have been taken and wait to be sent.

        Returns:
            Its session, whose entry is in the table.

        Raises:
            WorldError: BUSY, SESSION_LIMIT, SESSION_EXISTS, SESSION_NOT_FOUND.
        """
        session = request.session
        if request.is_start or session is None:
            return self._start(request, session_bytes[request.size], now_s)
        self.drop_expired(now_s)
        entry = self.table.find(session, request.is_bare_end)
        # Also where it is refused below: a client that is told to try again later must find its session then.
        entry.last_used_s = max(entry.last_used_s, now_s)
        if not request.is_bare_end:  # a client that wants to stop is never too much
            self._check_room_of(session)
            self._check_room()
            self._check_waiting_bytes(request)
        if request.is_saving:
            self._check_room_to_save(entry, saved_bytes)
        entry.is_ending = request.is_end
        entry.is_stopped = request.is_bare_end
        return session

    def _start(self, request: Request, num_bytes: int, now_s: float) -> SessionId:
        self._check_room()
        self.drop_expired(now_s)
        self._check_waiting_bytes(request)
        session = request.session
        if session is None:
            self._num_single += 1
            session = ("single", self._num_single)
        self.table.admit(session, num_bytes, now_s).is_ending = request.is_end
        return session

    def chunks_before(self, session: SessionId, request: Request) -> int:
        """How many chunks the session will have when all that waits before this request has run to its end."""
        if request.snapshot is not None:
            return request.snapshot.chunk_index
        lane = self.queues.lanes.get(session)
        return lane[-1].first_chunk + lane[-1].request.num_chunks if lane else self._num_chunks(session)

    def drop_expired(self, now_s: float) -> bool:
        """Forget sessions that have been idle for too long; whether there were any."""
        idle = [session for session in self.table.expired(now_s) if session not in self.queues.lanes]
        for session in idle:
            self.table.remove(session)
            log.info("a session expired after %.0f s without a request", self._serving.session_idle_timeout_s)
        return bool(idle)

    def forget_all(self) -> list[Job]:
        """Forget every session; the requests that nobody serves any more."""
        jobs = [job for session in list(self.queues.lanes) for job in self.queues.clear(session)]
        self.queues.lanes.clear()
        self.queues.turns.clear()
        self.table.entries.clear()
        return jobs

    def _num_chunks(self, session: SessionId) -> int:
        made = self.table.entries[session].session
        return 0 if made is None else made.chunk_index

    def _check_room_of(self, session: SessionId) -> None:
        """Refuse what would be one too many of a session; those that nobody waits for any more do not count."""
        most = self._serving.max_requests_per_session
        if self.queues.num_waiting_of(session) >= most:
            self._drop_lost(session)
        if self.queues.num_waiting_of(session) >= most:
            raise BusyError(
                f"request: wanted at most {most} unanswered requests of one session, "
                "this is one more; wait for an answer"
            )

    def _check_room(self) -> None:
        """The same for all sessions together."""
        most = self._serving.max_requests
        if self.queues.num_waiting() >= most:
            for session in list(self.queues.lanes):
                self._drop_lost(session)
        total = self.queues.num_waiting()
        if total >= most:
            raise BusyError(f"request: {total} of {most} places are taken; try again later")

    def _drop_lost(self, session: SessionId) -> None:
        for job in self.queues.drop_lost(session, self._num_chunks(session)):
            self._on_dropped(job)

    def _check_waiting_bytes(self, request: Request) -> None:
        """What sessions start from, or a prompt's vectors, waits with its requests: outside of the sessions' budget."""
        more = request.waiting_bytes
        if not more:  # most requests: nothing is added up for them
            return
        waiting = self.queues.waiting_bytes()
        if waiting and waiting + more > self._serving.max_waiting_picture_bytes:
            name = "snapshot" if request.is_resumed else "pixels" if request.is_start else "prompt_embeds"
            raise BusyError(
                f"{name}: {waiting} bytes of pictures, snapshots and prompts wait, this one has "
                f"{more}, wanted at most {self._serving.max_waiting_picture_bytes} in all; "
                "try again later"
            )

    def _check_room_to_save(self, entry: Entry, saved_bytes: int) -> None:
        """So do snapshots, until they have been sent."""
        to_save = self.queues.sessions_to_save()
        waiting = saved_bytes + sum(self.table.entries[session].num_bytes for session in to_save)
        if waiting and waiting + entry.num_bytes > self._serving.max_waiting_picture_bytes:
            raise BusyError(
                f"snapshot: {waiting} bytes of sessions are being saved, this one has {entry.num_bytes}, wanted at "
                f"most {self._serving.max_waiting_picture_bytes} in all; try again later"
            )
