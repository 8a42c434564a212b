"""Base64 text: literal strings, every spelling that is accepted and every fault by name."""

import base64
import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st
from ingest.base64text import decode_base64
from ingest.errors import InvalidInputError

# b"\xfb\xef\xbe\xff" holds all four special characters in one alphabet or the other.
SPECIAL = b"\xfb\xef\xbe\xff\xff\xfe"
STANDARD = b"++++///+"
URL_SAFE = b"----___-"


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        (STANDARD, SPECIAL),
        (URL_SAFE, SPECIAL),
        (b"aGVsbG8=", b"hello"),
        (b"aGVsbG8", b"hello"),
        (b"aGVsbA==", b"hell"),
        (b"aGVsbA", b"hell"),
        (b"aGVs\nbG8=", b"hello"),
        (b"aGVs\r\nbG8=\r\n", b"hello"),
        (b"  aGVs\n  bG8=  \n", b"hello"),
        (b"aGVs\tbG8=", b"hello"),
        (b"data:image/png;base64,aGVsbG8=", b"hello"),
        (b"DATA:Image/PNG;BASE64,aGVsbG8=", b"hello"),
        (b"data:image/svg+xml;charset=utf-8;base64, aGVsbG8", b"hello"),
    ],
)
def test_every_accepted_spelling_decodes(text: bytes, wanted: bytes) -> None:
    assert decode_base64(text, "image[0]") == wanted


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (b"+++-", "one base64 alphabet, came both standard ('+', '/') and url-safe ('-', '_')"),
        (b"aGVs_G8/", "one base64 alphabet"),
        (b"aG sbG8=", "'+' is turned to space"),
        (b"aG  bG8=", "'+' is turned to space"),
        (b"aGVs=bG8", "'=' only at its end"),
        (b"aGVsbG8==", "wanted no '=' or 1 at the end of the base64, came 2"),
        (b"aGVsbA=", "wanted no '=' or 2 at the end of the base64, came 1"),
        (b"aGVs====", "wanted no '=' or 0 at the end of the base64, came 4"),
        (b"aGVsb", "a length that base64 cannot have"),
        (b"aGVs!G8=", "the byte 0x21 at character 4"),
        (b"aGVs%2BG8", "the byte 0x25 at character 4"),
        (b"caf\xc3\xa9", "the byte 0xc3 at character 3"),
        (b"aGVs\x00G8=", "the byte 0x00 at character 4"),
        (b"", "came empty text"),
        (b"data:image/png;base64,", "came empty text"),
        (b"data:image/png,%89PNG", "wanted a data URI that starts 'data:image/...;base64,'"),
        (b"data:text/plain;base64,aGVsbG8=", "wanted a data URI that starts"),
        (b"https://example.com/a.png", "came a URL; URLs are never fetched"),
        (b"HTTP://example.com/a.png", "came a URL"),
        (b"file:///etc/passwd", "came a URL"),
        (b"s3://bucket/key", "came a URL"),
        (b"/etc/hosts.allow", "a file path is never opened"),
        (b"C:\\pictures\\cat.png", "paths are never opened"),
        (b"pictures/cat.png", "a file path is never opened"),
        (b"~/cat", "a file path is never opened"),
    ],
)
def test_every_fault_is_refused_by_name(text: bytes, words: str) -> None:
    with pytest.raises(InvalidInputError) as caught:
        decode_base64(text, "image[3]")
    assert str(caught.value).startswith("INVALID_INPUT: image[3]: ")
    assert words in str(caught.value)


def test_messages_do_not_repeat_the_text() -> None:
    with pytest.raises(InvalidInputError) as caught:
        decode_base64(b"/home/someone/secret.png", "image[0]")
    assert "secret" not in str(caught.value)


@given(st.binary(min_size=1), st.booleans(), st.booleans(), st.integers(1, 80))
def test_what_the_standard_library_encodes_comes_back(
    data: bytes, is_urlsafe: bool, is_padded: bool, line_length: int
) -> None:
    text = base64.urlsafe_b64encode(data) if is_urlsafe else base64.b64encode(data)
    text = text if is_padded else text.rstrip(b"=")
    wrapped = b"\r\n".join(text[start : start + line_length] for start in range(0, len(text), line_length))
    assert decode_base64(wrapped, "image[0]") == data


@given(st.binary(min_size=1))
def test_a_lost_plus_is_never_read_as_something_else(data: bytes) -> None:
    text = base64.b64encode(b"\xfb\xef" + data + b"\xfb\xef\xbe")
    spaced = b"x" + text.replace(b"+", b" ") + b"x"
    with pytest.raises(InvalidInputError):
        decode_base64(spaced, "image[0]")


@pytest.mark.parametrize("end", [b"", b";base64,aGVsbG8="])
def test_a_prefix_without_end_is_refused_and_takes_no_memory(end: bytes) -> None:
    # Its parameters were matched one by one, at 44 times their bytes: 2.8 GB for a text of 64 MB.
    text = b"data:image/png" + b";a=b" * 100_000 + end
    tracemalloc.start()
    with pytest.raises(InvalidInputError, match="wanted a data URI that starts"):
        decode_base64(text, "image[0]")
    assert tracemalloc.get_traced_memory()[1] < len(text)
    tracemalloc.stop()
