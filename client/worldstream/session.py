"""A session over one gRPC stream, blocking: the I/O shell around `core.SessionCore`."""

import contextlib
import inspect
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from types import TracebackType
from typing import Any, Concatenate, ParamSpec
from weakref import WeakValueDictionary

import numpy.typing as npt

from worldstream.batch import Batch, Frame
from worldstream.connection import Connection
from worldstream.core import Life, SessionCore
from worldstream.errors import CancelledError, InvalidInputError, ProtocolError, SessionNotFoundError, WorldStreamError
from worldstream.requests import Controls, SessionId, make_controls, with_defaults
from worldstream.responses import Event
from worldstream.stream import Stream

P = ParamSpec("P")


class Replies(Iterator[Batch]):
    """The batches that answer one request, in order. It may be dropped before its end; its frames are dropped then."""

    def __init__(self, session: "Session") -> None:
        self._session = session
        self._events: deque[Event] = deque()
        self._is_done = False

    def __next__(self) -> Batch:
        """Return the next batch; raise the request's error, if it had one, once."""
        while True:
            while not self._events:
                if self._is_done:
                    raise StopIteration
                self._session._pump()
            event = self._events.popleft()
            if event.error is not None:
                raise event.error
            if event.batch is not None:
                return event.batch

    def _deliver(self, event: Event) -> None:
        self._events.append(event)
        self._is_done = self._is_done or event.is_final


def frames_of(batches: Iterator[Batch]) -> Iterator[Frame]:
    """Single frames of batches."""
    for batch in batches:
        for index, pixels in zip(batch.frame_index.tolist(), batch.frames, strict=True):
            yield Frame(index, pixels)


def _frame_by_frame(
    generate: Callable[Concatenate["Session", P], Iterator[Batch]],
) -> Callable[Concatenate["Session", P], Iterator[Frame]]:
    """The same method with the same arguments, whose frames come one by one."""

    def frames(session: "Session", /, *args: P.args, **kwargs: P.kwargs) -> Iterator[Frame]:
        """As `generate`, frame by frame, each with its number in the session."""
        return frames_of(generate(session, *args, **kwargs))

    shown = inspect.signature(generate).replace(return_annotation=Iterator[Frame])
    frames.__signature__ = shown  # type: ignore[attr-defined]  # what help() prints
    return frames


