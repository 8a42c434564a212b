"""What the sessions of one client share: the channel to its server, and how its failures are told."""

from collections.abc import Sequence
from typing import Any

import grpc
from tritonclient.grpc import service_pb2_grpc

from worldstream.errors import (
    CancelledError,
    InternalError,
    InvalidInputError,
    ResponseTimeoutError,
    TritonError,
    UnavailableError,
    WorldStreamError,
    error_from_message,
)
from worldstream.loopback import is_loopback
from worldstream.requests import build_preprocess_request
from worldstream.responses import Pictures, parse_preprocess_response

_UNLIMITED = [("grpc.max_send_message_length", -1), ("grpc.max_receive_message_length", -1)]
_SCHEMES = ("http://", "https://", "grpc://", "grpcs://")
# What gRPC says where nothing listens, nothing has that name, or something listens that does not speak it.
_NO_SERVER = ("failed to connect to all addresses", "DNS resolution failed", "Trying to connect an http1.x server")


class Connection:
    """A gRPC channel to one server; any number of streams and calls share it."""

    def __init__(self, url: str, timeout_s: float) -> None:
        """Prepare it; nothing is sent yet.

        Args:
            url: HOST:PORT, or another gRPC target such as dns:///host:port.
            timeout_s: the longest silence between two responses of a stream, and the longest single call.

        Raises:
            InvalidInputError: if one of them cannot be right.
        """
        if url.lower().startswith(_SCHEMES):
            raise InvalidInputError(f"url: wanted HOST:PORT of the server's gRPC endpoint, without a scheme, got {url}")
        if not timeout_s > 0:
            raise InvalidInputError(f"timeout_s: wanted more than 0, got {timeout_s}")
        self.timeout_s = timeout_s
        self._url = url
        options = [*_UNLIMITED, ("grpc.enable_http_proxy", int(not is_loopback(url)))]
        self._channel = grpc.insecure_channel(url, options=options)
        self.stub = service_pb2_grpc.GRPCInferenceServiceStub(self._channel)

    def call(self, rpc: str, request: Any) -> Any:
        """Return the response of an rpc such as ServerReady.

        Raises:
            WorldStreamError: if there is none, as `error_from_rpc` says.
        """
        try:
            return getattr(self.stub, rpc)(request, timeout=self.timeout_s)
        except grpc.RpcError as error:
            raise self.error_from_rpc(error) from None
        except ValueError as error:  # grpc's word for a closed channel
            raise UnavailableError("UNAVAILABLE: this client is closed") from error

    def preprocess(self, images: Sequence[bytes], size: tuple[int, int] | None = None) -> Pictures:
        """Let the server decode pictures; see `WorldClient.preprocess`."""
        request = build_preprocess_request(images, size)
        return parse_preprocess_response(self.call("ModelInfer", request))

    def close(self) -> None:
        """Close the channel; what is under way is cancelled."""
        self._channel.close()

    def error_from_rpc(self, error: Any) -> WorldStreamError:
        """Turn a gRPC status into the exception that it stands for; the code word in its text goes first."""
        return error_from_status(error.code(), error.details() or "", self._url)


def error_from_status(status: grpc.StatusCode, details: str, url: str) -> WorldStreamError:
    """The exception that a status and its text stand for, when the server is at `url`."""
    named = error_from_message(details)
    if status is grpc.StatusCode.DEADLINE_EXCEEDED:
        return ResponseTimeoutError(f"UNAVAILABLE: no response in time ({details})")
    # A connection's own text may hold such a word too ("last error: INTERNAL: ..."); no model failed then.
    is_own_text = isinstance(named, (TritonError, InternalError, CancelledError))
    if status is grpc.StatusCode.UNAVAILABLE and any(words in details for words in _NO_SERVER):
        return UnavailableError(
            f"UNAVAILABLE: no server at {url}; start one with `make serve`; "
            "wanted HOST:PORT of its gRPC endpoint, without http://"
        )
    if status is grpc.StatusCode.UNAVAILABLE and is_own_text:
        return UnavailableError(f"UNAVAILABLE: {details}")
    if status is grpc.StatusCode.CANCELLED and isinstance(named, TritonError):
        return CancelledError(f"CANCELLED: {details}")
    return named
