"""Base64 text to bytes, strictly: what would have to be guessed is refused by name.

Accepted: the standard or the url-safe alphabet (not both), padded or not, wrapped over lines, with or without a
`data:image/...;base64,` prefix in any case. Never fetched: URLs and file paths are told apart only to say so.
"""

import re

import pybase64

from ingest.errors import InvalidInputError

_ALPHABET = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/-_"
_WHITESPACE = b" \t\r\n\v\f"
_TO_STANDARD = bytes.maketrans(b"-_", b"+/")
_DATA_URI = re.compile(rb"data:image/[\w.+-]+(?:;[\w.+-]+=[\w.+-]+)*;base64,", re.IGNORECASE)
_MAX_PREFIX_BYTES = 1024  # matching takes many times their memory
_URL = re.compile(rb"[a-z][a-z0-9+.-]*:/", re.IGNORECASE)
_DRIVE = re.compile(rb"[a-z]:\\", re.IGNORECASE)
# Indentation beside a line break is wrapping. A space between two characters is what a form makes of '+'.
_INNER_SPACE = re.compile(rb"[^\r\n ] +[^\r\n ]")


def decode_base64(text: bytes, place: str) -> bytes:
    """Decode base64 text or a base64 data URI.

    Raises:
        InvalidInputError: naming what is wrong with the text.
    """
    body = _without_prefix(text.strip(_WHITESPACE), place)
    if not body:
        raise InvalidInputError(f"{place}: wanted base64, came empty text")
    try:
        return pybase64.b64decode(body, validate=True)  # checks every character, ten times faster than we could
    except ValueError:
        return _decode_otherwise(body, place)


def _decode_otherwise(body: bytes, place: str) -> bytes:
    """Decode what is unpadded, wrapped or url-safe, or say what is wrong with it."""
    is_plausible = not body.translate(None, _ALPHABET + b"=" + _WHITESPACE)
    if is_plausible and b" " in body and _INNER_SPACE.search(body):
        raise InvalidInputError(
            f"{place}: wanted base64, came a space inside it, as when '+' is turned to space; "
            "escape '+' as %2B or use the url-safe alphabet"
        )
    body = body.translate(None, _WHITESPACE)
    _check_characters(body, place)
    return pybase64.b64decode(_padded(body, place).translate(_TO_STANDARD), validate=True)


def _without_prefix(text: bytes, place: str) -> bytes:
    if text[:5].lower() == b"data:":
        prefix = _DATA_URI.match(text, 0, _MAX_PREFIX_BYTES)
        if prefix is None:
            raise InvalidInputError(
                f"{place}: wanted a data URI that starts 'data:image/...;base64,', came another one"
            )
        return text[prefix.end() :]
    if _DRIVE.match(text):
        raise InvalidInputError(f"{place}: wanted a picture, came what looks like a file path; paths are never opened")
    if _URL.match(text):
        raise InvalidInputError(f"{place}: wanted a picture, came a URL; URLs are never fetched")
    return text


def _check_characters(body: bytes, place: str) -> None:
    strange = body.translate(None, _ALPHABET + b"=")
    if strange:
        hint = "; a file path is never opened" if strange[:1] in b".\\~" else ""
        raise InvalidInputError(
            f"{place}: wanted PNG, JPEG or WebP bytes, base64 of them or JSON, "
            f"came text with the byte 0x{strange[0]:02x} at character {body.index(strange[:1])}{hint}"
        )
    if (b"+" in body or b"/" in body) and (b"-" in body or b"_" in body):
        raise InvalidInputError(
            f"{place}: wanted one base64 alphabet, came both standard ('+', '/') and url-safe ('-', '_')"
        )


def _padded(body: bytes, place: str) -> bytes:
    bare = body.rstrip(b"=")
    num_padding = len(body) - len(bare)
    if b"=" in bare:
        raise InvalidInputError(f"{place}: wanted base64 with '=' only at its end, came '=' inside it")
    if len(bare) % 4 == 1:
        raise InvalidInputError(
            f"{place}: wanted whole base64, came {len(bare)} characters, a length that base64 cannot have"
        )
    wanted_padding = -len(bare) % 4
    if num_padding not in (0, wanted_padding):
        raise InvalidInputError(
            f"{place}: wanted no '=' or {wanted_padding} at the end of the base64, came {num_padding}"
        )
    return bare + b"=" * wanted_padding
