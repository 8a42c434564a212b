"""Scale and centre crop: the largest part of a picture with the wanted shape, resampled with antialiasing."""

import numpy as np
from PIL import Image

from ingest.colour import Pixels


def crop_box(height_px: int, width_px: int, to_height_px: int, to_width_px: int) -> tuple[float, float, float, float]:
    """Give the centred part that keeps the wanted aspect ratio: left, top, right, bottom in source pixels."""
    scale = max(to_height_px / height_px, to_width_px / width_px)
    # The side that sets the scale is taken whole; min keeps a rounding error from reaching beyond the picture.
    crop_width, crop_height = min(to_width_px / scale, width_px), min(to_height_px / scale, height_px)
    left, top = (width_px - crop_width) / 2, (height_px - crop_height) / 2
    return left, top, left + crop_width, top + crop_height


def fit(pixels: Pixels, to_height_px: int, to_width_px: int) -> Pixels:
    """Scale and centre crop UINT8 [H, W, 3] to the wanted size; a picture of that size comes back as it is."""
    height_px, width_px = pixels.shape[:2]
    if (height_px, width_px) == (to_height_px, to_width_px):
        return pixels
    box = crop_box(height_px, width_px, to_height_px, to_width_px)
    # Pillow widens the filter's support when it scales down, which is the antialiasing.
    image = Image.fromarray(pixels).resize((to_width_px, to_height_px), Image.Resampling.BICUBIC, box=box)
    return np.asarray(image)
