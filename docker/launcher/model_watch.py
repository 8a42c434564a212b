"""Models whose process has ended, which the server may not notice."""

from __future__ import annotations

import time
from pathlib import Path

from launcher.processes import processes
from launcher.told import ServeError

DEAD_MODEL_GRACE_S = 5.0  # how long the server may take to notice it


def model_processes(server_pid: int) -> dict[int, bool]:
    """The server's processes of models, by pid, and whether each one runs; one that ended may be missing here."""
    return {
        process.pid: process.is_running
        for process in processes()
        if process.parent == server_pid and process.name.startswith("triton_python")
    }


def model_of(pid: int, models: set[str]) -> str:
    """The model that this process runs, from its command line; "" where that cannot be read any more."""
    try:
        command = Path(f"/proc/{pid}/cmdline").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
    return next((name for name in models if f"/{name}/1/model.py" in command), "")


class ModelWatch:
    """Notices when a model's process has ended: the server may wait for it for ever, and goes on saying "ready"."""

    def __init__(self, server_pid: int, models: set[str]) -> None:
        self._server_pid = server_pid
        self._models = models
        self._names: dict[int, str] = {}
        self._dead_since: dict[int, float] = {}

    def check(self) -> None:
        """Raise ServeError if a model's process ended a while ago; the server itself ends soon where it noticed."""
        running = model_processes(self._server_pid)
        now = time.monotonic()
        for pid in running:
            self._names[pid] = self._names.get(pid) or model_of(pid, self._models)
        for pid, name in self._names.items():
            if running.get(pid, False):
                continue
            if now - self._dead_since.setdefault(pid, now) > DEAD_MODEL_GRACE_S:
                whose = f"model {name!r}" if name else "a model"
                raise ServeError(f"the process of {whose} ended by itself; the server's log above says why")
