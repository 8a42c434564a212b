"""What the sessions of one client share: the channel to its server. For asyncio; `connection` is its blocking twin."""

import asyncio
import contextlib
from collections.abc import Sequence
from typing import Any

import grpc
from tritonclient.grpc import service_pb2, service_pb2_grpc

from worldstream.endpoint import CLOSED, Endpoint, is_worth_repeating
from worldstream.errors import UnavailableError, WorldStreamError
from worldstream.requests import build_preprocess_request
from worldstream.responses import Pictures, parse_preprocess_response


class AsyncConnection:
    """A gRPC channel to one server, for one event loop; any number of streams and calls share it."""

    def __init__(self, endpoint: Endpoint) -> None:
        """Prepare it; nothing is sent yet, and no loop need run."""
        self.endpoint = endpoint
        self.has_answered = False  # since the last time that it broke
        self._is_closed = False
        self._channel: Any = None
        self._stub: Any = None

    @property
    def stub(self) -> Any:
        """The rpcs.

        Raises:
            UnavailableError: if the connection is closed.
        """
        if self._is_closed:
            raise UnavailableError(CLOSED)
        if self._stub is None:  # a channel belongs to the loop that runs when it is made
            url, credentials, options = (
                self.endpoint.url,
                self.endpoint.access.credentials,
                self.endpoint.channel_options,
            )
            self._channel = (
                grpc.aio.insecure_channel(url, options)
                if credentials is None
                else grpc.aio.secure_channel(url, credentials, options)
            )
            self._stub = service_pb2_grpc.GRPCInferenceServiceStub(self._channel)
        return self._stub

    async def call(self, rpc: str, request: Any) -> Any:
        """Return the response of an rpc that may be repeated, such as ServerReady; repeat it while nothing answers.

        Raises:
            WorldStreamError: if there is none, as `error_from_status` says.
        """
        for delay_s in self.endpoint.delays():
            try:
                return await self.call_once(rpc, request)
            except WorldStreamError as error:
                if self._is_closed or not is_worth_repeating(error):
                    raise
            await asyncio.sleep(delay_s)
        return await self.call_once(rpc, request)

    async def call_once(self, rpc: str, request: Any, **options: Any) -> Any:
        """The same in one attempt; `options` are gRPC's own for a call."""
        try:
            defaults = {"timeout": self.endpoint.timeout_s, "metadata": self.endpoint.access.metadata}
            response = await getattr(self.stub, rpc)(request, **{**defaults, **options})
        except grpc.RpcError as error:
            self.has_answered = False
            raise self.endpoint.error_from_rpc(error) from None
        self.has_answered = True
        return response

    async def ping(self) -> None:
        """Wait for an answer of the server.

        Raises:
            UnavailableError: if none comes.
        """
        await self.call("ServerLive", service_pb2.ServerLiveRequest())

    async def reach(self) -> None:
        """Wait for the server before a stream is opened: what is never sent in vain need not be sent again.

        Where it does not come in time the stream itself fails at once, and says why.
        """
        if self.has_answered or self.endpoint.reconnect_s == 0:
            return
        with contextlib.suppress(WorldStreamError):
            # gRPC itself tries to connect until then, with back-off.
            await self.call_once(
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

    async def preprocess(self, images: Sequence[bytes], size: tuple[int, int] | None = None) -> Pictures:
        """Let the server decode pictures; see `WorldClient.preprocess`."""
        request = build_preprocess_request(images, size)
        return parse_preprocess_response(await self.call("ModelInfer", request))

    async def close(self) -> None:
        """Close the channel; what is under way is cancelled."""
        self._is_closed = True
        if self._channel is not None:
            await self._channel.close()
