"""Whether models go on answering: of our own server again and again, of one that another process has started once."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

from launcher.access import Access, read_access
from launcher.canary import Canary, canaries_of, run_canary
from launcher.metrics import read_metrics
from launcher.options import Options
from launcher.ports import USUAL_PORTS, is_listening, reachable
from launcher.told import ServeError


class CanaryWatch:
    """Asks a model again and again whether it lives. While it answers others that is known, and it is left alone."""

    def __init__(
        self,
        options: Options,
        addresses: Mapping[str, str],
        access: Access,
        canary: Canary,
        check_server: Callable[[], None],
    ) -> None:
        """Ask first when the options' time between canaries has passed.

        Args:
            check_server: raises ServeError where an answer needs no more waiting for.
        """
        self._addresses = addresses
        self._access = access
        self._canary = canary
        self._check_server = check_server
        self._every_s = options.canary_every_s
        self._timeout_s = options.canary_timeout_s
        self._due = time.monotonic() + self._every_s
        self._deadline = 0.0
        self._answers: list[str] | None = None

    def check(self) -> None:
        """To be called about every second; asks when it is time to.

        Raises:
            ServeError: the canary failed, or for too long neither it nor anybody else got an answer.
        """
        if self._answers is None:  # the last canary's own answer is on the page by now
            self._has_answered()
        if time.monotonic() < self._due:
            return
        if not self._has_answered():
            self._deadline = time.monotonic() + self._timeout_s
            run_canary(self._addresses["grpc"], self._access, self._canary, self._keep_waiting)
            self._answers = None
        self._due = time.monotonic() + self._every_s

    def _keep_waiting(self) -> None:
        self._check_server()
        if self._has_answered():  # busy: the canary waits for its turn
            self._deadline = time.monotonic() + self._timeout_s
        if time.monotonic() > self._deadline:
            raise ServeError(f"model {self._canary.model!r} has answered nobody for {self._timeout_s:.0f} s")

    def _has_answered(self) -> bool:
        """Whether the model has answered a request since the last look."""
        before = self._answers
        self._answers = read_metrics(self._addresses["metrics"], self._canary.proof) or before
        return before is not None and self._answers != before


def probe(options: Options) -> None:
    """Ask each model that has a canary on the ports that the options name; one that answers others need not.

    Raises:
        ServeError: one has answered neither, or nothing listens there.
    """
    ports = {service: options.ports[service] or usual for service, usual in USUAL_PORTS.items()}
    addresses, access = reachable(options.address, ports), read_access(options)
    if not is_listening(addresses["grpc"]):
        raise ServeError(f"--probe: nothing listens on {addresses['grpc']} (grpc)")
    for canary in canaries_of(options.model_repository):
        CanaryWatch(options, addresses, access, canary, check_server=lambda: None).check()
