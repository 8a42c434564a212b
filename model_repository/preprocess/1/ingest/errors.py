"""What can be wrong with a client's pictures. Each message names the input, what was wanted and what came."""


class IngestError(Exception):
    """Base of all refusals; `code` is the word that clients search for in the message."""

    code = "INTERNAL"

    def __str__(self) -> str:
        return f"{self.code}: {super().__str__()}"


class InvalidInputError(IngestError):
    """The input is not one of the accepted forms, or is damaged."""

    code = "INVALID_INPUT"


class TooLargeError(IngestError):
    """The input is over one of the configured limits."""

    code = "TOO_LARGE"
