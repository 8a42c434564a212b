"""serve.py on the real server, with a repository of one tiny model that answers with its parameter `answer`."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path
from typing import Any

import pytest
from launcher.model_watch import model_processes

from tests.server.launches import (
    TINY_CONFIG,
    TINY_MODEL,
    ask_tiny,
    is_gone,
    leftovers,
    region_prefix,
    wait_until_gone,
    write_model,
)

ROOT = Path(__file__).parent.parent.parent

pytestmark = pytest.mark.server

# Decodes every picture to no picture at all: loads and is ready, but not fit to serve.
BROKEN_PREPROCESS_MODEL = """
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        error = pb_utils.TritonError("INTERNAL: cannot decode anything")
        return [pb_utils.InferenceResponse(error=error) for _ in requests]
"""

BROKEN_PREPROCESS_CONFIG = """
name: "preprocess"
backend: "python"
max_batch_size: 0
input [ { name: "image" data_type: TYPE_STRING dims: [ -1 ] optional: true } ]
output [ { name: "pixels" data_type: TYPE_UINT8 dims: [ -1, -1, -1, 3 ] } ]
"""


@pytest.fixture
def tiny_repository(tmp_path: Path) -> Path:
    write_model(tmp_path / "models", "tiny", TINY_CONFIG, TINY_MODEL)
    return tmp_path / "models"


def run_serve(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(ROOT / "serve.py"), *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, stdin=subprocess.DEVNULL)


def test_json_line_names_a_server_that_answers(tiny_repository: Path, start_server: Any) -> None:
    server = start_server(repository=tiny_repository)

    assert ask_tiny(server.grpc) == 41
    with urllib.request.urlopen(f"http://{server.http}/v2/health/ready", timeout=5) as ready:
        assert ready.status == 200
    with urllib.request.urlopen(f"http://{server.metrics}/metrics", timeout=5) as metrics:
        assert b"nv_inference_request_success" in metrics.read()
    assert "tritonserver" in Path(f"/proc/{server.pid}/cmdline").read_text()


def test_set_changes_a_model_parameter_for_this_run_only(tiny_repository: Path, start_server: Any) -> None:
    server = start_server(repository=tiny_repository, overrides={"tiny.answer": "42"})

    assert ask_tiny(server.grpc) == 42
    assert (tiny_repository / "tiny" / "config.pbtxt").read_text() == TINY_CONFIG


def test_set_changes_the_named_configuration(tiny_repository: Path, start_server: Any) -> None:
    (tiny_repository / "tiny" / "configs").mkdir()
    (tiny_repository / "tiny" / "configs" / "other.pbtxt").write_text(
        TINY_CONFIG + 'parameters [ { key: "only_here" value { string_value: "1" } } ]\n'
    )

    server = start_server(
        repository=tiny_repository,
        overrides={"tiny.only_here": "2", "tiny.answer": "43"},
        arguments=("--model-config-name", "other"),
    )

    assert ask_tiny(server.grpc) == 43


def test_a_stopped_server_leaves_nothing_behind(tiny_repository: Path, start_server: Any) -> None:
    server = start_server(repository=tiny_repository)
    prefix = region_prefix(server.pid)
    before = leftovers(prefix)

    server.launcher.terminate()

    assert server.launcher.wait(timeout=30) == 0
    assert {path.parent for path in before} == {Path("/dev/shm"), Path(tempfile.gettempdir())}
    assert leftovers(prefix) == []
    assert is_gone(server.pid)


def test_a_server_that_does_not_end_is_killed(tiny_repository: Path, start_server: Any) -> None:
    server = start_server(repository=tiny_repository)
    prefix = region_prefix(server.pid)
    os.kill(server.pid, signal.SIGSTOP)

    server.launcher.terminate()

    assert server.launcher.wait(timeout=30) == 0
    assert is_gone(server.pid)
    assert leftovers(prefix) == []
    assert "was killed" in server.log()


def test_a_killed_launcher_takes_the_server_with_it(tiny_repository: Path, start_server: Any) -> None:
    server = start_server(repository=tiny_repository)
    prefix = region_prefix(server.pid)

    server.launcher.kill()

    try:
        wait_until_gone(server.pid)
    finally:
        for path in leftovers(prefix):  # nobody is left who could
            shutil.rmtree(path) if path.is_dir() else path.unlink()


def test_a_launcher_whose_server_dies_says_so(tiny_repository: Path, start_server: Any) -> None:
    server = start_server(repository=tiny_repository)

    os.kill(server.pid, signal.SIGKILL)

    assert server.launcher.wait(timeout=30) == 1
    assert "the server ended by itself" in server.log()


def test_a_server_that_others_tell_to_end_names_the_launcher(tiny_repository: Path, start_server: Any) -> None:
    server = start_server(repository=tiny_repository)
    ready = f", pid {server.launcher.pid} (tritonserver: {server.pid})\n"
    assert ready in server.log()

    os.kill(server.pid, signal.SIGTERM)

    assert server.launcher.wait(timeout=30) == 1
    advice = f"to stop it for good, signal serve.py, pid {server.launcher.pid}\n"
    assert server.log().endswith(f"serve.py: the server was told to end, and not by us: {advice}")


def test_a_launcher_whose_model_dies_stops_the_server_and_says_which(tiny_repository: Path, start_server: Any) -> None:
    server = start_server(repository=tiny_repository)
    processes = model_processes(server.pid)
    assert len(processes) == 1
    os.kill(next(iter(processes)), signal.SIGKILL)

    assert server.launcher.wait(30) == 1
    assert "the process of model 'tiny' ended by itself" in server.log()
    assert is_gone(server.pid)


def test_run_gives_the_command_the_addresses_and_returns_its_status(tiny_repository: Path) -> None:
    command = 'echo "$WORLDSTREAM_HTTP $WORLDSTREAM_GRPC $WORLDSTREAM_METRICS"; exit 7'

    result = run_serve("--model-repository", tiny_repository, "--free-ports", "--run", command)

    assert result.returncode == 7
    assert re.fullmatch(r"(127\.0\.0\.1:\d+ ?){3}\n", result.stdout)


def test_run_reports_a_signal_as_a_shell_does(tiny_repository: Path) -> None:
    result = run_serve("--model-repository", tiny_repository, "--free-ports", "--run", "kill -TERM $$")

    assert result.returncode == 128 + signal.SIGTERM


def test_a_failing_canary_stops_the_server_and_names_the_model(tmp_path: Path) -> None:
    write_model(tmp_path, "preprocess", BROKEN_PREPROCESS_CONFIG, BROKEN_PREPROCESS_MODEL)

    result = run_serve("--model-repository", tmp_path, "--json")

    assert result.returncode == 1
    assert result.stdout == ""
    assert "the canary request to model 'preprocess' failed" in result.stderr
    assert "cannot decode anything" in result.stderr


def test_no_proxy_of_the_environment_comes_before_the_canary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_model(tmp_path, "preprocess", BROKEN_PREPROCESS_CONFIG, BROKEN_PREPROCESS_MODEL)
    for name in ("no_proxy", "NO_PROXY", "no_grpc_proxy"):
        monkeypatch.delenv(name, raising=False)
    for name in ("http_proxy", "grpc_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:1")

    result = run_serve("--model-repository", tmp_path, "--json")

    assert "cannot decode anything" in result.stderr  # the model's own words: it was reached


def test_a_model_that_does_not_load_ends_the_start(tmp_path: Path) -> None:
    write_model(tmp_path, "tiny", TINY_CONFIG, "raise RuntimeError('no such luck')")

    result = run_serve("--model-repository", tmp_path, "--json")

    assert result.returncode == 1
    assert result.stdout == ""
    assert result.stderr.splitlines()[-1] == "tiny could not be loaded: RuntimeError: no such luck"
    assert "the server ended while it started" in result.stderr


def test_a_repository_under_a_folder_with_a_space_is_served(tiny_repository: Path, start_server: Any) -> None:
    # The server's Python backend splits the command line of a model's process at spaces: "stol", and silence.
    spaced = tiny_repository.parent / "my own models"
    tiny_repository.rename(spaced)

    server = start_server(repository=spaced)

    assert ask_tiny(server.grpc) == 41


def test_an_environment_under_a_folder_with_a_space_serves(tiny_repository: Path, tmp_path: Path) -> None:
    (tmp_path / "my env").symlink_to(sys.prefix)
    python = tmp_path / "my env" / "bin" / Path(sys.executable).name
    ask = f"'{python}' -c 'import sys; print(sys.prefix)'"

    command = [str(python), str(ROOT / "serve.py"), "--model-repository", str(tiny_repository)]
    result = subprocess.run(
        [*command, "--free-ports", "--run", ask], capture_output=True, text=True, timeout=120, stdin=subprocess.DEVNULL
    )

    assert (result.returncode, result.stdout) == (0, f"{tmp_path / 'my env'}\n"), result.stderr


def test_a_temporary_folder_with_a_space_is_not_used(
    tiny_repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, start_server: Any
) -> None:
    (tmp_path / "my tmp").mkdir()
    monkeypatch.setenv("TMPDIR", str(tmp_path / "my tmp"))

    assert ask_tiny(start_server(repository=tiny_repository).grpc) == 41


def test_a_model_whose_process_dies_at_the_start_ends_the_start(tmp_path: Path) -> None:
    write_model(tmp_path, "tiny", TINY_CONFIG, "import os\nos._exit(3)")
    before = time.monotonic()

    result = run_serve("--model-repository", tmp_path, "--json")

    assert result.returncode == 1
    assert "the process of model 'tiny' ended" in result.stderr or "the server ended while" in result.stderr
    assert time.monotonic() - before < 60


def test_a_long_start_says_what_it_waits_for(tmp_path: Path) -> None:
    write_model(tmp_path, "tiny", TINY_CONFIG, "import time\ntime.sleep(17)\n" + TINY_MODEL)

    result = run_serve("--model-repository", tmp_path, "--free-ports", "--run", "true")

    assert result.returncode == 0
    assert result.stderr.splitlines()[0] == "serve.py: still waiting for: tiny"


def test_run_keeps_the_servers_log_out_of_the_commands_output(tiny_repository: Path, tmp_path: Path) -> None:
    log = tmp_path / "server.log"

    result = run_serve(
        "--model-repository", tiny_repository, "--free-ports", "--log-file", log, "--run", "echo said >&2; exit 3"
    )

    said = [line for line in result.stderr.splitlines() if "ready: " not in line]
    assert said == [
        "said",
        f"serve.py: the command failed; the server's log is in {log}",
        "serve.py: stopping ...",
        "serve.py: stopped",
    ]
    assert "successfully loaded 'tiny'" in log.read_text()


def test_a_failed_start_shows_the_end_of_a_hidden_log(tmp_path: Path) -> None:
    write_model(tmp_path / "models", "tiny", TINY_CONFIG, "raise RuntimeError('no such luck')")

    result = run_serve("--model-repository", tmp_path / "models", "--free-ports", "--run", "true")

    log, error = result.stderr.split("serve.py: the last lines of the server's log:\n")[1].split("serve.py: stopping")
    assert "no such luck" in log
    assert log.count("\n") <= 40
    assert "the server ended while it started; its log above says why" in error


def test_a_stop_is_said(tiny_repository: Path, start_server: Any) -> None:
    server = start_server(repository=tiny_repository)

    server.launcher.terminate()
    server.launcher.wait(timeout=30)

    said = [line for line in server.log().splitlines() if line.startswith("serve.py: ")]
    assert said[-2:] == ["serve.py: stopping ...", "serve.py: stopped"]
