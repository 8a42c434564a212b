"""serve.py --restart on the real server: what dies comes back as it was, and nothing of the dead one stays."""

from __future__ import annotations

import os
import re
import signal
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from launcher.model_watch import model_of, model_processes
from launcher.processes import processes

from tests.server.launches import (
    TINY_CONFIG,
    TINY_MODEL,
    ask_tiny,
    leftovers,
    region_prefix,
    write_model,
)
from tests.server.raw import Stream, ask, join, make_request, picture
from tests.waiting import wait_for

pytestmark = pytest.mark.server

# While the file `slow` lies beside it, it does not come up.
SLOW_MODEL = (
    """
import time
from pathlib import Path
while (Path(__file__).resolve().parent / "slow").exists():
    time.sleep(0.1)
"""
    + TINY_MODEL
)

# Answers with a picture of one pixel; after the time, or with the error, that the file `mood` beside it names.
MOODY_PREPROCESS_MODEL = """
import time
from pathlib import Path
import numpy as np
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        return [self.answer() for _ in requests]

    def answer(self):
        mood = (Path(__file__).resolve().parent / "mood").read_text()
        if not mood.isdigit():
            return pb_utils.InferenceResponse(error=pb_utils.TritonError(mood))
        time.sleep(int(mood))
        return pb_utils.InferenceResponse([pb_utils.Tensor("pixels", np.zeros((1, 1, 1, 3), np.uint8))])
"""

MOODY_PREPROCESS_CONFIG = """
name: "preprocess"
backend: "python"
max_batch_size: 0
input [ { name: "image" data_type: TYPE_STRING dims: [ -1 ] optional: true } ]
output [ { name: "pixels" data_type: TYPE_UINT8 dims: [ -1, -1, -1, 3 ] } ]
"""


@dataclass(frozen=True)
class Traces:
    """What a server that runs can be known by."""

    prefix: str  # of its shared memory and its temporary folder
    pids: list[int]  # its own, then those of its models

    @classmethod
    def of(cls, server_pid: int) -> Traces:
        return cls(region_prefix(server_pid), [server_pid, *model_processes(server_pid)])

    def check_gone(self) -> None:
        assert leftovers(self.prefix) == []
        # A zombie that waits for this machine's init holds nothing any more.
        assert [process for process in processes() if process.pid in self.pids and process.is_running] == []


def said(server: Any) -> list[str]:
    """serve.py's own lines, without its name."""
    return re.findall(r"^serve\.py: (.*)$", server.log(), re.MULTILINE)


def wait_for_line(server: Any, beginning: str, number: int = 1) -> str:
    """The numbered one of serve.py's lines that begin so, from 1."""
    return str(wait_for(lambda: [line for line in said(server) if line.startswith(beginning)][number - 1 : number])[0])


def wait_for_ready(server: Any, number: int) -> int:
    """The pid of the numbered server of this launcher, once that one is ready."""
    line = wait_for_line(server, "ready: ", number)
    addresses = f"http {server.http}, grpc {server.grpc}, metrics {server.metrics}"
    found = re.fullmatch(rf"ready: {addresses}, pid {server.launcher.pid} \(tritonserver: (\d+)\)", line)
    assert found is not None, line
    return int(found[1])


def wait_for_next(server: Any) -> int:
    """The pid of the server that follows the first one, once it has begun to load its models."""

    def found() -> list[int]:
        children = [process for process in processes() if process.parent == server.launcher.pid]
        later = [process.pid for process in children if process.pid != server.pid]
        return [pid for pid in later if model_processes(pid)]

    return int(wait_for(found)[0])


@pytest.fixture
def slow_repository(tmp_path: Path) -> Path:
    write_model(tmp_path / "models", "tiny", TINY_CONFIG, SLOW_MODEL)
    return tmp_path / "models"


@pytest.fixture
def moody_repository(tmp_path: Path) -> Path:
    write_model(tmp_path / "models", "preprocess", MOODY_PREPROCESS_CONFIG, MOODY_PREPROCESS_MODEL)
    set_mood(tmp_path / "models", "0")
    return tmp_path / "models"


def set_mood(repository: Path, mood: str) -> None:
    fresh = repository / "fresh"
    fresh.write_text(mood, encoding="utf-8")
    fresh.rename(repository / "preprocess" / "1" / "mood")


def denoise_pid(server_pid: int) -> int:
    return next(pid for pid in model_processes(server_pid) if model_of(pid, {"denoise"}))


