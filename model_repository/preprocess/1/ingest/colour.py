"""From samples as a file stores them to the one thing that leaves this package: UINT8 RGB, upright.

H, W are a picture's height and width, C its channels: 1 gray, 2 gray + alpha, 3 RGB, 4 RGBA. Colour profiles and
gamma are not applied: a sample is what the file says it is.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Pixels = NDArray[np.uint8]
Samples = NDArray[np.uint8] | NDArray[np.uint16]


class Picture(NamedTuple):
    """A decoded file before the colour policy: `samples` UINT8 [H, W, C]; `orientation` is EXIF's, 1 to 8."""

    samples: Pixels
    orientation: int = 1


def scale_to_8_bits(samples: Samples, max_value: int) -> Pixels:
    """Map 0..max_value onto 0..255: value * 255 / max_value, rounded half up; never clipped, never shifted."""
    if max_value == 255:
        return samples.astype(np.uint8, copy=False)
    return ((samples.astype(np.uint32) * 510 + max_value) // (2 * max_value)).astype(np.uint8)


def to_rgb(samples: Pixels) -> Pixels:
    """Widen gray and lay what is transparent on black: UINT8 [H, W, C] -> UINT8 [H, W, 3]."""
    num_channels = samples.shape[2]
    if num_channels in (2, 4):
        alpha = samples[:, :, -1:].astype(np.uint32)
        colour = samples[:, :, :-1]
        samples = ((colour * alpha * 2 + 255) // 510).astype(np.uint8)
    if num_channels in (1, 2):
        samples = np.repeat(samples, 3, axis=2)
    return np.ascontiguousarray(samples)


def upright(pixels: Pixels, orientation: int) -> Pixels:
    """Turn [H, W, C] as its EXIF orientation asks; 5 to 8 swap height and width."""
    if orientation in (5, 6, 7, 8):
        pixels = pixels.swapaxes(0, 1)
    if orientation in (3, 4, 7, 8):
        pixels = pixels[::-1]
    if orientation in (2, 3, 6, 7):
        pixels = pixels[:, ::-1]
    return np.ascontiguousarray(pixels)
