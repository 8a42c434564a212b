"""The fast way for pixel lists as programs write them: whole numbers, and the same text between any two of a kind.

Such a list is read with a few NumPy passes over its bytes, without JSON parsing. Whatever is not exactly such a list,
be it valid, wrong or only unusual, gives None and is left to `pixel_lists`, which knows the rules and names faults.

Every byte is accounted for: the *gaps* between numbers are held, byte by byte, against the first gap of their kind
(between channels, pixels, rows), and all that remains must be digits. H, W, C: height, width, channels.
"""

import re
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Bytes = NDArray[np.uint8]

# What is worked on at once, with all that is made from it, should fit into a core's own cache.
_BLOCK_BYTES = 192 * 1024
# A block is whole rows, and what is made from it takes up to 25 times its bytes. Pictures of cameras have shorter rows.
_MAX_ROW_BYTES = 512 * 1024
# As JavaScript writes lists, and as Python's json does.
_GAPS = [re.compile(rb"\]" * level + rb",[ \t\r\n]{0,16}" + rb"\[" * level) for level in range(3)]


class _Layout(NamedTuple):
    """How the first row is written, and with it all of a uniform list."""

    num_columns: int
    num_channels: int
    channel_gap: bytes  # b"" in a list of H x W
    pixel_gap: bytes
    row_gap: bytes
    start: int  # of the first number
    end: int  # of the last number


class _GapByte(NamedTuple):
    """What must stand at one distance behind every `step`-th number, over one row."""

    step: int
    wanted: Bytes


def read_uniform_list(text: bytes, max_pixels: int) -> Bytes | None:
    """Read the JSON text of a pixel list into UINT8 [H, W, C], C being 1 for a list of H x W; None if it can't be."""
    layout = _read_layout(text)
    if layout is None:
        return None
    gap_bytes = _gap_bytes(layout)
    stored = np.frombuffer(text, np.uint8)
    blocks: list[Bytes] = []
    num_values = 0
    start = layout.start
    while start < layout.end:
        cut = text.find(layout.row_gap, start + _BLOCK_BYTES, layout.end)
        end = cut if cut >= 0 else layout.end
        if end - start > _BLOCK_BYTES + _MAX_ROW_BYTES:  # a row that is longer than the first
            return None
        # Two bytes more before and one after: each is a bracket or a space, and gives every digit neighbours.
        values = _read_block(stored[start - 2 : end + 1], layout, gap_bytes)
        num_values += 0 if values is None else len(values)
        if values is None or num_values > max_pixels * layout.num_channels:
            return None
        blocks.append(values)
        start = end + len(layout.row_gap)
    whole = blocks[0] if len(blocks) == 1 else np.concatenate(blocks)
    return whole.reshape(-1, layout.num_columns, layout.num_channels)


def _read_layout(text: bytes) -> _Layout | None:
    has_channels = text.startswith(b"[[[")
    num_levels = 3 if has_channels else 2
    if not text.startswith(b"[" * num_levels) or not text.endswith(b"]" * num_levels):
        return None
    start, end = num_levels, len(text) - num_levels
    row = _GAPS[num_levels - 1].search(text, start, end)
    if row is None or row.start() - start > _MAX_ROW_BYTES:
        return None
    pixel = _GAPS[num_levels - 2].search(text, start, row.start())
    if pixel is None:
        return None
    num_columns = text.count(pixel.group(), start, row.start()) + 1
    if not has_channels:
        return _Layout(num_columns, 1, b"", pixel.group(), row.group(), start, end)
    channel = _GAPS[0].search(text, start, pixel.start())
    if channel is None:
        return None
    num_channels = text.count(channel.group(), start, pixel.start()) + 1
    return _Layout(num_columns, num_channels, channel.group(), pixel.group(), row.group(), start, end)


def _gap_bytes(layout: _Layout) -> list[_GapByte]:
    """List what must follow a number, one entry a byte: of all gaps at first, then of those that are longer."""
    gaps = [layout.channel_gap] * (layout.num_channels - 1) + [layout.pixel_gap]
    gaps = gaps * (layout.num_columns - 1) + gaps[:-1] + [layout.row_gap]
    result = []
    for offset in range(max(map(len, gaps))):
        step = 1
        if offset >= len(layout.channel_gap):
            step = layout.num_channels if offset < len(layout.pixel_gap) else len(gaps)
        # A shorter gap among longer ones: no list is written so, and 0 matches nothing.
        wanted = [gap[offset] if offset < len(gap) else 0 for gap in gaps[step - 1 :: step]]
        result.append(_GapByte(step, np.array(wanted, np.uint8)))
    return result


def _read_block(stored: Bytes, layout: _Layout, gap_bytes: list[_GapByte]) -> Bytes | None:
    """Read whole rows into their numbers; `stored` has two bytes before the first and one after the last digit."""
    digits = stored - np.uint8(ord("0"))  # all that is no digit wraps to 10 or more
    is_digit = digits < 10
    last = np.flatnonzero(is_digit[2:-1] > is_digit[3:])  # each number's last digit, counted from the first digit
    if len(last) == 0 or len(last) % (layout.num_columns * layout.num_channels):
        return None
    values, tens, hundreds = digits[2:].take(last), digits[1:].take(last), digits.take(last)
    # Views as numbers, 0 and 1: NumPy would convert booleans, which takes longer than all that is done with them.
    has_tens = (tens < 10).view(np.uint8)
    has_hundreds = (hundreds < 10).view(np.uint8) & has_tens
    tens *= has_tens
    hundreds *= has_hundreds
    # A number of four digits would leave one over.
    num_digits = len(last) + np.count_nonzero(has_tens) + np.count_nonzero(has_hundreds)
    if num_digits != np.count_nonzero(is_digit) or hundreds.max() > 2:
        return None
    if not _has_gaps(stored[3:], last, num_digits, layout, gap_bytes):
        return None
    values += tens * np.uint8(10)
    values += hundreds * np.uint8(100)
    # Two digits are 10 or more and three are 100 or more, or there is a leading zero; 256 to 299 have wrapped to less.
    least = has_tens * np.uint8(10) + has_hundreds * np.uint8(90)
    return None if (values < least).any() else values


def _has_gaps(
    after: Bytes, last: NDArray[np.intp], num_digits: int, layout: _Layout, gap_bytes: list[_GapByte]
) -> bool:
    """Say whether each number is followed by the gap of its place, and whether this is all that is there.

    Args:
        after: the bytes from the one behind the first digit on, so that `after[last]` is what follows each number.
    """
    places, places_step = last, 1
    for offset, (step, wanted) in enumerate(gap_bytes):
        if offset >= len(after):
            break  # a single short row, or not what it should be: the count of bytes tells
        # What follows the last number is not of this block; the clip is for it alone.
        if step != places_step:
            places, places_step = np.ascontiguousarray(last[step - 1 :: step]), step
        found = after[offset:].take(places, mode="clip").reshape(-1, len(wanted))
        found[-1, -1] = wanted[-1]
        if (found != wanted).any():
            return False
    num_rows = len(last) // (layout.num_columns * layout.num_channels)
    num_pixel_gaps = num_rows * (layout.num_columns - 1)
    num_channel_gaps = num_rows * layout.num_columns * (layout.num_channels - 1)
    num_gap_bytes = (num_rows - 1) * len(layout.row_gap) + num_pixel_gaps * len(layout.pixel_gap)
    return len(after) == num_digits + num_gap_bytes + num_channel_gaps * len(layout.channel_gap)
