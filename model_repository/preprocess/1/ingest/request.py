"""A whole request: all of its elements become one array of pictures. N, H, W: pictures, height, width."""

import json
from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

import numpy as np

from ingest.colour import Pixels
from ingest.digest import image_digest
from ingest.element import Source, find_sources
from ingest.errors import InvalidInputError, TooLargeError
from ingest.fit import fit
from ingest.limits import Limits
from ingest.parallel import map_in_order


class Pictures(NamedTuple):
    """What leaves `preprocess`: pixels UINT8 [N, H, W, 3] RGB, and a camera name (or "") for each picture."""

    pixels: Pixels
    camera_names: list[str]

    def digests(self) -> list[str]:
        """Hash each picture. Half of the time that a JPEG takes, so it is not done where nobody asks for it."""
        return list(map_in_order(image_digest, list(self.pixels), lambda _: True))


def read_images(elements: Sequence[bytes], size: Sequence[int] | None, limits: Limits) -> Pictures:
    """Read the pictures of one request, in order.

    Args:
        elements: the elements of `image`, each in any accepted form; none gives no pictures.
        size: wanted height and width; None keeps the pictures' own, which must then all be the same.

    Raises:
        InvalidInputError: naming the element and what is wrong with it.
        TooLargeError: over one of the limits.
    """
    wanted = _check_size(size, limits)
    sources = _find_all(elements, limits)
    read: list[_ReadPicture] = []
    num_pixels = 0
    for picture in map_in_order(partial(_read, wanted=wanted, limits=limits), sources, Source.is_file):
        num_pixels += picture.num_pixels_sent
        _check_work(num_pixels, limits)
        read.append(picture)
        _check_together(read, sources, limits)
    return Pictures(_together([picture.pixels for picture in read]), [source.camera_name for source in sources])


class _ReadPicture(NamedTuple):
    """One picture as it will be returned, and how many pixels were decoded for it."""

    pixels: Pixels
    num_pixels_sent: int


def _read(source: Source, wanted: tuple[int, int] | None, limits: Limits) -> _ReadPicture:
    sent = source.decode(source.content, source.place, limits)
    pixels = fit(sent, *wanted) if wanted else sent
    return _ReadPicture(pixels, sent.shape[0] * sent.shape[1])


def _together(pictures: list[Pixels]) -> Pixels:
    """Make one [N, H, W, 3] of N pictures [H, W, 3]; a single one is not copied."""
    if not pictures:
        return np.zeros((0, 0, 0, 3), np.uint8)
    return pictures[0][None] if len(pictures) == 1 else np.stack(pictures)


def continues_session(correlation_id: int | str, has_start_flag: bool, parameters: str) -> bool:
    """Say whether a request goes on with a session, so that it may come without pictures.

    Args:
        correlation_id: Triton's sequence id; 0 and "" are none.
        has_start_flag: whether Triton's sequence start flag is set.
        parameters: the request's parameters, a JSON object; its `session` and `session_start` count where there is
            no correlation id, and so do `sequence_id` and `sequence_start`, as which HTTP `generate` hands them over.
    """
    if correlation_id:
        return not has_start_flag
    custom = json.loads(parameters or "{}")
    is_start = custom.get("session_start", custom.get("sequence_start", False))
    if not isinstance(is_start, bool):
        raise InvalidInputError(f"session_start: wanted true or false, came {type(is_start).__name__}")
    return bool(custom.get("session", custom.get("sequence_id"))) and not is_start


def _check_size(size: Sequence[int] | None, limits: Limits) -> tuple[int, int] | None:
    if size is None:
        return None
    if len(size) != 2 or min(size) < 1:
        raise InvalidInputError(f"size: wanted height and width, both 1 or more, came {[int(side) for side in size]}")
    height_px, width_px = int(size[0]), int(size[1])
    limits.check_picture(height_px, width_px, "size")
    return height_px, width_px


def _find_all(elements: Sequence[bytes], limits: Limits) -> list[Source]:
    sources: list[Source] = []
    for index, element in enumerate(elements):
        sources += find_sources(element, f"image[{index}]", limits)
        if len(sources) > limits.max_pictures_per_request:
            raise TooLargeError(f"image: wanted at most {limits.max_pictures_per_request} pictures, came more")
    return sources


def _check_work(num_pixels: int, limits: Limits) -> None:
    """Bound what is decoded, however small `size` makes it."""
    if num_pixels > limits.max_pixels_per_request:
        raise TooLargeError(
            f"image: wanted at most {limits.max_pixels_per_request} pixels in one request, "
            f"came pictures with at least {num_pixels} as sent"
        )


def _check_together(read: list[_ReadPicture], sources: list[Source], limits: Limits) -> None:
    """Check the newest picture against those before it, so that little is decoded in vain."""
    first, newest = read[0].pixels.shape, read[-1].pixels.shape
    if newest != first:
        raise InvalidInputError(
            "image: wanted pictures of one size, or the input `size`; "
            f"came {sources[0].place} with {first[0]} x {first[1]} "
            f"and {sources[len(read) - 1].place} with {newest[0]} x {newest[1]} (height x width)"
        )
    if len(sources) * first[0] * first[1] > limits.max_pixels_per_request:
        raise TooLargeError(
            f"image: wanted at most {limits.max_pixels_per_request} pixels in one request, "
            f"came {len(sources)} pictures of {first[0]} x {first[1]} (height x width)"
        )
