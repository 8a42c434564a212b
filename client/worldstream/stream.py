"""One ModelStreamInfer call: requests go in, responses come out, each with a limit on the silence between them.

The raw stub is used because tritonclient's stream reports errors without the id of their request, hides the final flag
of errors, and ends without a word when its callback raises. This module knows nothing of tensors and sessions.
"""

import contextlib
import threading
from collections.abc import Sequence
from queue import Empty, Full, Queue, SimpleQueue
from typing import Any

import grpc

from worldstream.connection import Connection
from worldstream.endpoint import CLOSED
from worldstream.errors import (
    CancelledError,
    ConnectionLostError,
    ResponseTimeoutError,
    UnavailableError,
    WorldStreamError,
)

# Few, so that a slow reader holds the server's stream back and not this process's memory.
_NUM_READ_AHEAD = 4
_POLL_S = 0.1
_CLOSE_S = 2.0


class Stream:
    """A bidirectional call with a reader thread. `send` and `receive` belong to one thread, `cancel` to any."""

    def __init__(self, connection: Connection, metadata: Sequence[tuple[str, str]]) -> None:
        self._connection = connection
        self._outbox: SimpleQueue[Any] = SimpleQueue()
        self._inbox: Queue[Any] = Queue(maxsize=_NUM_READ_AHEAD)
        self._is_cancelled = threading.Event()
        self._has_ended = threading.Event()
        try:
            everything = (*metadata, *connection.endpoint.access.metadata)
            self._call = connection.stub.ModelStreamInfer(iter(self._outbox.get, None), metadata=everything)
        except ValueError as error:  # grpc's word for a closed channel
            raise UnavailableError(CLOSED) from error
        self._reader = threading.Thread(target=self._read, name="worldstream-reader", daemon=True)
        self._reader.start()

    @property
    def is_cancelled(self) -> bool:
        """Whether the call was broken off from this side."""
        return self._is_cancelled.is_set()

    @property
    def has_ended(self) -> bool:
        """Whether the other side has ended it, so that nothing sent any more is answered."""
        return self._has_ended.is_set()

    def send(self, request: Any) -> None:
        """Hand a request to the connection; returns at once."""
        self._outbox.put(request)

    def receive(self, timeout_s: float) -> Any:
        """Wait for the next response.

        Raises:
            ResponseTimeoutError: if none came in time; the stream is cancelled then.
            CancelledError: if `cancel` was called.
            WorldStreamError: if the connection broke, as `Connection.error_of_broken_stream` says.
        """
        try:
            item = None if self._is_cancelled.is_set() else self._inbox.get(timeout=timeout_s)
        except Empty:
            self.cancel()
            raise ResponseTimeoutError(f"UNAVAILABLE: no response within {timeout_s:g} s") from None
        if self._is_cancelled.is_set():
            raise CancelledError("CANCELLED: this client cancelled the request")
        if isinstance(item, WorldStreamError):
            raise item
        return item

    def cancel(self) -> None:
        """Break the call off, so that the server sees the cancel."""
        self._is_cancelled.set()
        self._call.cancel()
        self._outbox.put(None)
        with contextlib.suppress(Full):  # wakes a waiting `receive`; when full, none waits
            self._inbox.put_nowait(None)

    def close(self) -> None:
        """End the call in good order when nothing is under way; what still arrives is dropped."""
        self._outbox.put(None)
        self._reader.join(_CLOSE_S)
        if self._reader.is_alive():
            self.cancel()

    def _read(self) -> None:
        """Post each response, then why there are no more; whatever goes wrong here reaches `receive`."""
        try:
            for response in self._call:
                self._connection.has_answered = True
                self._post(response)
            reason: WorldStreamError = ConnectionLostError("UNAVAILABLE: the server closed the stream")
        except grpc.RpcError as error:
            reason = self._connection.error_of_broken_stream(error)
        except Exception as error:
            reason = UnavailableError(f"UNAVAILABLE: the stream's reader failed ({type(error).__name__}: {error})")
            reason.__cause__ = error
        self._has_ended.set()
        self._post(reason)

    def _post(self, item: Any) -> None:
        while not self._is_cancelled.is_set():
            with contextlib.suppress(Full):
                self._inbox.put(item, timeout=_POLL_S)
                return
