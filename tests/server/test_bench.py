"""`worldstream bench` on the real server: what it counts is what the server has made. No times are looked at."""

import json
import os
import subprocess
import sys
from typing import Any

import pytest

from tests.server.raw import settled_metrics

pytestmark = pytest.mark.server

NUM_SESSIONS = 2


def bench(server: Any, *arguments: str) -> dict[str, Any]:
    """A short run with one step a chunk; the figures of its only arm."""
    command = [sys.executable, "-m", "worldstream", "bench", "--sessions", str(NUM_SESSIONS), "--steps", "1"]
    short = ["--chunks", "3", "--warm-chunks", "2", "--actions", "2", "--rate", "20", "--requests", "6", "--json", "-"]
    addresses = {"WORLDSTREAM_GRPC": server.grpc, "WORLDSTREAM_METRICS": server.metrics}
    done = subprocess.run(
        [*command, *short, *arguments], env=os.environ | addresses, capture_output=True, text=True, timeout=240
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)["arms"]["2 sessions"]


def test_its_counts_are_those_of_the_server(server: Any) -> None:
    before = settled_metrics(server.metrics)
    figures = bench(server, "--cancels", "0", "--rounds", "2")
    after = settled_metrics(server.metrics)

    counts, viewer = figures["counts"], figures["viewer"]
    made = {name: after[f"{name}_total"] - before[f"{name}_total"] for name in ("chunks", "frames")}
    # Before it counts, the bench asks for a start and two chunks: 9 and twice 12 frames.
    assert made == {"chunks": counts["chunks"] + 3, "frames": counts["frames"] + 33}
    # A round of a session: a start, 2 warm chunks, 3 that stream, 2 actions; and 6 of the loop for both, some of which
    # may have been refused.
    assert counts["chunks"] == 2 * (NUM_SESSIONS * (1 + 2 + 3 + 2) + 6) - counts["refused"]
    assert counts["frames"] == 12 * counts["chunks"] - 3 * counts["sessions"]
    assert (counts["sessions"], viewer["frames"]) == (2 * NUM_SESSIONS, 2 * NUM_SESSIONS * 3 * 12)
    assert figures["chunk_period_ms"]["n"] == 2 * NUM_SESSIONS * 2
    assert figures["overhead"]["share"]["n"] == 2 * NUM_SESSIONS * 3
    assert 0 < figures["overhead"]["share"]["median"] < 1
    assert (after["active_sessions"], after["queued_requests"]) == (0, 0)


def test_a_cancel_is_followed_until_the_server_is_idle(server: Any) -> None:
    figures = bench(server, "--cancels", "2", "--steps", "20")

    assert (figures["counts"]["cancels"], figures["cancel_to_idle_ms"]["n"]) == (2, 2)
    # Eight chunks were asked for; a chunk of this run is what the server says.
    assert 0 < figures["cancel_to_idle_ms"]["max"] < 6 * figures["overhead"]["chunk_ms"]["max"]
    assert settled_metrics(server.metrics)["active_sessions"] == 0
