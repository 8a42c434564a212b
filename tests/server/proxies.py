"""nginx in front of real servers, with the configuration that docker/scale ships; only addresses are changed, and
`resolve`, which Debian's nginx does not know, is left out."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from launcher.ports import choose_ports
from launcher.processes import die_with_parent

SCALE = Path(__file__).parents[2] / "docker" / "scale"
NGINX = shutil.which("nginx") or shutil.which("nginx", path="/usr/sbin:/usr/local/sbin")
START_S = 10.0


@dataclass(frozen=True)
class Proxy:
    """Where it listens, and what it was told."""

    grpc: str
    http: str
    folder: Path
    config: Path

    @property
    def upstreams(self) -> Path:
        """The file that names the servers."""
        return self.config.with_name("upstreams.conf")

    def mark_down(self, address: str) -> None:
        """Send nothing new to this server (its gRPC address), as docker/README.md says; open streams stay."""
        text = self.upstreams.read_text(encoding="utf-8")
        self.upstreams.write_text(replace_once(text, f"server {address} ", f"server {address} down "), encoding="utf-8")
        self.reload()

    def reload(self) -> None:
        """Have nginx read its files again, by the command that docker/README.md names."""
        subprocess.run([*nginx_command(self.folder, self.config), "-s", "reload"], check=True, timeout=20)


def replace_once(text: str, before: str, after: str) -> str:
    """Replace what must be there exactly once."""
    assert text.count(before) == 1, f"{before!r} is there {text.count(before)} times"
    return text.replace(before, after)


def configure(folder: Path, servers: Sequence[tuple[str, str]], ports: dict[str, int]) -> Path:
    """The shipped files in a folder, for these servers (gRPC and HTTP address) and these loopback ports."""
    shutil.copytree(SCALE, folder)
    upstreams = (folder / "upstreams.conf").read_text(encoding="utf-8")
    for name, (grpc, http) in zip(("worldstream-a", "worldstream-b"), servers, strict=True):
        upstreams = replace_once(upstreams, f"{name}:8001", grpc)
        upstreams = replace_once(upstreams, f"{name}:8000", http)
    assert upstreams.count(" resolve ") == 4
    (folder / "upstreams.conf").write_text(upstreams.replace(" resolve ", " "), encoding="utf-8")
    routes = (folder / "routes.conf").read_text(encoding="utf-8")
    routes = replace_once(routes, "listen 8001 http2;", f"listen 127.0.0.1:{ports['grpc']} http2;")
    routes = replace_once(routes, "listen 8000;", f"listen 127.0.0.1:{ports['http']};")
    (folder / "routes.conf").write_text(routes, encoding="utf-8")
    return folder / "nginx.conf"


def nginx_command(folder: Path, config: Path) -> list[str]:
    assert NGINX is not None
    return [NGINX, "-e", "stderr", "-p", str(folder), "-c", str(config)]


@contextlib.contextmanager
def running_proxy(
    folder: Path, servers: Sequence[tuple[str, str]], changes: Mapping[str, str] | None = None
) -> Iterator[Proxy]:
    """nginx before these servers, gone at the end; with these texts of its routes replaced by others."""
    ports = choose_ports({"http": None, "grpc": None, "metrics": None}, is_free_wanted=True)
    config = configure(folder / "conf", servers, ports)
    routes = config.with_name("routes.conf")
    for before, after in (changes or {}).items():
        routes.write_text(replace_once(routes.read_text(encoding="utf-8"), before, after), encoding="utf-8")
    # Workers of a server that root starts become another user, who may not write here.
    directives = "daemon off;" + (" user root;" if os.getuid() == 0 else "")
    log = folder / "nginx.log"
    with log.open("wb") as target:
        process = subprocess.Popen(
            [*nginx_command(folder, config), "-g", directives],
            stdin=subprocess.DEVNULL,
            stdout=target,
            stderr=target,
            preexec_fn=lambda: die_with_parent(signal.SIGTERM),
        )
    try:
        _wait_until_it_listens(process, ports["grpc"], log)
        yield Proxy(f"127.0.0.1:{ports['grpc']}", f"127.0.0.1:{ports['http']}", folder, config)
    finally:
        process.terminate()
        process.wait(timeout=20)


def _wait_until_it_listens(process: subprocess.Popen[bytes], port: int, log: Path) -> None:
    deadline = time.monotonic() + START_S
    while process.poll() is None and time.monotonic() < deadline:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
            return
        time.sleep(0.05)
    raise RuntimeError("nginx did not start:\n" + log.read_text(errors="replace")[-2000:])
