"""Who may ask what of the server: the key and certificate that let clients in, and the flags that close the rest."""

from __future__ import annotations

import re
import secrets
import ssl
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from launcher.options import API_KEY_HEADER, Options
from launcher.told import ServeError

GRPC_OPTIONS = [("grpc.enable_http_proxy", 0), ("grpc.max_receive_message_length", -1)]
# What of Triton's interface changes the server, or reaches into its memory; and what serves.
CHANGING_APIS = ("model-repository", "trace", "logging")
MEMORY_API = "shared-memory"
SERVING_APIS = ("inference", "metadata", "model-config", "statistics")
CLOSED_HEADER = "x-closed"  # what a refusal names where no key helps
API_KEY = re.compile(r"[A-Za-z0-9._~-]{16,256}")


@dataclass(frozen=True)
class Access:
    """What a client needs to be let in."""

    api_key: str | None = None
    certificate: Path | None = None  # the server's; None: without TLS
    name: str = ""  # one that the certificate is for

    @property
    def headers(self) -> dict[str, str] | None:
        """What goes with each call over gRPC."""
        return None if self.api_key is None else {f"triton-grpc-protocol-{API_KEY_HEADER}": self.api_key}

    @property
    def channel(self) -> dict[str, Any]:
        """tritonclient's arguments for a connection from this machine."""
        if self.certificate is None:
            return {"channel_args": GRPC_OPTIONS}
        name = ("grpc.ssl_target_name_override", self.name)
        return {"channel_args": [*GRPC_OPTIONS, name], "ssl": True, "root_certificates": str(self.certificate)}


def read_access(options: Options) -> Access:
    """What the options say of key and certificate, checked before a server is started.

    Raises:
        ServeError: with what is wrong with them.
    """
    if (options.tls_cert is None) != (options.tls_key is None):
        raise ServeError("--tls-cert, --tls-key: wanted both or neither")
    if options.tls_cert is not None:
        check_certificate(options.tls_cert, options.tls_key)
    return Access(read_api_key(options.api_key_file), options.tls_cert, options.tls_name)


def check_certificate(certificate: Path, key: Path | None) -> None:
    """Refuse what is no certificate and its key."""
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(certificate, key, _no_password)
    except OSError as error:  # ssl.SSLError is one
        raise ServeError(f"--tls-cert, --tls-key: not a certificate and its key in PEM ({error})") from error


def _no_password() -> str:
    """Asked for where the key is encrypted: the server could not read it, and a terminal is not to be asked."""
    return ""


def read_api_key(path: Path | None) -> str | None:
    """The key that a file holds; None where no file is named."""
    if path is None:
        return None
    try:
        key = path.read_text(encoding="ascii").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise ServeError(f"--api-key-file: cannot be read ({type(error).__name__})") from error
    if API_KEY.fullmatch(key) is None:
        raise ServeError("--api-key-file: wanted one line of 16 to 256 letters, digits and ._~-")
    return key


def restrictions(is_memory_open: bool, api_key: str | None) -> list[str]:
    """Flags that close what changes the server to all, and what serves to those without the key."""
    closed, keyed = [*CHANGING_APIS], [*SERVING_APIS]
    (keyed if is_memory_open else closed).append(MEMORY_API)
    # Nobody hears of this value. The flags are the only way to say it, so whoever may list our processes can see it.
    groups = [f"{','.join(closed)}:{CLOSED_HEADER}={secrets.token_hex(16)}"]
    if api_key is not None:
        groups.append(f"{','.join(keyed)}:{API_KEY_HEADER}={api_key}")
    return [f"{flag}={group}" for flag in ("--http-restricted-api", "--grpc-restricted-protocol") for group in groups]


def safety(options: Options, access: Access, flags: frozenset[str]) -> list[str]:
    """Flags that keep the server's inside from its clients, as far as this release knows them."""
    wanted = {"--model-control-mode": "none", "--allow-sagemaker": "false", "--allow-vertex-ai": "false"}
    if options.client_shared_memory:  # a newer release keeps it off by itself
        wanted["--allow-client-shm"] = "true"
    command = [f"{flag}={value}" for flag, value in wanted.items() if flag in flags]
    command += restrictions(options.client_shared_memory, access.api_key)
    if access.certificate is not None and options.tls_key is not None:
        command += [
            "--grpc-use-ssl=true",
            f"--grpc-server-cert={access.certificate.resolve()}",
            f"--grpc-server-key={options.tls_key.resolve()}",
        ]
    return command
