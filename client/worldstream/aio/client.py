"""The way to a server, for asyncio; `client` is its blocking twin."""

import asyncio
from collections.abc import Sequence
from os import PathLike
from types import TracebackType

import numpy.typing as npt
from tritonclient.grpc import service_pb2

from worldstream.access import make_access
from worldstream.aio.connection import AsyncConnection
from worldstream.aio.replies import AsyncReplies
from worldstream.aio.session import AsyncSession
from worldstream.core import SessionCore, make_core
from worldstream.endpoint import DEFAULT_RECONNECT_S, DEFAULT_TIMEOUT_S, DEFAULT_URL, Endpoint
from worldstream.errors import UnavailableError, WorldStreamError
from worldstream.info import ServerInfo, fetch_metrics
from worldstream.picture import Picture, encode_picture
from worldstream.requests import (
    DENOISE,
    MODELS,
    Controls,
    Fit,
    FrameEncoding,
    SessionId,
    chunk_latent_frames_of,
    make_controls,
    make_defaults,
    make_opening,
)
from worldstream.responses import Pictures


class AsyncWorldClient:
    """A connection to one server; any number of sessions of one event loop share it.

    async with AsyncWorldClient("127.0.0.1:8001") as client, client.session("street.png", seed=7) as session:
        async for batch in session.generate(actions="wwwwll"):
            show(batch.frames)
    """

    def __init__(
        self,
        url: str = DEFAULT_URL,
        timeout_s: float = DEFAULT_TIMEOUT_S,
        metrics_url: str | None = None,
        reconnect_s: float = DEFAULT_RECONNECT_S,
        tls: bool = False,
        tls_ca: str | PathLike[str] | None = None,
        api_key: str | None = None,
    ) -> None:
        """Prepare a connection; nothing is sent yet, and no event loop need run. Arguments as of `WorldClient`.

        Raises:
            InvalidInputError: if an argument cannot be right.
        """
        self._connection = AsyncConnection(Endpoint(url, timeout_s, reconnect_s, make_access(tls, tls_ca, api_key)))
        self._metrics_url = metrics_url

    def session(
        self,
        picture: Picture | None,
        prompt: str | None = None,
        seed: int | None = None,
        session_id: SessionId | None = None,
        intrinsics: npt.ArrayLike | None = None,
        translation_scale: float | None = None,
        fit: Fit | None = None,
        num_steps: int | None = None,
        size: tuple[int, int] | None = None,
        snapshot: bytes | None = None,
        frame_encoding: FrameEncoding | None = None,
        frame_quality: int | None = None,
        fps: float | None = None,
        prompt_embeds: npt.ArrayLike | None = None,
    ) -> AsyncSession:
        """Prepare a session; its first request starts it on the server. Arguments as of `WorldClient.session`.

        Raises:
            InvalidInputError: if an argument cannot be right.
        """
        core = make_core(picture, session_id, seed, translation_scale, fit, size, snapshot)
        defaults = make_defaults(intrinsics, prompt, num_steps, frame_encoding, frame_quality, fps, prompt_embeds)
        return AsyncSession(self._connection, core, defaults)

    def generate(
        self,
        picture: Picture,
        cam_to_world: npt.ArrayLike | None = None,
        actions: str | Sequence[str] | None = None,
        num_chunks: int | None = None,
        prompt: str | None = None,
        seed: int | None = None,
        intrinsics: npt.ArrayLike | None = None,
        translation_scale: float | None = None,
        fit: Fit | None = None,
        num_steps: int | None = None,
        event_id: int | None = None,
        size: tuple[int, int] | None = None,
        fps: float | None = None,
        prompt_embeds: npt.ArrayLike | None = None,
    ) -> AsyncReplies:
        """Make one clip in one request, a session by itself; arguments as in `session` and `Session.generate`.

        An encoded picture goes through `world`, where Triton carries no cancel: whoever stops reading gets no more
        frames, but the server still makes all of them. Use a session for what may have to be stopped.
        """
        controls = make_controls(
            cam_to_world,
            actions,
            num_chunks,
            intrinsics,
            prompt,
            num_steps,
            event_id,
            fps=fps,
            prompt_embeds=prompt_embeds,
        )
        core = SessionCore(None, make_opening(picture, seed, translation_scale, fit, size))
        return AsyncReplies(AsyncSession(self._connection, core, Controls()), controls, is_end=False, is_whole=True)

    async def preprocess(self, images: Sequence[Picture], size: tuple[int, int] | None = None) -> Pictures:
        """Let the server decode pictures; arguments as of `WorldClient.preprocess`.

        Raises:
            InvalidInputError: if a picture or the size cannot be used.
        """
        encoded = await asyncio.to_thread(lambda: [encode_picture(image) for image in images])
        return await self._connection.preprocess(encoded, size)

    async def info(self) -> ServerInfo:
        """Ask the server for its state.

        Raises:
            UnavailableError: if it cannot be reached, or the metrics page cannot be read.
        """
        url, timeout_s = self._metrics_url, self._connection.endpoint.timeout_s
        metadata = await self._connection.call("ServerMetadata", service_pb2.ServerMetadataRequest())
        return ServerInfo(
            is_live=(await self._connection.call("ServerLive", service_pb2.ServerLiveRequest())).live,
            is_ready=(await self._connection.call("ServerReady", service_pb2.ServerReadyRequest())).ready,
            name=metadata.name,
            version=metadata.version,
            models={name: await self._is_model_ready(name) for name in MODELS},
            metrics=None if url is None else await asyncio.to_thread(fetch_metrics, url, timeout_s),
        )

    async def is_ready(self) -> bool:
        """Whether the server can be reached, at the first attempt, and is ready with all three models."""
        try:
            server = await self._connection.call_once("ServerReady", service_pb2.ServerReadyRequest())
            return bool(server.ready) and all([await self._is_model_ready(name) for name in MODELS])
        except UnavailableError:
            return False

    async def chunk_latent_frames(self, default: int = 3) -> int:
        """Latent frames in a chunk of the served model, from the parameters of `denoise`'s configuration."""
        response = await self._connection.call("ModelConfig", service_pb2.ModelConfigRequest(name=DENOISE))
        return chunk_latent_frames_of(response.config, default)

    async def close(self) -> None:
        """Close the connection; what is under way is cancelled."""
        await self._connection.close()

    async def __aenter__(self) -> "AsyncWorldClient":
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None
    ) -> None:
        await self.close()

    async def _is_model_ready(self, name: str) -> bool:
        try:
            return bool((await self._connection.call("ModelReady", service_pb2.ModelReadyRequest(name=name))).ready)
        except UnavailableError:
            raise
        except WorldStreamError:  # older servers answer with an error for a model that they do not have
            return False
