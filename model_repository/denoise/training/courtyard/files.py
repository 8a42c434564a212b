"""Files that are whole or not there: what a run leaves behind wherever it is broken off."""

import os
from collections.abc import Callable
from pathlib import Path

from safetensors import SafetensorError


def write_whole(path: Path, write: Callable[[Path], object]) -> None:
    """Replace a file by what `write` writes under another name; a broken write leaves the old one and nothing else.

    Other processes may write the same file: each has a name of its own until it is whole.

    Raises:
        OSError: it cannot be written, as on a full disk.
    """
    unfinished = path.with_suffix(f".{os.getpid()}.part")
    try:
        write(unfinished)
        unfinished.replace(path)
    except (OSError, RuntimeError, SafetensorError) as error:  # torch and safetensors have their own for a full disk
        raise OSError(f"{path}: cannot be written; is there room? ({error})") from error
    finally:
        unfinished.unlink(missing_ok=True)


def damaged(path: Path, what: str) -> OSError:
    """The error of a file that is there and cannot be read: which one, and what to do."""
    return OSError(f"{path}: cannot be read as {what}, it is damaged; remove it, and it is made anew")
