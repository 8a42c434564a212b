"""Image cases: JPEG, WebP, other formats, several pictures, `size`, limits. Peers' reports 4 to 6 and 13 are in it."""

import base64
import json

import numpy as np
from PIL import Image

from tests.server.image_case import Array, Case, gives, gray, refused
from tests.server.image_files import (
    blocks,
    exif,
    flat_jpeg,
    gray_jpeg,
    png,
    save,
    webp,
    webp_bomb,
    with_exif,
    with_frame_size,
)

# Blocks a to f, as stored, and as they must be seen for each EXIF orientation.
VALUES = dict(zip("abcdef", (20, 60, 100, 140, 180, 220), strict=True))
UPRIGHT = {
    1: ("abc", "def"),
    2: ("cba", "fed"),
    3: ("fed", "cba"),
    4: ("def", "abc"),
    5: ("ad", "be", "cf"),
    6: ("da", "eb", "fc"),
    7: ("fc", "eb", "da"),
    8: ("cf", "be", "ad"),
}
STORED = [[20, 60, 100], [140, 180, 220]]


def seen(orientation: int) -> Array:
    return gray(blocks([[VALUES[letter] for letter in row] for row in UPRIGHT[orientation]]))


def noise_jpeg(**options: object) -> bytes:
    noise = np.random.default_rng(5).integers(0, 256, (64, 80, 3)).astype(np.uint8)
    return save(Image.fromarray(noise), "JPEG", quality=90, **options)


def ycck_jpeg() -> bytes:
    """Adobe's YCCK: stored are Y, Cb, Cr of the inks (cyan, magenta, yellow as red, green, blue), and 255 - black."""
    # The inks of red, (0, 255, 255), are 179, 171, 1 in Y, Cb, Cr. Pillow stores 255 - ink, and says CMYK.
    file = flat_jpeg("CMYK", (255 - 179, 255 - 171, 255 - 1, 0))
    transform = file.index(b"Adobe") + 11
    return file[:transform] + b"\2" + file[transform + 1 :]


def flat(colour: tuple[int, int, int], height: int = 8, width: int = 8) -> list[list[list[int]]]:
    return [[list(colour)] * width] * height


WHOLE_JPEG = noise_jpeg()
PROGRESSIVE = noise_jpeg(progressive=True)

