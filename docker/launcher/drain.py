"""Let the sessions that live come to an end before the server does."""

from __future__ import annotations

import time

from launcher.metrics import count_sessions
from launcher.server import Server
from launcher.signals import StopSignals
from launcher.told import ServeError, say


def drain(server: Server, signals: StopSignals) -> None:
    """Let no new session begin, and wait until those that live have ended, or for --drain-s; or for another signal.

    Raises:
        Stop: another signal came.
    """
    drain_s = server.options.drain_s
    server.drain_file.touch()
    say(f"draining: no new sessions; those that live have {drain_s:.0f} s; another signal ends them")
    signals.forget()
    with signals.raising():
        try:
            say(drained(server, time.monotonic() + drain_s))
        except ServeError as error:  # its sessions are gone with it
            say(f"drained: {error}")


def drained(server: Server, deadline: float) -> str:
    """Wait until no session is left, or until the deadline; what has come of it, in words."""
    num_empty, left = 0, None
    # Twice: one that was let in just before the file was there is counted a moment later.
    while num_empty < 2:
        if time.monotonic() > deadline:
            return f"drained: the time is up; sessions left: {'unknown' if left is None else left}"
        time.sleep(0.5)
        server.check()
        left = count_sessions(server.addresses["metrics"])
        num_empty = num_empty + 1 if left == 0 else 0
    return "drained: no session is left"
