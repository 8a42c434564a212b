"""The cadence benchmark: which arms it runs, and how it judges. No server, no times."""

import sys
from pathlib import Path

import pytest
from worldstream import Timings
from worldstream.bench.figures import figures_of
from worldstream.bench.records import Chunk, Phase, Request, Round

sys.path.append(str(Path(__file__).parents[2] / "perf"))  # behind `ingest` of preprocess, not before it

import cadence
import check
from report_documents import number_at

NOTHING = Phase((), 0.0, 1.0, 0.0)


def seen(came_s, overhead_ms=1.0, num_sessions=1):
    """A round in which each session's chunks come at these times; each computes for 100 ms."""
    timings = Timings(0, 10, 70, 20, 0, 100 + overhead_ms)
    chunks = tuple(Chunk((time_s,) * 12, timings) for time_s in came_s)
    stream = Phase(tuple(Request(number, 0.0, 0.0, chunks) for number in range(num_sessions)), 0.0, 10.0, 0.1)
    return Round(NOTHING, NOTHING, stream, NOTHING, None, ())


def test_the_steps_of_a_long_chunk_lie_on_a_line_through_two_short_runs():
    # 100 ms and 25 a step: 700 ms are 24 steps.
    assert cadence.steps_for(700, {4: 200.0, 16: 500.0}) == 24
    assert cadence.steps_for(700, {4: 20.0, 16: 30.0}) == 50  # the most that there are
    assert cadence.steps_for(700, {4: 2000.0, 16: 8000.0}) == 1


def test_one_and_four_sessions_have_as_many_chunks_and_four_an_open_loop():
    arms = cadence.arms_of([1, 2, 4, 8], cadence.FULL, long_steps=20, chunk_ms=350)
    assert list(arms) == ["1 session", "2 sessions", "4 sessions", "8 sessions", "1 session, 20 steps"]
    assert [plan.num_sessions * plan.num_chunks for plan in arms.values()] == [56, 24, 56, 24, 10]
    assert [name for name, plan in arms.items() if plan.open_loop] == ["4 sessions"]
    # 0.7 of a chunk each 350 ms.
    assert arms["4 sessions"].open_loop.rate_per_s == pytest.approx(2)
    assert arms["1 session, 20 steps"].num_steps == 20


def measured(one, four, long):
    """The arms' figures, and the ratio of their rates."""
    rounds = {"1 session": [one], "4 sessions": [four], "1 session, 20 steps": [long]}
    plans = cadence.arms_of([1, 4], cadence.FULL, long_steps=20, chunk_ms=350)
    return {name: figures_of(rounds[name], plan) for name, plan in plans.items()}, cadence.throughput_ratio(rounds)


def judged(one, four, long):
    arms, throughput = measured(one, four, long)
    return cadence.judge(arms, "1 session, 20 steps", throughput)


def test_what_was_asked_for_holds_at_its_bar():
    # Overheads of 4 and 15 of 100 ms; four sessions take 1 s where one takes 0.25 s; periods of 1, 1, 1 and 1 s.
    even = [1.0, 2.0, 3.0, 4.0, 5.0]
    wanted = judged(
        seen([0.25 * time_s for time_s in even], 100 / 85 * 15),
        seen(even, num_sessions=4),
        seen(even, 100 / 96 * 4),
    )
    # Throughput: 19 chunks after the first in 4 s, over 4 in 1 s.
    assert [each.value for each in wanted[:3]] == pytest.approx([0.04, 0.15, 19 / 16], abs=1e-4)
    assert wanted[3].value == 1
    assert [each.holds for each in wanted] == [True] * 4


def test_what_is_past_its_bar_fails():
    # Four sessions whose last chunk comes after 1.5 instead of 1 s, and which are slower all together.
    wanted = judged(
        seen([0.1, 0.2, 0.3], 100 / 84 * 16),
        seen([1.0, 2.0, 3.0, 4.5], num_sessions=4),
        seen([1.0, 2.0], 100 / 95 * 5),
    )
    assert wanted[3].value == pytest.approx(1.5, abs=0.02)
    assert [each.holds for each in wanted] == [False] * 4


def test_the_baselines_are_where_the_document_has_them():
    arms, throughput = measured(seen([1.0, 2.0]), seen([1.0, 2.0], num_sessions=4), seen([1.0, 2.0]))
    documents = {"cadence": {"results": cadence.results_of(arms, throughput)}}
    places = [each.place for each in check.read_baselines(check.BASELINES) if each.place.startswith("cadence.json#")]
    # Throughput: 7 chunks after the first in 1 s, over 1 in 1 s; equal periods; 1 of 101 ms.
    assert [number_at(documents, place) for place in places] == pytest.approx([7, 1, 1 / 101], abs=1e-4)
