"""The picture that starts a world: told apart into encoded bytes, which the server decodes, and RGB pixels.

H and W are the picture's height and width.
"""

import io
import os
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageOps

from worldstream.errors import InvalidInputError, ProtocolError

Pixels: TypeAlias = npt.NDArray[np.uint8]
Picture: TypeAlias = str | os.PathLike[str] | bytes | bytearray | memoryview | Pixels | Image.Image

# Modes whose conversion to RGB in Pillow keeps the meaning; "I;16", "I" and "F" would be clipped.
_SAFE_MODES = frozenset({"1", "L", "LA", "P", "PA", "RGB", "RGBA", "CMYK", "YCbCr"})


def load_picture(picture: Picture) -> bytes | Pixels:
    """Take a picture in any form that the client accepts.

    Args:
        picture: a path, encoded bytes in any form that the server's `image` takes, uint8 [H, W, 3] RGB, or a PIL image.

    Returns:
        Encoded bytes for a path or bytes; uint8 [H, W, 3] for an array or a PIL image.

    Raises:
        InvalidInputError: if a file cannot be read, or an array is not uint8 [H, W, 3].
    """
    if isinstance(picture, (bytes, bytearray, memoryview)):
        return bytes(picture)
    if isinstance(picture, Image.Image):
        return _pixels_of(picture)
    if isinstance(picture, np.ndarray):
        return _checked_pixels(picture)
    if isinstance(picture, (str, os.PathLike)):
        return read_picture(picture)
    raise InvalidInputError(f"picture: wanted a path, bytes, an array or a PIL image, got {type(picture).__name__}")


def encode_picture(picture: Picture) -> bytes:
    """Bytes that the server's `image` takes: those given, or pixels as PNG.

    Raises:
        InvalidInputError: as `load_picture`.
    """
    loaded = load_picture(picture)
    if isinstance(loaded, bytes):
        return loaded
    png = io.BytesIO()
    Image.fromarray(loaded).save(png, format="PNG")
    return png.getvalue()


def read_picture(path: str | os.PathLike[str]) -> bytes:
    """The bytes of a file, whatever it holds.

    Raises:
        InvalidInputError: if it cannot be read.
    """
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise InvalidInputError(f"picture: cannot read {Path(path).name}: {error.strerror}") from error


def upright_size(encoded: bytes) -> tuple[int, int]:
    """Width and height of PNG, JPEG or WebP bytes as the server sees them, with their EXIF orientation applied.

    Raises:
        InvalidInputError: if they are none of these; other forms that the server takes do not tell their size here.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", Image.DecompressionBombWarning)  # how large is too large the server says
            picture = Image.open(io.BytesIO(encoded), formats=("PNG", "JPEG", "WEBP"))
            width_px, height_px = picture.size
            orientation = picture.getexif().get(0x0112, 1)
    except Image.DecompressionBombError as error:
        raise InvalidInputError("picture: its header names more pixels than can be") from error
    except Exception as error:  # each of Pillow's readers fails in its own ways
        raise InvalidInputError("picture: wanted PNG, JPEG or WebP, whose size can be read") from error
    return (height_px, width_px) if orientation in (5, 6, 7, 8) else (width_px, height_px)


def decode_frames(files: Sequence[bytes]) -> Pixels:
    """Frames that the server sent as files: uint8 [n, H, W, 3], read-only.

    Raises:
        ProtocolError: if one is no PNG, JPEG or WebP, or of another size than the first.
    """
    try:
        frames = np.stack([np.asarray(Image.open(io.BytesIO(file)).convert("RGB")) for file in files])
    except Exception as error:  # each of Pillow's readers fails in its own ways
        raise ProtocolError("encoded_frames: wanted PNG, JPEG or WebP files of one size") from error
    frames.flags.writeable = False
    return frames


def _checked_pixels(array: npt.NDArray[np.generic]) -> Pixels:
    if array.dtype != np.uint8 or array.ndim != 3 or array.shape[2] != 3 or array.size == 0:
        raise InvalidInputError(f"picture: wanted uint8 [H, W, 3], got {array.dtype} {list(array.shape)}")
    return array.astype(np.uint8, copy=False)


def _pixels_of(picture: Image.Image) -> Pixels:
    """Widen to RGB by the server's own policy: upright, alpha composited on black."""
    if picture.mode not in _SAFE_MODES:
        raise InvalidInputError(
            f"picture: PIL mode {picture.mode} is not 8 bits a channel; give its path or bytes instead"
        )
    upright = ImageOps.exif_transpose(picture)
    if upright.has_transparency_data:
        upright = upright.convert("RGBA")
        upright = Image.alpha_composite(Image.new("RGBA", upright.size, (0, 0, 0, 255)), upright)
    return np.asarray(upright.convert("RGB"))
