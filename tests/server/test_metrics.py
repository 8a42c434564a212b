"""The metrics page of a real server, against the responses that clients got."""

import itertools
import threading
from typing import Any

import numpy as np
import pytest

from tests.server.raw import (
    Stream,
    ask,
    make_request,
    picture,
    read_histogram,
    read_metrics,
    settled_metrics,
    wait_for_metrics,
)

pytestmark = pytest.mark.server

PICTURE = picture()
STAGES = ("queued", "condition", "denoise", "decode", "transfer", "total")
NUM_LAYERS, NUM_STEPS, NUM_CHUNKS = 6, 3, 4
# Scale and shift of six layers: three latent frames of 6 x 10 tokens, 192 numbers each, float32.
CONDITIONER_BYTES = 2 * 6 * (3 * 6 * 10) * 192 * 4


def histograms(server: Any) -> dict[str, Any]:
    """By stage, and the first frame's under its own name."""
    by_stage = {stage: read_histogram(server.metrics, "stage_duration_seconds", stage=stage) for stage in STAGES}
    return {**by_stage, "first_frame": read_histogram(server.metrics, "first_frame_seconds")}


def growth(after: dict[str, Any], before: dict[str, Any]) -> dict[str, Any]:
    return {name: after[name] - before[name] for name in after}


def last_parts(responses: list[Any]) -> list[Any]:
    return [response for response in responses if response["chunk"][1] + 1 == response["chunk"][2]]


def test_each_chunk_is_in_the_histograms_as_its_timings_say(server: Any) -> None:
    settled_metrics(server.metrics)
    before = histograms(server)
    inputs = {"pixels": PICTURE, "num_chunks": NUM_CHUNKS, "num_steps": NUM_STEPS}
    responses = ask(server.grpc, make_request("denoise", inputs))
    grown = growth(histograms(server), before)  # at once: the page knows of a chunk before its client does

    seconds = np.array([response["timings"] for response in last_parts(responses)]) / 1e3
    assert seconds.shape == (NUM_CHUNKS, 6)
    for stage, values in zip(STAGES, seconds.T, strict=True):
        histogram = grown[stage]
        edges = sorted(histogram.buckets)
        assert histogram.buckets == {edge: np.count_nonzero(values <= edge) for edge in edges}
        assert all(low <= high for low, high in itertools.pairwise(histogram.buckets[edge] for edge in edges))
        assert histogram.count == histogram.buckets[float("inf")] == NUM_CHUNKS
        # The timings are float32.
        assert histogram.sum == pytest.approx(values.sum(), rel=1e-4, abs=1e-6)

    first = responses[0]["timings"]
    assert grown["first_frame"].count == 1
    assert grown["first_frame"].sum == pytest.approx((first[0] + first[5]) / 1e3, rel=1e-4)


def test_a_request_that_goes_on_has_no_first_frame(server: Any) -> None:
    inputs = {"num_chunks": 1, "num_steps": 1}
    ask(server.grpc, make_request("denoise", {**inputs, "pixels": PICTURE}, sequence_id=5001, sequence_start=True))
    before = histograms(server)
    ask(server.grpc, make_request("denoise", inputs, sequence_id=5001, sequence_end=True))
    grown = growth(histograms(server), before)
    assert (grown["total"].count, grown["first_frame"].count) == (1, 0)


def test_hits_and_misses_and_blocks_follow_from_steps_and_layers(server: Any) -> None:
    before = settled_metrics(server.metrics)
    inputs = {"pixels": PICTURE, "num_chunks": NUM_CHUNKS, "num_steps": NUM_STEPS}
    ask(server.grpc, make_request("denoise", inputs))
    after = read_metrics(server.metrics)
    counts = {name: after[name] - before[name] for name in after}
    assert counts["chunks_total"] == NUM_CHUNKS
    assert counts["denoising_steps_total"] == NUM_CHUNKS * NUM_STEPS
    # The first pass of a chunk uses what was computed; the other steps and the context pass take it again.
    assert counts["conditioner_misses_total"] == NUM_CHUNKS * NUM_LAYERS
    assert counts["conditioner_hits_total"] == NUM_CHUNKS * NUM_LAYERS * NUM_STEPS
    assert counts["step_cache_computed_blocks_total"] == NUM_CHUNKS * NUM_LAYERS * (NUM_STEPS + 1)
    assert counts["step_cache_skipped_blocks_total"] == 0
    assert after["recompiles_total"] == 0


def test_the_conditioners_bytes_are_on_the_page_while_a_chunk_runs(server: Any) -> None:
    long = {"pixels": PICTURE, "num_chunks": 1, "num_steps": 50}
    answers: list[Any] = []
    client = threading.Thread(target=lambda: answers.extend(ask(server.grpc, make_request("denoise", long))))
    client.start()
    seen = wait_for_metrics(server.metrics, conditioner_bytes=CONDITIONER_BYTES)
    client.join()
    assert seen["conditioner_bytes"] == CONDITIONER_BYTES
    assert [response.error for response in answers] == [""]
    assert read_metrics(server.metrics)["conditioner_bytes"] == 0


def test_the_conditioners_bytes_are_gone_after_a_cancel(server: Any) -> None:
    long = {"pixels": PICTURE, "num_chunks": 64, "num_steps": 50}
    with Stream(server.grpc) as stream:
        stream.send(make_request("denoise", long))
        seen = wait_for_metrics(server.metrics, conditioner_bytes=CONDITIONER_BYTES)
        stream.cancel()
    assert seen["conditioner_bytes"] == CONDITIONER_BYTES
    gone = wait_for_metrics(server.metrics, conditioner_bytes=0, queued_requests=0)
    assert (gone["conditioner_bytes"], gone["active_sessions"]) == (0, 0)
