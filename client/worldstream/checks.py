"""What a client may pass, one value at a time: returned as it is sent, or refused. Pure; knows nothing of requests.

T is the number of latent frames asked for. Each check raises InvalidInputError, which names the input, what was wanted
and what came.
"""

import reprlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from worldstream.arrays import as_numbers
from worldstream.errors import InvalidInputError
from worldstream.paths import actions_from_text

Float32: TypeAlias = npt.NDArray[np.float32]
Parameters: TypeAlias = tuple[tuple[str, bool | int | float | str], ...]

INT32_MAX = 2**31 - 1
INT64_MAX = 2**63 - 1
MAX_FPS = 1000
_FLOAT32 = np.finfo(np.float32)


def checked_poses(values: npt.ArrayLike) -> Float32:
    """As float32 [T, 4, 4]."""
    array = as_numbers("cam_to_world", values, np.float32)
    if array.ndim != 3 or array.shape[0] == 0 or array.shape[1:] != (4, 4):
        raise InvalidInputError(f"cam_to_world: wanted [T, 4, 4] with T of 1 or more, got {list(array.shape)}")
    return array


def checked_intrinsics(values: npt.ArrayLike) -> Float32:
    """As float32 [1 or T, 4]."""
    array = np.atleast_2d(as_numbers("intrinsics", values, np.float32))
    if array.ndim != 2 or array.shape[0] == 0 or array.shape[1] != 4:
        raise InvalidInputError(f"intrinsics: wanted [4], [1, 4] or [T, 4], got {list(array.shape)}")
    return array


def checked_embeds(values: npt.ArrayLike) -> Float32:
    """As float32 [n, d]."""
    array = as_numbers("prompt_embeds", values, np.float32)
    if array.ndim != 2 or array.shape[1] == 0:
        raise InvalidInputError(f"prompt_embeds: wanted [n, d], a row a token, got {list(array.shape)}")
    if not np.isfinite(array).all():
        raise InvalidInputError("prompt_embeds: wanted finite numbers, got some that are not")
    return array


def checked_actions(actions: str | Sequence[str]) -> tuple[str, ...]:
    """One entry a latent frame."""
    if isinstance(actions, str):
        return tuple(actions_from_text(actions))
    if not isinstance(actions, Iterable):
        raise InvalidInputError(f"actions: wanted text or a sequence of texts, got {type(actions).__name__}")
    return tuple(checked_text("actions", keys) for keys in actions)


def checked_text(name: str, value: str) -> str:
    """Text that UTF-8 can carry."""
    if not isinstance(value, str):
        raise InvalidInputError(f"{name}: wanted text, got {type(value).__name__}")
    try:
        value.encode()
    except UnicodeEncodeError as error:  # half a surrogate pair, or bytes of a command line that are no UTF-8
        raise InvalidInputError(f"{name}: wanted text that UTF-8 can carry") from error
    return value


def checked_integer(name: str, value: int, least: int, most: int) -> int:
    """A whole number in its range, NumPy's too; no bool, and no float, which a cast would cut without a word."""
    if isinstance(value, bool) or not isinstance(value, (int, np.integer)):
        raise InvalidInputError(f"{name}: wanted an integer, got {reprlib.repr(value)}")
    if value < least:
        raise InvalidInputError(f"{name}: wanted {least} or more, got {value}")
    if value > most:
        raise InvalidInputError(f"{name}: wanted {most} or less, got {value}")
    return int(value)


def optional_integer(name: str, value: int | None, least: int, most: int) -> int | None:
    """As `checked_integer`, where the value may be absent."""
    return None if value is None else checked_integer(name, value, least, most)


def checked_flag(name: str, value: bool) -> bool:
    """True or False, NumPy's too."""
    if not isinstance(value, (bool, np.bool_)):
        raise InvalidInputError(f"{name}: wanted True or False, got {reprlib.repr(value)}")
    return bool(value)


def checked_parameters(parameters: Mapping[str, bool | int | float | str] | None) -> Parameters:
    """As pairs of name and value; which names and values there are is the server's to say."""
    for name, value in (parameters or {}).items():
        _checked_printable(name)
        if type(value) not in (bool, int, float, str):
            raise InvalidInputError(
                f"parameters: {name!r}: wanted a bool, an int, a float or a str, got {reprlib.repr(value)}"
            )
        if isinstance(value, str):
            _checked_printable(value)
        if isinstance(value, int):
            checked_integer(f"parameters: {name!r}", int(value), -INT64_MAX - 1, INT64_MAX)
    return tuple((parameters or {}).items())


def _checked_printable(text: str) -> None:
    """Refuse control characters: the server reads a parameter only up to a NUL, and would take "webp\\0" for "webp"."""
    if any(ord(character) < 32 or ord(character) == 127 for character in checked_text("parameters", text)):
        raise InvalidInputError(f"parameters: wanted text without control characters, got {reprlib.repr(text)}")


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float, np.integer, np.floating)) and not isinstance(value, bool)


def checked_scale(value: float) -> float:
    """Units of the client's poses in one of the model's."""
    if not _is_number(value) or not _FLOAT32.tiny <= value <= _FLOAT32.max:
        raise InvalidInputError(f"translation_scale: wanted a number over 0, got {reprlib.repr(value)}")
    return float(value)


def checked_fps(value: float) -> float:
    """Frames a second."""
    if not _is_number(value) or not 1 <= value <= MAX_FPS:  # NaN fails too
        raise InvalidInputError(f"fps: wanted a number from 1 to {MAX_FPS}, got {reprlib.repr(value)}")
    return float(value)


def checked_size(size: Sequence[int]) -> tuple[int, int]:
    """Height and width in pixels."""
    try:
        height_px, width_px = size
    except (TypeError, ValueError):
        raise InvalidInputError(f"size: wanted height and width, got {reprlib.repr(size)}") from None
    return checked_integer("size", height_px, 1, INT32_MAX), checked_integer("size", width_px, 1, INT32_MAX)
