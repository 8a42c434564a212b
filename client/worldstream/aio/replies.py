"""The iterators of an asynchronous session: batches, and single frames."""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Generator
from typing import TYPE_CHECKING, Any

from worldstream.batch import Batch, Frame
from worldstream.exchange import Slot
from worldstream.requests import Controls

if TYPE_CHECKING:
    from worldstream.aio.session import AsyncSession


class AsyncReplies(AsyncIterator[Batch]):
    """The batches that answer one request, in order.

    The request is sent when the first batch is asked for, or at once by `await`, which gives this same iterator:

        later = await session.generate(actions="www")  # the server works on it while this program goes on

    An iterator that is dropped or closed before its end, or whose task is cancelled while it waits, cancels what is
    under way; but while others still hold iterators of requests under way, a dropped one loses its own frames only.
    """

    def __init__(self, session: "AsyncSession", controls: Controls, is_end: bool, is_whole: bool = False) -> None:
        """Prepare a request; `is_whole` where the session is this request and is left with it."""
        self._session = session
        self._controls = controls
        self._is_end = is_end
        self._is_whole = is_whole
        self._is_closed = False  # to sending
        self._slot: Slot | None = None

    def __await__(self) -> Generator[Any, None, "AsyncReplies"]:
        """Send the request, if it was not sent yet."""
        return self._sent().__await__()

    async def __anext__(self) -> Batch:
        """Return the next batch; raise the request's error, if it had one, once."""
        await self._sent()
        while self._slot is not None:
            try:
                batch = self._slot.take()
                if batch is not None:
                    return batch
                if self._slot.is_done:
                    break
                await self._session._pump(self._slot)
            except asyncio.CancelledError:
                self._session.cancel()
                raise
            except BaseException:
                await self.aclose()
                raise
        await self.aclose()
        raise StopAsyncIteration

    async def aclose(self) -> None:
        """Give up what has not come yet; nothing comes after it."""
        self._is_closed = True
        self._drop()
        if self._is_whole:
            await self._session.close()

    def __del__(self) -> None:
        self._drop()

    async def _sent(self) -> "AsyncReplies":
        if self._slot is None and not self._is_closed:
            self._is_closed = True  # sent once, whatever comes of it
            self._slot = await self._session._begin(self._controls, self._is_end)
        return self

    def _drop(self) -> None:
        slot, self._slot = self._slot, None
        if slot is not None and not slot.is_done:
            del slot
            self._session._one_reader_less()


class AsyncFrames(AsyncIterator[Frame]):
    """Single frames of a request, with their numbers in the session; sent, dropped and cancelled as `AsyncReplies`."""

    def __init__(self, replies: AsyncReplies) -> None:
        self._replies = replies
        self._frames: deque[Frame] = deque()

    def __await__(self) -> Generator[Any, None, "AsyncFrames"]:
        """Send the request, if it was not sent yet."""
        return self._sent().__await__()

    async def __anext__(self) -> Frame:
        """Return the next frame; raise the request's error, if it had one, once."""
        while not self._frames:
            batch = await self._replies.__anext__()
            self._frames.extend(batch.singles())
        return self._frames.popleft()

    async def aclose(self) -> None:
        """Give up what has not come yet."""
        self._frames.clear()
        await self._replies.aclose()

    async def _sent(self) -> "AsyncFrames":
        await self._replies
        return self
