"""One element of `image`: which form it is, told by its first bytes, and the pictures it holds."""

from collections.abc import Callable
from typing import NamedTuple

from ingest.colour import Pixels
from ingest.errors import InvalidInputError, TooLargeError
from ingest.json_object import Member, member_place, parse_base64_string, split_object
from ingest.limits import Limits
from ingest.pictures import decode_base64_picture, decode_picture, is_picture, other_format
from ingest.pixel_lists import read_pixel_list

_SPACES = b" \t\r\n"
_BASE64_NAMES = ("b64_json", "base64")
_NAMES_PER_PICTURE = 2  # a camera may be an object with one of those in it


class Source(NamedTuple):
    """A picture that is still to be decoded; `place` is what messages call it, `camera_name` is "" outside cameras."""

    place: str
    camera_name: str
    content: bytes
    decode: Callable[[bytes, str, Limits], Pixels]

    def is_file(self) -> bool:
        """Say whether it is a picture file: its decoders leave Python to other threads, the one of lists does not."""
        return self.decode is not read_pixel_list


def find_sources(element: bytes, place: str, limits: Limits) -> list[Source]:
    """Tell what an element is and list its pictures in order, without decoding any.

    Raises:
        InvalidInputError: in none of the accepted forms.
        TooLargeError: more bytes, JSON levels or names than the limits.
    """
    if len(element) > limits.max_bytes_per_element:
        raise TooLargeError(f"{place}: wanted at most {limits.max_bytes_per_element} bytes, came {len(element)}")
    if is_picture(element):
        return [Source(place, "", element, decode_picture)]
    text = element.strip(_SPACES)
    if not text:
        raise InvalidInputError(f"{place}: wanted a picture, came an empty element")
    if text.startswith(b"{"):
        return _from_object(text, place, limits)
    if text.startswith(b"["):
        return [Source(place, "", text, read_pixel_list)]
    _refuse_known(text, place)
    return [Source(place, "", text, decode_base64_picture)]


def _refuse_known(text: bytes, place: str) -> None:
    """Refuse by name what is certainly not base64."""
    if text.startswith(b'"'):
        raise InvalidInputError(f"{place}: wanted base64 without quotes, or a JSON list or object, came a JSON string")
    name = other_format(text)
    if name:
        raise InvalidInputError(f"{place}: wanted PNG, JPEG or WebP, came {name}")


def _from_object(text: bytes, place: str, limits: Limits) -> list[Source]:
    members = split_object(text, place, limits.max_json_depth, _max_names(limits))
    if any(member.name in _BASE64_NAMES for member in members):
        return [_from_base64_object(members, "", place)]
    if not members:
        raise InvalidInputError(f"{place}: wanted at least one camera, came an empty object")
    return [_from_camera(member, place, limits) for member in members]


def _max_names(limits: Limits) -> int:
    return _NAMES_PER_PICTURE * limits.max_pictures_per_request


def _from_base64_object(members: list[Member], camera_name: str, place: str) -> Source:
    if len(members) != 1:
        raise InvalidInputError(
            f"{place}: wanted 'b64_json' or 'base64' alone in its object, came {len(members)} names"
        )
    if not members[0].value.startswith(b'"'):
        raise InvalidInputError(f"{place}: {members[0].name!r}: wanted a base64 string, came {_kind(members[0].value)}")
    return _from_string(members[0].value, camera_name, place)


def _from_camera(camera: Member, place: str, limits: Limits) -> Source:
    if not camera.name:
        raise InvalidInputError(f"{place}: wanted a name for each camera, came an empty one")
    place = member_place(place, camera.name)
    if camera.value.startswith(b"["):
        return Source(place, camera.name, camera.value, read_pixel_list)
    if camera.value.startswith(b'"'):
        return _from_string(camera.value, camera.name, place)
    if camera.value.startswith(b"{"):
        members = split_object(camera.value, place, limits.max_json_depth - 1, _max_names(limits))
        if any(member.name in _BASE64_NAMES for member in members):
            return _from_base64_object(members, camera.name, place)
    raise InvalidInputError(
        f"{place}: wanted a base64 string, a pixel list or {{'b64_json': ...}}, came {_kind(camera.value)}"
    )


def _from_string(token: bytes, camera_name: str, place: str) -> Source:
    return Source(place, camera_name, parse_base64_string(token, place), decode_base64_picture)


def _kind(value: bytes) -> str:
    kinds = {b"{": "an object without them", b"[": "a list", b"t": "a boolean", b"f": "a boolean", b"n": "null"}
    return kinds.get(value[:1], "a number" if value[:1] in b"-0123456789" else "something else")
