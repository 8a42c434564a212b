"""Cuts the text of a JSON object into names and the raw text of their values, in order.

The values stay text because pixel lists are checked on it; a dictionary would also hide a name that comes twice.
Whether a list is valid JSON is left to `pixel_lists`.
"""

import json
import re
from collections.abc import Iterator
from typing import NamedTuple

import simdjson

from ingest.errors import InvalidInputError, TooLargeError
from ingest.pixel_lists import refuse_strangers

_SPACE = re.compile(rb"[ \t\r\n]*")
_LITERAL = re.compile(rb"[^\s,{}\[\]\":]+")
_CONTROL = bytes(range(0x20))
_BRACKETS = re.compile(rb"\[[\[ \t\r\n]*")
_CLOSING = b"] \t\r\n"
_MAX_TAIL_BYTES = 64
_MAX_NAME_BYTES = 4096
_MAX_SHOWN_CHARACTERS = 100
# Both parsers take many times the memory of a string with escapes.
_BLOCK_BYTES = 256 * 1024
_LONGEST_ESCAPE = len("\\u0000")


def member_place(place: str, name: str) -> str:
    """Say where a member's value is, with the start of its name, in ASCII."""
    return f"{place}[{_shown(name)}]"


class Member(NamedTuple):
    """A name and the raw text of its value."""

    name: str
    value: bytes


def split_object(text: bytes, place: str, max_depth: int, max_names: int) -> list[Member]:
    """Cut a JSON object, given from its '{' on, into its members.

    Raises:
        InvalidInputError: not valid JSON, or a name twice.
        TooLargeError: objects nested deeper than `max_depth`, or more names than `max_names` on all levels together.
    """
    members, end = _Cutter(text, place, max_depth, max_names).object_at(0, max_depth)
    if _SPACE.fullmatch(text, end) is None:
        raise _invalid(place)
    return members


def parse_base64_string(token: bytes, place: str) -> bytes:
    """Decode a JSON string with its quotes, as `split_object` gives it, that should be base64.

    Base64 may have escapes in it: slashes, line breaks, '=' and '+' are written so by some. What is anything else is
    either given as UTF-8 or refused.

    Raises:
        InvalidInputError: not valid JSON.
    """
    if b"\\" not in token:
        return token[1:-1]
    parser = simdjson.Parser()
    try:
        return b"".join(str(parser.parse(b'"' + part + b'"')).encode() for part in _cut_string(token[1:-1]))
    except ValueError as error:
        raise _invalid(place) from error


def _cut_string(text: bytes) -> Iterator[bytes]:
    """Cut what is between the quotes of a JSON string, but no escape in two."""
    assert _BLOCK_BYTES > _LONGEST_ESCAPE  # else a block could end where it begins
    start = 0
    while start < len(text):
        end = start + _BLOCK_BYTES
        last = text.rfind(b"\\", end - _LONGEST_ESCAPE, end) if end < len(text) else -1
        if last >= 0:
            # A row of backslashes is one of pairs, and at its end maybe another escape.
            num_in_row = last + 1 - start - len(text[start : last + 1].rstrip(b"\\"))
            end = last if num_in_row % 2 else last + 1
        yield text[start:end]
        start = end


def _parse_name(token: bytes, place: str) -> str:
    if len(token) > _MAX_NAME_BYTES:
        raise TooLargeError(f"{place}: wanted names of at most {_MAX_NAME_BYTES} bytes in its JSON, came {len(token)}")
    try:
        name: str = json.loads(token.decode("utf-8"))
        name.encode("utf-8")  # half a surrogate pair is no text
    except ValueError as error:
        raise _invalid(place) from error
    return name


def _shown(name: str) -> str:
    """Quote the start of a name in ASCII: 40 characters, less where they become longer."""
    shown = ascii(name[:40])
    return shown if len(shown) <= _MAX_SHOWN_CHARACTERS else shown[: _MAX_SHOWN_CHARACTERS - 4] + "...'"


