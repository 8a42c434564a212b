"""What the sessions of a round do, phase by phase; all of them at the same time."""

import asyncio
import itertools
import random
import time
from collections import deque
from collections.abc import Coroutine, Iterable, Sequence
from typing import Any

from worldstream.bench.arrivals import schedule
from worldstream.bench.plan import OpenLoop, Plan
from worldstream.bench.records import Phase, Request
from worldstream.bench.walker import Pending, Walker


async def together(work: Iterable[Coroutine[Any, Any, list[Request]]]) -> Phase:
    """Let all sessions do their part, and time it."""
    cpu_s, began_s = time.process_time(), time.perf_counter()
    requests = await asyncio.gather(*work)
    ended_s, cpu_s = time.perf_counter(), time.process_time() - cpu_s
    return Phase(tuple(itertools.chain.from_iterable(requests)), began_s, ended_s, cpu_s)


async def start(walker: Walker, plan: Plan) -> list[Request]:
    """Start the session with one chunk."""
    return [await walker.ask(1, plan.num_steps)]


async def warm(walker: Walker, plan: Plan) -> list[Request]:
    """Stream until the window is full."""
    if not plan.num_warm_chunks:
        return []
    return [await walker.ask(plan.num_warm_chunks, plan.num_warm_steps or plan.num_steps)]


async def stream(walker: Walker, plan: Plan) -> list[Request]:
    """Stream with some requests ahead, so that the server never waits for this client."""
    seen: list[Request] = []
    under_way: deque[Pending] = deque()
    for first in range(0, plan.num_chunks, plan.chunks_per_request):
        num_chunks = min(plan.chunks_per_request, plan.num_chunks - first)
        under_way.append(await walker.send(num_chunks, plan.num_steps))
        if len(under_way) > plan.num_ahead:
            seen.append(await walker.receive(under_way.popleft()))
    return seen + [await walker.receive(pending) for pending in under_way]


async def act(walker: Walker, plan: Plan, longest_pause_s: float) -> list[Request]:
    """Send actions one by one, after pauses that spread them over the other sessions' chunks."""
    draw = random.Random(f"{plan.seed} {walker.number}")
    seen = []
    for _ in range(plan.num_actions):
        await asyncio.sleep(draw.uniform(0, longest_pause_s))
        seen.append(await walker.ask(1, plan.num_steps))
    return seen


async def keep_coming(walkers: Sequence[Walker], plan: Plan, loop: OpenLoop) -> list[Request]:
    """Send requests at their times, to the sessions in turn, whatever has become of earlier ones."""
    times_s = schedule(loop.arrivals, loop.rate_per_s, loop.num_requests, plan.seed)
    began_s = time.perf_counter()
    asked = []
    for walker, time_s in zip(itertools.cycle(walkers), times_s, strict=False):
        intended_s = began_s + time_s
        await asyncio.sleep(max(0.0, intended_s - time.perf_counter()))
        asked.append(asyncio.create_task(walker.ask(1, plan.num_steps, intended_s, may_be_refused=True)))
    return list(await asyncio.gather(*asked))
