"""Picture files: which format the first bytes say, and the way from a file's bytes to upright RGB.

One policy for all formats: size from the header first, truncated or damaged files refused, first frame of an animated
file, EXIF orientation once, 16 bits scaled, gray and palettes widened, alpha on black.
"""

from ingest import jpeg, png, webp
from ingest.base64text import decode_base64
from ingest.colour import Pixels, to_rgb, upright
from ingest.errors import InvalidInputError
from ingest.limits import Limits

# Only for naming what came; none of these is decoded.
_OTHER_FORMATS = (
    (b"GIF8", "GIF"),
    (b"BM", "BMP"),
    (b"II*\0", "TIFF"),
    (b"MM\0*", "TIFF"),
    (b"\0\0\1\0", "ICO"),
    (b"\xff\x0a", "JPEG XL"),
    (b"\0\0\0\x0cJXL ", "JPEG XL"),
    (b"\0\0\0\x0cjP  ", "JPEG 2000"),
    (b"\xff\x4f\xff\x51", "JPEG 2000"),
    (b"8BPS", "PSD"),
    (b"%PDF", "PDF"),
    (b"<svg", "SVG"),
    (b"<?xml", "XML or SVG"),
)


def is_picture(data: bytes) -> bool:
    """Say whether the first bytes are those of an accepted format."""
    return data.startswith((png.SIGNATURE, jpeg.SIGNATURE)) or webp.is_webp(data)


def other_format(data: bytes) -> str | None:
    """Name a format that is known and not accepted."""
    if data[4:8] == b"ftyp":
        return "AVIF, HEIC or video"
    return next((name for signature, name in _OTHER_FORMATS if data.startswith(signature)), None)


def decode_picture(data: bytes, place: str, limits: Limits) -> Pixels:
    """Decode PNG, JPEG or WebP bytes into UINT8 [H, W, 3].

    Raises:
        InvalidInputError: another format, or a truncated or damaged file.
        TooLargeError: more pixels than the limit, going by the header.
    """
    if data.startswith(png.SIGNATURE):
        picture = png.decode(data, place, limits)
    elif data.startswith(jpeg.SIGNATURE):
        picture = jpeg.decode(data, place, limits)
    elif webp.is_webp(data):
        picture = webp.decode(data, place, limits)
    else:
        came = other_format(data) or "bytes of no known picture format"
        raise InvalidInputError(f"{place}: wanted PNG, JPEG or WebP, came {came}")
    return upright(to_rgb(picture.samples), picture.orientation)


def decode_base64_picture(text: bytes, place: str, limits: Limits) -> Pixels:
    """Decode base64 text of a PNG, JPEG or WebP file into UINT8 [H, W, 3]; errors as `decode_picture`."""
    data = decode_base64(text, place)
    if not is_picture(data):
        came = other_format(data) or "text that decodes to none of them (URLs and paths are never followed)"
        raise InvalidInputError(f"{place}: wanted base64 of PNG, JPEG or WebP, came {came}")
    return decode_picture(data, place, limits)
