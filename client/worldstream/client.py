"""The way to a server: sessions, single requests, decoding pictures, and what the server says of itself. Blocking."""

from collections.abc import Iterator, Sequence
from os import PathLike
from types import TracebackType

import numpy.typing as npt
from tritonclient.grpc import service_pb2

from worldstream.access import make_access
from worldstream.batch import Batch
from worldstream.connection import Connection
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
from worldstream.session import Session


class WorldClient:
    """A connection to one server; any number of sessions share it.

    with WorldClient("127.0.0.1:8001") as client, client.session("street.png", seed=7) as session:
        for batch in session.generate(actions="wwwwll"):
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
        """Prepare a connection; nothing is sent yet.

        Args:
            url: HOST:PORT of the server's gRPC endpoint, without http://.
            timeout_s: the longest silence between two responses of a stream, and the longest single call; at most 1e9.
            metrics_url: the server's metrics page, read by `info` only.
            reconnect_s: for so long a server that cannot be reached is tried again, with pauses that grow: by what may
                be repeated (`info`, `preprocess`, `chunk_latent_frames`, and a stream that is to be opened). A request
                for frames is never repeated. 0 tries once; at most 1e9.
            tls: whether the server speaks TLS, with a certificate by one of the authorities that gRPC comes with.
            tls_ca: a file of certificates (PEM) to trust in place of those; implies `tls`.
            api_key: what the server wants to see, where it was started with a key.

        Raises:
            InvalidInputError: if an argument cannot be right.
        """
        self._connection = Connection(Endpoint(url, timeout_s, reconnect_s, make_access(tls, tls_ca, api_key)))
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
    ) -> Session:
        """Prepare a session; its first `generate` starts it on the server. Each of its requests can be cancelled.

        Args:
            picture: what the world starts from: a path or encoded bytes, which the server decodes to pixels in a call
                of its own, or uint8 [H, W, 3] pixels or a PIL image, which are sent as they are. None goes on with the
                live session `session_id`.
            prompt: words for the world.
            seed: equal inputs with equal seeds give equal frames; default 0.
            session_id: a string or a positive integer; default a random one.
            intrinsics: [4]; fx, fy, cx, cy in pixels of the picture, for all requests without their own.
            translation_scale: units of your poses in one unit of the model.
            fit: how the picture is brought to the model's size: "crop" (default) or "stretch".
            num_steps: denoising steps, for all requests without their own.
            size: height, width of the frames, one that the server serves; default its usual one.
            snapshot: what `Session.snapshot` returned, in place of a picture: the session goes on from there, under its
                old id or another. It has its own seed, scale, fit and size; a prompt beside it is switched to.
            frame_encoding: how frames travel: "raw" (default) or "png", both lossless, or "jpeg" or "webp". Files are
                in `Batch.encoded`; `Batch.frames` decodes them when it is asked for.
            frame_quality: 1 to 100, of jpeg and webp; default 90.
            fps: 1 to 1000; no chunk begins before the last one has been watched at this rate, so that the world never
                runs ahead of who steers it. A chunk must take less than `timeout_s` to watch. Default: as fast as it
                goes.
            prompt_embeds: [n, d], the token vectors of a prompt, in its place, for servers without a text encoder.

        Raises:
            InvalidInputError: if an argument cannot be right.
        """
        core = make_core(picture, session_id, seed, translation_scale, fit, size, snapshot)
        defaults = make_defaults(intrinsics, prompt, num_steps, frame_encoding, frame_quality, fps, prompt_embeds)
        return Session(self._connection, core, defaults)

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
    ) -> Iterator[Batch]:
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
        session = Session(self._connection, core, Controls())
        return _until_done(session, session.ask(controls))

    def preprocess(self, images: Sequence[Picture], size: tuple[int, int] | None = None) -> Pictures:
        """Let the server decode pictures.

        Args:
            images: each as in `session`; bytes may be in any form that the server's `image` takes, such as a JSON
                pixel list.
            size: height, width to fit every picture to; needed when they differ in size.

        Raises:
            InvalidInputError: if a picture or the size cannot be used.
        """
        return self._connection.preprocess([encode_picture(image) for image in images], size)

    def info(self) -> ServerInfo:
        """Ask the server for its state.

        Raises:
            UnavailableError: if it cannot be reached, or the metrics page cannot be read.
        """
        timeout_s = self._connection.endpoint.timeout_s
        metadata = self._connection.call("ServerMetadata", service_pb2.ServerMetadataRequest())
        return ServerInfo(
            is_live=self._connection.call("ServerLive", service_pb2.ServerLiveRequest()).live,
            is_ready=self._connection.call("ServerReady", service_pb2.ServerReadyRequest()).ready,
            name=metadata.name,
            version=metadata.version,
            models={name: self._is_model_ready(name) for name in MODELS},
            metrics=None if self._metrics_url is None else fetch_metrics(self._metrics_url, timeout_s),
        )

    def is_ready(self) -> bool:
        """Whether the server can be reached, at the first attempt, and is ready with all three models."""
        try:
            server = self._connection.call_once("ServerReady", service_pb2.ServerReadyRequest())
            return bool(server.ready) and all(self._is_model_ready(name) for name in MODELS)
        except UnavailableError:
            return False

    def chunk_latent_frames(self, default: int = 3) -> int:
        """Latent frames in a chunk of the served model, from the parameters of `denoise`'s configuration."""
        response = self._connection.call("ModelConfig", service_pb2.ModelConfigRequest(name=DENOISE))
        return chunk_latent_frames_of(response.config, default)

    def close(self) -> None:
        """Close the connection; what is under way is cancelled."""
        self._connection.close()

    def __enter__(self) -> "WorldClient":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.close()

    def _is_model_ready(self, name: str) -> bool:
        try:
            return bool(self._connection.call("ModelReady", service_pb2.ModelReadyRequest(name=name)).ready)
        except UnavailableError:
            raise
        except WorldStreamError:  # older servers answer with an error for a model that they do not have
            return False


def _until_done(session: Session, batches: Iterator[Batch]) -> Iterator[Batch]:
    try:
        yield from batches
    finally:
        session.close()
