"""JSON objects are cut where the standard library cuts them, and whatever is in them is refused briefly and cheaply."""

import json
import tracemalloc

import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st
from ingest import IngestError, InvalidInputError, Limits, json_object, read_images
from ingest.json_object import parse_base64_string, split_object


def refusal(element: bytes) -> str:
    with pytest.raises(IngestError) as caught:
        read_images([element], None, Limits())
    return str(caught.value)


JSON_VALUES = st.recursive(
    st.one_of(st.text(max_size=5), st.integers(), st.booleans(), st.none(), st.lists(st.lists(st.integers(0, 255)))),
    lambda inner: st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=6,
)


@settings(max_examples=300, deadline=None)
@given(st.dictionaries(st.text(max_size=5), JSON_VALUES, max_size=4), st.booleans(), st.sampled_from([None, 1]))
def test_an_object_is_cut_where_the_standard_library_cuts_it(content: dict, is_ascii: bool, indent: int | None) -> None:
    text = json.dumps(content, ensure_ascii=is_ascii, indent=indent).encode("utf-8", "surrogatepass")
    members = split_object(text, "image[0]", max_depth=10, max_names=1000)
    assert [(member.name, json.loads(member.value)) for member in members] == list(content.items())


@settings(max_examples=300, deadline=None)
@given(st.text(max_size=30), st.booleans(), st.integers(7, 40))  # a block must be longer than the longest escape
@example("\\" * 20, True, 7)
@example("\x01" * 9, False, 7)
@example("\\" * 7 + "\n" * 8, True, 7)
def test_a_string_is_read_as_the_standard_library_reads_it(text: str, is_ascii: bool, block_bytes: int) -> None:
    token = json.dumps(text, ensure_ascii=is_ascii).encode("utf-8", "surrogatepass")
    # A block may end within a character that is not ASCII, or between two halves of one: no base64 has such.
    assume(text.isascii())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(json_object, "_BLOCK_BYTES", block_bytes)
        assert parse_base64_string(token, "image[0]") == text.encode()


@pytest.mark.parametrize("text", [b'"\\x"', b'"\\u12"', b'"\\u12\\n"', b'"\\"', b'"\\\\\\"', b'"\\n\x01"'])
def test_a_broken_string_is_refused(text: bytes) -> None:
    assert "valid JSON" in refusal(b'{"a": ' + text + b"}")


@pytest.mark.parametrize("escape", [b"\\n", b"\\/", b"\\u000a", b"\\\\", b'\\"', b"\\ud83d\\ude00"])
def test_a_refused_string_of_escapes_takes_little_memory(escape: bytes) -> None:
    # 64 MiB of them took 18 s and 3.9 GB.
    element = b'{"a":"' + escape * (4_000_000 // len(escape)) + b'"}'
    tracemalloc.start()
    refusal(element)
    assert tracemalloc.get_traced_memory()[1] < 4 * len(element)
    tracemalloc.stop()


@pytest.mark.parametrize("opening", [b"[", b"[1,", b"[ "])
def test_deep_lists_in_cameras_are_refused_at_once_and_briefly(opening: bytes) -> None:
    message = refusal(b'{"a":' + opening * 300_000 + b"}")
    assert message == "TOO_LARGE: image[0]['a']: wanted at most 8 levels of JSON, came 300000"


def test_a_very_long_name_is_refused() -> None:
    assert "TOO_LARGE: image[0]: wanted names of at most 4096 bytes" in refusal(b'{"' + b"\\n" * 3000 + b'": 1}')


@pytest.mark.parametrize("name", ["\U0001f600" * 1000, "\x7f" * 1000, "'" * 1000, "\ud83d"])
def test_no_name_makes_a_message_long(name: str) -> None:
    text = json.dumps({name[:300]: {name[:200]: 1}}).encode()
    assert len(refusal(text)) < 400
    assert len(refusal(text[:-1] + b', "b": 1}')) < 400


def test_a_message_is_cut_should_anything_make_it_long() -> None:
    message = str(InvalidInputError("x" * 1000))
    assert len(message) == 500
    assert message.endswith("xxx...")
