"""The real server for benchmarks: any repository, or `denoise` alone, where no request comes before the first of ours.

Knows serve.py's command line and its JSON line; knows nothing of what is measured.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from common import ROOT

sys.path.insert(0, str(ROOT / "client"))

# isort: split
from worldstream.info import fetch_metrics, plain_names


@dataclass(frozen=True)
class Served:
    """A running server: where it listens, and how long it took from its start until it was ready."""

    http: str
    grpc: str
    metrics: str
    pid: int  # of tritonserver, the parent of the models' processes
    start_s: float

    def cpu_s(self) -> float:
        """CPU time that the server and its models' processes have used, in steps of 10 ms or so."""
        children = [
            pid for path in Path(f"/proc/{self.pid}/task").glob("*/children") for pid in path.read_text().split()
        ]
        return sum(map(_cpu_s, [str(self.pid), *children]))

    def counts(self) -> dict[str, float]:
        """The worldstream_* metrics by their short names, once they stand still: the page follows by a moment."""
        last: dict[str, float] = {}
        while True:
            page = plain_names(fetch_metrics(self.metrics, 10))
            now = {name.removeprefix("worldstream_").removesuffix("_total"): value for name, value in page.items()}
            if now == last:
                return now
            last = now
            time.sleep(0.5)


def _cpu_s(pid: str) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
    user, system = fields[11:13]
    return (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")


@contextlib.contextmanager
def running_denoise(parameters: Mapping[str, object]) -> Iterator[Served]:
    """A server of its own with these parameters of `denoise`.

    Its repository holds `denoise` only: serve.py proves a server by a request through `world`, and that request would
    be the first one, not ours.
    """
    with tempfile.TemporaryDirectory(prefix="worldstream-perf-") as folder:
        repository = Path(folder, "models")
        repository.mkdir()
        (repository / "denoise").symlink_to(ROOT / "model_repository" / "denoise")
        with running_server(repository, {f"denoise.{key}": value for key, value in parameters.items()}) as served:
            yield served


@contextlib.contextmanager
def running_server(repository: Path, overrides: Mapping[str, object], config_name: str = "") -> Iterator[Served]:
    """A server of its own for any repository.

    Args:
        overrides: {"MODEL.KEY": VALUE} of model parameters.
        config_name: of the models' configurations, MODEL/configs/NAME.pbtxt; "" for config.pbtxt.
    """
    command = [sys.executable, str(ROOT / "serve.py"), "--json", "--model-repository", str(repository)]
    command += ["--model-config-name", config_name]
    for name, value in overrides.items():
        command += ["--set", f"{name}={value}"]
    with tempfile.TemporaryFile("w+", encoding="utf-8") as log:
        began = time.monotonic()
        launcher = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True)
        try:
            assert launcher.stdout is not None
            line = launcher.stdout.readline()
            if not line:
                log.seek(0)
                raise SystemExit("the server did not start:\n" + log.read()[-3000:])
            said = json.loads(line)
            yield Served(said["http"], said["grpc"], said["metrics"], said["pid"], time.monotonic() - began)
        finally:
            launcher.send_signal(signal.SIGTERM)
            launcher.wait()
