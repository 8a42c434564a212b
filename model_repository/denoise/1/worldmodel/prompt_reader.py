"""The thread that reads prompts: texts of waiting requests become vectors beside computing, not before it.

A large text encoder takes as long as chunks do. A request therefore waits in its session's lane until its prompt has
been read, while all other sessions, and what is ahead of it in its own, go on; its chunks begin with the new prompt at
once. Knows no turns, no table and no Triton; shares the engine's lock.
"""

from __future__ import annotations

import threading
from dataclasses import replace

from worldmodel.errors import WorldError, internal_error
from worldmodel.prompt import Vectors
from worldmodel.prompt_cache import PromptCache
from worldmodel.queues import Job, Queues


class PromptReader:
    """Reads what waits, oldest first, on a thread of its own."""

    def __init__(self, changed: threading.Condition, queues: Queues) -> None:
        """Prepare.

        Args:
            changed: guards the queues; told of every change to them, and tells of what was read.
        """
        self._changed = changed
        self._queues = queues
        self._is_closing = False
        self._thread = threading.Thread(target=self._run, name="worldstream-prompts", daemon=True)

    def start(self, prompts: PromptCache) -> None:
        """Begin, with this encoder."""
        self._prompts = prompts
        self._thread.start()

    def prepare(self, job: Job) -> None:
        """Look whether a request's prompt is known, or has to be read; the caller holds the lock, and then tells."""
        text = job.request.text
        vectors = None if text is None else self._prompts.find(text)
        if vectors is not None:
            job.request = replace(job.request, prompt=vectors)
        else:
            job.unread_text = text

    def close(self, timeout_s: float) -> None:
        """Read no more."""
        with self._changed:
            self._is_closing = True
            self._changed.notify_all()
        if self._thread.is_alive():
            self._thread.join(timeout_s)

    def _run(self) -> None:
        while self._read_next():
            pass

    def _read_next(self) -> bool:
        """Read one prompt; a method of its own, so that nothing of it stays alive while the thread waits."""
        with self._changed:
            self._changed.wait_for(lambda: self._is_closing or self._queues.first_unread() is not None)
            job = self._queues.first_unread()
            if self._is_closing or job is None or job.unread_text is None:
                return not self._is_closing
            text = job.unread_text
        vectors = self._read(text)
        with self._changed:
            job.unread_text = None
            if isinstance(vectors, WorldError):
                job.error = vectors
            else:
                job.request = replace(job.request, prompt=vectors)
            self._changed.notify_all()
        return True

    def _read(self, text: str) -> Vectors | WorldError:
        try:
            return self._prompts.encode(text)
        except Exception:
            return internal_error("the prompt could not be encoded")
