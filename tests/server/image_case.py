"""One row of the table of image cases: what is sent, and the pixels or the refusal that must come back.

N, H, W: pictures, height, width.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

Array = NDArray[Any]


@dataclass(frozen=True)
class Case:
    """`elements` and `size` are sent; `pixels` come back, or a refusal that has all of `words` in it."""

    name: str
    elements: tuple[bytes, ...]
    size: tuple[int, int] | None = None
    pixels: NDArray[np.uint8] | None = None  # [N, H, W, 3]
    tolerance: int = 0  # gray values; only where a format itself loses some
    camera_names: tuple[str, ...] = ()
    words: tuple[str, ...] = ()


def gives(
    name: str,
    *elements: bytes | str,
    pixels: ArrayLike,
    size: tuple[int, int] | None = None,
    tolerance: int = 0,
    cameras: Sequence[str] | None = None,
) -> Case:
    """A case that must give these pixels.

    Args:
        pixels: [N, H, W, 3], or [H, W, 3] of the only picture.
        cameras: their names; default: none has one.
    """
    wanted = np.asarray(pixels)
    wanted = wanted[None] if wanted.ndim == 3 else wanted
    assert wanted.ndim == 4
    assert wanted.min() >= 0
    assert wanted.max() <= 255
    names = tuple(cameras) if cameras is not None else ("",) * len(wanted)
    return Case(name, as_bytes(elements), size, wanted.astype(np.uint8), tolerance, names)


def refused(
    name: str,
    *elements: bytes | str,
    words: Sequence[str],
    code: str = "INVALID_INPUT",
    size: tuple[int, int] | None = None,
) -> Case:
    """A case that must be refused with this code, by a message that has all of these words."""
    return Case(name, as_bytes(elements), size, words=(f"{code}: ", *words))


def as_bytes(elements: Sequence[bytes | str]) -> tuple[bytes, ...]:
    return tuple(element.encode() if isinstance(element, str) else element for element in elements)


def gray(values: ArrayLike) -> NDArray[np.int64]:
    """[H, W] -> [H, W, 3]."""
    return np.repeat(np.asarray(values)[:, :, None], 3, axis=2)


def half_up(numerator: int, denominator: int) -> int:
    """The fraction, rounded to the nearest whole number, halves up; exact."""
    return (2 * numerator + denominator) // (2 * denominator)
