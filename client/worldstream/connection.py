"""What the sessions of one client share: the channel to its server. Blocking."""

import contextlib
import time
from collections.abc import Sequence
from typing import Any

import grpc
from tritonclient.grpc import service_pb2, service_pb2_grpc

from worldstream.endpoint import CLOSED, Endpoint, is_worth_repeating
from worldstream.errors import UnavailableError, WorldStreamError
from worldstream.requests import build_preprocess_request
from worldstream.responses import Pictures, parse_preprocess_response


class Connection:
    """A gRPC channel to one server; any number of streams and calls share it."""

    def __init__(self, endpoint: Endpoint) -> None:
        """Prepare it; nothing is sent yet."""
        self.endpoint = endpoint
        self.has_answered = False  # since the last time that it broke
        self._is_closed = False
        credentials, options = endpoint.access.credentials, endpoint.channel_options
        self._channel = (
            grpc.insecure_channel(endpoint.url, options)
            if credentials is None
            else grpc.secure_channel(endpoint.url, credentials, options)
        )
        self.stub = service_pb2_grpc.GRPCInferenceServiceStub(self._channel)

    def call(self, rpc: str, request: Any) -> Any:
        """Return the response of an rpc that may be repeated, such as ServerReady; repeat it while nothing answers.

        Raises:
            WorldStreamError: if there is none, as `error_from_status` says.
        """
        for delay_s in self.endpoint.delays():
            try:
                return self.call_once(rpc, request)
            except WorldStreamError as error:
                if self._is_closed or not is_worth_repeating(error):
                    raise
            time.sleep(delay_s)
        return self.call_once(rpc, request)

    def call_once(self, rpc: str, request: Any, **options: Any) -> Any:
        """The same in one attempt; `options` are gRPC's own for a call."""
        try:
            defaults = {"timeout": self.endpoint.timeout_s, "metadata": self.endpoint.access.metadata}
            response = getattr(self.stub, rpc)(request, **{**defaults, **options})
        except grpc.RpcError as error:
            self.has_answered = False
            raise self.endpoint.error_from_rpc(error) from None
        except ValueError as error:  # grpc's word for a closed channel
            raise UnavailableError(CLOSED) from error
        self.has_answered = True
        return response

    def ping(self) -> None:
        """Wait for an answer of the server.

        Raises:
            UnavailableError: if none comes.
        """
        self.call("ServerLive", service_pb2.ServerLiveRequest())

    def reach(self) -> None:
        """Wait for the server before a stream is opened: what is never sent in vain need not be sent again.

        Where it does not come in time the stream itself fails at once, and says why.
        """
        if self.has_answered or self.endpoint.reconnect_s == 0:
            return
        with contextlib.suppress(WorldStreamError):
            # gRPC itself tries to connect until then, with back-off.
            self.call_once(
                "ServerLive",
                service_pb2.ServerLiveRequest(),
                timeout=self.endpoint.reconnect_s,
                wait_for_ready=True,
            )

    def error_of_broken_stream(self, error: grpc.RpcError) -> WorldStreamError:
        """What ended a stream of this channel, for those who were waiting."""
        if self._is_closed:
            return self.endpoint.error_from_rpc(error)
        self.has_answered = False
        return self.endpoint.error_of_broken_stream(error)

    def preprocess(self, images: Sequence[bytes], size: tuple[int, int] | None = None) -> Pictures:
        """Let the server decode pictures; see `WorldClient.preprocess`."""
        request = build_preprocess_request(images, size)
        return parse_preprocess_response(self.call("ModelInfer", request))

    def close(self) -> None:
        """Close the channel; what is under way is cancelled."""
        self._is_closed = True
        self._channel.close()
