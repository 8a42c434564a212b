"""Keys from a text instead of a keyboard, one entry a latent frame; reads no more of it than a chunk needs.

"w" and "[wl]" press keys, "." and a space stand still, "q" quits, "p" and the rest of its line are a new prompt; line
ends mean nothing else.
"""

import time
from collections.abc import Callable
from typing import TextIO

from worldstream.errors import InvalidInputError
from worldstream.paths import STAND, checked_keys
from worldstream.play.hands import Sample


class KeyScript:
    """Gives a text's keys, chunk by chunk."""

    def __init__(self, text: TextIO) -> None:
        self.has_quit = False  # an end of the text is none: its last frames are still to be seen
        self._text = text
        self._has_ended = False
        self._num_entries = 0

    def sample(self, num_latent_frames: int, due_s: float) -> Sample | None:
        """As `Hands.sample`; the last chunk is filled up by standing still.

        Raises:
            InvalidInputError: naming the first key that does not exist.
        """
        time.sleep(max(0.0, due_s - time.monotonic()))
        actions: list[str] = []
        prompt = None
        while len(actions) < num_latent_frames and not self._has_ended:
            character = self._read(self._text.read, 1)
            if character in ("", "q"):
                self._has_ended = True
            elif character == "p":
                prompt = self._read(self._text.readline).strip() or prompt
            elif character not in "\r\n":
                actions.append(checked_keys(self._num_entries, self._entry(character)))
                self._num_entries += 1
        if not actions:
            return None
        return Sample([*actions, *[""] * (num_latent_frames - len(actions))], prompt)

    def _entry(self, character: str) -> str:
        if character == " ":
            return STAND
        if character != "[":
            return character
        entry = ""
        while (more := self._read(self._text.read, 1)) != "]":
            if not more:
                raise InvalidInputError(f"actions: frame {self._num_entries}: '[' has no ']' after it")
            entry += more
        return entry

    def _read(self, read: Callable[..., str], *arguments: int) -> str:
        try:
            return read(*arguments)
        except UnicodeDecodeError as error:
            raise InvalidInputError("keys: wanted text in UTF-8") from error
