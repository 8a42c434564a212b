from worldmodel.metrics import COUNTS, GAUGES, Stats, changes


def test_counts_tell_their_growth_and_gauges_their_value():
    before = Stats(chunks=3, frames=33, active_sessions=2, session_bytes=10)
    after = Stats(chunks=5, frames=33, active_sessions=0, session_bytes=10)
    assert changes(before, after) == {"chunks": 2, "active_sessions": 0}


def test_what_has_not_changed_is_not_told():
    assert changes(Stats(chunks=3), Stats(chunks=3)) == {}


def test_every_number_is_a_count_or_a_gauge():
    assert sorted(COUNTS + GAUGES) == sorted(vars(Stats()))
