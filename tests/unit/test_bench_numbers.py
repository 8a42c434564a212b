"""The bench's statistics, held against NumPy and against cases worked by hand."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from worldstream.bench.arrivals import schedule
from worldstream.bench.percentiles import is_supported, percentile, spread, summarize
from worldstream.bench.plan import parse_counts
from worldstream.bench.viewer import num_in_time, watch
from worldstream.errors import InvalidInputError

SAMPLES = st.lists(st.floats(0, 1e6), min_size=1, max_size=60)


@given(values=SAMPLES, percent=st.floats(0, 100))
def test_a_percentile_is_numpys_linear_one(values, percent):
    wanted = np.percentile(values, percent, method="linear")
    assert percentile(values, percent) == pytest.approx(wanted, rel=1e-9, abs=1e-6)  # sums in another order


@given(values=SAMPLES)
def test_a_summary_is_numpys(values):
    summary = summarize(values)
    wanted = [np.mean(values), *np.percentile(values, [50, 95, 99]), np.max(values)]
    assert summary.n == len(values)
    assert [summary.mean, summary.p50, summary.p95, summary.p99, summary.max] == pytest.approx(wanted, abs=1e-6)


def test_a_spread_has_numpys_quartiles():
    values = [5.0, 1.0, 2.0, 9.0]
    found = spread(values)
    assert [found.p25, found.median, found.p75] == np.percentile(values, [25, 50, 75]).tolist()
    assert found.n == 4


def test_of_nothing_there_is_no_summary():
    assert summarize([]) is None
    assert spread([]) is None


@pytest.mark.parametrize(("percent", "num"), [(50, 2), (95, 20), (99, 100)])
def test_a_percentile_wants_samples_enough_for_one_beyond_it(percent, num):
    assert is_supported(num, percent)
    assert not is_supported(num - 1, percent)


def test_a_summary_says_which_percentiles_are_hardly_more_than_the_largest_sample():
    assert summarize([1.0]).unsupported == ["p50", "p95", "p99"]
    assert summarize([1.0] * 20).to_dict()["unsupported"] == ["p99"]
    assert summarize([1.0] * 100).unsupported == []


# The viewer: 10 frames a second


def test_frames_that_come_in_time_are_shown_evenly_after_the_buffer():
    seen = watch([0.0, 0.0, 0.0, 0.3], fps=10, buffer_s=0.5)
    assert seen.shown_s == pytest.approx([0.5, 0.6, 0.7, 0.8])
    assert seen.stalls_s == ()
    assert seen.gaps_s == pytest.approx([0.1] * 3)


def test_a_late_frame_is_one_underrun_and_moves_all_that_follows():
    # Frame 2 is due at 0.2 and comes at 0.75; frames 3 and 4 come with it, and are shown 0.1 s apart. Frame 5 is then
    # due at 1.05 and comes at 1.25.
    seen = watch([0.0, 0.0, 0.75, 0.75, 0.75, 1.25], fps=10, buffer_s=0.0)
    assert seen.shown_s == pytest.approx([0.0, 0.1, 0.75, 0.85, 0.95, 1.25])
    assert seen.stalls_s == pytest.approx([0.55, 0.2])


def test_a_buffer_as_long_as_the_longest_lag_prevents_every_underrun():
    arrived = [0.0, 0.0, 0.75, 0.75, 0.75, 1.25]
    lag = max(came - place / 10 for place, came in enumerate(arrived))
    assert watch(arrived, fps=10, buffer_s=lag).stalls_s == ()
    assert len(watch(arrived, fps=10, buffer_s=lag - 0.01).stalls_s) == 1


def test_deadlines_do_not_move_after_a_late_frame():
    # Due at 0, 0.1, 0.2, 0.3, 0.4, 0.5: the first two are in time, and the last ones late, though the viewer has them.
    assert num_in_time([0.0, 0.0, 0.75, 0.75, 0.75, 1.25], fps=10, buffer_s=0.0) == 2
    assert num_in_time([0.0, 0.0, 0.75, 0.75, 0.75, 1.25], fps=10, buffer_s=0.45) == 4
    assert num_in_time([0.0, 0.1, 0.2, 0.1 + 0.2], fps=10, buffer_s=0.0) == 4


@given(st.lists(st.floats(0, 10), min_size=1, max_size=50).map(sorted), st.floats(1, 60), st.floats(0, 3))
def test_every_frame_is_shown_when_it_is_there_and_its_turn_has_come(arrived, fps, buffer_s):
    seen = watch(arrived, fps, buffer_s)
    shown = np.array(seen.shown_s)
    assert (shown >= np.array(arrived) - 1e-6).all()
    assert (np.diff(shown) >= 1 / fps - 1e-6).all()
    # The last frame is as late as all stalls together.
    planned = arrived[0] + buffer_s + (len(arrived) - 1) / fps
    assert shown[-1] - planned == pytest.approx(sum(seen.stalls_s), abs=1e-6)


# Arrivals


def test_even_arrivals_are_a_gap_apart():
    assert schedule("even", rate_per_s=4, num=3, seed=0) == pytest.approx([0.25, 0.5, 0.75])


def test_poisson_arrivals_have_the_gaps_of_an_exponential_distribution():
    gaps = np.diff([0.0, *schedule("poisson", rate_per_s=5, num=20_000, seed=1)])
    # Mean and deviation are both 1/rate; e^-1 of the gaps are longer. Four deviations of each estimate.
    assert gaps.mean() == pytest.approx(0.2, abs=4 * 0.2 / 141)
    assert gaps.std() == pytest.approx(0.2, abs=4 * 0.2 * 1.5 / 141)
    assert (gaps > 0.2).mean() == pytest.approx(np.exp(-1), abs=4 * 0.49 / 141)


def test_equal_seeds_give_equal_schedules():
    assert schedule("poisson", 5, 10, seed=3) == schedule("poisson", 5, 10, seed=3)
    assert schedule("poisson", 5, 10, seed=3) != schedule("poisson", 5, 10, seed=4)


# Options


@pytest.mark.parametrize(
    ("text", "counts"), [("1", [1]), ("4,1,2", [1, 2, 4]), ("1-4", [1, 2, 3, 4]), ("8, 1-2,2", [1, 2, 8])]
)
def test_numbers_of_sessions_are_read(text, counts):
    assert parse_counts(text) == counts


@pytest.mark.parametrize(
    "text", ["", "0", "a", "1,,2", "1-", "-3", "4-1", "4-1,2", "65", "1-65", "65-99", "1-999999999999", "1.5"]
)
def test_other_numbers_of_sessions_are_refused(text):
    with pytest.raises(InvalidInputError, match="--sessions"):
        parse_counts(text)
