"""Where a server is and how long to wait for it; how gRPC's failures are told. Pure, the same for both kinds of I/O."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import grpc

from worldstream import backoff
from worldstream.access import API_KEY_HEADER, Access
from worldstream.errors import (
    CancelledError,
    ConnectionLostError,
    InternalError,
    InvalidInputError,
    ResponseTimeoutError,
    TritonError,
    UnavailableError,
    WorldStreamError,
    error_from_message,
)
from worldstream.loopback import is_loopback

DEFAULT_URL = "127.0.0.1:8001"
DEFAULT_TIMEOUT_S = 60.0
DEFAULT_RECONNECT_S = 2.0
LONGEST_S = 1e9  # 30 years. gRPC takes a wait without an end for one that is over, and Python for none at all
CLOSED = "UNAVAILABLE: this client is closed"

_UNLIMITED = [("grpc.max_send_message_length", -1), ("grpc.max_receive_message_length", -1)]
# gRPC's own pauses between attempts to connect: 1 s to 2 minutes, if nobody says otherwise.
_RECONNECT = [("grpc.initial_reconnect_backoff_ms", 100), ("grpc.max_reconnect_backoff_ms", 1000)]
_SCHEMES = ("http://", "https://", "grpc://", "grpcs://")
# What gRPC says where nothing listens, nothing has that name, or something listens that does not speak it.
_NO_TRUST = "CERTIFICATE_VERIFY_FAILED"
_NO_TLS = "WRONG_VERSION_NUMBER"
_WANTS_TLS = "Socket closed"
_NO_SERVER = ("failed to connect to all addresses", "DNS resolution failed", "Trying to connect an http1.x server")
# What gRPC says where a proxy gives a stream up because the server behind it has gone.
_RESET = "RST_STREAM"


@dataclass(frozen=True)
class Endpoint:
    """One server, as its clients see it."""

    url: str  # HOST:PORT, or another gRPC target such as dns:///host:port
    timeout_s: float  # the longest silence between two responses of a stream, and the longest single call
    reconnect_s: float  # for so long a server that cannot be reached is tried again
    access: Access = field(default_factory=Access)

    def __post_init__(self) -> None:
        """Check the values; raises InvalidInputError if one of them cannot be right."""
        if self.url.lower().startswith(_SCHEMES):
            raise InvalidInputError(
                f"url: wanted HOST:PORT of the server's gRPC endpoint, without a scheme, got {self.url}"
            )
        if not self.url.strip():
            raise InvalidInputError("url: wanted HOST:PORT of the server's gRPC endpoint, got nothing")
        if not 0 < self.timeout_s <= LONGEST_S:
            raise InvalidInputError(f"timeout_s: wanted more than 0, at most {LONGEST_S:g}, got {self.timeout_s}")
        if not 0 <= self.reconnect_s <= LONGEST_S:
            raise InvalidInputError(f"reconnect_s: wanted 0 to {LONGEST_S:g}, got {self.reconnect_s}")

    @property
    def channel_options(self) -> list[tuple[str, int]]:
        """Options of a gRPC channel to it."""
        return [*_UNLIMITED, *_RECONNECT, ("grpc.enable_http_proxy", int(not is_loopback(self.url)))]

    def delays(self) -> Iterator[float]:
        """Seconds to wait before each further attempt at a call that may be repeated."""
        return backoff.delays(self.reconnect_s)

    def error_from_rpc(self, error: Any) -> WorldStreamError:
        """Turn a gRPC status into the exception that it stands for; the code word in its text goes first."""
        return error_from_status(error.code(), error.details() or "", self.url)

    def error_of_broken_stream(self, error: Any) -> WorldStreamError:
        """The same for a stream that this side has not cancelled; a cancel then means that the server goes away."""
        told = self.error_from_rpc(error)
        is_gone = isinstance(told, CancelledError)
        return ConnectionLostError("UNAVAILABLE: the server broke the stream off") if is_gone else told


def is_worth_repeating(error: WorldStreamError) -> bool:
    """Whether a call that may be repeated failed for the connection's sake; one that took all its time is not."""
    return isinstance(error, UnavailableError) and not isinstance(error, ResponseTimeoutError)


def error_from_status(status: grpc.StatusCode, details: str, url: str) -> WorldStreamError:
    """The exception that a status and its text stand for, when the server is at `url`."""
    named = error_from_message(details)
    if API_KEY_HEADER in details:
        return InvalidInputError(f"INVALID_INPUT: api_key: the server at {url} wants one, and not what came")
    if status is grpc.StatusCode.DEADLINE_EXCEEDED:
        return ResponseTimeoutError(f"UNAVAILABLE: no response in time ({details})")
    # A connection's own text may hold such a word too ("last error: INTERNAL: ..."); no model failed then.
    is_own_text = isinstance(named, (TritonError, InternalError, CancelledError))
    if status is grpc.StatusCode.UNAVAILABLE and any(words in details for words in _NO_SERVER):
        return UnavailableError(f"UNAVAILABLE: {_why_no_server(details, url)}")
    if status is grpc.StatusCode.UNAVAILABLE and is_own_text:
        return ConnectionLostError(f"UNAVAILABLE: {details}")
    if _RESET in details and isinstance(named, TritonError):
        return ConnectionLostError(f"UNAVAILABLE: {details}")
    if status is grpc.StatusCode.CANCELLED and isinstance(named, TritonError):
        return CancelledError(f"CANCELLED: {details}")
    return named


def _why_no_server(details: str, url: str) -> str:
    if _NO_TRUST in details:
        return f"the server at {url} is not trusted: its certificate is none of tls_ca's, or for another name"
    if _NO_TLS in details:
        return f"the server at {url} speaks without TLS"
    if _WANTS_TLS in details:
        return (
            f"the server at {url} closed the connection at once, as its HTTP port does (gRPC's is 8001 unless told "
            "otherwise), or one that wants TLS: tls or tls_ca"
        )
    return f"no server at {url}; start one with `make serve`; wanted HOST:PORT of its gRPC endpoint, without http://"
