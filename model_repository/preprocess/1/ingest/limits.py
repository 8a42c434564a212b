"""How much one request may ask for: a single frozen record, read once from the model's parameters."""

from collections.abc import Mapping
from dataclasses import dataclass, fields

from ingest.errors import InvalidInputError, TooLargeError


@dataclass(frozen=True)
class Limits:
    """Bounds that are checked before memory is allocated for what they bound.

    They bound the memory of one request. Beside the elements themselves, reading takes at most 4 bytes for each byte of
    the element that is read (a list or base64, good or refused), and 32 for each pixel of a file (a PNG of 16-bit RGBA,
    some 10 more for each of its rows; a JPEG takes 5 to 16). Lists are read one at a time, files up to four.
    """

    max_bytes_per_element: int = 64 * 1024 * 1024
    max_pixels_per_picture: int = 4096 * 4096
    max_pixels_per_request: int = 2 * 4096 * 4096
    max_pictures_per_request: int = 16
    max_json_depth: int = 8

    @classmethod
    def from_parameters(cls, parameters: Mapping[str, str]) -> "Limits":
        """Read the limits from config.pbtxt parameters; UPPER_CASE names are Triton's own and are left alone.

        Raises:
            ValueError: for a name that is no limit, or a value that is not a whole number of 1 or more.
        """
        ours = {name: text for name, text in parameters.items() if not name.isupper()}
        unknown = sorted(ours.keys() - {field.name for field in fields(cls)})
        if unknown:
            raise ValueError(f"unknown parameter {unknown[0]!r}")
        return cls(**{name: _positive(name, text) for name, text in ours.items()})

    def check_picture(self, height_px: int, width_px: int, place: str) -> None:
        """Refuse a picture without pixels or with too many, going by what its header says."""
        if height_px < 1 or width_px < 1:
            raise InvalidInputError(f"{place}: wanted at least 1 pixel, came a picture of {height_px} x {width_px}")
        if height_px * width_px > self.max_pixels_per_picture:
            raise TooLargeError(
                f"{place}: wanted at most {self.max_pixels_per_picture} pixels, "
                f"came {height_px} x {width_px} (height x width)"
            )


def _positive(name: str, text: str) -> int:
    if not text.isascii() or not text.isdigit() or int(text) < 1:
        raise ValueError(f"parameter {name!r}: wanted a whole number of 1 or more, came {text!r}")
    return int(text)
