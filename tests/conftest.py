"""Starts real servers for the tests that need one, and skips what this machine cannot run.

Knows serve.py's command line and its JSON line; knows nothing of the models.
"""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from launcher.processes import die_with_parent

ROOT = Path(__file__).parent.parent
START_TIMEOUT_S = 240.0
# Servers are started beside clients that talk. What gRPC does in a fork then ended 3 of 100 of them before they began.
# Here, since it is read when gRPC is imported.
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")


@dataclass(frozen=True)
class RunningServer:
    """Where a server listens, who it is, and where its log goes."""

    http: str  # 127.0.0.1:PORT, and so on
    grpc: str
    metrics: str
    pid: int  # of tritonserver, the parent of the models' stubs
    log_path: Path  # what serve.py and the server say
    launcher: subprocess.Popen[bytes]  # serve.py

    def log(self) -> str:
        return self.log_path.read_text(encoding="utf-8", errors="replace")


StartServer = Callable[..., RunningServer]


def serve_command(*arguments: str | Path) -> list[str]:
    return [sys.executable, str(ROOT / "serve.py"), *map(str, arguments)]


def read_line(process: subprocess.Popen[bytes], timeout_s: float) -> bytes:
    """The first line of the process's stdout; b"" when it ends, or the time is up, without one."""
    assert process.stdout is not None
    is_readable, _, _ = select.select([process.stdout], [], [], timeout_s)
    return process.stdout.readline() if is_readable else b""


@contextmanager
def running_server(
    log_path: Path,
    *,
    repository: Path | None = None,
    overrides: dict[str, str] | None = None,
    arguments: tuple[str, ...] = (),
) -> Iterator[RunningServer]:
    """A server of its own, on free ports, gone at the end.

    Args:
        repository: the model repository; None for the real one.
        overrides: {"MODEL.KEY": "VALUE"} of model parameters. The real repository serves seeded weights unless they
            name a checkpoint: how requests are served must not hang on what a training run has learnt.
        arguments: more of serve.py's.

    Raises:
        RuntimeError: with the log's end, if it does not start.
    """
    command = serve_command("--json", "--start-timeout-s", str(START_TIMEOUT_S), *arguments)
    if repository is not None:
        command += ["--model-repository", str(repository)]
    seeded = {"denoise.checkpoint": ""} if repository is None else {}
    for name, value in {**seeded, **(overrides or {})}.items():
        command += ["--set", f"{name}={value}"]
    with log_path.open("wb") as log:
        launcher = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=log,
            # Killed tests must not leave servers behind.
            preexec_fn=lambda: die_with_parent(signal.SIGTERM),
        )
    try:
        line = read_line(launcher, START_TIMEOUT_S + 30)
        if not line:
            raise RuntimeError("the server did not start:\n" + log_path.read_text(errors="replace")[-6000:])
        yield RunningServer(log_path=log_path, launcher=launcher, **json.loads(line))
    finally:
        launcher.terminate()
        launcher.wait(timeout=60)
        assert launcher.stdout is not None
        launcher.stdout.close()


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    """The real repository on the real server, shared by all tests that leave it as they found it."""
    log_path = tmp_path_factory.mktemp("server") / "server.log"
    with running_server(log_path, arguments=("--client-shared-memory",)) as running:
        yield running


@pytest.fixture
def start_server(tmp_path: Path) -> Iterator[StartServer]:
    """A function that starts a server for one test; it takes what running_server takes, the log's path excepted."""
    with ExitStack() as servers:
        names = (tmp_path / f"server{number}.log" for number in range(100))

        def start(**options: Any) -> RunningServer:
            return servers.enter_context(running_server(next(names), **options))

        yield start


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip the tests that need a GPU where there is none."""
    gpu_items = [item for item in items if item.get_closest_marker("gpu")]
    if gpu_items and not has_gpu():
        for item in gpu_items:
            item.add_marker(pytest.mark.skip(reason="no NVIDIA GPU here"))


def has_gpu() -> bool:
    import torch

    return torch.cuda.is_available()


def pytest_configure() -> None:
    # Two cores and several servers: one thread each keeps the tests' times even.
    os.environ.setdefault("OMP_NUM_THREADS", "1")
