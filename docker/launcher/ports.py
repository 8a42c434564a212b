"""The ports that a server listens on, and where clients on this machine find it."""

from __future__ import annotations

import random
import socket
from collections.abc import Mapping

from launcher.told import ServeError

HOST = "127.0.0.1"
EVERYWHERE = "0.0.0.0"
USUAL_PORTS = {"http": 8000, "grpc": 8001, "metrics": 8002}


def can_bind(port: int, address: str) -> bool:
    """Whether nothing listens on this port there; one whose last connections are still closing counts as free."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((address, port))
        except OSError:
            return False
    return True


def choose_ports(given: Mapping[str, int | None], is_free_wanted: bool, address: str = HOST) -> dict[str, int]:
    """A port for each service: the one given, else a free one where wanted, else the usual one."""
    ports: dict[str, int] = {}
    # Below the range that the kernel hands to outgoing connections: none of these takes our port before we do.
    candidates = iter(random.SystemRandom().sample(range(10000, 32000), 2000))
    for service, usual in USUAL_PORTS.items():
        port = given[service]
        if port is None and is_free_wanted:
            port = next((port for port in candidates if can_bind(port, address)), None)
            if port is None:
                raise ServeError(f"no free port on {address}: is it an address of this machine?")
        port = usual if port is None else port
        if port in ports.values() or not can_bind(port, address):
            # Free ports replace only those that nobody has named.
            free = "" if given[service] is not None else " or --free-ports (make serve SERVE_ARGS=--free-ports)"
            raise ServeError(
                f"port {port} ({service}) on {address} is in use: stop what listens there, "
                f"or pass another --{service}-port{free}"
            )
        ports[service] = port
    return ports


def is_listening(address: str) -> bool:
    """Whether something takes connections at HOST:PORT."""
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host, int(port)), timeout=5).close()
    except OSError:
        return False
    return True


def reachable(address: str, ports: Mapping[str, int]) -> dict[str, str]:
    """Where clients on this machine find the services of a server that listens there."""
    return {service: f"{HOST if address == EVERYWHERE else address}:{port}" for service, port in ports.items()}
