"""What a request may say of its prompt: words, or vectors of this world's size."""

import numpy as np
import pytest
from worldmodel.errors import InvalidInputError, TooLargeError
from worldmodel.request import Envelope, parse_request
from worldmodel.serving import ServingConfig

from tests.unit.worlds import TINY

START, GO_ON = Envelope("robot", is_start=True), Envelope("robot")
ROWS = np.arange(48, dtype=np.float32).reshape(3, 16)


def parse(envelope, **tensors):
    if envelope is START:
        tensors["pixels"] = np.zeros((1, 8, 8, 3), np.uint8)
    return parse_request(tensors, envelope, TINY, ServingConfig())


def text(value):
    return np.array([value.encode()], object)


def test_vectors_are_copied_and_switch_once_at_the_first_chunk_of_their_request():
    sent = ROWS.copy()
    request = parse(GO_ON, prompt_embeds=sent, num_chunks=np.array([2], np.int32))
    sent[:] = 0  # Triton takes a request's memory back
    assert request.controls(1, 3).prompt is None
    np.testing.assert_array_equal(request.controls(0, 3).prompt, ROWS)
    assert (request.text, request.waiting_bytes) == (None, 192)


def test_a_start_brings_its_vectors_with_it():
    request = parse(START, prompt_embeds=ROWS)
    np.testing.assert_array_equal(request.prompt, ROWS)
    assert request.controls(0, 3).prompt is None


def test_what_has_to_be_read_is_the_prompt_or_the_empty_one_of_a_start():
    assert parse(START, prompt=text("night")).text == "night"
    assert parse(START).text == ""
    assert parse(GO_ON, prompt=text("night")).text == "night"
    assert parse(GO_ON).text is None


def test_no_rows_are_an_empty_prompt():
    assert parse(GO_ON, prompt_embeds=np.zeros((0, 16), np.float32)).prompt.shape == (0, 16)


def test_vectors_may_hold_for_what_the_session_remembers():
    envelope = Envelope("robot", parameters={"recache": True})
    assert parse(envelope, prompt_embeds=ROWS).controls(0, 3).is_recached


def with_number(value):
    rows = ROWS.copy()
    rows[2, 5] = value
    return rows


@pytest.mark.parametrize(
    ("tensors", "kind", "message"),
    [
        ({"prompt": text("night")}, InvalidInputError, "wanted prompt or prompt_embeds, got both"),
        ({"prompt_embeds": np.zeros((3, 15), np.float32)}, InvalidInputError, r"wanted \[n, 16\], .*, got \[3, 15\]"),
        ({"prompt_embeds": np.zeros((48,), np.float32)}, InvalidInputError, r"wanted \[n, 16\], .*, got \[48\]"),
        ({"prompt_embeds": np.zeros((5, 16), np.float32)}, TooLargeError, "wanted at most 4 rows, got 5"),
        ({"prompt_embeds": with_number(np.nan)}, InvalidInputError, "row 2: a number is not finite, or beyond 1e"),
        ({"prompt_embeds": with_number(-np.inf)}, InvalidInputError, "row 2: a number is not finite, or beyond 1e"),
        ({"prompt_embeds": with_number(2e6)}, InvalidInputError, "row 2: a number is not finite, or beyond 1e"),
    ],
)
def test_vectors_that_cannot_be_meant_are_refused(tensors, kind, message):
    for envelope in (START, GO_ON):
        with pytest.raises(kind, match=f"prompt_embeds: {message}"):
            parse(envelope, **{"prompt_embeds": ROWS, **tensors})
