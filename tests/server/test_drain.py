"""serve.py --drain-s on the real server: what a rolling update asks of it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from launcher.canary import CANARY_PNG
from launcher.ports import USUAL_PORTS
from worldstream import SessionNotFoundError, UnavailableError, WorldClient
from worldstream.session import Session

from tests.conftest import serve_command
from tests.server.launches import TINY_CONFIG, TINY_MODEL, write_model
from tests.server.raw import ask, make_request, picture
from tests.waiting import wait_for

pytestmark = pytest.mark.server

ROOT = Path(__file__).parents[2]
REFUSAL = "UNAVAILABLE: session: this server is draining, it starts no new ones; start on another server"


def frames(session: Session, actions: str) -> np.ndarray:
    return np.concatenate([batch.frames for batch in session.generate(actions=actions)])


def begin(client: WorldClient, name: str) -> Session:
    session = client.session(picture()[0], session_id=name)
    frames(session, "w")
    return session


def wait_for_line(server: Any, words: str) -> None:
    wait_for(lambda: f"serve.py: {words}" in server.log(), 60, lambda: f"for {words!r}: {server.log()[-3000:]}")


def probe(server: Any) -> subprocess.CompletedProcess[str]:
    """What a container's health check, and a pod's readiness probe, run."""
    ports = [f"--{service}-port={getattr(server, service).rpartition(':')[2]}" for service in USUAL_PORTS]
    command = [sys.executable, str(ROOT / "serve.py"), "--probe", *ports]
    return subprocess.run(command, capture_output=True, text=True, timeout=90, check=False)


def test_a_draining_server_serves_its_sessions_to_their_end_and_then_exits(start_server: Any) -> None:
    server = start_server(arguments=("--drain-s", "120", "--restart"))
    with WorldClient(server.grpc, timeout_s=60) as client:
        session, other = begin(client, "a"), begin(client, "b")
        before = frames(other, "wl")
        assert probe(server).returncode == 0

        server.launcher.terminate()
        wait_for_line(server, "draining: no new sessions; those that live have 120 s")

        # New ones are refused, by either model and with a session's id or without, and are so told to load balancers.
        for model, inputs in (("denoise", {"pixels": picture()}), ("world", {"image": CANARY_PNG})):
            for id_ in ({}, {"sequence_id": "new", "sequence_start": True}):
                (answer,) = ask(server.grpc, make_request(model, inputs, **id_))
                assert REFUSAL in answer.error
                assert answer.is_final
        told = probe(server)
        assert told.returncode == 1
        assert "this server is draining" in told.stderr
        with pytest.raises(UnavailableError, match="draining"):
            begin(client, "c")

        # Live ones go on as if nothing were, can still be saved, and end.
        np.testing.assert_array_equal(frames(session, "wl"), before)
        assert len(session.snapshot()) > 1_000_000
        other.end()
        assert server.launcher.poll() is None
        session.end()

    assert server.launcher.wait(timeout=60) == 0
    wait_for_line(server, "drained: no session is left")


def test_the_time_of_a_drain_is_bounded_and_a_second_signal_cuts_it_short(start_server: Any) -> None:
    bounded = start_server(arguments=("--drain-s", "3"))
    with WorldClient(bounded.grpc, timeout_s=60) as client:
        session = begin(client, "idle")
        bounded.launcher.terminate()
        wait_for_line(bounded, "drained: the time is up; sessions left: 1")
        assert bounded.launcher.wait(timeout=60) == 0
        with pytest.raises((UnavailableError, SessionNotFoundError)):
            frames(session, "w")

    patient = start_server(arguments=("--drain-s", "600"))
    with WorldClient(patient.grpc, timeout_s=60) as client:
        begin(client, "idle").close()
        patient.launcher.terminate()
        wait_for_line(patient, "draining:")
        patient.launcher.send_signal(signal.SIGINT)
        assert patient.launcher.wait(timeout=60) == 0


def test_a_server_that_dies_while_it_drains_is_not_started_again(start_server: Any) -> None:
    server = start_server(arguments=("--drain-s", "120", "--restart"))
    with WorldClient(server.grpc, timeout_s=60) as client:
        begin(client, "idle").close()
    server.launcher.terminate()
    wait_for_line(server, "draining:")
    os.kill(server.pid, signal.SIGKILL)

    assert server.launcher.wait(timeout=60) == 0
    wait_for_line(server, "drained: the server ended by itself")
    assert "serve.py: restart" not in server.log()


def test_a_server_that_still_starts_has_nothing_to_drain(tmp_path: Path) -> None:
    write_model(tmp_path / "models", "tiny", TINY_CONFIG, "import time\ntime.sleep(60)\n" + TINY_MODEL)
    log = tmp_path / "log"
    with log.open("wb") as target:
        launcher = subprocess.Popen(
            serve_command("--free-ports", "--drain-s", "120", "--model-repository", tmp_path / "models"),
            stdin=subprocess.DEVNULL,
            stderr=target,
        )
    while "tiny" not in log.read_text(encoding="utf-8", errors="replace"):  # the server has begun to load it
        assert launcher.poll() is None
        time.sleep(0.1)
    launcher.terminate()

    assert launcher.wait(timeout=45) == 0
    said = [line for line in log.read_text(encoding="utf-8").splitlines() if line.startswith("serve.py: ")]
    assert said[0] == "serve.py: stopping ..."
    assert said[-1] == "serve.py: stopped"


def test_without_a_drain_a_server_ends_at_once(start_server: Any) -> None:
    server = start_server()
    with WorldClient(server.grpc, timeout_s=60) as client:
        begin(client, "idle").close()
        server.launcher.terminate()
        assert server.launcher.wait(timeout=60) == 0
    assert "draining" not in server.log()
