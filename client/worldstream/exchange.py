"""Which response belongs to which request of a stream; pure, and the same for every kind of I/O."""

import copy
from collections import deque
from weakref import WeakValueDictionary

from worldstream.batch import Batch, Receipt
from worldstream.errors import InvalidInputError, ProtocolError, UnavailableError, WorldStreamError
from worldstream.responses import Event
from worldstream.snapshot import SnapshotPart


class Slot:
    """What has come for one request and was not taken yet."""

    def __init__(self) -> None:
        self.is_done = False  # nothing more will come
        self.parts: list[SnapshotPart] = []  # of a session's file
        self.receipt: Receipt | None = None
        self._events: deque[Event] = deque()
        self._num_frames = 0

    @property
    def has_news(self) -> bool:
        """Whether `take` has something to give, or nothing more will come."""
        return self.is_done or bool(self._events)

    def take(self) -> Batch | None:
        """Return the next batch, None where none is here; raise the request's error, if it had one, once."""
        while self._events:
            event = self._events.popleft()
            if event.error is not None:
                raise event.error
            if event.batch is not None:
                return event.batch
        return None

    def find_receipt(self) -> Receipt | None:
        """Return the receipt, None where nothing is here; raise the request's error, if it had one, once.

        Raises:
            ProtocolError: if something else came before it.
        """
        if self.receipt is not None or not self.has_news:
            return self.receipt
        if self._events and self._events[0].error is not None:
            self.take()
        raise ProtocolError("receipt: wanted it before all else, but the request was answered without one")

    def put(self, event: Event) -> None:
        """Take in a response."""
        self.receipt = self.receipt or event.receipt
        if event.part is not None:
            self.parts.append(event.part)
        self._events.append(event)
        self._num_frames += 0 if event.batch is None else len(event.batch.frame_index)
        self.is_done = self.is_done or event.is_final

    def fail(self, error: WorldStreamError) -> None:
        """End with this error, which says how many frames had come."""
        if isinstance(error, UnavailableError):
            error = copy.copy(error)  # each request has a count of its own
            error.frames_received = self._num_frames
        self.put(Event("", None, error, is_final=True))


def check_has_receipt(has_receipt: bool) -> None:
    """Refuse to wait for a receipt that was not asked for."""
    if not has_receipt:
        raise InvalidInputError("receipt: wanted a request sent with receipt=True, this one was not")


class Exchange:
    """The requests of one stream that have no final response yet.

    A slot is held weakly: when its reader has dropped it, what still comes for that request is dropped too.
    """

    def __init__(self) -> None:
        self._under_way: dict[str, None] = {}  # ids, oldest first
        self._slots: WeakValueDictionary[str, Slot] = WeakValueDictionary()

    @property
    def is_idle(self) -> bool:
        """Whether nothing is under way."""
        return not self._under_way

    @property
    def has_reader(self) -> bool:
        """Whether somebody still holds the slot of a request that is under way."""
        return any(request_id in self._slots for request_id in self._under_way)

    def open(self, request_id: str) -> Slot:
        """Begin a request."""
        slot = Slot()
        self._under_way[request_id] = None
        self._slots[request_id] = slot
        return slot

    def deliver(self, event: Event) -> None:
        """Hand a response to the request that it answers, which is under way."""
        if event.is_final:
            del self._under_way[event.request_id]
        slot = self._slots.get(event.request_id)
        if slot is not None:
            slot.put(event)

    def fail(self, error: WorldStreamError) -> None:
        """End all that is under way with this error."""
        for request_id in self._under_way:
            slot = self._slots.get(request_id)
            if slot is not None:
                slot.fail(error)
        self._under_way.clear()
