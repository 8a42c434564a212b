"""Whether the operator wants this server to run empty. Knows a file, and no sessions.

A file, since nothing else reaches this process and no client: Triton hands a model neither signals nor a request that
only the operator could send, on any release. It is looked for at each start of a session (some microseconds), so that
there is no delay, no thread, and taking the file away takes the wish back.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path

log = logging.getLogger("worldstream")

VARIABLE = "WORLDSTREAM_DRAIN_FILE"


class DrainFile:
    """The file whose presence means: no new sessions; those that live go on."""

    def __init__(self, path: str) -> None:
        """Prepare; an empty path is never there."""
        self._path = Path(path) if path else None
        self._was_there = False

    @classmethod
    def named_by(cls, environment: Mapping[str, str]) -> DrainFile:
        """The one that the environment of the server names."""
        return cls(environment.get(VARIABLE, ""))

    def is_draining(self) -> bool:
        """Whether it is there now; a change is logged."""
        is_there = self._path is not None and self._path.exists()
        if is_there != self._was_there:
            self._was_there = is_there
            log.info("draining: no new sessions" if is_there else "not draining any more: new sessions are welcome")
        return is_there
