"""What can go wrong, each with the code word that a client searches for. Knows nothing of Triton's codes."""

from __future__ import annotations

import logging
import secrets

SHOWN = 60  # characters of somebody's own text in a message


class WorldError(Exception):
    """A refusal or failure that the client may read: names the input, what was wanted and what came."""

    code = "INTERNAL"


class InvalidInputError(WorldError):
    """The request says something that cannot be meant."""

    code = "INVALID_INPUT"


class TooLargeError(WorldError):
    """The request is understood, but passes a configured limit."""

    code = "TOO_LARGE"


class SessionNotFoundError(WorldError):
    """No session has this id (never started, ended, or expired)."""

    code = "SESSION_NOT_FOUND"


class SessionExistsError(WorldError):
    """A session with this id is live already."""

    code = "SESSION_EXISTS"


class SessionLimitError(WorldError):
    """The session's state would pass the byte budget."""

    code = "SESSION_LIMIT"


class BusyError(WorldError):
    """Too many requests wait already."""

    code = "BUSY"


class CancelledError(WorldError):
    """The client cancelled, or ended the session while this request ran."""

    code = "CANCELLED"


class UnavailableError(WorldError):
    """The engine is shutting down or has failed."""

    code = "UNAVAILABLE"


class InternalError(WorldError):
    """Our own fault; the message carries a reference into the log and nothing else."""


def internal_error(what: str) -> InternalError:
    """Log the exception that is being handled, under a random reference; the error carries only that."""
    reference = secrets.token_hex(4)
    logging.getLogger("worldstream").exception("INTERNAL %s: %s", reference, what)
    return InternalError(f"{what}; the server's log has it as {reference}")


def shown(value: object) -> str:
    """Somebody's own words in a message: short, and in ASCII."""
    text = ascii(value)
    return text if len(text) <= SHOWN else f"{text[:SHOWN]}... ({len(text)} characters)"