def test_what_is_killed_while_it_streams_comes_back_as_it_was(start_server: Any) -> None:
    server = start_server(arguments=("--restart",))
    short = make_request("denoise", {"pixels": picture(), "seed": 7, "actions": ["w", "l", "wl"]})
    long = make_request("denoise", {"pixels": picture(), "num_chunks": 64})
    frames = join(ask(server.grpc, short))
    pid = server.pid

    # A model's process, after which the server still says "ready"; the same again; and the server itself.
    for number, victim_of in enumerate((denoise_pid, denoise_pid, int), start=2):
        traces = Traces.of(pid)
        with Stream(server.grpc) as stream:
            stream.send(long)
            stream.receive()
            os.kill(victim_of(pid), signal.SIGKILL)
            pid = wait_for_ready(server, number)

        traces.check_gone()
        np.testing.assert_array_equal(join(ask(server.grpc, short)), frames)

    # Having lost a model's process in the middle of a stream, this server sometimes ends by itself before we end it.
    restarts = [line for line in said(server) if line.startswith("restart")]
    assert [line.partition(": the ")[0] for line in restarts] == [
        "restart 1 in 1 s",
        "restart 2 in 2 s",
        "restart 3 in 4 s",
    ]
    assert all("the process of model 'denoise' ended" in line or "the server ended" in line for line in restarts)
    traces = Traces.of(pid)
    server.launcher.terminate()
    assert server.launcher.wait(timeout=30) == 0
    assert server.launcher.stdout.read() == b""  # the one line of the first start was all
    traces.check_gone()


def test_a_start_that_is_killed_is_tried_again(start_server: Any, slow_repository: Path, tmp_path: Path) -> None:
    log_path = tmp_path / "triton.log"
    server = start_server(repository=slow_repository, arguments=("--restart", "--log-file", str(log_path)))
    slow = slow_repository / "tiny" / "1" / "slow"
    slow.touch()
    os.kill(server.pid, signal.SIGKILL)
    second = wait_for_next(server)
    traces = Traces.of(second)

    os.kill(second, signal.SIGKILL)

    line = wait_for_line(server, "restart 2")
    assert line == "restart 2 in 2 s: the server ended while it started; its log above says why"
    traces.check_gone()
    slow.unlink()
    wait_for_ready(server, 2)
    assert ask_tiny(server.grpc) == 41
    assert log_path.read_text().count("successfully loaded 'tiny'") == 2  # one log for all of them


def test_a_signal_during_a_later_start_ends_all(start_server: Any, slow_repository: Path) -> None:
    server = start_server(repository=slow_repository, arguments=("--restart",))
    (slow_repository / "tiny" / "1" / "slow").touch()
    os.kill(server.pid, signal.SIGKILL)
    second = wait_for_next(server)
    traces = Traces.of(second)

    server.launcher.terminate()

    assert server.launcher.wait(timeout=30) == 0
    traces.check_gone()


def test_a_signal_between_two_starts_ends_the_wait(start_server: Any, slow_repository: Path) -> None:
    server = start_server(repository=slow_repository, arguments=("--restart",))
    traces = Traces.of(server.pid)
    os.kill(server.pid, signal.SIGKILL)
    wait_for_line(server, "restart 1 in 1 s")

    server.launcher.terminate()

    assert server.launcher.wait(timeout=0.9) == 0
    assert said(server)[-1].startswith("restart 1")  # no other server had to be stopped
    traces.check_gone()


def test_the_launcher_gives_up_at_its_limit(start_server: Any, slow_repository: Path) -> None:
    server = start_server(repository=slow_repository, arguments=("--restart", "--max-restarts", "1"))
    os.kill(server.pid, signal.SIGKILL)
    pid = wait_for_ready(server, 2)

    os.kill(pid, signal.SIGKILL)

    assert server.launcher.wait(timeout=30) == 1
    assert said(server)[-2:] == [
        "gave up after 1 restarts in a row",
        "the server ended by itself; its log above says why",
    ]


def test_a_first_start_that_fails_is_not_tried_again(start_server: Any, tmp_path: Path) -> None:
    write_model(tmp_path / "models", "tiny", TINY_CONFIG, "raise RuntimeError('no such luck')")

    with pytest.raises(RuntimeError, match="the server ended while it started") as failure:
        start_server(repository=tmp_path / "models", arguments=("--restart",))

    assert "restart " not in str(failure.value)


def test_a_model_that_hangs_is_restarted_and_one_that_is_busy_is_not(start_server: Any, moody_repository: Path) -> None:
    often = ("--restart", "--canary-every-s", "0.5", "--canary-timeout-s", "4")
    server = start_server(repository=moody_repository, arguments=often)
    traces = Traces.of(server.pid)
    request = make_request("preprocess", {"image": b"any"})

    set_mood(moody_repository, "2")
    with ThreadPoolExecutor(5) as others:  # ten seconds of work for the one process
        answers = list(others.map(lambda _: ask(server.grpc, request), range(5)))
    assert [answer[-1].error for answer in answers] == [""] * 5
    set_mood(moody_repository, "SESSION_LIMIT: all places are taken")
    time.sleep(3)
    assert said(server)[1:] == []

    set_mood(moody_repository, "1000")
    assert "model 'preprocess' has answered nobody for 4 s" in wait_for_line(server, "restart 1 in 1 s")
    set_mood(moody_repository, "0")
    wait_for_ready(server, 2)
    traces.check_gone()
    assert ask(server.grpc, request)[-1].error == ""
