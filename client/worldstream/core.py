"""A session's protocol without any I/O: which request comes next, and what each response means.

A shell (`session.Session`, and others after it) sends what this gives, and gives it what arrives.
"""

import uuid
from dataclasses import replace
from enum import Enum, auto
from typing import Any

from worldstream.errors import (
    CancelledError,
    InternalError,
    InvalidInputError,
    SessionNotFoundError,
    TritonError,
    UnavailableError,
    WorldStreamError,
)
from worldstream.order import AnswerOrder, FrameOrder
from worldstream.picture import Picture
from worldstream.requests import (
    Controls,
    Fit,
    Opening,
    SequenceFlags,
    SessionId,
    asking_for_frames,
    build_request,
    build_save_request,
    check_session_id,
    make_opening,
)
from worldstream.responses import Event, Pictures, parse_stream_response
from worldstream.snapshot import load_snapshot

# After these a start may or may not have left a session behind; after any other it has not.
_UNSURE_AFTER = (CancelledError, InternalError, TritonError, UnavailableError)


class Life(Enum):
    """What the client knows of its session on the server."""

    NEW = auto()  # the server does not hold it
    STARTING = auto()  # the start was sent and has no response yet, or its receipt only
    LIVE = auto()
    UNSURE = auto()  # the start broke off: the server may hold it or not
    ENDED = auto()


def make_core(
    picture: Picture | None,
    session_id: SessionId | None,
    seed: int | None,
    translation_scale: float | None,
    fit: Fit | None,
    size: tuple[int, int] | None,
    snapshot: bytes | None = None,
) -> "SessionCore":
    """Check and load what `WorldClient.session` is given; without an id a random one is made.

    Raises:
        InvalidInputError: if an argument cannot be right.
    """
    if picture is None and session_id is None and snapshot is None:
        raise InvalidInputError("session_id: wanted one, to go on with a session without a picture")
    opening = None if picture is None else make_opening(picture, seed, translation_scale, fit, size)
    if snapshot is not None:
        if any(each is not None for each in (picture, seed, translation_scale, fit, size)):
            raise InvalidInputError(
                "snapshot: it holds picture, seed, translation_scale, fit and size; wanted it alone"
            )
        opening = Opening(load_snapshot(snapshot))
    return SessionCore(check_session_id(session_id if session_id is not None else uuid.uuid4().hex), opening)


