"""What perf_analyzer leaves: its profile export of a stream, and its table of a unary model.

perf_analyzer's own latency of a decoupled model is the time to the *last* response, whatever its screen says. When each
response came is in the profile export alone, so first responses and the time between responses are computed here.
"""

from __future__ import annotations

import csv
import json
import sys
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from common import ROOT

sys.path.insert(0, str(ROOT / "client"))

# isort: split
from worldstream.bench.percentiles import summarize

PICTURES = {"pixels", "image"}
CSV_LATENCIES = {"p50": "p50 latency", "p95": "p95 latency", "p99": "p99 latency"}


@dataclass(frozen=True)
class Response:
    """One response that had frames in it."""

    came_ms: float
    num_frames: int


@dataclass(frozen=True)
class Request:
    """One request of a stream: when it was sent, by the clock of its responses, and what came back."""

    sent_ms: float
    responses: tuple[Response, ...]
    sequence_id: int  # 0: none
    is_start: bool  # it brought a picture

    @property
    def last_ms(self) -> float:
        return self.responses[-1].came_ms


def read_export(path: Path) -> list[Request]:
    """The requests of a profile export of one measurement; inputs and frames are passed over.

    Raises:
        ValueError: if it is not one measurement, or a request has no frames.
    """
    # Not UTF-8: bytes of tensors stand in it as they are, control characters too.
    document = json.loads(path.read_bytes().decode("latin-1"), strict=False)
    if len(document["experiments"]) != 1:
        raise ValueError(f"{path.name}: wanted one experiment, got {len(document['experiments'])}")
    requests = [read_request(each) for each in document["experiments"][0]["requests"]]
    if not requests or any(not request.responses for request in requests):
        raise ValueError(f"{path.name}: wanted requests with frames, got {len(requests)} requests, some without")
    return sorted(requests, key=lambda request: request.sent_ms)


def read_request(entry: Mapping[str, Any]) -> Request:
    pairs = zip(entry["response_timestamps"], entry["response_outputs"], strict=True)
    responses = [Response(came_ns / 1e6, count_frames(outputs)) for came_ns, outputs in pairs]
    return Request(
        sent_ms=entry["timestamp"] / 1e6,
        # Where a stream ends by an empty response, that one is none of its frames.
        responses=tuple(response for response in responses if response.num_frames),
        sequence_id=entry.get("sequence_id", 0),
        is_start=not PICTURES.isdisjoint(entry["request_inputs"]),
    )


def count_frames(outputs: Mapping[str, Any]) -> int:
    """How many frames a response has; a tensor of one element stands there without brackets, an empty one as ""."""
    index = outputs.get("frame_index", "")
    return 1 if isinstance(index, int) else len(index)


def stream_figures(requests: Sequence[Request], concurrency: int) -> dict[str, Any]:
    """What a stream's requests say, in ms; frames a second while all senders were busy."""
    starts = [request for request in requests if request.is_start]
    later = [request for request in requests if not request.is_start]
    figures = {
        "first_response_ms": [first_ms(request) for request in starts],
        "control_to_response_ms": [first_ms(request) for request in later],
        "inter_response_ms": inter_response_ms(requests),
        "last_response_ms": [request.last_ms - request.sent_ms for request in requests],
    }
    summaries = {name: summary.to_dict() for name, values in figures.items() if (summary := summarize(values))}
    return {
        "requests": len(requests),
        "responses": sum(len(request.responses) for request in requests),
        "frames": sum(response.num_frames for request in requests for response in request.responses),
        "frames_per_s": round(frames_per_s(requests, concurrency), 2),
        **summaries,
    }


def first_ms(request: Request) -> float:
    return request.responses[0].came_ms - request.sent_ms


def inter_response_ms(requests: Sequence[Request]) -> list[float]:
    """The times between neighbouring responses of a session, over the ends of its requests too."""
    sessions: defaultdict[object, list[float]] = defaultdict(list)
    for number, request in enumerate(requests):
        # A request without a sequence is a session of its own.
        key = ("sequence", request.sequence_id) if request.sequence_id else ("request", number)
        sessions[key] += [response.came_ms for response in request.responses]
    return [after - before for times in sessions.values() for before, after in pairwise(sorted(times))]


def frames_per_s(requests: Sequence[Request], concurrency: int) -> float:
    """Frames a second from the first request until a sender had nothing left to send."""
    end_ms = busy_until_ms(requests, concurrency)
    responses = [response for request in requests for response in request.responses]
    num_frames = sum(response.num_frames for response in responses if response.came_ms <= end_ms)
    return 1e3 * num_frames / (end_ms - min(request.sent_ms for request in requests))


def busy_until_ms(requests: Sequence[Request], concurrency: int) -> float:
    """The last moment at which as many requests as there are senders were under way."""
    events = sorted([(request.sent_ms, +1) for request in requests] + [(request.last_ms, -1) for request in requests])
    under_way, end_ms = 0, events[-1][0]
    for moment_ms, change in events:
        if change < 0 and under_way == concurrency:
            end_ms = moment_ms
        under_way += change
    return end_ms


def read_table(path: Path) -> dict[str, Any]:
    """The one line of perf_analyzer's table of a unary model: requests a second, percentiles in ms.

    Raises:
        ValueError: if it is not one line.
    """
    with path.open(encoding="utf-8", newline="") as lines:
        rows = list(csv.DictReader(lines))
    if len(rows) != 1:
        raise ValueError(f"{path.name}: wanted one line, got {len(rows)}")
    latency_ms = {name: float(rows[0][column]) / 1e3 for name, column in CSV_LATENCIES.items()}
    return {"requests_per_s": round(float(rows[0]["Inferences/Second"]), 2), "latency_ms": latency_ms}
