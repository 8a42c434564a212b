"""Makes figures of what one arm has seen. Pure.

Samples of all rounds and sessions are pooled for percentiles; what is one number a round (rates, shares) is given as
the median of the rounds with its quartiles. Times are in milliseconds.
"""

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

from worldstream.bench.percentiles import Spread, Summary, percentile, spread, summarize
from worldstream.bench.plan import Plan
from worldstream.bench.records import Chunk, Phase, Round
from worldstream.bench.viewer import Viewing, num_in_time, watch

Figures = dict[str, Any]


def figures_of(rounds: Sequence[Round], plan: Plan) -> Figures:
    """All figures of one arm, as plain values."""
    streams = [each.stream for each in rounds]
    return {
        "sessions": plan.num_sessions,
        "rounds": len(rounds),
        "counts": _counts(rounds),
        "first_frame_ms": _plain(summarize(_latencies_ms([each.starts for each in rounds]))),
        "chunk_period_ms": _plain(summarize(_pooled(streams, periods_ms))),
        "period_over_median": _plain(summarize(_pooled(streams, periods_over_median))),
        "inter_frame_ms": _plain(summarize(_pooled(streams, frame_gaps_ms))),
        "frames_per_s": _plain(spread([rate for each in streams if (rate := frames_per_s(each)) is not None])),
        "viewer": _viewer(streams, plan),
        "control_to_frame_ms": _plain(summarize(_latencies_ms([each.actions for each in rounds]))),
        "control_to_frame_ahead_ms": _plain(summarize(_latencies_ms(streams))),
        "cancel_to_idle_ms": _plain(summarize([1000 * cancel.idle_s for each in rounds for cancel in each.cancels])),
        "metrics_page_ms": _plain(summarize([1000 * cancel.page_s for each in rounds for cancel in each.cancels])),
        "overhead": _overhead(streams),
        "client": _client(streams),
        "open_loop": _open_loop([each.open_loop for each in rounds if each.open_loop is not None], plan),
    }


def _plain(summary: Summary | Spread | None) -> dict[str, Any] | None:
    return None if summary is None else summary.to_dict()


def _pooled(phases: Sequence[Phase], samples_of: Callable[[Phase], list[float]]) -> list[float]:
    return [sample for phase in phases for sample in samples_of(phase)]


def _counts(rounds: Sequence[Round]) -> dict[str, int]:
    phases = [phase for each in rounds for phase in each.phases]
    return {
        "sessions": sum(len(each.starts.requests) for each in rounds),
        "requests": sum(len(phase.requests) for phase in phases),
        "refused": sum(len(phase.requests) - len(phase.answered) for phase in phases),
        "chunks": sum(len(phase.chunks) for phase in phases),
        "frames": sum(phase.num_frames for phase in phases),
        "cancels": sum(len(each.cancels) for each in rounds),  # their chunks and frames are not counted
    }


def _latencies_ms(phases: Sequence[Phase]) -> list[float]:
    """From the sending of each request to the first frame that it steered."""
    return [1000 * (each.first_frame_s - each.sent_s) for phase in phases for each in phase.answered]


def periods_ms(phase: Phase) -> list[float]:
    """Between the last parts of each session's consecutive chunks."""
    return [
        1000 * (later.came_s - sooner.came_s) for chunks in phase.by_session() for sooner, later in pairwise(chunks)
    ]


def periods_over_median(phase: Phase) -> list[float]:
    """The same as parts of their median, so that a machine that is slower in one round does not count as uneven."""
    periods = periods_ms(phase)
    middle = percentile(periods, 50) if periods else 0.0
    return [period / middle for period in periods]


def frame_gaps_ms(phase: Phase) -> list[float]:
    """Between consecutive frames of a session as they arrive; 0 for those that one response brings."""
    return [
        1000 * (later - sooner)
        for frames_s in map(_frames_s, phase.by_session())
        for sooner, later in pairwise(frames_s)
    ]


def _frames_s(chunks: Sequence[Chunk]) -> list[float]:
    return [came_s for chunk in chunks for came_s in chunk.frames_s]


def frames_per_s(phase: Phase) -> float | None:
    """Frames of all sessions a second, from the first chunk that came to the last; None with fewer than two."""
    chunks = sorted(phase.chunks, key=lambda chunk: chunk.came_s)
    if len(chunks) < 2:
        return None
    return sum(len(chunk.frames_s) for chunk in chunks[1:]) / (chunks[-1].came_s - chunks[0].came_s)


