"""What is pressed on a terminal's keyboard, and which keys count as held in a latent frame. Pure.

A terminal tells when a key goes down and repeats it while it is held, but never tells when it goes up.
"""

import codecs
import itertools
import re
from dataclasses import dataclass
from enum import Enum, auto

from worldstream.paths import KEYS

# A press counts for so long: a little more than a latent frame of four frames at 16 frames a second.
_HOLD_S = 0.3
# The pause before a held key repeats is longer than that on most machines; a repeat within it closes the gap.
_REPEAT_S = 0.7
_ESCAPE = re.compile(r"\x1b(?:\[[0-?]*[ -/]*([@-~])|O(.))")
_UNFINISHED_ESCAPE = re.compile(r"\x1b(?:\[[0-?]*[ -/]*|O)?\Z")
_ARROWS = {"A": "i", "B": "k", "C": "l", "D": "j"}
_CURSOR_REPORT = "R"


class Kind(Enum):
    """What a key does."""

    PRESS = auto()  # `text` is the key
    STAND = auto()
    QUIT = auto()
    PROMPT = auto()  # `text` is the new prompt
    SEEN = auto()  # no key: the terminal answers that it has drawn what came before the question


@dataclass(frozen=True)
class KeyEvent:
    """One thing that came from the terminal."""

    kind: Kind
    text: str = ""


class KeyParser:
    """Turns a terminal's bytes into events.

    w a s d, i j k l and the arrows (as i j k l) steer, the space bar stands still, p begins a prompt that Enter ends
    and Escape gives up, q and Ctrl-D quit.
    """

    def __init__(self) -> None:
        self.line: str | None = None  # the prompt as far as it is typed; None while none is
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="ignore")
        self._text = ""  # that may be the beginning of an escape sequence

    def feed(self, data: bytes) -> list[KeyEvent]:
        """Take what was read; b"" says that nothing came for a while, so that a lone Escape is just that."""
        text = self._text + self._decoder.decode(data)
        self._text = ""
        events = []
        while text:
            if data and _UNFINISHED_ESCAPE.match(text):
                self._text = text
                break
            found = _ESCAPE.match(text)
            event = self._escape(found[1] or found[2]) if found else self._character(text[0])
            text = text[found.end() if found else 1 :]
            if event is not None:
                events.append(event)
        return events

    def _escape(self, final: str) -> KeyEvent | None:
        if final == _CURSOR_REPORT:
            return KeyEvent(Kind.SEEN)
        return KeyEvent(Kind.PRESS, _ARROWS[final]) if final in _ARROWS and self.line is None else None

    def _character(self, character: str) -> KeyEvent | None:
        if self.line is not None:
            return self._type(self.line, character)
        key = character.lower()
        if key == "p":
            self.line = ""
        if key in KEYS:
            return KeyEvent(Kind.PRESS, key)
        if key in ("q", "\x04"):
            return KeyEvent(Kind.QUIT)
        return KeyEvent(Kind.STAND) if key == " " else None

    def _type(self, line: str, character: str) -> KeyEvent | None:
        if character in "\r\n\x1b":
            self.line = None
            return KeyEvent(Kind.PROMPT, line.strip()) if character != "\x1b" and line.strip() else None
        if character in "\x7f\b":
            self.line = line[:-1]
        elif character.isprintable():
            self.line = line + character
        return None


@dataclass
class _Hold:
    """One key's being held."""

    key: str
    start_s: float
    end_s: float
    repeats_until_s: float  # a press until then is a repeat


class HeldKeys:
    """Which keys are held when, as far as presses tell."""

    def __init__(self) -> None:
        self._holds: list[_Hold] = []

    def press(self, key: str, at_s: float) -> bool:
        """Take a key's press or repeat; returns whether it was not held before."""
        for hold in self._holds:
            if hold.key == key and at_s <= hold.repeats_until_s:
                hold.end_s, hold.repeats_until_s = at_s + _HOLD_S, at_s + _REPEAT_S
                return False
        self._holds.append(_Hold(key, at_s, at_s + _HOLD_S, at_s + _REPEAT_S))
        return True

    def release_all(self, at_s: float) -> None:
        """Let all keys go."""
        for hold in self._holds:
            hold.end_s = min(hold.end_s, at_s)
            hold.repeats_until_s = at_s

    def actions(self, start_s: float, end_s: float, num: int) -> list[str]:
        """The keys held in each of `num` equal parts of a span of time; what ended before it is forgotten."""
        self._holds = [hold for hold in self._holds if max(hold.end_s, hold.repeats_until_s) > start_s]
        edges = [start_s + (end_s - start_s) * part / num for part in range(num + 1)]
        return [self._held(first, last) for first, last in itertools.pairwise(edges)]

    def _held(self, first_s: float, last_s: float) -> str:
        held = {hold.key for hold in self._holds if hold.start_s < last_s and hold.end_s > first_s}
        return "".join(key for key in KEYS if key in held)
