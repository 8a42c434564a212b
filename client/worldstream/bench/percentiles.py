"""Percentiles by one stated method, always with the number of samples beside them. Pure."""

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

METHOD = "linear interpolation between the closest ranks (Hyndman and Fan, type 7)"


@dataclass(frozen=True)
class Summary:
    """What a set of samples looks like; all but n in the samples' unit."""

    n: int
    mean: float
    p50: float
    p95: float
    p99: float
    max: float

    @property
    def unsupported(self) -> list[str]:
        """The percentiles that so few samples do not support: no sample is expected to lie beyond them."""
        return [f"p{percent}" for percent in (50, 95, 99) if not is_supported(self.n, percent)]

    def to_dict(self) -> dict[str, Any]:
        """Plain values, ready for JSON."""
        rounded = {name: round(value, 3) for name, value in asdict(self).items()}
        return {**rounded, "unsupported": self.unsupported}


@dataclass(frozen=True)
class Spread:
    """The median of some runs, and their quartiles."""

    n: int
    p25: float
    median: float
    p75: float

    def to_dict(self) -> dict[str, Any]:
        """Plain values, ready for JSON."""
        return {name: round(value, 4) for name, value in asdict(self).items()}


def percentile(values: Sequence[float], percent: float) -> float:
    """The value below which `percent` of the samples lie, by METHOD.

    Args:
        values: one or more, in any order.
        percent: 0 to 100.
    """
    ordered = sorted(values)
    rank = percent / 100 * (len(ordered) - 1)
    below, part = math.floor(rank), rank % 1
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + part * (ordered[above] - ordered[below])


def is_supported(num_samples: int, percent: float) -> bool:
    """Whether at least one sample is expected to lie beyond this percentile."""
    return num_samples * (100 - percent) >= 100


def summarize(values: Sequence[float]) -> Summary | None:
    """Summarize samples; None where there are none."""
    if not values:
        return None
    p50, p95, p99 = (percentile(values, percent) for percent in (50, 95, 99))
    return Summary(len(values), sum(values) / len(values), p50, p95, p99, max(values))


def spread(values: Sequence[float]) -> Spread | None:
    """Median and quartiles of one value a run; None where there are none."""
    if not values:
        return None
    low, middle, high = (percentile(values, percent) for percent in (25, 50, 75))
    return Spread(len(values), low, middle, high)
