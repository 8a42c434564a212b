"""How long a server goes on working on a request that its client has cancelled, by the server's own metrics page."""

import asyncio
import contextlib
import random
import time

from worldstream.bench.plan import Plan
from worldstream.bench.records import Cancel
from worldstream.bench.walker import Walker
from worldstream.errors import CancelledError, ResponseTimeoutError, UnavailableError
from worldstream.info import fetch_metrics

NUM_CHUNKS = 8  # of the request that is cancelled: more than it ever gets
_QUEUED = "worldstream_queued_requests"
_TIMEOUT_S = 60.0
_POLL_S = 0.005


async def num_requests(metrics_url: str) -> int:
    """Requests that the server holds and has not done with, of all its clients.

    Raises:
        UnavailableError: if the page cannot be read, or is not worldstream's.
    """
    metrics = await asyncio.to_thread(fetch_metrics, metrics_url, _TIMEOUT_S)
    held = [value for name, value in metrics.items() if name.partition("{")[0] == _QUEUED]
    if not held:
        raise UnavailableError(f"UNAVAILABLE: metrics: {metrics_url} has no {_QUEUED}; wanted worldstream's own page")
    return int(sum(held))


async def cancel_to_idle(walker: Walker, plan: Plan, metrics_url: str, draw: random.Random) -> Cancel | None:
    """Cancel a request somewhere in its second chunk; None where others use the server at that time.

    Where matters: denoising stops at its next step, but decoding on a CPU, half of a chunk of few steps, does not.

    Raises:
        ResponseTimeoutError: if the server goes on for a minute.
    """
    pending = await walker.send(NUM_CHUNKS, plan.num_steps)
    first = await anext(pending.replies)
    await asyncio.sleep(draw.uniform(0, first.timings.total_ms / 1000))
    is_alone = await num_requests(metrics_url) == 1
    cancelled_s = time.perf_counter()
    walker.session.cancel()
    seen = await _wait_until_idle(metrics_url, cancelled_s) if is_alone else None
    with contextlib.suppress(CancelledError):
        async for _ in pending.replies:
            pass
    return seen


async def _wait_until_idle(metrics_url: str, cancelled_s: float) -> Cancel:
    while True:
        asked_s = time.perf_counter()
        num = await num_requests(metrics_url)
        now_s = time.perf_counter()
        if num == 0:
            return Cancel(now_s - cancelled_s, now_s - asked_s)
        if now_s - cancelled_s > _TIMEOUT_S:
            raise ResponseTimeoutError(f"UNAVAILABLE: {num} requests run {_TIMEOUT_S:g} s after a cancel")
        await asyncio.sleep(_POLL_S)
