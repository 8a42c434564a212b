"""Serve, restart what dies, stop."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import time
from collections.abc import Iterator

from launcher.canary_watch import probe
from launcher.drain import drain
from launcher.options import Options, parse_arguments
from launcher.processes import die_with_parent, has_ended, stop_group
from launcher.server import STOP_GRACE_S, Server
from launcher.signals import Stop, StopSignals
from launcher.this_python import check_python
from launcher.told import ServeError, say, saying_now_and_then

LONGEST_BACKOFF_S = 60.0
HEALTHY_S = 60.0  # a server that was ready for this long has not failed at once


def run_command(server: Server, command: str) -> int:
    """Run a shell command with the server's addresses in its environment; its exit status."""
    env = {f"WORLDSTREAM_{service.upper()}": address for service, address in server.addresses.items()}
    process = subprocess.Popen(
        command,
        shell=True,
        env={**os.environ, **env},
        start_new_session=True,
        preexec_fn=lambda: die_with_parent(signal.SIGTERM),
    )
    try:
        has_ended(process.pid, is_blocking=True)
    finally:
        stop_group(process, signal.SIGTERM, STOP_GRACE_S)
    return process.returncode if process.returncode >= 0 else 128 - process.returncode


class Backoff:
    """How long to wait before the next start: 1, 2, 4 ... 60 s, and anew from 1 s after a server that stayed well."""

    def __init__(self, limit: int | None) -> None:
        self._limit = limit
        self.num_in_a_row = 0

    def next_s(self, ready_s: float) -> float | None:
        """The seconds to wait after a server that was ready for ready_s; None: give up."""
        if ready_s >= HEALTHY_S:
            self.num_in_a_row = 0
        if self._limit is not None and self.num_in_a_row >= self._limit:
            return None
        self.num_in_a_row += 1
        return min(2.0 ** min(self.num_in_a_row - 1, 10), LONGEST_BACKOFF_S)


@contextlib.contextmanager
def telling_log_of_failure(server: Server) -> Iterator[None]:
    """Show the log's end before the error that it explains."""
    try:
        yield
    except ServeError:
        server.tell_log()
        raise


def hold(server: Server) -> int:
    """Prove, announce and watch a server that has been started; the exit status of --run."""
    options = server.options
    with telling_log_of_failure(server):
        with saying_now_and_then(server.pending):
            server.prove()
        addresses = ", ".join(f"{service} {address}" for service, address in server.addresses.items())
        # Ours first: it is the one to signal. A signal to the server itself is a death, which --restart mends.
        say(f"ready: {addresses}, pid {os.getpid()} (tritonserver: {server.pid})")
        # Once: who reads it waits for one line. A later server has the same addresses, and its pid is said above.
        if options.json and not server.is_again:
            print(json.dumps({**server.addresses, "pid": server.pid}), flush=True)
        if options.run is None:
            server.watch()
        status = run_command(server, options.run)
        if status != 0 and options.log_file is not None:
            say(f"the command failed; the server's log is in {options.log_file}")
        return status


def hold_and_drain(server: Server, signals: StopSignals) -> int:
    """As `hold`; where a drain is wanted, SIGTERM begins one before it raises Stop."""
    try:
        with signals.raising():
            return hold(server)
    except Stop as stop:
        is_wanted = server.options.drain_s > 0 and server.options.run is None
        if stop.signum == signal.SIGTERM and is_wanted and server.ready_since is not None:
            drain(server, signals)
        raise


def serve(options: Options) -> int:
    """Serve until a signal raises Stop, or until --run's command has ended; its exit status.

    Raises:
        ServeError: the server died, or never came to be ready; with --restart, only the latter, or at its limit.
    """
    signals = StopSignals()
    ports = options.ports
    backoff = Backoff(options.max_restarts)
    was_ready = False
    while True:
        server = Server(options, ports, is_again=was_ready)
        try:
            with server:
                return hold_and_drain(server, signals)
        except ServeError as error:
            was_ready = was_ready or server.ready_s > 0
            # What has never run is not a matter of another try.
            delay_s = backoff.next_s(server.ready_s) if options.restart and was_ready else None
            if delay_s is None:
                if backoff.num_in_a_row > 0:
                    say(f"gave up after {backoff.num_in_a_row} restarts in a row")
                raise
            say(f"restart {backoff.num_in_a_row} in {delay_s:.0f} s: {error}")
        ports.update(server.ports)
        with signals.raising():
            time.sleep(delay_s)


def main() -> int:
    """Do what the command line says; the exit status."""
    options = parse_arguments()
    if options.check_python:
        return check_python()
    try:
        if not options.probe:
            return serve(options)
        probe(options)
        return 0
    except ServeError as error:
        say(str(error))
        return 1
    except Stop as stop:
        # An orderly end of a server is a success; a command that was broken off is not.
        return 128 + stop.signum if options.run is not None else 0
