"""Cancelling a stream of `denoise` on the real server: what it costs, and what it leaves."""

import itertools
import time
from typing import Any

import pytest

from tests.server.raw import (
    Stream,
    ask,
    join,
    make_request,
    picture,
    read_metrics,
    settled_metrics,
    wait_for_metrics,
)

pytestmark = pytest.mark.server

PICTURE = picture()
IDS = itertools.count(3000)
NUM_STEPS = 50  # the longest chunk there is: time enough to cancel in its middle


def start(name: int | str, **inputs: Any) -> Any:
    return make_request("denoise", {"pixels": PICTURE, **inputs}, sequence_id=name, sequence_start=True)


def one_more(name: int, **parameters: Any) -> Any:
    return make_request("denoise", {"num_chunks": 1}, sequence_id=name, **parameters)


def test_a_cancelled_stream_stops_and_its_session_goes_on_as_if_never_asked(server: Any) -> None:
    cancelled, reference = next(IDS), next(IDS)
    ask(server.grpc, start(cancelled))
    before = settled_metrics(server.metrics)
    with Stream(server.grpc) as stream:
        stream.send(make_request("denoise", {"num_chunks": 9, "num_steps": NUM_STEPS}, sequence_id=cancelled))
        denoise_s = float(stream.receive()["timings"][2]) / 1000
        time.sleep(denoise_s / 4)  # into the middle of the next chunk
        stream.cancel()
        running = read_metrics(server.metrics)
        stopped = wait_for_metrics(server.metrics, queued_requests=0)
    # The page counts step by step: one was running, and one more may have begun while the cancel was on its way.
    assert stopped["denoising_steps_total"] - running["denoising_steps_total"] <= 2
    num_chunks = stopped["chunks_total"] - before["chunks_total"]
    num_steps = stopped["denoising_steps_total"] - before["denoising_steps_total"]
    assert 0 < num_steps - num_chunks * NUM_STEPS < NUM_STEPS
    assert num_chunks < 9
    assert settled_metrics(server.metrics) == stopped

    went_on = ask(server.grpc, one_more(cancelled, sequence_end=True))
    ask(server.grpc, start(reference))
    asked_for = {"num_chunks": num_chunks, "num_steps": NUM_STEPS}
    ask(server.grpc, make_request("denoise", asked_for, sequence_id=reference))
    wanted = ask(server.grpc, one_more(reference, sequence_end=True))
    first = 9 + 12 * num_chunks
    assert join(went_on, "frame_index").tolist() == list(range(first, first + 12))
    assert join(went_on).tobytes() == join(wanted).tobytes()


def test_a_request_that_is_cancelled_while_it_waits_costs_no_step(server: Any) -> None:
    running, waiting = next(IDS), next(IDS)
    ask(server.grpc, start(waiting))
    before = settled_metrics(server.metrics)
    with Stream(server.grpc) as first, Stream(server.grpc) as second:
        first.send(start(running, num_steps=NUM_STEPS))
        while read_metrics(server.metrics)["denoising_steps_total"] == before["denoising_steps_total"]:
            time.sleep(0.01)  # until the first one is being computed: the second one waits for its turn
        second.send(make_request("denoise", {"num_chunks": 9}, sequence_id=waiting))
        time.sleep(0.05)
        second.cancel()
        assert join(first.receive_all(), "frame_index").tolist() == list(range(9))
    after = wait_for_metrics(server.metrics, queued_requests=0)
    assert after["denoising_steps_total"] - before["denoising_steps_total"] == NUM_STEPS
    assert join(ask(server.grpc, one_more(waiting, sequence_end=True)), "frame_index").tolist() == list(range(9, 21))
    ask(server.grpc, one_more(running, sequence_end=True))


def test_a_start_that_is_cancelled_before_its_first_chunk_leaves_no_session(server: Any) -> None:
    running, never = next(IDS), next(IDS)
    with Stream(server.grpc) as first, Stream(server.grpc) as second:
        first.send(start(running, num_steps=NUM_STEPS))
        time.sleep(0.1)
        second.send(start(never))
        time.sleep(0.1)
        second.cancel()
        assert len(join(first.receive_all())) == 9
    wait_for_metrics(server.metrics, active_sessions=1)
    assert join(ask(server.grpc, start(never, seed=3)), "frame_index").tolist() == list(range(9))
    for name in (running, never):
        ask(server.grpc, one_more(name, sequence_end=True))


def test_a_cancel_storm_leaves_the_server_well(server: Any) -> None:
    for num_responses in (0, 1, 0, 2, 0, 1):
        with Stream(server.grpc) as stream:
            stream.send(make_request("denoise", {"pixels": PICTURE, "num_chunks": 64, "num_steps": 1}))
            for _ in range(num_responses):
                assert stream.receive().is_final is False
            stream.cancel()
    after = wait_for_metrics(server.metrics, active_sessions=0, session_bytes=0, queued_requests=0)
    assert (after["active_sessions"], after["session_bytes"]) == (0, 0)
    assert len(join(ask(server.grpc, make_request("denoise", {"pixels": PICTURE})))) == 9


def test_the_bytes_of_a_session_are_counted_while_it_lives(server: Any) -> None:
    before = settled_metrics(server.metrics)
    names: list[int | str] = [next(IDS), "ein Weg"]
    held = []
    for name in names:
        ask(server.grpc, start(name, num_steps=1))
        held.append(settled_metrics(server.metrics))
    ended = []
    for name in names:
        ask(server.grpc, make_request("denoise", {}, sequence_id=name, sequence_end=True))
        ended.append(settled_metrics(server.metrics))
    assert [page["active_sessions"] - before["active_sessions"] for page in (*held, *ended)] == [1, 2, 1, 0]
    one = held[0]["session_bytes"] - before["session_bytes"]
    assert one > 1_000_000
    assert [page["session_bytes"] - before["session_bytes"] for page in (*held, *ended)] == [one, 2 * one, one, 0]
