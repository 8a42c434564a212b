"""Runs the parts of one request side by side where that helps, and gives their results in order."""

import os
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")

# So many pictures may be decoded in vain, and be in memory beyond the limits, when one before them is refused.
_MAX_THREADS = 4


def map_in_order(
    work: Callable[[Item], Result], items: Sequence[Item], is_threadable: Callable[[Item], bool]
) -> Iterator[Result]:
    """Yield `work(item)` for each item, in order; an error is raised at its item's turn, and no further item begun.

    Args:
        is_threadable: whether the work on an item leaves Python to other threads for most of its time. What does not
            is done in the caller's thread when its turn comes: side by side it would take longer.
    """
    num_threads = min(sum(map(is_threadable, items)), len(os.sched_getaffinity(0)), _MAX_THREADS)
    if num_threads < 2:
        yield from map(work, items)
        return
    with ThreadPoolExecutor(num_threads) as pool:
        begun: deque[Callable[[], Result]] = deque()
        for item in items:
            begun.append(pool.submit(work, item).result if is_threadable(item) else partial(work, item))
            if len(begun) == num_threads:
                yield begun.popleft()()
        while begun:
            yield begun.popleft()()
