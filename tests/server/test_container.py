"""What runs inside of the image, run here without one: the entrypoint, its checks, and the health check."""

from __future__ import annotations

import json
import os
import re
import resource
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import START_TIMEOUT_S, RunningServer, read_line, running_server
from tests.server.container import install_server, probe
from tests.server.processes import stub_pids
from tests.server.repositories import preprocess_alone

pytestmark = pytest.mark.server

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """/opt/worldstream as the Dockerfile makes it, but for the packages, with `preprocess` alone."""
    folder = tmp_path_factory.mktemp("image")
    shutil.copy(ROOT / "serve.py", folder)
    shutil.copy(ROOT / "docker" / "entrypoint.sh", folder)
    shutil.copytree(ROOT / "docker" / "launcher", folder / "docker" / "launcher")
    preprocess_alone(folder).rename(folder / "model_repository")
    install_server(folder / "opt")
    return folder


def environment(image: Path) -> dict[str, str]:
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    # A machine of tests may have less of it than a container is given.
    return {**os.environ, "PATH": path, "WORLDSTREAM_SERVER": str(image / "opt"), "WORLDSTREAM_SHM_MIB": "64"}


def run_entrypoint(
    image: Path, *arguments: str, shm_mib: int | str = 64, **options: Any
) -> subprocess.CompletedProcess[str]:
    variables = {**environment(image), "WORLDSTREAM_SHM_MIB": str(shm_mib)}
    command = [str(image / "entrypoint.sh"), *arguments]
    return subprocess.run(command, env=variables, capture_output=True, text=True, timeout=60, check=False, **options)


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    folder = tmp_path_factory.mktemp("plain")
    with running_server(folder / "server.log", repository=preprocess_alone(folder)) as running:
        yield running


def test_the_entrypoint_serves_and_ends_by_the_signal_that_docker_sends(image: Path, tmp_path: Path) -> None:
    with (tmp_path / "log").open("wb") as log:
        launcher = subprocess.Popen(
            [image / "entrypoint.sh", "--json"],
            env=environment(image),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=log,
        )
    line = read_line(launcher, START_TIMEOUT_S)
    launcher.send_signal(signal.SIGTERM)

    assert launcher.wait(timeout=60) == 0
    assert set(json.loads(line)) == {"http", "grpc", "metrics", "pid"}
    told = (tmp_path / "log").read_text(encoding="utf-8", errors="replace")
    assert "serve.py: ready: " in told
    assert told.endswith("serve.py: stopped\n")
    assert launcher.stdout is not None
    launcher.stdout.close()


def test_too_little_shared_memory_is_refused_before_anything_starts(image: Path) -> None:
    result = run_entrypoint(image, shm_mib=1 << 40)
    assert (result.returncode, result.stdout) == (1, "")
    assert re.fullmatch(r"worldstream: /dev/shm: wanted 1099511627776 MiB, got \d+: docker run .*\n", result.stderr)


@pytest.mark.parametrize("size", ["1g", "-5", "1 2"])
def test_a_size_that_is_no_number_is_refused_and_not_passed_over(image: Path, size: str) -> None:
    """The shell's own comparison failed, and the server was started with whatever there was."""
    result = run_entrypoint(image, shm_mib=size)
    wanted = f"worldstream: WORLDSTREAM_SHM_MIB: wanted a number of MiB, got '{size}'\n"
    assert (result.returncode, result.stdout, result.stderr) == (1, "", wanted)


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--drain-s=long"], "argument --drain-s: wanted seconds, 0 or more, got 'long'"),
        (["--no-such-option"], "unrecognized arguments: --no-such-option"),
        (["--model-config-name=none"], "--model-config-name: no model has a configuration 'none'"),
        (["--api-key-file=/nowhere"], "--api-key-file: cannot be read (FileNotFoundError)"),
        (["--tls-cert=/nowhere"], "--tls-cert, --tls-key: wanted both or neither"),
        (["--set=denoise.device=cpu"], "--set: no model 'denoise'; there are: preprocess"),
        (["--server=/nowhere"], "--server: /nowhere has no bin/tritonserver"),
    ],
)
def test_an_option_that_cannot_be_is_told_in_the_last_line(image: Path, arguments: list[str], told: str) -> None:
    result = run_entrypoint(image, "--free-ports", *arguments)
    assert result.returncode != 0
    assert told in result.stderr.splitlines()[-1]
    assert "Traceback" not in result.stderr


def test_a_stack_that_is_too_small_is_told(image: Path) -> None:
    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_STACK, (8 << 20, 8 << 20))

    # The launcher then only looks at its Python.
    warned = run_entrypoint(image, "--check-python", preexec_fn=limit)
    silent = run_entrypoint(image, "--check-python")
    assert warned.returncode == silent.returncode == 0
    assert warned.stderr.startswith("worldstream: stack: wanted 262144 KiB, got 8192: ")
    assert silent.stderr == ""


def test_a_probe_fails_where_the_models_answer_nobody(plain: RunningServer, image: Path) -> None:
    ports = [
        f"--{service}-port={getattr(plain, service).rpartition(':')[2]}" for service in ("http", "grpc", "metrics")
    ]
    arguments = [*ports, f"--model-repository={image / 'model_repository'}", "--canary-timeout-s=3"]
    assert probe(*arguments).returncode == 0
    for pid in stub_pids(plain.pid):
        os.kill(pid, signal.SIGSTOP)
    try:
        hanging = probe(*arguments)
    finally:
        for pid in stub_pids(plain.pid):
            os.kill(pid, signal.SIGCONT)
    # Triton's own words where it has noticed, which it tells nobody but who asks the model.
    reasons = "the canary request to model 'preprocess' failed: .*|model 'preprocess' has answered nobody for 3 s"
    assert hanging.returncode == 1
    assert re.fullmatch(f"serve.py: ({reasons})\n", hanging.stderr)
