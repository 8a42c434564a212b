"""Holds a session's answers to their order; pure, and the same for every kind of I/O."""

from collections import deque
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from worldstream.batch import Batch
from worldstream.errors import ProtocolError, SharedSessionError
from worldstream.responses import Event


class AnswerOrder:
    """Gives the answers of a stream's requests in the order in which those were asked.

    A session's requests are worked off one after the other, yet Triton lets the responses to one overtake those to
    another while nobody reads the stream.
    """

    def __init__(self) -> None:
        self._waiting: dict[str, deque[Event]] = {}  # by request under way, oldest first: what came too early for it

    def expect(self, request_id: str) -> None:
        """Note that a request is about to be sent."""
        self._waiting[request_id] = deque()

    def forget(self) -> None:
        """Note that nothing more comes for any of them."""
        self._waiting.clear()

    def take(self, event: Event) -> list[Event]:
        """Take the next event and return those whose turn it is now, in order; there may be none.

        A receipt, or the refusal of a request that waits, is word about the queue itself and has no turn.

        Raises:
            ProtocolError: if it answers no request.
        """
        if event.request_id not in self._waiting:
            if event.error is None or not self._waiting:
                raise ProtocolError(f"response: its id {event.request_id!r} belongs to no request under way")
            event = replace(event, request_id=next(iter(self._waiting)))  # an error without an id is the oldest's
        waiting = self._waiting[event.request_id]
        if event.request_id != next(iter(self._waiting)):
            is_word_at_once = event.receipt is not None or (event.error is not None and not waiting)
            if not is_word_at_once:
                waiting.append(event)
                return []
        due = [event]
        if event.is_final:
            del self._waiting[event.request_id]
            due += self._due()
        return due

    def _due(self) -> list[Event]:
        """What waited for its turn and has it, now that the oldest request may have become another."""
        due: list[Event] = []
        while self._waiting:
            request_id, waiting = next(iter(self._waiting.items()))
            due += waiting
            waiting.clear()
            if not due or due[-1].request_id != request_id or not due[-1].is_final:
                break
            del self._waiting[request_id]
        return due


class FrameOrder:
    """Knows which frame and which part of which chunk must come next."""

    def __init__(self, is_from_start: bool) -> None:
        """Begin at frame 0 of chunk 0, or, for a session that others began, wherever the first batch stands."""
        self._is_exact = is_from_start
        self._is_first_known = is_from_start
        self.num_lost = 0  # frames that the session made and this client never got
        self.next_frame = 0
        self._next_chunk = 0
        self._next_part = 0
        self._num_parts = 0
        self._is_request_done = False

    @property
    def is_mid_chunk(self) -> bool:
        """Whether a further part of the last chunk is due."""
        return self._next_part > 0

    def lose_track(self) -> None:
        """Allow a gap before the next batch: frames that were under way when a stream broke are lost."""
        self._is_exact = False
        self._next_chunk += int(self.is_mid_chunk)
        self._next_part = 0

    def check(self, batch: Batch) -> None:
        """Take the next batch.

        Raises:
            SharedSessionError: between two requests the session has made chunks that nobody here asked for.
            ProtocolError: else, if it is not the one that must come next.
        """
        self._check_is_alone(batch)
        self._check_part(batch)
        self._check_frames(batch)
        self._is_exact = True
        self.next_frame += len(batch.frame_index)
        is_chunk_done = batch.part_index == batch.num_parts - 1
        self._next_chunk = batch.chunk_index + 1 if is_chunk_done else batch.chunk_index
        self._next_part = 0 if is_chunk_done else batch.part_index + 1
        self._num_parts = batch.num_parts
        self._is_request_done = batch.is_last
        if batch.is_last and not is_chunk_done:
            raise ProtocolError(f"chunk: the last response is part {batch.part_index} of {batch.num_parts}")

    def _check_is_alone(self, batch: Batch) -> None:
        if self._is_exact and self._is_request_done and batch.chunk_index > self._next_chunk:
            raise SharedSessionError(
                f"session: another client uses it too: wanted chunk {self._next_chunk}, got chunk {batch.chunk_index}; "
                "a session is for one client at a time"
            )

    def _check_part(self, batch: Batch) -> None:
        is_chunk_right = (
            batch.chunk_index == self._next_chunk if self._is_exact else batch.chunk_index >= self._next_chunk
        )
        is_part_right = batch.part_index == self._next_part and batch.part_index < batch.num_parts
        is_count_kept = self._next_part == 0 or batch.num_parts == self._num_parts
        if not (is_chunk_right and is_part_right and is_count_kept):
            raise ProtocolError(
                f"chunk: wanted chunk {self._next_chunk} part {self._next_part}, "
                f"got chunk {batch.chunk_index} part {batch.part_index} of {batch.num_parts}"
            )

    def _check_frames(self, batch: Batch) -> None:
        first = int(batch.frame_index[0])
        if not self._is_exact and first > self.next_frame:
            self.num_lost += first - self.next_frame if self._is_first_known else 0
            self.next_frame = first
        self._is_first_known = True
        wanted = np.arange(self.next_frame, self.next_frame + len(batch.frame_index))
        if not np.array_equal(batch.frame_index, wanted):
            raise ProtocolError(f"frame_index: wanted {_span(wanted)}, got {_span(batch.frame_index)}")


def _span(index: npt.NDArray[Any]) -> str:
    return f"{index[0]}..{index[-1]}"
