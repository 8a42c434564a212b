"""What a run of the bench asks for. Pure."""

from dataclasses import dataclass

from worldstream.bench.arrivals import Arrivals
from worldstream.errors import InvalidInputError
from worldstream.picture import Picture

MOST_SESSIONS = 64


@dataclass(frozen=True)
class OpenLoop:
    """Requests of one chunk each that are sent at their times, whatever has become of earlier ones."""

    rate_per_s: float  # of all sessions together
    num_requests: int
    arrivals: Arrivals = "poisson"


@dataclass(frozen=True)
class Plan:
    """One arm: so many sessions, and what each of them does. Counts are of each session, and of each round."""

    num_sessions: int = 1
    num_chunks: int = 12  # streamed and timed
    chunks_per_request: int = 1
    num_ahead: int = 1  # requests under way beside the one whose frames are read
    num_steps: int | None = None  # None: the server's own
    num_warm_chunks: int = 7  # before that, so that the window is full: a chunk costs less while it is not
    num_warm_steps: int | None = None  # of those; None: num_steps
    num_actions: int = 4  # sent one by one, each when the one before is answered
    num_cancels: int = 3  # of the first session
    fps: float = 16.0
    buffer_s: float = 1.0
    is_paced: bool = False  # whether the server is told the fps, and makes no chunk before the last one was watched
    open_loop: OpenLoop | None = None
    picture: Picture | None = None  # None: noise, another one for each session
    seed: int = 0  # of pauses and arrivals


def name_of(num_sessions: int) -> str:
    """What an arm with so many sessions is called: "1 session", "4 sessions"."""
    return f"{num_sessions} session{'' if num_sessions == 1 else 's'}"


def parse_counts(text: str) -> list[int]:
    """Read numbers of sessions: "1,2,4" or "1-8", or both.

    Raises:
        InvalidInputError: if it is written otherwise, or a number is out of range.
    """
    counts: list[int] = []
    for part in text.split(","):
        first, dash, last = (each.strip() for each in part.partition("-"))
        if not first.isdecimal() or (dash and not last.isdecimal()):
            raise InvalidInputError(f"--sessions: wanted numbers such as 1,2,4 or 1-8, got {text!r}")
        # One beyond what may be is enough to be refused; a range without an end in sight would fill the memory.
        counts += range(int(first), min(int(last if dash else first), MOST_SESSIONS + 1) + 1) or [0]
    wanted = sorted(set(counts))
    if wanted[0] < 1 or wanted[-1] > MOST_SESSIONS:
        raise InvalidInputError(f"--sessions: wanted 1 to {MOST_SESSIONS} at a time, got {text!r}")
    return wanted
