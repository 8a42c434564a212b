"""The exceptions of this package, and how a server's message becomes one of them.

A Triton stream carries no status code, and an ensemble puts its own words before a model's message. So the server
writes a code word (`INVALID_INPUT`, `BUSY`, ...) into each message, and this module looks for that word. It knows
nothing of gRPC.
"""

import re
from typing import ClassVar


class WorldStreamError(Exception):
    """Anything that this package raises on purpose; `code` is the server's code word, "" where there is none."""

    code: ClassVar[str] = ""


class InvalidInputError(WorldStreamError, ValueError):
    """An input is wrong in type, shape or value; raised by the server, or here before anything is sent."""

    code = "INVALID_INPUT"


class TooLargeError(WorldStreamError):
    """An input is over a limit of the server."""

    code = "TOO_LARGE"


class SessionNotFoundError(WorldStreamError):
    """The session has never begun, has ended or has expired."""

    code = "SESSION_NOT_FOUND"


class SessionExistsError(WorldStreamError):
    """A session with this id is alive already."""

    code = "SESSION_EXISTS"


class SessionLimitError(WorldStreamError):
    """The server has no memory left for one more session."""

    code = "SESSION_LIMIT"


class BusyError(WorldStreamError):
    """Too many requests wait already; try again later."""

    code = "BUSY"


class CancelledError(WorldStreamError):
    """The request was cancelled, by this client or by the end of its session."""

    code = "CANCELLED"


class UnavailableError(WorldStreamError):
    """The server cannot be reached, has gone away, or cannot serve now.

    `frames_received` counts the frames that had come for the request before. Whether the server made more is not known;
    the session's next request goes on where the server stands.
    """

    code = "UNAVAILABLE"

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.frames_received = 0


class ConnectionLostError(UnavailableError):
    """The connection broke while a request was under way; the session may live on until it expires."""


class ResponseTimeoutError(UnavailableError, TimeoutError):
    """No response came for the time allowed; Triton says nothing when a model's process has died."""


class InternalError(WorldStreamError):
    """The server failed; `reference` finds the entry in the server's log ("" where the message had none)."""

    code = "INTERNAL"

    def __init__(self, message: str, reference: str = "") -> None:
        super().__init__(message)
        self.reference = reference


class TritonError(WorldStreamError):
    """A message without a code word: Triton's own refusal of a name, dtype, shape or model."""


class ProtocolError(WorldStreamError):
    """A response breaks the tensor contract: a tensor is missing or misshapen, or frames are out of order."""


class SharedSessionError(WorldStreamError):
    """Another client uses this session, too: it has made chunks that this one did not ask for.

    This client's request is given up; the next one goes on where the session then stands.
    """


_BY_CODE: dict[str, type[WorldStreamError]] = {
    error.code: error
    for error in (
        InvalidInputError,
        TooLargeError,
        SessionNotFoundError,
        SessionExistsError,
        SessionLimitError,
        BusyError,
        CancelledError,
        UnavailableError,
        InternalError,
    )
}
_CODE_WORD = re.compile(r"\b(" + "|".join(_BY_CODE) + r")\b")
_REFERENCE = re.compile(r"\b[0-9a-f]{8,32}\b")
# What Triton itself says without a code word: a model's process that died, a model that is unloaded as the server
# stops, a model's queue that is full or too slow.
_SENTENCES: dict[str, type[WorldStreamError]] = {
    "is not healthy": UnavailableError,
    "has no available versions": UnavailableError,
    "Exceeds maximum queue size": BusyError,
    "Request timeout expired": BusyError,
}


def error_from_message(message: str) -> WorldStreamError:
    """Turn a server's message into the exception that it stands for.

    The exception's text begins at the code word, so that what an ensemble wrote before it is left out.
    """
    found = _CODE_WORD.search(message)
    if found is None:
        return _error_from_sentence(message)
    text = message[found.start() :]
    if found.group() == InternalError.code:
        reference = _REFERENCE.search(text)
        return InternalError(text, reference.group() if reference else "")
    return _BY_CODE[found.group()](text)


def _error_from_sentence(message: str) -> WorldStreamError:
    for sentence, kind in _SENTENCES.items():
        if sentence in message:
            return kind(f"{kind.code}: {message}")
    return TritonError(message)
