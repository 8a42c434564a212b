"""The iterators of an asynchronous session: batches, and single frames."""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable, Generator
from typing import TYPE_CHECKING, Any, TypeVar

from worldstream.batch import Batch, Frame, Receipt
from worldstream.errors import CancelledError
from worldstream.exchange import Slot, check_has_receipt
from worldstream.requests import Controls

if TYPE_CHECKING:
    from worldstream.aio.session import AsyncSession

T = TypeVar("T")


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
        self._receipt: Receipt | None = None

    def __await__(self) -> Generator[Any, None, "AsyncReplies"]:
        """Send the request, if it was not sent yet."""
        return self._sent().__await__()

    async def __anext__(self) -> Batch:
        """Return the next batch; raise the request's error, if it had one, once."""
        batch = await self._wait_for(Slot.take)
        if batch is not None:
            return batch
        await self.aclose()
        raise StopAsyncIteration

    async def receipt(self) -> Receipt:
        """Wait for the word that the server has taken the request up; as `Replies.receipt`.

        Sends the request, if it was not sent yet.

        Raises:
            CancelledError: if the request ended, or was given up, before.
        """
        check_has_receipt(self._controls.receipt)
        receipt = await self._wait_for(Slot.find_receipt) or self._receipt
        if receipt is None:
            raise CancelledError("CANCELLED: the request ended before its receipt came")
        return receipt

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

    async def _wait_for(self, find: Callable[[Slot], T | None]) -> T | None:
        """Read until this finds something among what has come; None when nothing more will come."""
        await self._sent()
        while self._slot is not None:
            try:
                found = find(self._slot)
                if found is not None or self._slot.is_done:
                    return found
                await self._session._pump(self._slot)
            except asyncio.CancelledError:
                self._session.cancel()
                raise
            except BaseException:
                await self.aclose()
                raise
        return None

    def _drop(self) -> None:
        slot, self._slot = self._slot, None
        if slot is not None:
            self._receipt = slot.receipt
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
