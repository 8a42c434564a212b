"""Pictures as coloured half blocks of a terminal: each cell shows two pixels, one above the other. Pure.

W is the number of cells in a row, R of rows of cells.
"""

import numpy as np
import numpy.typing as npt
from PIL import Image

Pixels = npt.NDArray[np.uint8]
_UPPER_HALF = "▀".encode()


def fitted_size(height_px: int, width_px: int, num_rows: int, num_columns: int) -> tuple[int, int]:
    """Rows and columns of cells that show a picture whole, as large as they can be; a cell is twice as high as wide."""
    scale = min(2 * num_rows / height_px, num_columns / width_px)
    rows = round(height_px * scale / 2)
    return min(max(rows, 1), num_rows), min(max(round(width_px * scale), 1), num_columns)


def to_cells(pixels: Pixels, rows: int, columns: int) -> Pixels:
    """Scale a picture [H, W, 3] to cells [R, W, 6]: red, green, blue of the upper half, then of the lower."""
    height_px, width_px = pixels.shape[:2]
    is_smaller = 2 * rows <= height_px and columns <= width_px
    how = Image.Resampling.BOX if is_smaller else Image.Resampling.NEAREST
    scaled = np.asarray(Image.fromarray(pixels).resize((columns, 2 * rows), how))
    return np.concatenate([scaled[0::2], scaled[1::2]], axis=-1)


def draw(cells: Pixels, before: Pixels | None, top: int = 1, left: int = 1) -> bytes:
    """Bytes that draw cells [R, W, 6] at a place of the screen, numbered from 1.

    Args:
        cells: what to show.
        before: what is there already, of the same shape: only other cells are drawn; None draws all.
        top: row of the first cell.
        left: column of the first cell.
    """
    is_new = np.ones(cells.shape[:2], bool) if before is None else (cells != before).any(axis=-1)
    parts = []
    colours: tuple[int, ...] = ()
    for row in np.flatnonzero(is_new.any(axis=1)).tolist():
        places = np.flatnonzero(is_new[row]).tolist()
        last = None
        for place, colour in zip(places, map(tuple, cells[row, places].tolist()), strict=True):
            if last is None or place != last + 1:
                parts.append(b"\x1b[%d;%dH" % (top + row, left + place))
            if colour != colours:
                parts.append(b"\x1b[38;2;%d;%d;%d;48;2;%d;%d;%dm" % colour)
                colours = colour
            parts.append(_UPPER_HALF)
            last = place
    return b"".join([*parts, b"\x1b[0m"]) if parts else b""
