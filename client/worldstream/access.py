"""How a client tells whom it trusts and who it is: certificates for TLS, and a key. Knows no calls."""

from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Any

import grpc

from worldstream.errors import InvalidInputError

API_KEY_HEADER = "triton-grpc-protocol-x-api-key"


@dataclass(frozen=True)
class Access:
    """What the way to a server needs beside its address."""

    is_tls: bool = False
    tls_ca: bytes | None = None  # PEM; None: the authorities that gRPC comes with
    api_key: str | None = None

    @property
    def credentials(self) -> Any:
        """gRPC's own for a channel; None: without TLS."""
        return grpc.ssl_channel_credentials(self.tls_ca) if self.is_tls else None

    @property
    def metadata(self) -> tuple[tuple[str, str], ...]:
        """What goes with each call."""
        return () if self.api_key is None else ((API_KEY_HEADER, self.api_key),)


def make_access(tls: bool, tls_ca: str | PathLike[str] | None, api_key: str | None) -> Access:
    """Read the file of authorities and check the key.

    Raises:
        InvalidInputError: if one of them cannot be right.
    """
    if api_key is not None and not (api_key and api_key.isascii() and api_key.isprintable() and " " not in api_key):
        raise InvalidInputError("api_key: wanted printable ASCII without spaces, got something else")
    return Access(tls or tls_ca is not None, None if tls_ca is None else _read_pem(tls_ca), api_key)


def _read_pem(path: str | PathLike[str]) -> bytes:
    try:
        content = Path(path).read_bytes()
    except OSError as error:
        raise InvalidInputError(f"tls_ca: cannot read {path}: {error.strerror}") from error
    if b"-----BEGIN CERTIFICATE-----" not in content:
        raise InvalidInputError(f"tls_ca: wanted certificates in PEM, got none in {path}")
    return content
