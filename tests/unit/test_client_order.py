"""Answers that overtake each other on one stream: whatever the order of arrival, a session reads them as asked."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from worldstream.core import make_core
from worldstream.errors import BusyError, CancelledError, ProtocolError
from worldstream.exchange import Exchange
from worldstream.requests import Controls
from worldstream.testing import error_message, frames_message, receipt_message

PIXELS = np.zeros((96, 160, 3), np.uint8)
TOO_LARGE = Controls(parameters=(("step_cache_warmup_steps", 2**63),))  # for a request's 64 bits
# What the server says to three requests of two chunks each, the first one of nine frames: (first frame, frames, chunk).
ANSWERS = {
    "request-1": [(0, 9, (0, 0, 1)), (9, 6, (1, 0, 2)), (15, 6, (1, 1, 2))],
    "request-2": [(21, 12, (2, 0, 1)), (33, 12, (3, 0, 1))],
    "request-3": [(45, 12, (4, 0, 1)), (57, 12, (5, 0, 1))],
}


class Reader:
    """A client without a connection: three requests under way."""

    def __init__(self):
        self.core = make_core(PIXELS, None, None, None, None, None)
        self.exchange = Exchange()
        self.slots = [self.exchange.open(self.core.next_request(Controls()).id) for _ in ANSWERS]

    def hear(self, request_id, message):
        message.infer_response.id = request_id
        for event in self.core.receive(message):
            self.exchange.deliver(event)

    def hear_frames(self, request_id, number):
        answers = ANSWERS[request_id]
        self.hear(request_id, frames_message(*answers[number], number == len(answers) - 1))


def frames_of(slot):
    batches = iter(slot.take, None)
    return [number for batch in batches for number in batch.frame_index.tolist()]


@given(st.permutations([name for name, answers in ANSWERS.items() for _ in answers]))
def test_any_order_of_arrival_reads_as_asked(arrivals):
    reader, said = Reader(), dict.fromkeys(ANSWERS, 0)
    for request_id in arrivals:
        reader.hear_frames(request_id, said[request_id])
        said[request_id] += 1

    assert [frames_of(slot) for slot in reader.slots] == [
        list(range(21)),
        list(range(21, 45)),
        list(range(45, 69)),
    ]
    assert reader.exchange.is_idle
    assert reader.core.num_frames_lost == 0


def test_a_receipt_and_a_refusal_have_no_turn():
    reader = Reader()
    reader.hear("request-2", receipt_message(2, 1))
    reader.hear("request-3", error_message("BUSY: denoise: 8 requests wait"))

    assert reader.slots[1].find_receipt().num_ahead == 1
    with pytest.raises(BusyError):
        reader.slots[2].take()


@pytest.mark.parametrize("refusal", ["BUSY: denoise: 4 requests wait", "SESSION_NOT_FOUND: sequence_id: it ends"])
def test_a_refusal_amid_a_chunk_of_another_request_leaves_the_other_parts_their_place(refusal):
    # It once counted as the end of that chunk: its next part broke the whole stream with a ProtocolError.
    reader = Reader()
    for number in range(2):
        reader.hear_frames("request-1", number)
    reader.hear("request-2", error_message(refusal))
    reader.hear_frames("request-1", 2)

    assert frames_of(reader.slots[0]) == list(range(21))
    assert reader.core.num_frames_lost == 0


def test_an_error_amid_its_own_chunk_gives_up_the_other_parts():
    reader = Reader()
    for number in range(2):
        reader.hear_frames("request-1", number)
    reader.hear("request-1", error_message("INTERNAL: an answer could not be sent"))
    for number in range(2):
        reader.hear_frames("request-2", number)

    assert frames_of(reader.slots[1]) == list(range(21, 45))
    assert reader.core.num_frames_lost == 6


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_a_session_whose_start_failed_can_be_started_again_whatever_was_sent_behind_it(order):
    # It once counted as ended where the refusal of what was sent behind the start came after the start's own.
    reader = Reader()
    said = [("request-1", "SESSION_LIMIT: no room"), ("request-2", "SESSION_NOT_FOUND: never started")]
    for place in order:
        reader.hear(said[place][0], error_message(said[place][1]))

    again = reader.core.next_request(Controls())
    assert again.parameters["sequence_start"].bool_param


def test_an_error_stays_behind_the_frames_that_came_before_it():
    reader = Reader()
    reader.hear_frames("request-2", 0)
    reader.hear("request-2", error_message("CANCELLED: the session ended"))
    assert not reader.slots[1].has_news
    for number in range(3):
        reader.hear_frames("request-1", number)

    assert reader.slots[1].take().frame_index[0] == 21
    with pytest.raises(CancelledError):
        reader.slots[1].take()


def test_an_error_without_an_id_is_the_oldest_requests():
    reader = Reader()
    reader.hear("request-2", frames_message(0, 9, (0, 0, 1), False))
    reader.hear("", error_message("CANCELLED: gone"))

    with pytest.raises(CancelledError):
        reader.slots[0].take()
    assert reader.slots[1].take().frame_index[0] == 0


def test_an_answer_to_nobody_is_named():
    with pytest.raises(ProtocolError, match="response: its id 'request-9' belongs to no request under way"):
        Reader().hear("request-9", frames_message(0, 9, (0, 0, 1), False))


def test_a_request_that_cannot_be_built_holds_nothing_back():
    reader = Reader()
    with pytest.raises(ValueError, match="out of range"):
        reader.core.next_request(TOO_LARGE)
    slot = reader.exchange.open(reader.core.next_request(Controls()).id)
    for request_id, answers in ANSWERS.items():
        for number in range(len(answers)):
            reader.hear_frames(request_id, number)
    reader.hear("request-5", frames_message(69, 12, (6, 0, 1), True))

    assert frames_of(slot) == list(range(69, 81))
    assert reader.exchange.is_idle


def test_a_start_that_cannot_be_built_is_still_to_be_sent():
    core = make_core(PIXELS, None, None, None, None, None)
    with pytest.raises(ValueError, match="out of range"):
        core.next_request(TOO_LARGE)

    assert core.next_request(Controls()).parameters["sequence_start"].bool_param


def test_a_broken_stream_forgets_what_waited():
    reader = Reader()
    reader.hear_frames("request-2", 0)
    reader.core.stream_broke()
    reader.exchange.fail(CancelledError("CANCELLED: gone"))
    slot = reader.exchange.open(reader.core.next_request(Controls()).id)
    reader.hear("request-4", frames_message(69, 12, (6, 0, 1), True))

    assert frames_of(slot) == list(range(69, 81))