class Session:
    """A camera in one world, made by `WorldClient.session`. For one thread; only `cancel` may come from another.

    Several requests may be under way at once; they are answered in the order in which they were asked.
    """

    def __init__(self, connection: Connection, core: SessionCore, defaults: Controls) -> None:
        self._connection = connection
        self._core = core
        self._defaults = defaults
        self._stream: Stream | None = None
        self._pending: dict[str, None] = {}  # ids of requests without their final response, oldest first
        self._replies: WeakValueDictionary[str, Replies] = WeakValueDictionary()

    @property
    def session_id(self) -> SessionId | None:
        """The id that the server knows this session by; None for a session of one request."""
        return self._core.session_id

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
    ) -> Iterator[Batch]:
        """Ask for more frames. The request is sent at once; the batches come as they are made.

        The first request of a session from an encoded picture lets the server decode that first, in a call of its own.

        Args:
            cam_to_world: [T, 4, 4], one absolute pose a latent frame, OpenCV axes.
            actions: one entry a latent frame ("w", "wl", ""), or text for `paths.actions_from_text`.
            num_chunks: default as many as the poses or actions fill, else 1.
            intrinsics: [4], [1, 4] or [T, 4]; default those of the session.
            prompt: switches the world's prompt from the next chunk on.
            num_steps: denoising steps; default that of the session.
            event_id: comes back in every batch that this request steers.
            end: whether the session ends with this request.

        Raises:
            InvalidInputError: if the arguments cannot be right; nothing is sent then.
            SessionNotFoundError: if the session has ended.
            WorldStreamError: if the server could not decode the picture; nothing else is sent then.
        """
        controls = make_controls(cam_to_world, actions, num_chunks, intrinsics, prompt, num_steps, event_id)
        return self.ask(controls, end)

    def ask(self, controls: Controls, is_end: bool = False) -> Replies:
        """As `generate`, with arguments that `make_controls` has checked already."""
        self._settle_cancel()
        if self._core.life is Life.UNSURE:
            self._tell_end()  # a start that broke off is undone, then sent again
        self._decode_picture()
        controls = with_defaults(controls, self._defaults, is_start=self._core.life is Life.NEW)
        return self._send(self._core.next_request(controls, is_end))

    frames = _frame_by_frame(generate)

    def cancel(self) -> None:
        """Stop all that is under way; the server sees it, and the session goes on from its last whole chunk.

        Iterators of cancelled requests raise CancelledError. The next `generate` opens a new stream.
        """
        stream = self._stream
        if stream is not None:
            stream.cancel()

    def end(self) -> None:
        """Free the session on the server; what runs there is stopped. Calling it again does nothing.

        Raises:
            WorldStreamError: if the server could not be told. That the session is gone already is no error.
        """
        try:
            self._settle_cancel()
            if self._core.life not in (Life.NEW, Life.ENDED):
                self._tell_end()
        finally:
            self.close()

    def close(self) -> None:
        """Leave the stream without ending the session: its id may be used to go on with it."""
        if self._stream is None:
            return
        if self._pending:
            self._fail(CancelledError("CANCELLED: this client closed the session"))
        else:
            self._stream.close()
            self._stream = None

    def __enter__(self) -> "Session":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        if error is None:
            self.end()
            return
        self.cancel()
        with contextlib.suppress(WorldStreamError):  # what went wrong first is what the caller has to see
            self.end()

    def _send(self, request: Any) -> Replies:
        if self._stream is None:
            self._stream = Stream(self._connection, self._metadata())
        replies = Replies(self)
        self._pending[request.id] = None
        self._replies[request.id] = replies
        self._stream.send(request)
        return replies

    def _metadata(self) -> list[tuple[str, str]]:
        # Proxies keep a session on its server by this.
        return [] if self.session_id is None else [("x-session-id", str(self.session_id))]

    def _pump(self) -> Event:
        """Take one response and hand it to the request that it answers; a broken stream answers all of them."""
        assert self._stream is not None, "only a pending request is waited for, and it has a stream"
        try:
            event = self._core.receive(self._stream.receive(self._connection.timeout_s))
            self._dispatch(event)
        except WorldStreamError as error:
            self._fail(error)
            return Event("", None, error, is_final=True)
        return event

    def _dispatch(self, event: Event) -> None:
        request_id = event.request_id
        if request_id not in self._pending:
            if event.error is None or not self._pending:
                raise ProtocolError(f"response: its id {request_id!r} belongs to no request under way")
            request_id = next(iter(self._pending))  # an error without an id is the oldest request's
        if event.is_final:
            del self._pending[request_id]
        replies = self._replies.get(request_id)
        if replies is not None:
            replies._deliver(event)

    def _fail(self, error: WorldStreamError) -> None:
        """Give up the stream, and end all that is under way with this error."""
        assert self._stream is not None
        self._stream.cancel()
        self._stream = None
        self._core.stream_broke()
        for request_id in self._pending:
            replies = self._replies.get(request_id)
            if replies is not None:
                replies._deliver(Event(request_id, None, error, is_final=True))
        self._pending.clear()

    def _settle_cancel(self) -> None:
        if self._stream is not None and self._stream.is_cancelled:
            self._fail(CancelledError("CANCELLED: this client cancelled the request"))

    def _decode_picture(self) -> None:
        encoded = self._core.picture_to_decode
        if encoded is None:
            return
        pixels = self._connection.preprocess([encoded]).pixels
        if len(pixels) != 1:
            raise InvalidInputError(f"picture: a session starts from one, this holds {len(pixels)}")
        self._core.take_decoded(pixels[0])

    def _tell_end(self) -> None:
        if self._core.session_id is None:
            return
        with contextlib.suppress(SessionNotFoundError):
            deque(self._send(self._core.end_request()), maxlen=0)
