"""What the bench has seen, as it was seen: times of arrival, and what the server said of each chunk. Pure.

All times are in seconds on one clock, `time.perf_counter` of this process.
"""

from dataclasses import dataclass

from worldstream.batch import Timings


@dataclass(frozen=True)
class Chunk:
    """One chunk that has come whole."""

    frames_s: tuple[float, ...]  # when each frame came; those of one response come together
    timings: Timings

    @property
    def came_s(self) -> float:
        """When its last part came."""
        return self.frames_s[-1]

    @property
    def computing_ms(self) -> float:
        """What the model itself took."""
        return self.timings.condition_ms + self.timings.denoise_ms + self.timings.decode_ms

    @property
    def overhead_ms(self) -> float:
        """What serving added: turns, copies, threads, sending; not the wait for other sessions' chunks."""
        return self.timings.total_ms - self.computing_ms


@dataclass(frozen=True)
class Request:
    """One request, and what came of it."""

    session: int  # 0, 1, ... of its round
    intended_s: float  # when it should have been sent
    sent_s: float
    chunks: tuple[Chunk, ...]
    refusal: str = ""  # the server's code word, where it refused

    @property
    def first_frame_s(self) -> float:
        """When the first frame that it steered came; only where it was answered."""
        return self.chunks[0].frames_s[0]


@dataclass(frozen=True)
class Phase:
    """Some requests of all sessions, and this process's CPU time meanwhile."""

    requests: tuple[Request, ...]  # of each session in their order
    began_s: float
    ended_s: float
    cpu_s: float

    @property
    def answered(self) -> list[Request]:
        """Those that the server did not refuse."""
        return [request for request in self.requests if not request.refusal]

    @property
    def chunks(self) -> list[Chunk]:
        """All chunks, session by session."""
        return [chunk for request in self.requests for chunk in request.chunks]

    @property
    def num_frames(self) -> int:
        """Frames of all chunks."""
        return sum(len(chunk.frames_s) for chunk in self.chunks)

    def by_session(self) -> list[list[Chunk]]:
        """The chunks of each session, in their order."""
        sessions: dict[int, list[Chunk]] = {}
        for request in self.requests:
            sessions.setdefault(request.session, []).extend(request.chunks)
        return list(sessions.values())


@dataclass(frozen=True)
class Cancel:
    """A cancel of a request that ran."""

    idle_s: float  # from the cancel until a metrics page that shows no request had been read
    page_s: float  # how long reading that page took: idle_s is at most so much, and a pause of 5 ms, too long


@dataclass(frozen=True)
class Round:
    """Everything that one arm has seen in one round."""

    starts: Phase
    warm: Phase
    stream: Phase
    actions: Phase
    open_loop: Phase | None
    cancels: tuple[Cancel, ...]

    @property
    def phases(self) -> list[Phase]:
        """All but the cancels."""
        phases = [self.starts, self.warm, self.stream, self.actions]
        return phases if self.open_loop is None else [*phases, self.open_loop]
