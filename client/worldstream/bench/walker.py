"""One session under load: it sends keys with rising event ids, and notes what comes when."""

import time
from dataclasses import dataclass

from worldstream.aio.replies import AsyncReplies
from worldstream.aio.session import AsyncSession
from worldstream.batch import Batch
from worldstream.bench.records import Chunk, Request
from worldstream.errors import BusyError, ProtocolError

_KEYS = ("w", "l", "")


@dataclass(frozen=True)
class Pending:
    """A request under way."""

    event_id: int
    num_chunks: int
    intended_s: float
    sent_s: float
    replies: AsyncReplies


class Walker:
    """Asks one session for chunks."""

    def __init__(self, number: int, session: AsyncSession, chunk_latent_frames: int) -> None:
        self.number = number
        self.session = session
        self._chunk_latent_frames = chunk_latent_frames
        self._num_sent = 0

    async def send(self, num_chunks: int, num_steps: int | None, intended_s: float | None = None) -> Pending:
        """Send a request; `intended_s` is when it should have been sent, by default now."""
        event_id = self._num_sent
        self._num_sent += 1
        key = _KEYS[event_id % len(_KEYS)]
        sent_s = time.perf_counter()
        replies = await self.session.generate(
            actions=[key] * (self._chunk_latent_frames * num_chunks),
            num_chunks=num_chunks,
            num_steps=num_steps,
            event_id=event_id,
        )
        return Pending(event_id, num_chunks, sent_s if intended_s is None else intended_s, sent_s, replies)

    async def receive(self, pending: Pending, may_be_refused: bool = False) -> Request:
        """Read all that answers a request.

        Args:
            may_be_refused: note BUSY instead of raising it: for what is sent whatever the server does.

        Raises:
            ProtocolError: if a batch carries another event id, or chunks are missing.
            WorldStreamError: the request's error.
        """
        chunks: list[Chunk] = []
        frames_s: list[float] = []
        try:
            async for batch in pending.replies:
                _check_event(batch, pending)
                frames_s += [time.perf_counter()] * len(batch.frame_index)
                if batch.part_index == batch.num_parts - 1:
                    chunks.append(Chunk(tuple(frames_s), batch.timings))
                    frames_s = []
        except BusyError as error:
            if not may_be_refused:
                raise
            return self._seen(pending, (), error.code)
        if len(chunks) != pending.num_chunks:
            raise ProtocolError(f"chunk: wanted {pending.num_chunks} of a request, got {len(chunks)}")
        return self._seen(pending, tuple(chunks))

    async def ask(
        self, num_chunks: int, num_steps: int | None, intended_s: float | None = None, may_be_refused: bool = False
    ) -> Request:
        """Send a request and read all that answers it; arguments as of `send` and `receive`."""
        return await self.receive(await self.send(num_chunks, num_steps, intended_s), may_be_refused)

    def _seen(self, pending: Pending, chunks: tuple[Chunk, ...], refusal: str = "") -> Request:
        return Request(self.number, pending.intended_s, pending.sent_s, chunks, refusal)


def _check_event(batch: Batch, pending: Pending) -> None:
    if batch.event_id != pending.event_id:
        raise ProtocolError(f"event_id: wanted {pending.event_id}, got {batch.event_id}")
