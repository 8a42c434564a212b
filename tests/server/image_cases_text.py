"""Image cases: base64, data URIs and objects of cameras, good and bad. Peers' reports 9 to 12 are among them."""

import base64
import json

import numpy as np
from PIL import Image

from tests.server.image_case import Case, gives, gray, refused
from tests.server.image_files import chunk, flat_jpeg, png, webp

PICTURE = np.random.default_rng(11).integers(0, 256, (5, 7, 3))
FILE = png(PICTURE)
STANDARD = base64.b64encode(FILE).decode()
URL_SAFE = base64.urlsafe_b64encode(FILE).decode()
# The characters that differ between the alphabets, and that get lost on the way, must be there.
assert "+" in STANDARD
assert "/" in STANDARD

# The same picture in files of 0, 1 and 2 bytes over a multiple of three: no padding, two and one.
PADDINGS = {
    len(file) % 3: file for file in (png(PICTURE, extra=chunk(b"tEXt", b"a\0" + b"b" * num)) for num in range(3))
}
BARE = base64.b64encode(PADDINGS[1]).decode().rstrip("=")

RED, BLUE, GREEN = [[[255, 0, 0]] * 2], [[[0, 0, 255]] * 2], [[[0, 255, 0]] * 2]
RED_TEXT = base64.b64encode(png(RED)).decode()
GREEN_TEXT = base64.urlsafe_b64encode(png(GREEN)).decode().rstrip("=")


def wrapped(text: str, length: int, end: str) -> str:
    return end.join(text[start : start + length] for start in range(0, len(text), length))


BASE64 = [
    gives("base64", STANDARD, pixels=PICTURE),
    gives("base64, url-safe", URL_SAFE, pixels=PICTURE),
    *(
        gives(f"base64 of 3n + {num} bytes, {kind}", text, pixels=PICTURE)
        for num, file in sorted(PADDINGS.items())
        for kind, text in (
            ("padded", base64.b64encode(file)),
            ("bare", base64.b64encode(file).rstrip(b"=")),
            ("url-safe and bare", base64.urlsafe_b64encode(file).rstrip(b"=")),
        )
    ),
    gives(
        "base64 of a JPEG, which starts like a path", base64.b64encode(flat_jpeg("L", 77)), pixels=gray([[77] * 8] * 8)
    ),
    gives("base64 of a WebP", base64.b64encode(webp(Image.new("RGB", (2, 1), (255, 0, 0)))), pixels=RED),
    gives("base64 wrapped at 76 with CRLF", wrapped(STANDARD, 76, "\r\n") + "\r\n", pixels=PICTURE),
    gives("base64 wrapped at 64 with LF", wrapped(STANDARD, 64, "\n") + "\n", pixels=PICTURE),
    gives("base64 wrapped and indented", "  " + wrapped(URL_SAFE, 60, "\n    "), pixels=PICTURE),
    gives("base64 wrapped in the middle of four", wrapped(STANDARD, 7, "\n"), pixels=PICTURE),
    gives("data URI", "data:image/png;base64," + STANDARD, pixels=PICTURE),
    gives("data URI in mixed case", "Data:IMAGE/Png;BASE64," + STANDARD, pixels=PICTURE),
    gives("data URI, url-safe and bare", "data:image/png;base64," + GREEN_TEXT, pixels=GREEN),
    gives("data URI, wrapped", "data:image/png;base64,\r\n" + wrapped(STANDARD, 76, "\r\n"), pixels=PICTURE),
    gives("data URI with a parameter", "data:image/png;charset=utf-8;base64," + STANDARD, pixels=PICTURE),
    gives("data URI that names another format", "data:image/jpeg;base64," + STANDARD, pixels=PICTURE),
]

