"""What the bench makes of what it saw: a run by hand, whose figures can be told beforehand."""

import io

import pytest
from rich.console import Console
from worldstream import Timings
from worldstream.bench.figures import figures_of, frames_per_s, share_not_computing
from worldstream.bench.plan import OpenLoop, Plan
from worldstream.bench.records import Cancel, Chunk, Phase, Request, Round
from worldstream.bench.tables import table_of

# 100 ms in all: 10 condition, 60 denoise, 20 decode; 10 are serving's.
TIMINGS = Timings(queued_ms=5, condition_ms=10, denoise_ms=60, decode_ms=20, transfer_ms=4, total_ms=100)


def chunk(came_s, num_frames=2):
    return Chunk((came_s,) * num_frames, TIMINGS)


def request(session, sent_s, *came_s, intended_s=None, refusal=""):
    return Request(session, sent_s if intended_s is None else intended_s, sent_s, tuple(map(chunk, came_s)), refusal)


def phase(*requests, cpu_s=0.0):
    return Phase(tuple(requests), 0.0, 10.0, cpu_s)


def a_round(**changes):
    parts = {
        "starts": phase(request(0, 1.0, 1.5), request(1, 1.0, 2.0)),
        "warm": phase(request(0, 2.0, 2.1, 2.2)),
        # Session 0 has a chunk at 1, 2 and 4 s, session 1 at 1.5 and 3.5 s.
        "stream": phase(request(0, 0.0, 1.0, 2.0), request(0, 0.5, 4.0), request(1, 0.0, 1.5, 3.5), cpu_s=0.1),
        "actions": phase(request(0, 5.0, 5.25)),
        "open_loop": None,
        "cancels": (),
    }
    return Round(**(parts | changes))


def test_counts_are_those_of_all_phases():
    loop = phase(request(0, 6.0, 6.1), request(1, 6.0, refusal="BUSY"))
    figures = figures_of([a_round(open_loop=loop), a_round()], Plan(num_sessions=2, open_loop=OpenLoop(1, 2)))
    # Chunks of a round: 2 starts, 2 warm, 5 streamed, 1 action; and the loop's one that was not refused.
    assert figures["counts"] == {
        "sessions": 4,
        "requests": 2 + 1 + 3 + 1 + 2 + 2 + 1 + 3 + 1,
        "refused": 1,
        "chunks": 21,
        "frames": 42,
        "cancels": 0,
    }


def test_periods_are_between_chunks_of_the_same_session():
    figures = figures_of([a_round()], Plan(num_sessions=2))
    # 1 and 2 s of session 0, 2 s of session 1; over their median of 2 s.
    assert (figures["chunk_period_ms"]["n"], figures["chunk_period_ms"]["p50"]) == (3, 2000)
    assert figures["chunk_period_ms"]["mean"] == pytest.approx(5000 / 3, abs=0.001)
    assert figures["period_over_median"]["max"] == 1
    assert figures["period_over_median"]["mean"] == pytest.approx((0.5 + 1 + 1) / 3, abs=0.001)
    # Of the frames' gaps those within a chunk are 0.
    assert (figures["inter_frame_ms"]["n"], figures["inter_frame_ms"]["mean"]) == (8, 5000 / 8)


def test_a_slower_round_is_not_an_uneven_one():
    twice = phase(request(0, 0.0, 2.0, 4.0, 6.0))
    once = phase(request(0, 0.0, 1.0, 2.0, 3.0))
    figures = figures_of([a_round(stream=once), a_round(stream=twice)], Plan())
    assert figures["chunk_period_ms"]["max"] == 2 * figures["chunk_period_ms"]["p50"] / 1.5
    assert (figures["period_over_median"]["n"], figures["period_over_median"]["max"]) == (4, 1)


def test_the_rate_counts_from_the_first_chunk_to_the_last():
    # Four chunks of two frames after the first, in 3 s.
    assert frames_per_s(a_round().stream) == pytest.approx(8 / 3)
    assert frames_per_s(phase(request(0, 0.0, 1.0))) is None


