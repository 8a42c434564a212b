"""From samples as a file stores them to the one thing that leaves this package: UINT8 RGB, upright.

H, W are a picture's height and width, C its channels: 1 gray, 2 gray + alpha, 3 RGB, 4 RGBA. Colour profiles and
gamma are not applied: a sample is what the file says it is.
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Pixels = NDArray[np.uint8]
Samples = NDArray[np.uint8] | NDArray[np.uint16]

_BLOCK_PIXELS = 16 * 1024


class Picture(NamedTuple):
    """A decoded file before the colour policy: `samples` UINT8 [H, W, C]; `orientation` is EXIF's, 1 to 8."""

    samples: Pixels
    orientation: int = 1


def scale_to_8_bits(samples: Samples, max_value: int) -> Pixels:
    """Map 0..max_value onto 0..255: value * 255 / max_value, rounded half up; never clipped, never shifted."""
    if max_value == 255:
        return samples.astype(np.uint8, copy=False)

    def scale(some: Samples) -> Pixels:
        return ((some.astype(np.uint32) * 510 + max_value) // (2 * max_value)).astype(np.uint8)

    return _by_rows(scale, samples, samples.shape[2])


def to_rgb(samples: Pixels) -> Pixels:
    """Widen gray and lay what is transparent on black: UINT8 [H, W, C] -> UINT8 [H, W, 3]."""
    num_channels = samples.shape[2]
    if num_channels in (2, 4):
        samples = _by_rows(_on_black, samples, num_channels - 1)
    if num_channels in (1, 2):
        samples = np.repeat(samples, 3, axis=2)
    return np.ascontiguousarray(samples)


def _on_black(samples: Samples) -> Pixels:
    alpha = samples[:, :, -1:].astype(np.uint32)
    return ((samples[:, :, :-1] * alpha * 2 + 255) // 510).astype(np.uint8)


def _by_rows(work: Callable[[Samples], Pixels], samples: Samples, num_channels: int) -> Pixels:
    """Do work that makes large numbers of small ones on some rows at a time; [H, W, C] -> [H, W, num_channels]."""
    height_px, width_px = samples.shape[:2]
    result = np.empty((height_px, width_px, num_channels), np.uint8)
    num_rows = max(1, _BLOCK_PIXELS // max(1, width_px))
    for start in range(0, height_px, num_rows):
        result[start : start + num_rows] = work(samples[start : start + num_rows])
    return result


def upright(pixels: Pixels, orientation: int) -> Pixels:
    """Turn [H, W, C] as its EXIF orientation asks; 5 to 8 swap height and width."""
    if orientation in (5, 6, 7, 8):
        pixels = pixels.swapaxes(0, 1)
    if orientation in (3, 4, 7, 8):
        pixels = pixels[::-1]
    if orientation in (2, 3, 6, 7):
        pixels = pixels[:, ::-1]
    return np.ascontiguousarray(pixels)
