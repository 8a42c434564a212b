"""A session over one gRPC stream, for asyncio: a shell around `core.SessionCore`; `session` is its blocking twin."""

import asyncio
import contextlib
import inspect
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from types import TracebackType
from typing import Any, Concatenate, ParamSpec

import numpy.typing as npt

from worldstream.aio.connection import AsyncConnection
from worldstream.aio.replies import AsyncFrames, AsyncReplies
from worldstream.aio.stream import AsyncStream
from worldstream.batch import Batch
from worldstream.core import Life, SessionCore
from worldstream.errors import CancelledError, SessionNotFoundError, WorldStreamError
from worldstream.exchange import Exchange, Slot
from worldstream.requests import Controls, SessionId, Steering, controls_from, make_controls, with_defaults
from worldstream.session import PARTING_S
from worldstream.snapshot import join_parts

P = ParamSpec("P")


def _frame_by_frame(
    generate: Callable[Concatenate["AsyncSession", P], AsyncReplies],
) -> Callable[Concatenate["AsyncSession", P], AsyncFrames]:
    """The same method with the same arguments, whose frames come one by one."""

    def frames(session: "AsyncSession", /, *args: P.args, **kwargs: P.kwargs) -> AsyncFrames:
        """As `generate`, frame by frame, each with its number in the session."""
        return AsyncFrames(generate(session, *args, **kwargs))

    shown = inspect.signature(generate).replace(return_annotation=AsyncFrames)
    frames.__signature__ = shown  # type: ignore[attr-defined]  # what help() prints
    return frames


