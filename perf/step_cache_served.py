"""The step cache on the real server: one server, whose requests say in turn how their steps are to be cached.

Knows the client's requests and responses, and the metrics page; knows nothing of what is judged.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import grpc
import numpy as np
from denoise_served import running_denoise
from quality import Pixels, Walk
from tritonclient.grpc import service_pb2_grpc

# isort: split
# denoise_served has put the client's folder on the path.
from worldstream.batch import Batch
from worldstream.requests import build_request, make_controls, make_opening
from worldstream.responses import parse_stream_response

TIMEOUT_S = 300.0


class Wish(NamedTuple):
    """What a request says of the step cache; without a threshold, the server's own."""

    mode: str
    threshold: float | None = None


@dataclass
class Answers:
    """What came of one way to ask: times of all chunks, walk after walk, the frames of each walk's chunks, counters."""

    denoise_ms: list[float] = field(default_factory=list)
    frames: list[list[Pixels]] = field(default_factory=list)
    computed_blocks: int = 0
    skipped_blocks: int = 0


def ask_in_turn(
    walks: Sequence[Walk], weights: Path | None, num_steps: int, wishes: Mapping[str, Wish]
) -> dict[str, Answers]:
    """Ask for all walks by every wish, walk by walk in turn, each time beginning with the other end of `wishes`.

    A request keeps the prompt that its walk begins with. The server mounts the cache and serves "auto" by default.
    """
    answers = {name: Answers() for name in wishes}
    with running_denoise({"step_cache": "auto", "checkpoint": weights or ""}) as server:
        for seed, walk in enumerate(walks):
            for wish in sorted(wishes, reverse=bool(seed % 2)):
                answer, before = answers[wish], server.counts()
                batches = ask(server.grpc, walk, seed, num_steps, wishes[wish])
                after = server.counts()
                answer.denoise_ms += [
                    batch.timings.denoise_ms for batch in batches if batch.part_index == batch.num_parts - 1
                ]
                answer.frames.append(chunks_of(batches))
                for name in ("computed_blocks", "skipped_blocks"):
                    grown = after[f"step_cache_{name}"] - before[f"step_cache_{name}"]
                    setattr(answer, name, getattr(answer, name) + int(grown))
    return answers


def ask(address: str, walk: Walk, seed: int, num_steps: int, wish: Wish) -> list[Batch]:
    """One request for a whole walk, a session by itself."""
    controls = make_controls(np.concatenate(walk.cam_to_world), prompt=walk.looks[0], num_steps=num_steps)
    request: Any = build_request("", make_opening(walk.picture, seed), controls, None)
    request.parameters["step_cache"].string_param = wish.mode
    if wish.threshold is not None:
        request.parameters["step_cache_threshold"].double_param = wish.threshold
    with grpc.insecure_channel(address, [("grpc.max_receive_message_length", -1)]) as channel:
        stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
        events = [parse_stream_response(each) for each in stub.ModelStreamInfer(iter([request]), timeout=TIMEOUT_S)]
    for event in events:
        if event.error is not None:
            raise event.error
    return [event.batch for event in events if event.batch is not None]


def chunks_of(batches: Sequence[Batch]) -> list[Pixels]:
    """The frames of each chunk, its parts together."""
    num_chunks = 1 + batches[-1].chunk_index
    return [
        np.concatenate([batch.frames for batch in batches if batch.chunk_index == chunk]) for chunk in range(num_chunks)
    ]
