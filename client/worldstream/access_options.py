"""The options before a subcommand, kept for whichever client it makes: TLS and a key."""

from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path

from worldstream.errors import InvalidInputError


@dataclass(frozen=True)
class AccessOptions:
    """TLS and a key, as the command line names them."""

    tls: bool = False
    tls_ca: Path | None = None
    api_key_file: Path | None = None

    def api_key(self) -> str | None:
        """The key that the file holds.

        Raises:
            InvalidInputError: it holds no text.
            OSError: it cannot be read.
        """
        try:
            return None if self.api_key_file is None else self.api_key_file.read_text(encoding="utf-8").strip()
        except UnicodeDecodeError as error:
            raise InvalidInputError("--api-key-file: wanted a text file that holds the key, got no UTF-8") from error


# Of the command that runs: typer's own way to its context differs between releases.
access_options: ContextVar[AccessOptions] = ContextVar("access_options")
