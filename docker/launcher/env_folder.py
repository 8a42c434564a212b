"""The folder that the Python backend makes in /tmp for packed environments, which a killed server leaves behind."""

from __future__ import annotations

import contextlib
from pathlib import Path

from launcher.processes import has_mapped
from launcher.triton import BACKEND_LIBRARY


class EnvFolder:
    """Finds a server's own one by seeing it come, since nothing in its name says whose it is."""

    def __init__(self, server_pid: int) -> None:
        self._server_pid = server_pid
        self._seen = env_folders()
        self._own: set[Path] = set()

    def look(self) -> None:
        """To be called often while the server starts: the folder comes with the backend."""
        before, self._seen = self._seen, env_folders()
        if not self._own and has_mapped(self._server_pid, BACKEND_LIBRARY):
            self._own = self._seen - before

    def remove(self) -> None:
        """Remove it if it is known; of several that came at once, touch none."""
        if len(self._own) == 1:
            with contextlib.suppress(OSError):
                self._own.pop().rmdir()


def env_folders() -> set[Path]:
    """All that there are; this path is built into the backend."""
    return set(Path("/tmp").glob("python_env_*"))
