"""Cuts the text of a JSON object into names and the raw text of their values, in order.

The values stay text because pixel lists are checked on it; a dictionary would also hide a name that comes twice.
Whether a list is valid JSON is left to `pixel_lists`.
"""

import json
import re
from typing import NamedTuple

from ingest.errors import InvalidInputError, TooLargeError
from ingest.pixel_lists import refuse_strangers

_SPACE = re.compile(rb"[ \t\r\n]*")
_STRING = re.compile(rb'"[^"\\\x00-\x1f]*(?:\\.[^"\\\x00-\x1f]*)*"')
_LITERAL = re.compile(rb"[^\s,{}\[\]\":]+")
_CONTROL = bytes(range(0x20))
_BRACKETS = re.compile(rb"\[[\[ \t\r\n]*")
_CLOSING = b"] \t\r\n"
_MAX_TAIL_BYTES = 64


def member_place(place: str, name: str) -> str:
    """Say where a member's value is, with at most 40 characters of its name, in ASCII."""
    return f"{place}[{name[:40]!a}]"


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
    members, end = _Cutter(text, place, max_names).object_at(0, max_depth)
    if _SPACE.fullmatch(text, end) is None:
        raise _invalid(place)
    return members


def parse_string(token: bytes, place: str) -> str:
    """Decode a JSON string with its quotes, as `split_object` gives it: without control characters."""
    try:
        if b"\\" not in token:
            return token[1:-1].decode("utf-8")
        decoded: str = json.loads(token.decode("utf-8"))
        decoded.encode("utf-8")  # half a surrogate pair is no text
    except ValueError as error:
        raise _invalid(place) from error
    return decoded


class _Cutter:
    """A walk over one text, which ends at one name too many: on all levels, or nesting would multiply them."""

    def __init__(self, text: bytes, place: str, max_names: int) -> None:
        self._text = text
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
                raise InvalidInputError(f"{self._place}: wanted each name once, came {name[:40]!a} twice")
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
        token = _STRING.match(self._text, position)
        if token is None:
            raise _invalid(self._place)
        colon = self._skip(token.end())
        if self._text[colon : colon + 1] != b":":
            raise _invalid(self._place)
        return parse_string(token.group(), self._place), self._skip(colon + 1)

    def _value_end(self, start: int, place: str, max_depth: int) -> int:
        first = self._text[start : start + 1]
        if first == b"{":
            return self.object_at(start, max_depth - 1)[1]
        if first == b"[":
            return _list_end(self._text, start, place)
        if first == b'"':
            return _string_end(self._text, start, place)
        literal = _LITERAL.match(self._text, start)
        if literal is None:
            raise _invalid(place)
        return literal.end()

    def _skip(self, position: int) -> int:
        space = _SPACE.match(self._text, position)
        return space.end() if space else position


def _string_end(text: bytes, start: int, place: str) -> int:
    """Find the end of a string, at the speed of a search for those without escapes: base64 is long and has none."""
    end = text.find(b'"', start + 1)
    if end >= 0 and text.find(b"\\", start, end) < 0 and len(text[start:end].translate(None, _CONTROL)) == end - start:
        return end + 1
    token = _STRING.match(text, start)
    if token is None:
        raise _invalid(place)
    return token.end()


def _list_end(text: bytes, start: int, place: str) -> int:
    """Find the end of a list of numbers: it holds no quote and no brace, so the next of those comes after it."""
    stop = _next_stop(text, start)
    if stop < 0:
        raise _invalid(place)
    end = text.rfind(b"]", start, stop) + 1
    # As many brackets close as opened: a regular list, and no need to count those in it. Were it another after all, it
    # would be refused for its shape.
    opening = _BRACKETS.match(text, start)
    num_open = opening.group().count(b"[") if opening else 0
    tail = text[max(start, end - _MAX_TAIL_BYTES) : end]
    num_closed = tail[len(tail.rstrip(_CLOSING)) :].count(b"]")
    if num_closed != num_open and text.count(b"[", start, stop) > text.count(b"]", start, stop):
        refuse_strangers(text[start : stop + 1], place)
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