BASE64_REFUSED = [
    refused("bytes of no picture, spaces among them", b"\x80 a b\x00\xff" * 9, words=["image[0]", "PNG, JPEG or WebP"]),
    refused("base64 with '+' sent as space", STANDARD.replace("+", " "), words=["image[0]", "'+' is turned to space"]),
    refused(
        "data URI with '+' sent as space",
        "data:image/png;base64," + STANDARD.replace("+", " "),
        words=["image[0]", "'+' is turned to space"],
    ),
    refused(
        "base64 with mixed alphabets",
        STANDARD.replace("+", "-", 1) + "/",
        words=["image[0]", "standard", "url-safe"],
    ),
    refused("base64 with a third '='", BARE + "===", words=["image[0]", "'='", "came 3"]),
    refused("base64 with doubled padding", BARE + "====", words=["image[0]", "'='", "came 4"]),
    refused("base64 with half its padding", BARE + "=", words=["image[0]", "'='", "came 1"]),
    refused("base64 with '=' inside", BARE[:40] + "=" + BARE[40:], words=["image[0]", "'='", "inside"]),
    refused("base64 of an impossible length", BARE[: len(BARE) // 4 * 4 + 1], words=["image[0]", "length"]),
    refused("base64 with an escape of a URL", STANDARD.replace("+", "%2B"), words=["image[0]", "0x25"]),
    refused("base64 with junk inside", BARE[:40] + "!" + BARE[40:], words=["image[0]", "0x21", "character 40"]),
    refused("base64 that is cut", STANDARD[: len(STANDARD) * 6 // 10 // 4 * 4], words=["image[0]", "whole PNG"]),
    refused("base64 twice", base64.b64encode(STANDARD.encode()), words=["image[0]", "PNG, JPEG or WebP"]),
    refused("base64 of text", base64.b64encode(b"not a picture at all"), words=["image[0]", "PNG, JPEG or WebP"]),
    refused("base64 in JSON quotes", json.dumps(STANDARD), words=["image[0]", "JSON string"]),
    refused("base64 behind Python's b'", f"b'{STANDARD}'", words=["image[0]", "0x27"]),
    refused("data URI without base64", "data:image/png,%89PNG%0D%0A", words=["image[0]", "data URI"]),
    refused("data URI of text", "data:text/plain;base64,aGVsbG8=", words=["image[0]", "data URI"]),
    refused("data URI without a body", "data:image/png;base64,", words=["image[0]", "empty"]),
    refused("an empty element", "", words=["image[0]", "empty"]),
    refused("an element of spaces", " \r\n\t ", words=["image[0]", "empty"]),
    refused("a word", "picture", words=["image[0]"]),
    refused("a byte order mark before a list", "\ufeff[[1]]", words=["image[0]", "0xef"]),
    refused("a list in UTF-16", "[[1]]".encode("utf-16-le"), words=["image[0]"]),
]

NAMES_REFUSED = {
    "https://example.com/cat.png": "URL",
    "HTTP://127.0.0.1/cat.png": "URL",
    "file:///etc/hostname": "URL",
    "s3://bucket/cat.png": "URL",
    "/etc/hostname": "",
    "/tmp/cat.png": "path",
    "../cat.png": "path",
    "C:\\pictures\\cat.png": "path",
}

CAMERAS = [
    gives("object b64_json", json.dumps({"b64_json": RED_TEXT}), pixels=RED),
    gives("object base64", json.dumps({"base64": "data:image/png;base64," + RED_TEXT}), pixels=RED),
    gives("object base64, url-safe and bare", json.dumps({"base64": GREEN_TEXT}), pixels=GREEN),
    gives(
        "object with escaped slashes, as of PHP", json.dumps({"b64_json": STANDARD}).replace("/", "\\/"), pixels=PICTURE
    ),
    gives(
        "cameras in each form",
        json.dumps(
            {
                "text": RED_TEXT,
                "uri": "DATA:image/png;base64," + GREEN_TEXT,
                "list": BLUE,
                "floats": [[[0, 0, 1.0], [0, 0, 1]]],
                "gray": [[7, 8]],
                "inner": {"b64_json": RED_TEXT},
                "last": {"base64": GREEN_TEXT},
            }
        ),
        pixels=[RED, GREEN, BLUE, BLUE, gray([[7, 8]]).tolist(), RED, GREEN],
        cameras=["text", "uri", "list", "floats", "gray", "inner", "last"],
    ),
    gives(
        "cameras whose order is neither of letters nor of numbers",
        json.dumps({"wrist": [[1]], "10": [[2]], "9": [[3]], "left": [[4]]}),
        pixels=[gray([[value]]) for value in (1, 2, 3, 4)],
        cameras=["wrist", "10", "9", "left"],
    ),
    gives(
        "cameras and pictures together, in order",
        png(BLUE),
        json.dumps({"wrist": RED_TEXT, "left": GREEN}),
        RED_TEXT,
        pixels=[BLUE, RED, GREEN, RED],
        cameras=["", "wrist", "left", ""],
    ),
    gives(
        "a camera by its UTF-8 name",
        json.dumps({"überkopf": RED}, ensure_ascii=False),
        pixels=RED,
        cameras=["überkopf"],
    ),
    gives(
        "base64 with its slashes, line breaks and '=' escaped",
        '{"a": "' + RED_TEXT.replace("/", "\\/").replace("=", "\\u003d") + '\\r\\n"}',
        pixels=RED,
        cameras="a",
    ),
    gives("a camera by its escaped name", '{"\\u00fcber\\/kopf": [[1]]}', pixels=gray([[1]]), cameras=["über/kopf"]),
    gives(
        "an object with spaces",
        ' {\r\n\t"a" : [ [ 1 ] ] ,\n "b":[[2]]} ',
        pixels=[gray([[1]]), gray([[2]])],
        cameras="ab",
    ),
    gives(
        "the same camera in two elements", '{"a":[[1]]}', '{"a":[[2]]}', pixels=[gray([[1]]), gray([[2]])], cameras="aa"
    ),
]

CAMERAS_REFUSED = [
    refused("a camera twice", '{"a": [[1]], "b": [[2]], "a": [[3]]}', words=["image[0]", "'a' twice"]),
    refused("a camera twice by an escape", '{"a": [[1]], "\\u0061": [[3]]}', words=["image[0]", "'a' twice"]),
    refused("b64_json twice", '{"b64_json": "AA==", "b64_json": "AA=="}', words=["image[0]", "twice"]),
    refused("b64_json beside a camera", json.dumps({"b64_json": RED_TEXT, "a": RED}), words=["image[0]", "2 names"]),
    refused("b64_json of a list", '{"b64_json": [[1]]}', words=["image[0]", "b64_json", "a list"]),
    refused("base64 of null", '{"a": {"base64": null}}', words=["image[0]['a']", "base64", "null"]),
    refused("an empty object", "{}", words=["image[0]", "empty object"]),
    refused("a camera without a name", '{"": [[1]]}', words=["image[0]", "name"]),
    refused("a camera that is a number", '{"a": 5}', words=["image[0]['a']", "a number"]),
    refused("a camera that is null", '{"a": [[1]], "b": null}', words=["image[0]['b']", "null"]),
    refused("a camera that is true", '{"a": true}', words=["image[0]['a']", "a boolean"]),
    refused("cameras in a camera", '{"a": {"b": [[1]]}}', words=["image[0]['a']", "an object"]),
    refused("a camera with bad base64", '{"a": [[1]], "b": "AA-/"}', words=["image[0]['b']", "alphabet"]),
    refused("a camera that is a URL", '{"a": "https://example.com/a.png"}', words=["image[0]['a']", "URL"]),
    refused(
        "a camera with a bad list", '{"a": [[1]], "b": [[[1,2,3],[1,2]]]}', words=["image[0]['b']", "row 0, column 1"]
    ),
    refused("a camera with 256", '{"a": [[1]], "b": [[255],[256]]}', words=["image[0]['b']", "row 1, column 0", "256"]),
    refused("a camera with a bad file", json.dumps({"a": STANDARD[:-40]}), words=["image[0]['a']", "whole PNG"]),
    refused("an object with a trailing comma", '{"a": [[1]],}', words=["image[0]", "valid JSON"]),
    refused("an object with trailing text", '{"a": [[1]]} x', words=["image[0]", "valid JSON"]),
    refused("an object that is cut", '{"a": [[1]]', words=["image[0]", "valid JSON"]),
    refused("an object in Python's quotes", "{'a': [[1]]}", words=["image[0]", "valid JSON"]),
    refused("an object with a bracket too many", '{"a": [[1]]], "b": [[1]]}', words=["image[0]['a']", "valid JSON"]),
    refused("a camera of line breaks alone", '{"a": "' + "\\n" * 100_000 + '"}', words=["image[0]['a']", "empty text"]),
    refused("a very long name", '{"' + "\\n" * 3000 + '": [[1]]}', words=["names of at most 4096"], code="TOO_LARGE"),
    refused("half a surrogate pair", '{"a": "\\ud800"}', words=["image[0]", "valid JSON"]),
    refused("a name that is not UTF-8", b'{"\xff": [[1]]}', words=["image[0]", "valid JSON"]),
]

CASES: list[Case] = [
    *BASE64,
    *BASE64_REFUSED,
    *(
        refused(f"the name {text}", text, words=["image[0]", kind, *(["never"] if kind else [])])
        for text, kind in NAMES_REFUSED.items()
    ),
    *CAMERAS,
    *CAMERAS_REFUSED,
]
