"""One ModelStreamInfer call for asyncio: `stream` is its blocking twin. It starts no task: whoever waits does the work.

A cancelled call does not wake every step that waits for it (a write before the connection stands waits for ever), so
the task that waits is cancelled too, as `asyncio.timeout` does. That cancel is ours: it becomes the reason that
`_break_off` was given. A cancel by others stays what it is.
"""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, TypeVar

import grpc

from worldstream.aio.connection import AsyncConnection
from worldstream.errors import CancelledError, ConnectionLostError, ResponseTimeoutError, WorldStreamError

T = TypeVar("T")
_CLOSE_S = 2.0


class AsyncStream:
    """A bidirectional call. One task at a time may `send`, and one at a time `receive`."""

    def __init__(self, connection: AsyncConnection, metadata: Sequence[tuple[str, str]]) -> None:
        """Open it.

        Raises:
            UnavailableError: if the connection is closed.
        """
        self._connection = connection
        self._loop = asyncio.get_running_loop()
        self._broken_by: WorldStreamError | None = None
        self._waiting: set[asyncio.Task[Any]] = set()
        everything = (*metadata, *connection.endpoint.access.metadata)
        self._call = connection.stub.ModelStreamInfer(metadata=everything)

    @property
    def is_cancelled(self) -> bool:
        """Whether the call was broken off from this side."""
        return self._broken_by is not None

    @property
    def has_ended(self) -> bool:
        """Whether nothing that is sent any more is answered."""
        return bool(self._call.done())

    async def send(self, request: Any, timeout_s: float) -> None:
        """Hand a request to the connection; raises as `receive`."""
        await self._limited(timeout_s, lambda: self._call.write(request))

    async def receive(self, timeout_s: float) -> Any:
        """Wait for the next response.

        Raises:
            ResponseTimeoutError: if none came in time; the call is cancelled then, as it is when this task is.
            CancelledError: if `cancel` was called.
            WorldStreamError: if the connection broke, as `AsyncConnection.error_of_broken_stream` says.
        """
        response = await self._limited(timeout_s, self._call.read)
        if response is grpc.aio.EOF:
            raise ConnectionLostError("UNAVAILABLE: the server closed the stream")
        self._connection.has_answered = True
        return response

    def cancel(self) -> None:
        """Break the call off, so that the server sees the cancel; from any thread, for finalizers run in any."""
        reason = CancelledError("CANCELLED: this client cancelled the request")
        if _running_loop() is self._loop:
            self._break_off(reason)
        else:
            with contextlib.suppress(RuntimeError):  # the loop is closed, and so is all that ran in it
                self._loop.call_soon_threadsafe(self._break_off, reason)

    async def close(self) -> None:
        """End the call in good order when nothing is under way; what still arrives is dropped."""
        with contextlib.suppress(WorldStreamError):
            await self._limited(_CLOSE_S, self._call.done_writing)
            while await self._limited(_CLOSE_S, self._call.read) is not grpc.aio.EOF:
                pass
        self.cancel()

    def _break_off(self, reason: WorldStreamError) -> None:
        if self._broken_by is None:
            self._broken_by = reason
            self._call.cancel()
            for task in self._waiting:
                task.cancel()

    async def _limited(self, timeout_s: float, step: Callable[[], Awaitable[T]]) -> T:
        """Take one step of the call; if that takes too long, break the call off."""
        self._check_whole()
        late = ResponseTimeoutError(f"UNAVAILABLE: no response within {timeout_s:g} s")
        timer = self._loop.call_later(timeout_s, self._break_off, late)
        task = _this_task()
        num_cancels = _num_cancels(task)
        self._waiting.add(task)
        try:
            return await step()
        except asyncio.CancelledError:
            if self._broken_by is None or _uncancel(task) > num_cancels:
                self._waiting.discard(task)
                self.cancel()
                raise
            raise self._broken_by from None
        except grpc.RpcError as error:
            raise self._connection.error_of_broken_stream(error) from None
        except asyncio.InvalidStateError:  # grpc's word for a call that has ended before
            raise await self._reason_of_end() from None
        finally:
            self._waiting.discard(task)
            timer.cancel()

    def _check_whole(self) -> None:
        if self._broken_by is not None:
            raise self._broken_by

    async def _reason_of_end(self) -> WorldStreamError:
        code, details = await self._call.code(), await self._call.details()
        if code is grpc.StatusCode.OK:
            return ConnectionLostError("UNAVAILABLE: the server closed the stream")
        return self._connection.error_of_broken_stream(grpc.aio.AioRpcError(code, details=details))


def _running_loop() -> asyncio.AbstractEventLoop | None:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None


def _this_task() -> asyncio.Task[Any]:
    task = asyncio.current_task()
    assert task is not None, "a coroutine runs in a task"
    return task


# Python 3.10 does not count them; a cancel by others at the very moment of ours is lost there.
def _num_cancels(task: asyncio.Task[Any]) -> int:
    """How often this task was asked to end."""
    return int(task.cancelling()) if hasattr(task, "cancelling") else 0


def _uncancel(task: asyncio.Task[Any]) -> int:
    """Take one of these requests back, the one of ours; returns how many are left."""
    return int(task.uncancel()) if hasattr(task, "uncancel") else 0
