"""Waiting for something that other threads or processes bring about."""

import time
from collections.abc import Callable
from typing import Any


def wait_for(is_so: Callable[[], Any], timeout_s: float = 90.0, told: Callable[[], str] = str) -> Any:
    """What is_so gives once it gives something true. Where it never does, the test fails with what is told."""
    deadline = time.monotonic() + timeout_s
    while not (found := is_so()):
        assert time.monotonic() < deadline, f"waited in vain {told()}"
        time.sleep(0.02)
    return found
