"""Runs arms in turn against one server, round by round, so that a disturbance meets them alike."""

import asyncio
import random
from collections.abc import Callable, Mapping
from contextlib import AsyncExitStack
from dataclasses import replace

import numpy as np

from worldstream.aio import AsyncWorldClient
from worldstream.aio.session import AsyncSession
from worldstream.bench import phases
from worldstream.bench.cancelling import cancel_to_idle, num_requests
from worldstream.bench.plan import Plan
from worldstream.bench.records import Cancel, Round
from worldstream.bench.walker import Walker
from worldstream.picture import Picture

# Before anything counts: the first connection and the first chunk of this client are nobody's measure.
_TRIAL = Plan(num_chunks=1, num_warm_chunks=0, num_actions=1, num_cancels=0)


def measure(
    client: AsyncWorldClient,
    plans: Mapping[str, Plan],
    num_rounds: int = 1,
    metrics_url: str | None = None,
    say: Callable[[str], None] = lambda _: None,
) -> dict[str, list[Round]]:
    """Run all plans in turn, `num_rounds` times, every other round from the other end.

    Args:
        client: a new one; it is closed at the end.
        plans: arms by name.
        num_rounds: 1 or more.
        metrics_url: the server's metrics page; without it cancels are left out.
        say: told what is about to be done, a line at a time.

    Raises:
        WorldStreamError: if the server cannot be reached, or refuses what is asked for.
    """
    return asyncio.run(_measure(client, plans, num_rounds, metrics_url, say))


async def _measure(
    client: AsyncWorldClient,
    plans: Mapping[str, Plan],
    num_rounds: int,
    metrics_url: str | None,
    say: Callable[[str], None],
) -> dict[str, list[Round]]:
    rounds: dict[str, list[Round]] = {name: [] for name in plans}
    async with client:
        if metrics_url is not None:
            await num_requests(metrics_url)  # what it is needed for comes last: a wrong one is found before all else
        await _run(client, _TRIAL, None)
        for number in range(num_rounds):
            for name in list(plans)[:: -1 if number % 2 else 1]:
                say(f"round {number + 1} of {num_rounds}: {name}")
                plan = replace(plans[name], seed=plans[name].seed + number)
                rounds[name].append(await _run(client, plan, metrics_url))
    return rounds


async def _run(client: AsyncWorldClient, plan: Plan, metrics_url: str | None) -> Round:
    """One round of one arm, with sessions of its own that are gone at the end."""
    length = await client.chunk_latent_frames()
    async with AsyncExitStack() as stack:
        walkers = [
            Walker(number, await stack.enter_async_context(_session(client, plan)), length)
            for number in range(plan.num_sessions)
        ]
        starts = await phases.together(phases.start(walker, plan) for walker in walkers)
        warm = await phases.together(phases.warm(walker, plan) for walker in walkers)
        stream = await phases.together(phases.stream(walker, plan) for walker in walkers)
        pause_s = max(chunk.timings.total_ms for chunk in stream.chunks) / 1000
        actions = await phases.together(phases.act(walker, plan, pause_s) for walker in walkers)
        loop = plan.open_loop
        open_loop = None if loop is None else await phases.together([phases.keep_coming(walkers, plan, loop)])
        cancels = () if metrics_url is None else await _cancel(walkers[0], plan, metrics_url)
    return Round(starts, warm, stream, actions, open_loop, cancels)


async def _cancel(walker: Walker, plan: Plan, metrics_url: str) -> tuple[Cancel, ...]:
    draw = random.Random(plan.seed)
    seen = [await cancel_to_idle(walker, plan, metrics_url, draw) for _ in range(plan.num_cancels)]
    return tuple(each for each in seen if each is not None)


def _session(client: AsyncWorldClient, plan: Plan) -> AsyncSession:
    return client.session(_noise() if plan.picture is None else plan.picture, fps=plan.fps if plan.is_paced else None)


def _noise() -> Picture:
    """A picture that no server has seen: one that it remembers starts sooner."""
    return np.random.default_rng().integers(0, 256, (240, 416, 3), dtype=np.uint8)
