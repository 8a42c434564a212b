"""Servers of their own: `denoise` with other parameters, its budget, its clock, and its end."""

import signal
import tempfile
from pathlib import Path
from typing import Any

import grpc
import pytest

from tests.server.raw import Stream, ask, join, make_request, picture, png, settled_metrics, wait_for_metrics

pytestmark = pytest.mark.server

PICTURE = picture()
NUM_LAYERS, NUM_CHUNKS, NUM_STEPS = 6, 3, 4
WALK = {
    "pixels": PICTURE,
    "actions": ["w", "wl", "d"] * NUM_CHUNKS,
    "num_steps": NUM_STEPS,
    "seed": 11,
    "prompt": "a garden",
}


def work(server: Any, request: Any) -> tuple[list[Any], dict[str, int]]:
    """The responses to a request, and by how much each metric has grown."""
    before = settled_metrics(server.metrics)
    responses = ask(server.grpc, request)
    after = settled_metrics(server.metrics)
    return responses, {name: after[name] - before[name] for name in after}


def test_the_conditioner_is_evaluated_once_a_chunk_and_gives_the_same_frames(server: Any, start_server: Any) -> None:
    with_reuse, counts = work(server, make_request("denoise", WALK))
    # A chunk has its steps and a context pass; the first pass uses what was evaluated, every other one reuses it.
    assert counts["conditioner_misses_total"] == NUM_LAYERS * NUM_CHUNKS
    assert counts["conditioner_hits_total"] == NUM_LAYERS * NUM_STEPS * NUM_CHUNKS
    assert counts["denoising_steps_total"] == NUM_STEPS * NUM_CHUNKS
    assert counts["chunks_total"] == NUM_CHUNKS
    assert counts["frames_total"] == 9 + 12 + 12

    overrides = {"denoise.conditioner_reuse": "false", "denoise.response_bytes": "200000"}
    other = start_server(overrides=overrides)
    without_reuse, counts = work(other, make_request("denoise", WALK))
    assert counts["conditioner_misses_total"] == NUM_LAYERS * (NUM_STEPS + 1) * NUM_CHUNKS
    assert counts["conditioner_hits_total"] == 0
    assert counts["denoising_steps_total"] == NUM_STEPS * NUM_CHUNKS
    assert join(without_reuse).tobytes() == join(with_reuse).tobytes()

    # A frame has 46080 bytes: four of them in 200000.
    assert [len(response["frames"]) for response in without_reuse] == [4, 4, 1, 4, 4, 4, 4, 4, 4]
    places = [(chunk, part, 3) for chunk in range(3) for part in range(3)]
    assert [tuple(response["chunk"]) for response in without_reuse] == places
    assert join(without_reuse, "frame_index").tolist() == list(range(33))


def test_a_session_over_the_budget_is_refused_and_an_idle_one_expires(server: Any, start_server: Any) -> None:
    ask(server.grpc, make_request("denoise", {**WALK, "num_steps": 1}, sequence_id=4001, sequence_start=True))
    session_bytes = settled_metrics(server.metrics)["session_bytes"]
    ask(server.grpc, make_request("denoise", {}, sequence_id=4001, sequence_end=True))

    overrides = {
        "denoise.session_budget_bytes": str(2 * session_bytes - 1),
        "denoise.session_idle_timeout_s": "1",
    }
    small = start_server(overrides=overrides)
    long = {"pixels": PICTURE, "num_chunks": 2, "num_steps": 50}
    for model, inputs in (("denoise", {"pixels": PICTURE}), ("world", {"image": [png(PICTURE)]})):
        with Stream(small.grpc) as stream:
            stream.send(make_request("denoise", long, sequence_id=4002, sequence_start=True))
            assert stream.receive().error == ""
            refused = ask(small.grpc, make_request(model, inputs, sequence_id=4003, sequence_start=True))
            assert [response.is_final for response in refused] == [True]
            numbers = (
                f"takes {session_bytes} bytes; 1 live sessions hold {session_bytes} of {2 * session_bytes - 1} bytes"
            )
            assert f"SESSION_LIMIT: session: its state {numbers}" in refused[0].error
            assert [response.is_final for response in stream.receive_all()] == [True]
        # Nobody asks for more: the session goes by the model's own clock, and makes room.
        wait_for_metrics(small.metrics, active_sessions=1)
        assert wait_for_metrics(small.metrics, active_sessions=0, session_bytes=0)["session_bytes"] == 0
        gone = ask(small.grpc, make_request("denoise", {"num_chunks": 1}, sequence_id=4002))
        assert [response.error.partition(":")[0] for response in gone] == ["SESSION_NOT_FOUND"]
        assert len(join(ask(small.grpc, make_request(model, {**inputs, "num_steps": 1})))) == 9


def own_name(server: Any) -> str:
    """What serve.py called this server's temporary folder and shared memory."""
    arguments = Path(f"/proc/{server.pid}/cmdline").read_text(encoding="utf-8").split("\0")
    return next(each for each in arguments if "shm-region-prefix-name=" in each).rpartition("=")[2]


def left_behind(name: str) -> list[Path]:
    return [path for folder in (Path("/dev/shm"), Path(tempfile.gettempdir())) for path in folder.glob(f"{name}*")]


def test_a_server_that_has_seen_sessions_errors_and_cancels_ends_cleanly(start_server: Any) -> None:
    server = start_server()
    name = own_name(server)
    long = {"pixels": PICTURE, "num_chunks": 64, "num_steps": 50}
    ask(server.grpc, make_request("denoise", {"pixels": PICTURE}, sequence_id="left alive", sequence_start=True))
    ask(server.grpc, make_request("world", {"image": [b"no picture"]}))
    ask(server.grpc, make_request("world", {"image": [png(PICTURE)], "num_chunks": 0}))
    with Stream(server.grpc) as stream:
        stream.send(make_request("denoise", long, sequence_id=4010, sequence_start=True))
        assert stream.receive().error == ""
        stream.cancel()
    wait_for_metrics(server.metrics, queued_requests=0)
    assert {path.parent.name for path in left_behind(name)} == {"shm", Path(tempfile.gettempdir()).name}
    server.launcher.send_signal(signal.SIGTERM)
    assert server.launcher.wait(timeout=60) == 0
    assert "was killed" not in server.log()
    assert "Traceback" not in server.log()
    assert not Path(f"/proc/{server.pid}").exists()
    assert left_behind(name) == []


def test_a_server_with_a_running_stream_ends_within_its_grace_period(start_server: Any) -> None:
    server = start_server()
    name = own_name(server)
    long = {"pixels": PICTURE, "num_chunks": 64, "num_steps": 50}
    with Stream(server.grpc) as stream:
        stream.send(make_request("denoise", long, sequence_id=4011, sequence_start=True))
        assert stream.receive().error == ""
        stream.send(make_request("denoise", {}, sequence_id=4011))
        server.launcher.send_signal(signal.SIGTERM)
        # Triton tells a model to stop only when all its requests have been answered: the server may have to be killed.
        assert server.launcher.wait(timeout=60) == 0
        with pytest.raises(grpc.RpcError):
            stream.receive_all()
    assert not Path(f"/proc/{server.pid}").exists()
    assert left_behind(name) == []
