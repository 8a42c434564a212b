"""Lanes and turns by themselves: who is next, what is given up, and what each request steers."""

from worldmodel.emitter import Delivery
from worldmodel.queues import Job, Queues

from tests.unit.engines import Recorder, bare_end, go_on, start


def job(request, first_chunk=0):
    return Job(request, Delivery(Recorder()), 0.0, first_chunk)


def cancel(*jobs):
    for each in jobs:
        each.delivery.reply.cancelled.set()


def test_sessions_take_turns_and_requests_keep_their_order():
    queues = Queues()
    first, second, other = job(go_on("a")), job(go_on("a")), job(go_on("b"))
    for session, each in (("a", first), ("a", second), ("b", other)):
        queues.put(session, each)
    assert list(queues.turns) == ["a", "b"]
    assert queues.take_turn("a") is first
    queues.finish_first("a", next_chunk=1)
    queues.end_turn("a")
    assert list(queues.turns) == ["b", "a"]
    assert queues.take_turn("a") is second


def test_a_session_without_work_has_no_lane():
    queues = Queues()
    queues.put("a", job(go_on("a")))
    queues.take_turn("a")
    queues.finish_first("a", next_chunk=1)
    queues.end_turn("a")
    assert (queues.lanes, list(queues.turns), queues.num_waiting()) == ({}, [], 0)


def test_what_is_given_up_early_moves_those_behind_it_forward():
    queues = Queues()
    jobs = [job(go_on("a", 2), 3), job(go_on("a", 4), 5), job(go_on("a", 1), 9)]
    for each in jobs:
        queues.put("a", each)
    cancel(jobs[1])
    assert queues.drop_lost("a", next_chunk=3) == [jobs[1]]
    assert [each.first_chunk for each in queues.lanes["a"]] == [3, 5]


def test_behind_a_half_done_request_that_is_given_up_the_session_goes_on_from_where_it_is():
    queues = Queues()
    jobs = [job(go_on("a", 4), 3), job(go_on("a", 1), 7)]
    for each in jobs:
        queues.put("a", each)
    cancel(jobs[0])
    queues.drop_lost("a", next_chunk=5)
    assert [each.first_chunk for each in queues.lanes["a"]] == [5]


def test_neither_the_running_request_nor_a_start_or_end_is_given_up_early():
    queues = Queues()
    running, begins, ends = job(go_on("a")), job(start("b")), job(bare_end("b"))
    for session, each in (("a", running), ("b", begins), ("b", ends)):
        queues.put(session, each)
    cancel(running, begins, ends)
    queues.take_turn("a")
    assert queues.drop_lost("a", next_chunk=0) == []
    assert queues.drop_lost("b", next_chunk=0) == []


def test_a_lane_that_is_given_up_whole_leaves_the_row():
    queues = Queues()
    only = job(go_on("a"))
    queues.put("a", only)
    queues.put("b", job(go_on("b")))
    cancel(only)
    queues.drop_lost("a", next_chunk=0)
    assert (list(queues.lanes), list(queues.turns)) == (["b"], ["b"])