JPEG = [
    gives("JPEG gray", gray_jpeg(STORED), pixels=seen(1)),
    gives("JPEG gray, progressive", gray_jpeg(STORED, progressive=True), pixels=seen(1)),
    gives("JPEG gray with restart markers", gray_jpeg(STORED, restart_marker_blocks=1), pixels=seen(1)),
    # The tolerances are those of YCbCr in whole numbers, there and back.
    gives("JPEG RGB", flat_jpeg("RGB", (200, 100, 50)), pixels=flat((200, 100, 50)), tolerance=2),
    gives(
        "JPEG RGB, progressive",
        flat_jpeg("RGB", (10, 240, 90), progressive=True),
        pixels=flat((10, 240, 90)),
        tolerance=2,
    ),
    gives(
        "JPEG RGB, subsampled",
        flat_jpeg("RGB", (10, 90, 240), 16, subsampling=2),
        pixels=flat((10, 90, 240), 16, 16),
        tolerance=2,
    ),
    gives("JPEG stored as RGB", flat_jpeg("RGB", (200, 100, 50), keep_rgb=True), pixels=flat((200, 100, 50))),
    # Ink of cyan 0, magenta 255, yellow 255 is red.
    gives("JPEG CMYK (Adobe) red", flat_jpeg("CMYK", (0, 255, 255, 0)), pixels=flat((255, 0, 0)), tolerance=1),
    gives("JPEG CMYK (Adobe) white paper", flat_jpeg("CMYK", (0, 0, 0, 0)), pixels=flat((255, 255, 255)), tolerance=1),
    gives("JPEG CMYK (Adobe) black ink", flat_jpeg("CMYK", (0, 0, 0, 255)), pixels=flat((0, 0, 0)), tolerance=1),
    gives("JPEG YCCK (Adobe) red", ycck_jpeg(), pixels=flat((255, 0, 0)), tolerance=2),
    *(
        gives(f"JPEG orientation {orientation}", gray_jpeg(STORED, orientation), pixels=seen(orientation))
        for orientation in UPRIGHT
    ),
    gives("JPEG orientation 6, progressive", gray_jpeg(STORED, 6, progressive=True), pixels=seen(6)),
    gives("JPEG orientation 0, which is none", with_exif(gray_jpeg(STORED), 0), pixels=seen(1)),
    gives("JPEG orientation 9, which is none", with_exif(gray_jpeg(STORED), 9), pixels=seen(1)),
    gives("JPEG with bytes behind its end", gray_jpeg(STORED) + b"\0behind", pixels=seen(1)),
    gives(
        "JPEG turned before sizes are compared",
        gray_jpeg(STORED, 6),
        gray_jpeg([[1, 2], [3, 4], [5, 6]]),
        pixels=[seen(6), gray(blocks([[1, 2], [3, 4], [5, 6]]))],
    ),
    refused("JPEG at 60 %", WHOLE_JPEG[: len(WHOLE_JPEG) * 6 // 10], words=["image[0]", "truncated"]),
    refused("JPEG, progressive, at 60 %", PROGRESSIVE[: len(PROGRESSIVE) * 6 // 10], words=["image[0]", "truncated"]),
    refused(
        "JPEG at 60 %, an end glued on",
        WHOLE_JPEG[: len(WHOLE_JPEG) * 6 // 10] + b"\xff\xd9",
        words=["image[0]", "damaged"],
    ),
    refused(
        "JPEG, progressive, at 60 %, an end glued on",
        PROGRESSIVE[: len(PROGRESSIVE) * 6 // 10] + b"\xff\xd9",
        words=["image[0]", "damaged"],
    ),
    # Accepted once, with up to 226 gray values of difference: only what ended gray was looked at again.
    *(
        refused(
            f"JPEG without its last {num} bytes, an end glued on", WHOLE_JPEG[:-num] + b"\xff\xd9", words=["damaged"]
        )
        for num in (10, 60, 200)
    ),
    refused("JPEG without its last byte", WHOLE_JPEG[:-1], words=["image[0]", "truncated"]),
    refused("JPEG of two markers", b"\xff\xd8\xff\xd9", words=["image[0]", "damaged"]),
    refused("JPEG of zero width", with_frame_size(WHOLE_JPEG, 0, 64), words=["image[0]", "64 x 0"]),
    refused("JPEG of zero height", with_frame_size(WHOLE_JPEG, 80, 0), words=["image[0]", "0 x 80"]),
    refused(
        "JPEG bomb", with_frame_size(WHOLE_JPEG, 65_500, 65_500), words=["image[0]", "65500 x 65500"], code="TOO_LARGE"
    ),
    refused("JPEG narrower than its data", with_frame_size(WHOLE_JPEG, 64, 64), words=["image[0]", "more data"]),
    refused("JPEG far smaller than its data", with_frame_size(WHOLE_JPEG, 16, 16), words=["image[0]", "more data"]),
    refused(
        "JPEG, progressive, without its last scan",
        PROGRESSIVE[: PROGRESSIVE.rindex(b"\xff\xda")] + b"\xff\xd9",
        words=["image[0]", "lacks some of its scans"],
    ),
    refused("JPEG higher than its data", with_frame_size(WHOLE_JPEG, 80, 640), words=["image[0]", "damaged"]),
]

RED_GREEN = Image.fromarray(np.array([[[255, 0, 0], [0, 255, 0], [1, 2, 3]]], np.uint8))
WHOLE_WEBP = webp(Image.fromarray(np.random.default_rng(6).integers(0, 256, (20, 30, 3)).astype(np.uint8)))
LOSSY_WEBP = webp(Image.new("RGB", (32, 16), (90, 90, 90)), lossless=False, exact=False, quality=90)


WEBP = [
    gives("WebP lossless", webp(RED_GREEN), pixels=[[[255, 0, 0], [0, 255, 0], [1, 2, 3]]]),
    # One gray; video-range YUV cannot hold each value.
    gives("WebP lossy", LOSSY_WEBP, pixels=flat((90, 90, 90), 16, 32), tolerance=2),
    gives("WebP with alpha", webp(Image.new("RGBA", (2, 1), (200, 100, 50, 128))), pixels=[[[100, 50, 25]] * 2]),
    gives("WebP with all transparent", webp(Image.new("RGBA", (2, 1), (200, 100, 50, 0))), pixels=[[[0, 0, 0]] * 2]),
    gives(
        "WebP that is animated",
        webp(Image.new("RGB", (2, 1), "red"), save_all=True, append_images=[Image.new("RGB", (2, 1), "blue")]),
        pixels=[[[255, 0, 0]] * 2],
    ),
    gives(
        "WebP orientation 6",
        webp(RED_GREEN, exif=b"Exif\0\0" + exif(6)),
        pixels=[[[255, 0, 0]], [[0, 255, 0]], [[1, 2, 3]]],
    ),
    gives(
        "WebP with bytes behind its end", webp(RED_GREEN) + b"behind", pixels=[[[255, 0, 0], [0, 255, 0], [1, 2, 3]]]
    ),
    refused("WebP at 60 %", WHOLE_WEBP[: len(WHOLE_WEBP) * 6 // 10], words=["image[0]", "truncated"]),
    refused("WebP, lossy, without its last byte", LOSSY_WEBP[:-1], words=["image[0]", "truncated"]),
    refused("WebP with an unknown chunk", WHOLE_WEBP[:12] + b"XXXX" + WHOLE_WEBP[16:], words=["image[0]", "damaged"]),
    refused("WebP bomb", webp_bomb(), words=["image[0]", "16384 x 16384"], code="TOO_LARGE"),
]

TINY = Image.new("RGB", (2, 2), "red")
OTHERS = {
    "GIF": (save(TINY, "GIF"), "GIF"),
    "BMP": (save(TINY, "BMP"), "BMP"),
    "TIFF, little endian": (save(TINY, "TIFF"), "TIFF"),
    "TIFF, big endian": (b"MM\0*" + bytes(40), "TIFF"),
    "ICO": (save(TINY, "ICO"), "ICO"),
    "JPEG 2000": (bytes.fromhex("0000000c6a5020200d0a870a") + bytes(40), "JPEG 2000"),
    "AVIF": (bytes.fromhex("0000001c") + b"ftypavif" + bytes(40), "AVIF"),
    "PDF": (b"%PDF-1.7\n%\xe2\xe3\xcf\xd3\n", "PDF"),
    "SVG": (b'<svg xmlns="http://www.w3.org/2000/svg" width="1" height="1"/>', "SVG"),
    "SVG behind an XML header": (b'<?xml version="1.0"?><svg xmlns="http://www.w3.org/2000/svg"/>', "SVG"),
    "PPM": (b"P6 1 1 255\nabc", ""),
    "NPY": (b"\x93NUMPY\x01\x00" + bytes(40), ""),
    "zeros": (bytes(64), ""),
    "base64 of GIF": (base64.b64encode(save(TINY, "GIF")), "GIF"),
    "base64 of BMP": (base64.b64encode(save(TINY, "BMP")), "BMP"),
    "data URI of SVG": (b"data:image/svg+xml;base64," + base64.b64encode(b"<svg/>"), "SVG"),
    "GIF as a camera": (json.dumps({"a": base64.b64encode(save(TINY, "GIF")).decode()}).encode(), "image[0]['a']"),
}
# The first element is good, so that the place named is not always the first.
FORMATS = [
    refused(
        f"{name} is refused",
        b"[[1]]",
        file,
        words=["image[1]" if "a camera" not in name else "image[1]['a']", word.replace("[0]", "[1]")],
    )
    for name, (file, word) in OTHERS.items()
]

ONE_RED, ONE_BLUE = png(flat((255, 0, 0), 1, 2)), png(flat((0, 0, 255), 1, 2))
SEVERAL = [
    gives("two pictures, in order", ONE_RED, ONE_BLUE, pixels=[flat((255, 0, 0), 1, 2), flat((0, 0, 255), 1, 2)]),
    gives("one picture twice", ONE_RED, ONE_RED, pixels=[flat((255, 0, 0), 1, 2)] * 2),
    gives(
        "one picture in each form",
        ONE_RED,
        base64.b64encode(ONE_RED),
        b"data:image/png;base64," + base64.b64encode(ONE_RED),
        "[[[255,0,0],[255,0,0]]]",
        "[[[1.0,0,0],[1,0,0]]]",
        "[[[255,0,0,255],[255,0,0,255]]]",
        json.dumps({"b64_json": base64.b64encode(ONE_RED).decode()}),
        webp(Image.new("RGB", (2, 1), "red")),
        pixels=[flat((255, 0, 0), 1, 2)] * 8,
    ),
    gives("as many pictures as may come", *["[[5]]"] * 16, pixels=[gray([[5]])] * 16),
    refused(
        "two pictures of two sizes",
        ONE_RED,
        "[[1,2,3],[4,5,6]]",
        words=["image[0] with 1 x 2", "image[1] with 2 x 3", "`size`"],
    ),
    refused(
        "two cameras of two sizes",
        '{"wrist": [[1]], "left": [[1, 2]]}',
        words=["image[0]['wrist'] with 1 x 1", "image[0]['left'] with 1 x 2"],
    ),
    refused("a bad picture among good ones", ONE_RED, ONE_BLUE, "[[1,2],[3]]", ONE_RED, words=["image[2]", "row 1"]),
    refused(
        "a bad camera in a later element",
        ONE_RED,
        '{"a": [[1,2]], "b": [[1,true]]}',
        words=["image[1]['b']", "row 0, column 1"],
    ),
]

RAMP = [[10 * row + column for column in range(6)] for row in range(4)]
SIZES = [
    gives("size that is the picture's", "[[1,2],[3,4]]", pixels=gray([[1, 2], [3, 4]]), size=(2, 2)),
    # Scale 1: of six columns the middle four stay, of four rows the middle two.
    gives(
        "size crops columns around the centre", json.dumps(RAMP), pixels=gray([row[1:5] for row in RAMP]), size=(4, 4)
    ),
    gives("size crops rows around the centre", json.dumps(RAMP), pixels=gray(RAMP[1:3]), size=(2, 6)),
    # Half the size, cubic (a = -1/2) with antialiasing: the weights of neighbours 1/4, 3/4, 5/4, 7/4 of an output pixel
    # away are 111/128, 29/128, -9/128, -3/128. In the middle both columns of a pair weigh the same: (200 + 100) / 2. At
    # the left end two neighbours are missing: 200 has 111 + 29 - 3 = 137 of 239 parts, 100 has 111 - 9 = 102: 157.3.
    gives(
        "size halves",
        json.dumps([[200, 100] * 4] * 8),
        pixels=gray([[157, 150, 150, 143]] * 4),
        size=(4, 4),
        tolerance=1,
    ),
    # Twice the size: first 0 and 255 are 1/4 and 5/4 away, which gives less than 0; then 1/4 and 3/4, of which 255 has
    # 29 of 140 parts: 52.8.
    gives("size doubles", "[[0,255],[0,255]]", pixels=gray([[0, 53, 202, 255]] * 4), size=(4, 4), tolerance=1),
    gives(
        "size makes unlike pictures one tensor",
        json.dumps(flat((9, 8, 7), 3, 5)),
        json.dumps({"left": flat((200, 100, 50), 12, 4)}),
        pixels=[flat((9, 8, 7), 6, 6), flat((200, 100, 50), 6, 6)],
        size=(6, 6),
        cameras=["", "left"],
    ),
    gives("size counts after turning", gray_jpeg(STORED, 6), pixels=seen(6), size=(24, 16)),
    gives("size is height, then width", "[[3]]", pixels=gray([[3] * 5] * 2), size=(2, 5)),
    refused("size of zero", "[[1]]", words=["size", "came [0, 4]"], size=(0, 4)),
    refused("size below zero", "[[1]]", words=["size", "came [4, -1]"], size=(4, -1)),
    refused(
        "size over the limit",
        "[[1]]",
        words=["size", "2147483647 x 2147483647"],
        code="TOO_LARGE",
        size=(2**31 - 1,) * 2,
    ),
    refused("a bad picture with a size", "[[1,2],[3]]", words=["image[0]", "row 1"], size=(2, 2)),
]

LIMITS = [
    refused("17 pictures", *["[[5]]"] * 17, words=["image", "at most 16 pictures"], code="TOO_LARGE"),
    refused(
        "17 cameras",
        json.dumps({f"camera {num}": [[5]] for num in range(17)}),
        words=["image", "16 pictures"],
        code="TOO_LARGE",
    ),
    refused(
        "33 names", json.dumps({str(num): 5 for num in range(33)}), words=["image[0]", "32 names"], code="TOO_LARGE"
    ),
    refused("nine levels of lists", "[" * 9 + "1" + "]" * 9, words=["image[0]", "levels"], code="TOO_LARGE"),
    refused("very many levels of lists", "[" * 100_000 + "]" * 100_000, words=["image[0]", "levels"], code="TOO_LARGE"),
    refused("very many levels of objects", '{"a":' * 100_000, words=["image[0]"], code="TOO_LARGE"),
    refused(
        "very many levels of lists in a camera",
        '{"a":' + "[" * 100_000 + "]" * 100_000 + "}",
        words=["image[0]"],
        code="TOO_LARGE",
    ),
]

CASES: list[Case] = [*JPEG, *WEBP, *FORMATS, *SEVERAL, *SIZES, *LIMITS]
