"""A certificate for servers of tests, made anew for each test run; no key is kept in this repository."""

import subprocess
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Certificate:
    """A certificate for localhost and 127.0.0.1, which is its own authority, and its key."""

    cert: Path
    key: Path


def make_certificate(folder: Path) -> Certificate:
    """By the command that docker/README.md names."""
    made = Certificate(folder / "server.crt", folder / "server.key")
    names = "subjectAltName=DNS:localhost,IP:127.0.0.1"
    command = "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 30 -subj /CN=localhost"
    arguments = ["-addext", names, "-keyout", str(made.key), "-out", str(made.cert)]
    subprocess.run([*command.split(), *arguments], check=True, capture_output=True)
    return made
