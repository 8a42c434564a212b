"""What a JPEG's frame and scan headers promise: its size, its blocks, and whether all of them are sent.

A scan of a progressive file sends some coefficients (`first` to `last`, of 64 in a block) of some components, down to
the bit `low`; later scans send their lower bits. A file that ends behind any of its scans is well-formed.
"""

from collections.abc import Iterable
from typing import NamedTuple

START_OF_FRAME = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}
_SEQUENTIAL = frozenset((0xC0, 0xC1))  # Huffman-coded; each block lies whole in one scan
_PROGRESSIVE = frozenset((0xC2, 0xC6, 0xCA, 0xCE))
_NUM_COEFFICIENTS = 64
_NOTHING_SENT = 16  # more bits than a coefficient has


class Sampling(NamedTuple):
    """How many blocks of a component lie side by side, and above each other, in the smallest unit of a scan."""

    horizontal: int
    vertical: int


class Frame(NamedTuple):
    """A frame header; components by their identifiers."""

    marker: int
    height_px: int
    width_px: int
    components: dict[int, Sampling]

    @property
    def is_sequential(self) -> bool:
        return self.marker in _SEQUENTIAL

    def min_bytes_of_a_line(self) -> int:
        """Give what one more row or column of units would take at the least: two bits for each of its blocks."""
        samplings = list(self.components.values())
        if len(samplings) == 1:
            samplings = [Sampling(1, 1)]  # a component alone is sent block by block
        num_blocks = sum(sampling.horizontal * sampling.vertical for sampling in samplings)
        num_rows = -(-self.height_px // (8 * max(1, *(sampling.vertical for sampling in samplings))))
        num_columns = -(-self.width_px // (8 * max(1, *(sampling.horizontal for sampling in samplings))))
        return min(num_rows, num_columns) * num_blocks // 4


def read_frame(marker: int, body: bytes) -> Frame | None:
    """Read a frame header; None if it is shorter than it says."""
    if len(body) < 6 or len(body) < 6 + 3 * body[5]:
        return None
    described = [body[start : start + 2] for start in range(6, 6 + 3 * body[5], 3)]
    components = {identifier: Sampling(sampling >> 4, sampling & 15) for identifier, sampling in described}
    return Frame(marker, int.from_bytes(body[1:3], "big"), int.from_bytes(body[3:5], "big"), components)


def sends_everything(frame: Frame, scan_headers: Iterable[bytes]) -> bool:
    """Say whether the scans send each coefficient of each component down to its last bit."""
    lowest_bits = {identifier: [_NOTHING_SENT] * _NUM_COEFFICIENTS for identifier in frame.components}
    for header in scan_headers:
        num_components = header[0] if header else 0
        if len(header) < 4 + 2 * num_components:
            continue  # sends nothing
        first, last, bits = header[1 + 2 * num_components : 4 + 2 * num_components]
        if frame.marker not in _PROGRESSIVE:
            first, last, bits = 0, _NUM_COEFFICIENTS - 1, 0
        for identifier in header[1 : 1 + 2 * num_components : 2]:
            if identifier in lowest_bits and first <= last < _NUM_COEFFICIENTS:
                lowest_bits[identifier][first : last + 1] = [bits & 15] * (last + 1 - first)
    return not any(map(any, lowest_bits.values()))
