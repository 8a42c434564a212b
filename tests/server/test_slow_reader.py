"""A client that asks and does not read: what it may cost is what it asked for, and nobody else notices."""

import time
from typing import Any

import numpy as np
import pytest

from tests.server.processes import own_bytes, shm_bytes, stub_pids
from tests.server.raw import Stream, ask, join, make_request, picture, read_metrics, settled_metrics, wait_for_metrics

pytestmark = pytest.mark.server

PICTURE = picture()
FRAME_BYTES = 96 * 160 * 3
NUM_REQUESTS, NUM_CHUNKS = 3, 16
CREDIT_BYTES = (NUM_REQUESTS * NUM_CHUNKS * 12 + 9) * FRAME_BYTES


def held_bytes(server: Any) -> int:
    """Memory of the server and its models' processes, shared memory included."""
    return sum(own_bytes(pid) for pid in (server.pid, *stub_pids(server.pid))) + shm_bytes(server.pid)


def test_a_stopped_reader_costs_its_credit_and_no_more(server: Any) -> None:
    start = {"pixels": PICTURE, "num_steps": 1, "seed": 9}
    ask(server.grpc, make_request("denoise", {**start, "num_chunks": 8}))  # the allocator's pools are filled
    before, chunks = held_bytes(server), settled_metrics(server.metrics)["chunks_total"]
    name = "stopped reader"
    with Stream(server.grpc) as stream:
        stream.send(make_request("denoise", start, sequence_id=name, sequence_start=True))
        more = {"num_chunks": NUM_CHUNKS, "num_steps": 1}
        stream.send(*(make_request("denoise", more, sequence_id=name) for _ in range(NUM_REQUESTS)))
        wanted = chunks + 1 + NUM_REQUESTS * NUM_CHUNKS
        assert wait_for_metrics(server.metrics, chunks_total=wanted, queued_requests=0)["chunks_total"] == wanted
        # All of it is made and waits in the server; the engine has nothing more to do, however long nobody reads.
        held = held_bytes(server) - before
        assert held < 2 * CREDIT_BYTES + (48 << 20), (held, CREDIT_BYTES)
        time.sleep(1)
        assert read_metrics(server.metrics)["chunks_total"] == wanted
        assert held_bytes(server) - before <= held + (4 << 20)

        # Somebody else is served as ever.
        assert len(join(ask(server.grpc, make_request("denoise", start)))) == 9

        # What was asked for is all there, whenever it is read.
        responses = stream.receive_all()
    assert [response.error for response in responses] == [""] * len(responses)
    frame_index = np.concatenate([response["frame_index"] for response in responses])
    # All there, each request's frames in order. Triton lets the requests of one stream overtake each other while nobody
    # reads (2.51), so the order of all is the reader's to make, by frame_index.
    assert sorted(frame_index.tolist()) == list(range(9 + 12 * NUM_REQUESTS * NUM_CHUNKS))
    for request in range(NUM_REQUESTS):
        first = 9 + 12 * NUM_CHUNKS * request
        own = frame_index[(frame_index >= first) & (frame_index < first + 12 * NUM_CHUNKS)]
        assert own.tolist() == sorted(own.tolist())
    ask(server.grpc, make_request("denoise", {}, sequence_id=name, sequence_end=True))


def test_a_reader_without_credit_is_told_so(server: Any) -> None:
    name = "eager"
    ask(server.grpc, make_request("denoise", {"pixels": PICTURE}, sequence_id=name, sequence_start=True))
    with Stream(server.grpc) as stream:
        long = {"num_chunks": 2, "num_steps": 50}
        stream.send(*(make_request("denoise", long, sequence_id=name) for _ in range(4)))
        wait_for_metrics(server.metrics, queued_requests=4)
        refused = ask(server.grpc, make_request("denoise", long, sequence_id=name))
        assert [response.error.partition(":")[0] for response in refused] == ["BUSY"]
    ask(server.grpc, make_request("denoise", {}, sequence_id=name, sequence_end=True))
    assert wait_for_metrics(server.metrics, active_sessions=0)["active_sessions"] == 0
