"""Messages of servers and statuses of gRPC become the right exceptions."""

import grpc
import pytest
from worldstream import (
    BusyError,
    CancelledError,
    ConnectionLostError,
    InternalError,
    InvalidInputError,
    ResponseTimeoutError,
    SessionExistsError,
    SessionLimitError,
    SessionNotFoundError,
    TooLargeError,
    TritonError,
    UnavailableError,
    WorldStreamError,
)
from worldstream.endpoint import error_from_status
from worldstream.errors import error_from_message


@pytest.mark.parametrize(
    ("word", "kind"),
    [
        ("INVALID_INPUT", InvalidInputError),
        ("TOO_LARGE", TooLargeError),
        ("SESSION_NOT_FOUND", SessionNotFoundError),
        ("SESSION_EXISTS", SessionExistsError),
        ("SESSION_LIMIT", SessionLimitError),
        ("BUSY", BusyError),
        ("CANCELLED", CancelledError),
        ("UNAVAILABLE", UnavailableError),
        ("INTERNAL", InternalError),
    ],
)
def test_each_code_word_has_its_exception(word, kind):
    error = error_from_message(f"{word}: what was wanted, what came")

    assert type(error) is kind
    assert error.code == word
    assert isinstance(error, WorldStreamError)
    assert str(error) == f"{word}: what was wanted, what came"


def test_words_of_an_ensemble_before_the_code_word_are_left_out():
    error = error_from_message("in ensemble 'world', [StatusCode.X] TOO_LARGE: image 0: 90 MB")

    assert type(error) is TooLargeError
    assert str(error) == "TOO_LARGE: image 0: 90 MB"


@pytest.mark.parametrize(
    "message", ["input 'BUSY_FLAG' is unknown", "NOT_CANCELLED", "busy", "unexpected datatype TYPE_UINT8", ""]
)
def test_a_code_word_counts_only_as_a_whole_word(message):
    assert type(error_from_message(message)) is TritonError


def test_an_internal_error_carries_its_reference():
    error = error_from_message("INTERNAL: the chunk failed; the server's log has it as 9f31c2aa")

    assert isinstance(error, InternalError)
    assert error.reference == "9f31c2aa"


def test_an_internal_error_without_a_reference_has_an_empty_one():
    assert error_from_message("INTERNAL: failed").reference == ""


@pytest.mark.parametrize(
    ("message", "kind"),
    [
        ("Stub process 'denoise_0_0' is not healthy.", UnavailableError),
        ("Request for unknown model: 'denoise' has no available versions", UnavailableError),
        ("[request id: r3] Exceeds maximum queue size", BusyError),
        ("in ensemble 'world', [request id: r3] Exceeds maximum queue size", BusyError),
        ("Request timeout expired", BusyError),
    ],
)
def test_what_triton_says_without_a_code_word_has_its_exception_too(message, kind):
    error = error_from_message(message)

    assert type(error) is kind
    assert str(error) == f"{kind.code}: {message}"


@pytest.mark.parametrize(
    ("code", "details", "kind"),
    [
        (grpc.StatusCode.UNAVAILABLE, "last error: INTERNAL: connection reset", ConnectionLostError),
        (grpc.StatusCode.UNAVAILABLE, "Socket closed", ConnectionLostError),
        # nginx, when the server behind it is killed.
        (
            grpc.StatusCode.UNKNOWN,
            "Stream removed (RST_STREAM (Received RST_STREAM with error code 2))",
            ConnectionLostError,
        ),
        (grpc.StatusCode.INTERNAL, "Received RST_STREAM with error code 2", ConnectionLostError),
        (grpc.StatusCode.UNAVAILABLE, "failed to connect to all addresses; last error: ...", UnavailableError),
        (grpc.StatusCode.UNAVAILABLE, "BUSY: preprocess: 8 wait", BusyError),
        (grpc.StatusCode.UNAVAILABLE, "Exceeds maximum queue size", BusyError),
        (grpc.StatusCode.DEADLINE_EXCEEDED, "Deadline Exceeded", ResponseTimeoutError),
        (grpc.StatusCode.CANCELLED, "Locally cancelled by application!", CancelledError),
        (grpc.StatusCode.INVALID_ARGUMENT, "INVALID_INPUT: image 0: truncated", InvalidInputError),
        (grpc.StatusCode.INVALID_ARGUMENT, "unexpected shape for input 'size'", TritonError),
        (grpc.StatusCode.NOT_FOUND, "", TritonError),
    ],
)
def test_a_grpc_status_has_its_exception(code, details, kind):
    assert type(error_from_status(code, details, "h:1")) is kind
