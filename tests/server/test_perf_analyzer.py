"""perf_analyzer itself, fetched and run: a unary scenario, a stream, and one of sequences. No times are looked at."""

import json
import platform
import subprocess
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "perf"))

import fetch_perf_analyzer
from common import ROOT

pytestmark = pytest.mark.server


@pytest.fixture(scope="module")
def program():
    """perf_analyzer, from the usual cache."""
    try:
        carrier = fetch_perf_analyzer.carrier_for(platform.libc_ver())
        return fetch_perf_analyzer.fetch(fetch_perf_analyzer.cache_folder(), carrier)
    except fetch_perf_analyzer.FetchError as error:
        pytest.skip(f"no perf_analyzer can be had here: {error}")


def analyze(running, *names):
    command = [sys.executable, str(ROOT / "perf" / "analyzer.py"), "--quick", "--only", *names]
    command += ["--url", running.grpc, "--http-url", running.http, "--metrics-url", running.metrics]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    document = json.loads(done.stdout.splitlines()[-1])
    assert (document["bench"], document["wanted"]) == ("analyzer", [])
    return done.stdout, document["results"]["scenarios"]


@pytest.mark.usefixtures("program")
def test_the_default_configuration_is_measured_one_request_at_a_time(server):
    printed, results = analyze(server, "preprocess-*", "denoise-*")
    assert "left out, for a server with another configuration: denoise-sequences" in printed
    assert set(results) == {"preprocess-http-base64-png-360x640", "denoise-one-shot"}

    unary = results["preprocess-http-base64-png-360x640"]["concurrency"]["1"]
    assert unary["requests_per_s"] > 0
    assert 0 < unary["latency_ms"]["p50"] <= unary["latency_ms"]["p99"]
    assert 0 < unary["server"]["mean_ms"]["preprocess compute"] < 1000

    points = results["denoise-one-shot"]["concurrency"]
    assert list(points) == ["1", "2"]
    for concurrency, point in points.items():
        # Two requests a sender, each of two chunks, of 9 and 12 frames, one response a chunk.
        num_requests = 2 * int(concurrency)
        assert (point["requests"], point["responses"]) == (num_requests, 2 * num_requests)
        assert point["frames"] == 21 * num_requests
        assert point["first_response_ms"]["n"] == point["inter_response_ms"]["n"] == num_requests
        assert "control_to_response_ms" not in point
        grown = point["server"]["grown_by"]
        assert grown["worldstream_chunks_total{model=denoise}"] == 2 * num_requests
        assert grown["worldstream_frames_total{model=denoise}"] == 21 * num_requests
        assert point["server"]["mean_ms"]["total"] <= point["last_response_ms"]["max"]


@pytest.mark.usefixtures("program")
def test_sequences_go_on_with_their_sessions(start_server):
    running = start_server(arguments=("--model-config-name", "sequences"))
    _, results = analyze(running, "denoise-sequences")
    for concurrency, point in results["denoise-sequences"]["concurrency"].items():
        # Two sequences a sender, of three requests: a start, and two that go on; a chunk each, of 9, 12 and 12 frames.
        num_sequences = 2 * int(concurrency)
        assert (point["requests"], point["frames"]) == (3 * num_sequences, 33 * num_sequences)
        assert point["first_response_ms"]["n"] == num_sequences
        assert point["control_to_response_ms"]["n"] == point["inter_response_ms"]["n"] == 2 * num_sequences
        grown = point["server"]["grown_by"]
        assert grown["worldstream_first_frame_seconds_count{model=denoise}"] == num_sequences
        assert not [name for name in grown if name.startswith("worldstream_errors_total")]
