"""A viewer that plays what arrives at a fixed rate, simulated afterwards from the arrival times. Pure.

It starts to play `buffer_s` after its first frame has come. Where the next frame is not there when it is due, the
picture stands still until it is (an underrun), and all that follows is due that much later. Deadlines do not move like
that: they are those of a viewer that has never waited.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

# Two sums of the same fractions of a second may differ by a rounding.
_ROUNDING_S = 1e-9


@dataclass(frozen=True)
class Viewing:
    """What one viewer saw."""

    shown_s: tuple[float, ...]  # when each frame appeared, on the clock of the arrivals
    stalls_s: tuple[float, ...]  # how long each underrun lasted

    @property
    def gaps_s(self) -> list[float]:
        """How long each frame but the last one was seen."""
        return [later - sooner for sooner, later in pairwise(self.shown_s)]


def watch(arrived_s: Sequence[float], fps: float, buffer_s: float) -> Viewing:
    """Play frames in their order.

    Args:
        arrived_s: when each frame came, rising.
        fps: frames a second, more than 0.
        buffer_s: from the first frame's arrival to its showing, 0 or more.
    """
    shown_s: list[float] = []
    stalls_s: list[float] = []
    due_s = arrived_s[0] + buffer_s if arrived_s else 0.0
    for came_s in arrived_s:
        if came_s > due_s + _ROUNDING_S:
            stalls_s.append(came_s - due_s)
            due_s = came_s
        shown_s.append(due_s)
        due_s += 1 / fps
    return Viewing(tuple(shown_s), tuple(stalls_s))


def num_in_time(arrived_s: Sequence[float], fps: float, buffer_s: float) -> int:
    """How many frames came by their deadline: frame i is due `buffer_s` + i / `fps` after the first one came."""
    return sum(came_s <= arrived_s[0] + buffer_s + place / fps + _ROUNDING_S for place, came_s in enumerate(arrived_s))