def share_not_computing(phase: Phase) -> float | None:
    """The part of the clock, from the first chunk that came to the last, in which no chunk was conditioned, denoised or
    decoded. Says something only where nobody else uses the server and its stages do not overlap (as on a GPU).
    """
    chunks = sorted(phase.chunks, key=lambda chunk: chunk.came_s)
    if len(chunks) < 2:
        return None
    elapsed_ms = 1000 * (chunks[-1].came_s - chunks[0].came_s)
    return 1 - sum(chunk.computing_ms for chunk in chunks[1:]) / elapsed_ms


def _viewer(streams: Sequence[Phase], plan: Plan) -> Figures:
    """Each session's stream as a viewer at the plan's rate would see it."""
    arrivals = [_frames_s(chunks) for phase in streams for chunks in phase.by_session()]
    viewings = [watch(frames_s, plan.fps, plan.buffer_s) for frames_s in arrivals]
    num_frames = sum(map(len, arrivals))
    in_time = sum(num_in_time(frames_s, plan.fps, plan.buffer_s) for frames_s in arrivals)
    return {
        "fps": plan.fps,
        "buffer_s": plan.buffer_s,
        "frames": num_frames,
        "in_time": round(in_time / num_frames, 4),
        "underruns": sum(len(each.stalls_s) for each in viewings),
        "underruns_per_minute": round(60 * _per_watched_s(viewings, plan.fps, lambda each: len(each.stalls_s)), 3),
        "stalled_share": round(_per_watched_s(viewings, plan.fps, lambda each: sum(each.stalls_s)), 4),
        "stall_ms": _plain(summarize([1000 * stall_s for each in viewings for stall_s in each.stalls_s])),
        "shown_gap_ms": _plain(summarize([1000 * gap_s for each in viewings for gap_s in each.gaps_s])),
    }


def _per_watched_s(viewings: Sequence[Viewing], fps: float, amount_of: Callable[[Viewing], float]) -> float:
    """An amount over the time from the first frame's showing to the last frame's end."""
    watched_s = sum(each.shown_s[-1] - each.shown_s[0] + 1 / fps for each in viewings)
    return sum(map(amount_of, viewings)) / watched_s


def _overhead(streams: Sequence[Phase]) -> Figures:
    chunks = [chunk for phase in streams for chunk in phase.chunks]
    by_clock = [share for phase in streams if (share := share_not_computing(phase)) is not None]
    stages = ("queued_ms", "condition_ms", "denoise_ms", "decode_ms", "transfer_ms", "total_ms")
    return {
        "chunk_ms": _plain(summarize([chunk.timings.total_ms for chunk in chunks])),
        "ms": _plain(summarize([chunk.overhead_ms for chunk in chunks])),
        "share": _plain(spread([chunk.overhead_ms / chunk.timings.total_ms for chunk in chunks])),  # of each chunk
        "share_by_clock": _plain(spread(by_clock)),  # of each round
        "stages_ms": {
            name.removesuffix("_ms"): round(percentile([getattr(chunk.timings, name) for chunk in chunks], 50), 3)
            for name in stages
        },
    }


def _client(streams: Sequence[Phase]) -> Figures:
    """What this process itself took while it streamed: that much is not the server's."""
    cpu_s = sum(phase.cpu_s for phase in streams)
    num_frames = sum(phase.num_frames for phase in streams)
    wall_s = sum(phase.ended_s - phase.began_s for phase in streams)
    return {"cpu_ms_per_frame": round(1000 * cpu_s / num_frames, 4), "cpu_share": round(cpu_s / wall_s, 4)}


def _open_loop(phases: Sequence[Phase], plan: Plan) -> Figures | None:
    """Latencies from the time at which a request should have been sent: one that had to wait counts its wait."""
    if plan.open_loop is None or not phases:
        return None
    requests = [request for phase in phases for request in phase.requests]
    refusals = [request.refusal for request in requests if request.refusal]
    answered = [request for phase in phases for request in phase.answered]
    return {
        "rate_per_s": plan.open_loop.rate_per_s,
        "arrivals": plan.open_loop.arrivals,
        "requests": len(requests),
        "refused": {code: refusals.count(code) for code in sorted(set(refusals))},
        "from_intended_ms": _plain(summarize([1000 * (each.first_frame_s - each.intended_s) for each in answered])),
        "from_sent_ms": _plain(summarize([1000 * (each.first_frame_s - each.sent_s) for each in answered])),
        "sent_late_ms": _plain(summarize([1000 * (each.sent_s - each.intended_s) for each in requests])),
    }
