"""nginx in front of a real server, with the limits that docker/nginx ships; only addresses and secrets are changed."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from launcher.ports import HOST, USUAL_PORTS, can_bind, choose_ports
from launcher.processes import die_with_parent, wait_for

from tests.certificates import Certificate

SHIPPED = Path(__file__).parents[2] / "docker" / "nginx"
NGINX = shutil.which("nginx") or shutil.which("nginx", path="/usr/sbin:/usr/local/sbin")
LISTENS = {"8080": "http", "8081": "grpc", "8443": "https", "8444": "grpcs"}


@dataclass(frozen=True)
class Front:
    """Where it listens."""

    http: str
    grpc: str
    https: str
    grpcs: str


def configure(
    folder: Path, http: str, grpc: str, certificate: Certificate, ports: dict[str, int], changes: Mapping[str, str]
) -> Path:
    """The shipped files in a folder, for one server, a certificate, and these loopback ports by kind."""
    (folder / "tls").mkdir(parents=True)
    replacements = {
        "worldstream:8000": http,
        "worldstream:8001": grpc,
        "/run/secrets/tls_cert": str(certificate.cert),
        "/run/secrets/tls_key": str(certificate.key),
        **changes,
        **{f"listen {port}": f"listen 127.0.0.1:{ports[kind]}" for port, kind in LISTENS.items()},
    }
    for name in ("limits.conf", "limits-http.conf", "limits-grpc.conf", "limits-tls.conf"):
        text = (SHIPPED / name).read_text(encoding="utf-8")
        for before, after in replacements.items():
            text = text.replace(before, after)
        assert "listen 8" not in text
        (folder / ("tls" if name == "limits-tls.conf" else ".") / name).write_text(text, encoding="utf-8")
    return folder / "limits.conf"


@contextlib.contextmanager
def running_front(
    folder: Path, http: str, grpc: str, certificate: Certificate, changes: Mapping[str, str] | None = None
) -> Iterator[Front]:
    """nginx before this server, gone at the end; with these texts of its files replaced by others."""
    assert NGINX is not None
    ports = free_ports()
    config = configure(folder / "conf", http, grpc, certificate, ports, changes or {})
    # Workers of a server that root starts become another user, who may not write here.
    directives = "daemon off;" + (" user root;" if os.getuid() == 0 else "")
    log = folder / "nginx.log"
    with log.open("wb") as target:
        process = subprocess.Popen(
            [NGINX, "-p", str(folder), "-c", str(config), "-g", directives],
            stdin=subprocess.DEVNULL,
            stdout=target,
            stderr=target,
            preexec_fn=lambda: die_with_parent(signal.SIGTERM),
        )
    try:
        wait_for(lambda: process.poll() is not None or not can_bind(ports["grpcs"], HOST), 10)
        if process.poll() is not None:
            raise RuntimeError("nginx did not start:\n" + log.read_text(encoding="utf-8"))
        yield Front(**{kind: f"127.0.0.1:{port}" for kind, port in ports.items()})
    finally:
        process.terminate()
        process.wait(timeout=20)


def free_ports() -> dict[str, int]:
    none = dict.fromkeys(USUAL_PORTS)
    three, more = choose_ports(none, True), choose_ports(none, True)
    return {"http": three["http"], "grpc": three["grpc"], "https": three["metrics"], "grpcs": more["grpc"]}