class SessionCore:
    """One session, or, without an id, one request that is a session by itself."""

    def __init__(self, session_id: SessionId | None, opening: Opening | None) -> None:
        """Without an opening, continue a session that the server holds already."""
        self.session_id = session_id
        self.life = Life.NEW if opening else Life.LIVE
        self._opening = opening
        self._order = FrameOrder(is_from_start=opening is not None and not opening.is_restored)
        self._answers = AnswerOrder()
        self._last_answered_id = ""  # by frames
        self._num_requests = 0
        self._start_id: str | None = None
        self._ending_ids: set[str] = set()

    @property
    def metadata(self) -> list[tuple[str, str]]:
        """What its stream carries beside its messages: proxies keep a session on its server by this."""
        return [] if self.session_id is None else [("x-session-id", str(self.session_id))]

    @property
    def next_frame_index(self) -> int:
        """The number that follows the last frame received."""
        return self._order.next_frame

    @property
    def num_frames_lost(self) -> int:
        """Frames that the session made and this client never got."""
        return self._order.num_lost

    @property
    def picture_to_decode(self) -> bytes | None:
        """The encoded picture that `preprocess` has to decode before the start; None where there is none.

        Through `world` the server would decode it itself, but Triton carries no cancel into an ensemble. A request that
        is a session by itself goes there all the same.
        """
        if self._opening is None or self.session_id is None or self.life is not Life.NEW:
            return None
        picture = self._opening.picture
        return picture if isinstance(picture, bytes) else None

    def take_decoded(self, pictures: Pictures) -> None:
        """Start from the pixels that the encoded picture holds.

        Raises:
            InvalidInputError: if it holds several pictures.
        """
        assert self._opening is not None, "only an opening has a picture"
        if len(pictures.pixels) != 1:
            raise InvalidInputError(f"picture: a session starts from one, this holds {len(pictures.pixels)}")
        self._opening = replace(self._opening, picture=pictures.pixels[0])

    def next_request(self, controls: Controls, is_end: bool = False) -> Any:
        """Build the request that asks for more frames; the first one also starts the session.

        Raises:
            SessionNotFoundError: if the session has ended.
        """
        is_restored = self.life is Life.NEW and self._opening is not None and self._opening.is_restored
        if is_end or is_restored:
            controls = asking_for_frames(controls)
        return self._request(controls, is_end)

    def _request(self, controls: Controls, is_end: bool) -> Any:
        if self.life is Life.ENDED:
            raise SessionNotFoundError(f"SESSION_NOT_FOUND: session {self.session_id} has ended")
        request_id = self._new_id()
        is_start = self.life is Life.NEW
        flags = None if self.session_id is None else SequenceFlags(self.session_id, is_start, is_end)
        request = build_request(request_id, self._opening if is_start else None, controls, flags)
        if is_start:
            self.life = Life.STARTING
            self._start_id = request_id
        if is_end:
            self._ending_ids.add(request_id)
        return self._expected(request)

    def restore_request(self) -> Any:
        """Build the start from a snapshot that asks for no frames.

        Raises:
            InvalidInputError: if there is no snapshot, or it was sent already.
        """
        if self._opening is None or not self._opening.is_restored or self.life is not Life.NEW:
            raise InvalidInputError("snapshot: wanted a session that was made from one and has not begun")
        return self._request(Controls(), is_end=False)

    def save_request(self) -> Any:
        """Build the request for the session's file.

        Raises:
            SessionNotFoundError: if the session has ended, or has not begun.
        """
        if self.session_id is None or self.life in (Life.NEW, Life.ENDED):
            what = "has ended" if self.life is Life.ENDED else "has not begun"
            raise SessionNotFoundError(f"SESSION_NOT_FOUND: session {self.session_id} {what}")
        return self._expected(build_save_request(self._new_id(), self.session_id))

    def end_request(self) -> Any:
        """Build the bare end: no further chunk, free the session."""
        assert self.session_id is not None, "a session of one request ends by itself"
        request_id = self._new_id()
        self._ending_ids.add(request_id)
        return self._expected(build_request(request_id, None, Controls(), SequenceFlags(self.session_id, is_end=True)))

    def receive(self, message: Any) -> list[Event]:
        """Take the stream's next message; return what it says, and what came before its turn and has it now.

        Raises:
            SharedSessionError: another client uses the session.
            ProtocolError: if it breaks the tensor contract or its own request's order.
        """
        events = self._answers.take(parse_stream_response(message))
        for event in events:
            if event.batch is not None:
                self._order.check(event.batch)
                self._last_answered_id = event.request_id
            self._follow(event)
        return events

    def stream_broke(self) -> None:
        """Note that the stream is gone: frames under way are lost, and so is the word on a pending start or end.

        Until the next one somebody else may go on with the session.
        """
        self._answers.forget()
        self._order.lose_track()
        if self.life is Life.STARTING:
            self.life = Life.UNSURE

    def end_was_confirmed(self) -> None:
        """Note that the server holds no session of this id; one that never lived may be started again."""
        self.life = Life.NEW if self.life is Life.UNSURE else Life.ENDED

    def _follow(self, event: Event) -> None:
        if event.error is not None:
            self._follow_error(event.request_id, event.error)
            return
        # A receipt of the start proves nothing: if its first chunk fails, no session is left.
        if event.request_id == self._start_id and self.life is Life.STARTING and event.receipt is None:
            self.life = Life.LIVE
        if event.is_final and event.request_id in self._ending_ids:
            self.end_was_confirmed()

    def _follow_error(self, request_id: str, error: WorldStreamError) -> None:
        if self._order.is_mid_chunk and request_id == self._last_answered_id:  # its other parts will not come
            self._order.lose_track()
        # What was sent behind a start that has failed is not found either; the session may still be started.
        if isinstance(error, SessionNotFoundError) and self.life not in (Life.NEW, Life.STARTING):
            self.end_was_confirmed()
        elif request_id == self._start_id and self.life is Life.STARTING:
            self.life = Life.UNSURE if isinstance(error, _UNSURE_AFTER) else Life.NEW

    def _expected(self, request: Any) -> Any:
        """Note a request that is whole: what could not be built is never sent, and nothing waits for its answer."""
        self._answers.expect(request.id)
        return request

    def _new_id(self) -> str:
        self._num_requests += 1
        return f"request-{self._num_requests}"
