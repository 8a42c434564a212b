"""How long to wait before a call that may be repeated is tried again. Pure."""

import random
from collections.abc import Callable, Iterator

_FIRST_S = 0.1
_LONGEST_S = 2.0


def delays(total_s: float, draw: Callable[[], float] = random.random) -> Iterator[float]:
    """Seconds to wait before the second attempt, the third, ...; each up to twice the one before, `total_s` in all.

    Args:
        total_s: 0 for one attempt only.
        draw: numbers in [0, 1). They keep clients apart that lost one server at the same time.
    """
    step_s = _FIRST_S
    while total_s > 0:
        delay_s = min(total_s, step_s * (0.5 + draw() / 2))
        yield delay_s
        total_s -= delay_s
        step_s = min(2 * step_s, _LONGEST_S)