class AsyncSession:
    """A camera in one world, made by `AsyncWorldClient.session`; use it as an asynchronous context manager.

    Several requests may be under way at once; they are answered in the order in which they were sent. They share one
    stream, so a cancel is all of theirs: `cancel`, or the cancelling of a task that waits for one of them.
    """

    def __init__(self, connection: AsyncConnection, core: SessionCore, defaults: Controls) -> None:
        self._connection = connection
        self._core = core
        self._defaults = defaults
        self._stream: AsyncStream | None = None
        self._exchange = Exchange()
        self._timeout_s = connection.endpoint.timeout_s
        self._sending = asyncio.Lock()
        self._reading = asyncio.Lock()

    @property
    def session_id(self) -> SessionId | None:
        """The id that the server knows this session by; None for a session of one request."""
        return self._core.session_id

    @property
    def next_frame_index(self) -> int:
        """The number that follows the last frame received; `frame_index` of what comes next, if none gets lost."""
        return self._core.next_frame_index

    @property
    def num_frames_lost(self) -> int:
        """Frames that the server made and this client never got: a broken connection or a cancel took them."""
        return self._core.num_frames_lost

    def generate(
        self,
        cam_to_world: npt.ArrayLike | None = None,
        actions: str | Sequence[str] | None = None,
        num_chunks: int | None = None,
        intrinsics: npt.ArrayLike | None = None,
        prompt: str | None = None,
        num_steps: int | None = None,
        event_id: int | None = None,
        end: bool = False,
        recache: bool = False,
        receipt: bool = False,
        parameters: Mapping[str, bool | int | float | str] | None = None,
        prompt_embeds: npt.ArrayLike | None = None,
    ) -> AsyncReplies:
        """Ask for more frames; arguments as in `Session.generate`.

        The request is sent when the first batch is asked for, or at once by `await`. What sending raises (that the
        session has ended, that the picture cannot be decoded) is raised there.

        Raises:
            InvalidInputError: if the arguments cannot be right; nothing is sent then.
        """
        controls = make_controls(
            cam_to_world,
            actions,
            num_chunks,
            intrinsics,
            prompt,
            num_steps,
            event_id,
            recache=recache,
            receipt=receipt,
            parameters=parameters,
            prompt_embeds=prompt_embeds,
        )
        return AsyncReplies(self, controls, end)

    async def ask(self, controls: Controls, is_end: bool = False) -> AsyncReplies:
        """As `await generate(...)`, with arguments that `make_controls` has checked already."""
        return await AsyncReplies(self, controls, is_end)

    frames = _frame_by_frame(generate)

    async def steer(self, next_steering: Callable[[], Awaitable[Steering | None]]) -> AsyncIterator[Batch]:
        """Go on as somebody steers: ask for keys, then for the frames that they make, until there are no more keys.

        As `Session.steer`, but `next_steering` is awaited. Close it with `contextlib.aclosing` if you leave it early.
        """
        while (steering := await next_steering()) is not None:
            replies = await self.ask(controls_from(steering))
            try:
                async for batch in replies:
                    yield batch
            finally:
                await replies.aclose()

    def cancel(self) -> None:
        """Stop all that is under way; the server sees it, and the session goes on from its last whole chunk.

        Iterators of cancelled requests raise CancelledError. The next request opens a new stream. This, and this alone,
        may be called from another thread.
        """
        if self._stream is not None:
            self._stream.cancel()

    async def snapshot(self) -> bytes:
        """Ask for the session as a file, behind all that is under way; as `Session.snapshot`."""
        async with self._sending:
            self._settle()
            request = self._core.save_request()
            slot = await self._send(await self._open_stream(), request)
        await self._wait(slot)
        return join_parts(slot.parts)

    async def restore(self) -> None:
        """Start a session that was prepared from a snapshot, without asking for frames; as `Session.restore`."""
        async with self._sending:
            self._settle()
            if self._core.life is Life.UNSURE:
                await self._tell_end()
            request = self._core.restore_request()
            slot = await self._send(await self._open_stream(), request)
        await self._wait(slot)

    async def reconnect(self) -> None:
        """Leave the stream and wait for the server, so that the next request goes out over a new one.

        Without it that request does the same by itself. What was under way is given up, and raises CancelledError.

        Raises:
            UnavailableError: if the server cannot be reached.
        """
        await self.close()
        await self._connection.ping()

    async def end(self) -> None:
        """Free the session on the server; what runs there is stopped. Calling it again does nothing.

        Raises:
            WorldStreamError: if the server could not be told. That the session is gone already is no error.
        """
        try:
            async with self._sending:
                self._settle()
                if self._core.life not in (Life.NEW, Life.ENDED):
                    await self._tell_end()
        finally:
            await self.close()

    async def close(self) -> None:
        """Leave the stream without ending the session: its id may be used to go on with it."""
        stream = self._stream
        if stream is None:
            return
        if not self._exchange.is_idle:
            self._fail(stream, CancelledError("CANCELLED: this client closed the session"))
            return
        self._leave_stream()
        await stream.close()

    async def __aenter__(self) -> "AsyncSession":
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None
    ) -> None:
        if error is None:
            await self.end()
            return
        self.cancel()
        self._timeout_s = min(self._timeout_s, PARTING_S)
        with contextlib.suppress(WorldStreamError):  # what went wrong first is what the caller has to see
            await self.end()

    async def _begin(self, controls: Controls, is_end: bool) -> Slot:
        """Send a request; the slot is where its answers will be."""
        async with self._sending:
            self._settle()
            if self._core.life is Life.UNSURE:
                await self._tell_end()  # a start that broke off is undone, then sent again
            await self._decode_picture()
            stream = await self._open_stream()
            controls = with_defaults(controls, self._defaults, is_start=self._core.life is Life.NEW)
            return await self._send(stream, self._core.next_request(controls, is_end))

    async def _open_stream(self) -> AsyncStream:
        if self._stream is None:
            await self._connection.reach()
            self._stream = AsyncStream(self._connection, self._core.metadata)
        return self._stream

    async def _send(self, stream: AsyncStream, request: Any) -> Slot:
        slot = self._exchange.open(request.id)
        try:
            await stream.send(request, self._timeout_s)
        except WorldStreamError as error:
            self._fail(stream, error)  # whoever reads the slot is told
        except asyncio.CancelledError:
            self._fail(stream, CancelledError("CANCELLED: this client cancelled the request"))
            raise
        return slot

    async def _pump(self, slot: Slot) -> None:
        """Take one response and hand it to the request that it answers, if this one still waits for something."""
        async with self._reading:
            stream = self._stream
            if slot.has_news or stream is None:
                return
            try:
                for event in self._core.receive(await stream.receive(self._timeout_s)):
                    self._exchange.deliver(event)
            except WorldStreamError as error:
                self._fail(stream, error)
            except asyncio.CancelledError:
                self._fail(stream, CancelledError("CANCELLED: this client cancelled the request"))
                raise

    def _fail(self, stream: AsyncStream, error: WorldStreamError) -> None:
        """Give up the stream, and end all that is under way with this error; several tasks may find it broken."""
        stream.cancel()
        if self._stream is stream:
            self._leave_stream()
            self._exchange.fail(error)

    def _leave_stream(self) -> None:
        self._stream = None
        self._core.stream_broke()

    def _settle(self) -> None:
        """Part from a stream that can carry nothing any more."""
        if self._stream is None:
            return
        if self._stream.is_cancelled:
            self._fail(self._stream, CancelledError("CANCELLED: this client cancelled the request"))
        elif self._stream.has_ended and self._exchange.is_idle:
            self._leave_stream()

    def _one_reader_less(self) -> None:
        """Cancel what is under way, if nobody waits for any of it now."""
        if not self._exchange.has_reader:
            self.cancel()

    async def _decode_picture(self) -> None:
        encoded = self._core.picture_to_decode
        if encoded is not None:
            self._core.take_decoded(await self._connection.preprocess([encoded]))

    async def _tell_end(self) -> None:
        if self._core.session_id is None:
            return
        slot = await self._send(await self._open_stream(), self._core.end_request())
        with contextlib.suppress(SessionNotFoundError):
            await self._wait(slot)

    async def _wait(self, slot: Slot) -> None:
        """Until all has come for a request that is not answered by frames; raises its error."""
        while not slot.is_done:
            await self._pump(slot)
            slot.take()
        slot.take()
