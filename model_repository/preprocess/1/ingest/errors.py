"""What can be wrong with a client's pictures. Each message names the input, what was wanted and what came."""

# What clients send gets into messages only in pieces of bounded length; this holds should one be forgotten.
MAX_MESSAGE_CHARACTERS = 500


class IngestError(Exception):
    """Base of all refusals; `code` is the word that clients search for in the message."""

    code = "INTERNAL"

    def __str__(self) -> str:
        message = f"{self.code}: {super().__str__()}"
        is_short = len(message) <= MAX_MESSAGE_CHARACTERS
        return message if is_short else message[: MAX_MESSAGE_CHARACTERS - 3] + "..."


class InvalidInputError(IngestError):
    """The input is not one of the accepted forms, or is damaged."""

    code = "INVALID_INPUT"


class TooLargeError(IngestError):
    """The input is over one of the configured limits."""

    code = "TOO_LARGE"