class _Cutter:
    """A walk over one text, which ends at one name too many: on all levels, or nesting would multiply them."""

    def __init__(self, text: bytes, place: str, max_depth: int, max_names: int) -> None:
        self._text = text
        # The same with nothing but strings' ends for quotes, as long as backslashes stand in strings alone. Elsewhere
        # they are wrong, and so is whatever value is cut there.
        self._unescaped = text.replace(b"\\\\", b"__").replace(b'\\"', b"__") if b"\\" in text else text
        self._max_depth = max_depth
        self._place = place
        self._max_names = max_names
        self._num_names = 0

    def object_at(self, start: int, max_depth: int) -> tuple[list[Member], int]:
        """Cut the object whose '{' is at `start`; its members, and where it ends."""
        if max_depth < 1:
            raise TooLargeError(f"{self._place}: wanted JSON that is nested less deep, came more levels than the limit")
        members: list[Member] = []
        names: set[str] = set()
        position = self._skip(start + 1)
        if self._text[position : position + 1] == b"}":
            return members, position + 1
        while True:
            name, position = self._name(position)
            if name in names:
                raise InvalidInputError(f"{self._place}: wanted each name once, came {_shown(name)} twice")
            names.add(name)
            value_end = self._value_end(position, member_place(self._place, name), max_depth)
            members.append(Member(name, self._text[position:value_end]))
            position = self._skip(value_end)
            separator = self._text[position : position + 1]
            if separator == b"}":
                return members, position + 1
            if separator != b",":
                raise _invalid(self._place)
            position = self._skip(position + 1)

    def _name(self, position: int) -> tuple[str, int]:
        self._num_names += 1
        if self._num_names > self._max_names:
            raise TooLargeError(f"{self._place}: wanted at most {self._max_names} names in its JSON, came more")
        if self._text[position : position + 1] != b'"':
            raise _invalid(self._place)
        end = self._string_end(position, self._place)
        colon = self._skip(end)
        if self._text[colon : colon + 1] != b":":
            raise _invalid(self._place)
        return _parse_name(self._text[position:end], self._place), self._skip(colon + 1)

    def _value_end(self, start: int, place: str, max_depth: int) -> int:
        first = self._text[start : start + 1]
        if first == b"{":
            return self.object_at(start, max_depth - 1)[1]
        if first == b"[":
            return _list_end(self._text, start, place, self._max_depth)
        if first == b'"':
            return self._string_end(start, place)
        literal = _LITERAL.match(self._text, start)
        if literal is None:
            raise _invalid(place)
        return literal.end()

    def _string_end(self, start: int, place: str) -> int:
        """Find the end of a string at the speed of a search."""
        end = self._unescaped.find(b'"', start + 1)
        if end < 0 or len(self._text[start:end].translate(None, _CONTROL)) != end - start:
            raise _invalid(place)
        return end + 1

    def _skip(self, position: int) -> int:
        space = _SPACE.match(self._text, position)
        return space.end() if space else position


def _list_end(text: bytes, start: int, place: str, max_depth: int) -> int:
    """Find the end of a list of numbers: it holds no quote and no brace, so the next of those comes after it."""
    stop = _next_stop(text, start)
    if stop < 0:
        refuse_strangers(text[start:], place, max_depth)
        raise _invalid(place)
    end = text.rfind(b"]", start, stop) + 1
    # As many brackets close as opened: a regular list, and no need to count those in it. Were it another after all, it
    # would be refused for its shape.
    opening = _BRACKETS.match(text, start)
    num_open = opening.group().count(b"[") if opening else 0
    tail = text[max(start, end - _MAX_TAIL_BYTES) : end]
    num_closed = tail[len(tail.rstrip(_CLOSING)) :].count(b"]")
    if num_closed != num_open and text.count(b"[", start, stop) > text.count(b"]", start, stop):
        refuse_strangers(text[start : stop + 1], place, max_depth)
        raise _invalid(place)
    return end


def _next_stop(text: bytes, start: int) -> int:
    """Find the next quote or brace; -1 if there is none."""
    stop = len(text)
    for mark in (b'"', b"{", b"}"):
        found = text.find(mark, start, stop)
        stop = found if found >= 0 else stop
    return stop if stop < len(text) else -1


def _invalid(place: str) -> InvalidInputError:
    return InvalidInputError(f"{place}: wanted valid JSON (UTF-8), came text that is not")