def test_serving_overhead_is_what_is_left_of_the_total():
    overhead = figures_of([a_round()], Plan())["overhead"]
    assert (overhead["ms"]["p50"], overhead["share"]["median"], overhead["share"]["n"]) == (10, 0.1, 5)
    assert overhead["stages_ms"] == {
        "queued": 5,
        "condition": 10,
        "denoise": 60,
        "decode": 20,
        "transfer": 4,
        "total": 100,
    }


def test_the_clock_without_computing_is_what_chunks_leave_of_it():
    # Four chunks of 90 ms in 3 s.
    assert share_not_computing(a_round().stream) == pytest.approx(1 - 0.36 / 3)


def test_latencies_are_from_sending_to_the_first_frame():
    figures = figures_of([a_round()], Plan(num_sessions=2))
    assert (figures["first_frame_ms"]["n"], figures["first_frame_ms"]["p50"]) == (2, 750)
    assert (figures["control_to_frame_ms"]["n"], figures["control_to_frame_ms"]["p50"]) == (1, 250)
    # Sent at 0, 0.5 and 0 s, seen at 1, 4 and 1.5 s.
    assert (figures["control_to_frame_ahead_ms"]["n"], figures["control_to_frame_ahead_ms"]["p50"]) == (3, 1500)


def test_an_open_loop_counts_the_wait_of_a_request_that_was_sent_late():
    loop = phase(request(0, 6.5, 7.0, intended_s=6.0), request(1, 6.0, refusal="BUSY"))
    figures = figures_of([a_round(open_loop=loop)], Plan(num_sessions=2, open_loop=OpenLoop(4, 2, "even")))["open_loop"]
    assert figures["from_intended_ms"]["p50"] == 1000
    assert figures["from_sent_ms"]["p50"] == 500
    assert (figures["sent_late_ms"]["n"], figures["sent_late_ms"]["max"]) == (2, 500)
    assert (figures["requests"], figures["refused"]) == (2, {"BUSY": 1})


def test_each_session_is_a_viewer():
    # Frames of session 0 come at 1 1 2 2 4 4, of session 1 at 1.5 1.5 3.5 3.5. At 2 fps with 0.5 s of buffer session 0
    # shows them at 1.5 2 2.5 3 4 4.5 (due at 3.5: one underrun of 0.5 s), session 1 at 2 2.5 3.5 4 (due at 3: 0.5 s).
    viewer = figures_of([a_round()], Plan(num_sessions=2, fps=2, buffer_s=0.5))["viewer"]
    assert (viewer["frames"], viewer["underruns"]) == (10, 2)
    # Late are frame 4 of session 0 and frame 2 of session 1; their neighbours are due at 4 and at 3.5.
    assert viewer["in_time"] == 0.8
    assert viewer["stall_ms"]["p50"] == 500
    # Watched for 3.5 and 2.5 s.
    assert viewer["underruns_per_minute"] == 20
    assert viewer["stalled_share"] == pytest.approx(1 / 6, abs=1e-4)


def test_the_clients_own_time_is_told():
    # 0.1 s for ten frames, in a phase of 10 s.
    assert figures_of([a_round()], Plan())["client"] == {"cpu_ms_per_frame": 10, "cpu_share": 0.01}


def test_the_table_marks_percentiles_of_few_samples_and_leaves_out_what_was_not_measured():
    plan = Plan(num_sessions=2)
    text = io.StringIO()
    Console(file=text, width=150).print(table_of({"2 sessions": figures_of([a_round()], plan)}))
    assert "2000 / ~2000 / ~2000 (3)" in text.getvalue()
    assert "cancel" not in text.getvalue()

    text = io.StringIO()
    cancelled = a_round(cancels=(Cancel(0.03, 0.002), Cancel(0.05, 0.002)))
    Console(file=text, width=150).print(table_of({"2 sessions": figures_of([cancelled], plan)}))
    assert "40 / ~49 / ~50 (2)" in text.getvalue()
