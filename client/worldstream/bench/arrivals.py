"""When the requests of an open loop are to be sent, whatever has become of earlier ones. Pure."""

import random
from typing import Literal, TypeAlias

Arrivals: TypeAlias = Literal["poisson", "even"]


def schedule(kind: Arrivals, rate_per_s: float, num: int, seed: int) -> list[float]:
    """The times of `num` arrivals, in seconds from the start, rising.

    Args:
        kind: "poisson": gaps are drawn from an exponential distribution, as of many people who know nothing of each
            other; "even": all gaps are equal.
        rate_per_s: arrivals a second, in the mean.
        num: how many.
        seed: of the gaps; equal seeds give equal schedules.
    """
    draw = random.Random(seed)
    now_s, times_s = 0.0, []
    for _ in range(num):
        now_s += draw.expovariate(rate_per_s) if kind == "poisson" else 1 / rate_per_s
        times_s.append(now_s)
    return times_s
