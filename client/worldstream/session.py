"""A session over one gRPC stream, blocking: the I/O shell around `core.SessionCore`."""

import contextlib
import inspect
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import TracebackType
from typing import Any, Concatenate, ParamSpec

import numpy.typing as npt

from worldstream.batch import Batch, Frame, Receipt
from worldstream.connection import Connection
from worldstream.core import Life, SessionCore
from worldstream.errors import CancelledError, SessionNotFoundError, WorldStreamError
from worldstream.exchange import Exchange, Slot, check_has_receipt
from worldstream.requests import Controls, SessionId, Steering, controls_from, make_controls, with_defaults
from worldstream.snapshot import SnapshotPart, join_parts
from worldstream.stream import Stream

P = ParamSpec("P")
# How long to wait for the word on a session's end when something has failed already.
PARTING_S = 5.0


class Replies(Iterator[Batch]):
    """The batches that answer one request, in order. It may be dropped before its end; its frames are dropped then."""

    def __init__(self, session: "Session", slot: Slot, has_receipt: bool) -> None:
        self._session = session
        self._slot = slot
        self._has_receipt = has_receipt

    @property
    def parts(self) -> list[SnapshotPart]:
        """What has come of a session's file, where the request asked for that."""
        return self._slot.parts

    def __next__(self) -> Batch:
        """Return the next batch; raise the request's error, if it had one, once."""
        while True:
            batch = self._slot.take()
            if batch is not None:
                return batch
            if self._slot.is_done:
                raise StopIteration
            self._session._pump()

    def receipt(self) -> Receipt:
        """Wait for the word that the server has taken the request up; it comes before any frame.

        Batches come afterwards as ever. Who reads them first may still ask for the receipt later.

        Raises:
            InvalidInputError: if the request was sent without `receipt=True`.
            WorldStreamError: the request's error, if it was refused; iterating does not raise it again.
        """
        check_has_receipt(self._has_receipt)
        while (receipt := self._slot.find_receipt()) is None:
            self._session._pump()
        return receipt


def frames_of(batches: Iterator[Batch]) -> Iterator[Frame]:
    """Single frames of batches."""
    for batch in batches:
        yield from batch.singles()


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
        self._exchange = Exchange()
        self._timeout_s = connection.endpoint.timeout_s

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
    ) -> Replies:
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
            recache: beside `prompt`, in a session that has begun: it holds for what the session remembers, too.
            receipt: whether the server answers at once; `receipt()` of what this returns waits for that answer.
            parameters: more request parameters of `denoise`, such as {"step_cache": "dynamic"}.
            prompt_embeds: [n, d], the token vectors of a prompt, in its place: see `worldstream embed`.

        Raises:
            InvalidInputError: if the arguments cannot be right; nothing is sent then.
            SessionNotFoundError: if the session has ended.
            WorldStreamError: if the server could not decode the picture; nothing else is sent then.
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
        return self.ask(controls, end)

    def ask(self, controls: Controls, is_end: bool = False) -> Replies:
        """As `generate`, with arguments that `make_controls` has checked already."""
        self._settle()
        if self._core.life is Life.UNSURE:
            self._tell_end()  # a start that broke off is undone, then sent again
        self._decode_picture()
        stream = self._open_stream()
        controls = with_defaults(controls, self._defaults, is_start=self._core.life is Life.NEW)
        return self._send(stream, self._core.next_request(controls, is_end), controls.receipt)

    frames = _frame_by_frame(generate)

    def steer(self, next_steering: Callable[[], Steering | None]) -> Iterator[Batch]:
        """Go on as somebody steers: ask for keys, then for the frames that they make, until there are no more keys.

        Args:
            next_steering: called before each request, once all frames of the one before have come. It may take its
                time, for instance while those are shown. It returns what `generate` takes as `actions`, best one entry
                for each latent frame of a chunk, or `Controls` made by `requests.make_controls`; None ends.
        """
        while (steering := next_steering()) is not None:
            yield from self.ask(controls_from(steering))

    def snapshot(self) -> bytes:
        """Ask for the session as a file, behind all that is under way; waits for it. The session goes on.

        `WorldClient.session(None, snapshot=...)` goes on from there, on any server with the same model, byte for byte.

        Raises:
            SessionNotFoundError: if the session has ended, or has not begun.
            BusyError: if the server saves too many others at this moment.
        """
        self._settle()
        request = self._core.save_request()
        replies = self._send(self._open_stream(), request)
        deque(replies, maxlen=0)
        return join_parts(replies.parts)

    def restore(self) -> None:
        """Start a session that was prepared from a snapshot, without asking for frames; else its first request does.

        Raises:
            InvalidInputError: if the server cannot go on with this file, or there is none to start from.
            SessionExistsError: if it has a live session of this id.
        """
        self._settle()
        if self._core.life is Life.UNSURE:
            self._tell_end()
        request = self._core.restore_request()
        deque(self._send(self._open_stream(), request), maxlen=0)

    def reconnect(self) -> None:
        """Leave the stream and wait for the server, so that the next request goes out over a new one.

        Without it that request does the same by itself. What was under way is given up, and raises CancelledError.

        Raises:
            UnavailableError: if the server cannot be reached.
        """
        self.close()
        self._connection.ping()

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
            self._settle()
            if self._core.life not in (Life.NEW, Life.ENDED):
                self._tell_end()
        finally:
            self.close()

    def close(self) -> None:
        """Leave the stream without ending the session: its id may be used to go on with it."""
        if self._stream is None:
            return
        if not self._exchange.is_idle:
            self._fail(CancelledError("CANCELLED: this client closed the session"))
        else:
            self._stream.close()
            self._leave_stream()

    def __enter__(self) -> "Session":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        if error is None:
            self.end()
            return
        self.cancel()
        self._timeout_s = min(self._timeout_s, PARTING_S)
        with contextlib.suppress(WorldStreamError):  # what went wrong first is what the caller has to see
            self.end()

    def _open_stream(self) -> Stream:
        if self._stream is None:
            self._connection.reach()
            self._stream = Stream(self._connection, self._core.metadata)
        return self._stream

    def _send(self, stream: Stream, request: Any, has_receipt: bool = False) -> Replies:
        replies = Replies(self, self._exchange.open(request.id), has_receipt)
        stream.send(request)
        return replies

    def _pump(self) -> None:
        """Take one response and hand it to the request that it answers; a broken stream answers all of them."""
        assert self._stream is not None, "only a request under way is waited for, and it has a stream"
        try:
            for event in self._core.receive(self._stream.receive(self._timeout_s)):
                self._exchange.deliver(event)
        except WorldStreamError as error:
            self._fail(error)

    def _fail(self, error: WorldStreamError) -> None:
        """Give up the stream, and end all that is under way with this error."""
        assert self._stream is not None
        self._stream.cancel()
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
            self._fail(CancelledError("CANCELLED: this client cancelled the request"))
        elif self._stream.has_ended and self._exchange.is_idle:
            self._leave_stream()

    def _decode_picture(self) -> None:
        encoded = self._core.picture_to_decode
        if encoded is not None:
            self._core.take_decoded(self._connection.preprocess([encoded]))

    def _tell_end(self) -> None:
        if self._core.session_id is None:
            return
        with contextlib.suppress(SessionNotFoundError):
            deque(self._send(self._open_stream(), self._core.end_request()), maxlen=0)
