"""Client of a Triton model repository that streams camera-steered video worlds.

    from worldstream import WorldClient, paths, video

    with WorldClient() as client, client.session("street.png", seed=7) as session:
        frames = (frame.pixels for frame in session.frames(cam_to_world=paths.walk(12)))
        video.write_mp4(frames, "walk.mp4")

`aio` has the same for asyncio, `errors` the exceptions, `paths` makes and reads camera paths, `conventions` converts
other programs' poses, `video` writes files (it loads PyAV, so it is not imported here).
"""

from worldstream.batch import Batch, Frame, Receipt, Timings
from worldstream.client import WorldClient
from worldstream.errors import (
    BusyError,
    CancelledError,
    ConnectionLostError,
    InternalError,
    InvalidInputError,
    ProtocolError,
    ResponseTimeoutError,
    SessionExistsError,
    SessionLimitError,
    SessionNotFoundError,
    SharedSessionError,
    TooLargeError,
    TritonError,
    UnavailableError,
    WorldStreamError,
)
from worldstream.info import ServerInfo
from worldstream.responses import Pictures
from worldstream.session import Replies, Session

__version__ = "0.1.0"

__all__ = [
    "Batch",
    "BusyError",
    "CancelledError",
    "ConnectionLostError",
    "Frame",
    "InternalError",
    "InvalidInputError",
    "Pictures",
    "ProtocolError",
    "Receipt",
    "Replies",
    "ResponseTimeoutError",
    "ServerInfo",
    "Session",
    "SessionExistsError",
    "SessionLimitError",
    "SessionNotFoundError",
    "SharedSessionError",
    "Timings",
    "TooLargeError",
    "TritonError",
    "UnavailableError",
    "WorldClient",
    "WorldStreamError",
    "__version__",
]
