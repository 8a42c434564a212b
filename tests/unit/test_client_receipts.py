"""Receipts: the word, before any frame, that the server has taken a request up. Blocking and with asyncio."""

import asyncio

import numpy as np
import pytest
from worldstream import (
    BusyError,
    CancelledError,
    InvalidInputError,
    ProtocolError,
    Receipt,
    ResponseTimeoutError,
    WorldClient,
)
from worldstream.aio import AsyncWorldClient
from worldstream.core import make_core
from worldstream.exchange import Exchange
from worldstream.requests import Controls
from worldstream.testing import answer_once, error_message, frames_message, receipt_message, silence

PIXELS = np.zeros((2, 3, 3), np.uint8)


def run_with_client(server, main):
    async def with_client():
        async with AsyncWorldClient(server.url, timeout_s=5) as client:
            await main(client)

    asyncio.run(with_client(), debug=True)


def then_silence(*messages):
    """A script's answer that stops in its middle."""
    yield from messages
    yield from silence(0.5)


def encoded(message):
    """The same message for a request whose frames travel as files."""
    message.infer_response.outputs.add(name="encoded_frames", datatype="BYTES", shape=[0])
    message.infer_response.raw_output_contents.append(b"")
    return message


def test_a_receipt_says_what_the_request_will_steer_and_the_batches_follow(server, client):
    with client.session(PIXELS) as session:
        list(session.generate(num_chunks=2))
        replies = session.generate(event_id=7, receipt=True)
        receipt = replies.receipt()
        batches = list(replies)

    assert receipt == Receipt(chunk_index=2, num_ahead=0, event_id=7)
    assert [(batch.chunk_index, batch.part_index) for batch in batches] == [(2, 0), (2, 1), (2, 2)]
    assert {batch.event_id for batch in batches} == {7}
    assert [seen.parameters.get("receipt") for seen in server.seen] == [None, True, None]


def test_it_comes_while_no_frame_has_been_made(server, client):
    server.script = answer_once(receipt_message(0, 2, 5))  # and nothing after it
    replies = client.session(PIXELS).generate(event_id=5, receipt=True)

    assert replies.receipt() == Receipt(0, 2, 5)


def test_a_request_without_an_event_has_a_receipt_without_one(client):
    with client.session(PIXELS) as session:
        replies = session.generate(receipt=True)
        assert replies.receipt() == Receipt(0, 0, None)


def test_who_reads_frames_alone_never_sees_it(client):
    with client.session(PIXELS) as session:
        numbers = [frame.frame_index for frame in session.frames(num_chunks=2, receipt=True)]

    assert numbers == list(range(21))
    assert session.num_frames_lost == 0


def test_it_may_be_asked_for_twice_and_after_the_batches(client):
    with client.session(PIXELS) as session:
        replies = session.generate(receipt=True, event_id=5)
        assert len(list(replies)) == 2
        assert [replies.receipt() for _ in range(2)] == 2 * [Receipt(chunk_index=0, num_ahead=0, event_id=5)]


def test_the_receipt_of_a_second_request_may_come_amid_a_chunk_of_the_first():
    core = make_core(PIXELS, None, None, None, None, None)
    exchange = Exchange()
    first, second = (exchange.open(core.next_request(Controls()).id) for _ in range(2))
    for request_id, message in (
        ("request-1", frames_message(0, 5, (0, 0, 2), False)),
        ("request-2", receipt_message(1, 1)),
        ("request-1", frames_message(5, 4, (0, 1, 2), True)),
        ("request-2", frames_message(9, 12, (1, 0, 1), True)),
    ):
        message.infer_response.id = request_id
        for event in core.receive(message):
            exchange.deliver(event)

    assert second.find_receipt() == Receipt(1, 1, None)
    assert [len(first.take().frames), len(first.take().frames), len(second.take().frames)] == [5, 4, 12]
    assert exchange.is_idle


def test_where_frames_travel_as_files_a_receipt_has_none(server, client):
    server.script = answer_once(encoded(receipt_message(0, 0, 3)), frames_message(0, 4, (0, 0, 1), True, 3))
    with client.session(PIXELS, frame_encoding="png") as session:
        replies = session.generate(event_id=3, receipt=True)
        assert replies.receipt() == Receipt(0, 0, 3)
        (batch,) = replies
    assert batch.frame_index.tolist() == [0, 1, 2, 3]


def test_a_refusal_comes_in_place_of_the_receipt_and_once(server, client):
    server.script = answer_once(error_message("BUSY: denoise: 8 requests wait"))
    with client.session(PIXELS) as session:
        replies = session.generate(receipt=True)
        with pytest.raises(BusyError):
            replies.receipt()
        assert list(replies) == []


def test_an_error_after_the_receipt_is_the_iterators(server, client):
    server.script = answer_once(receipt_message(0, 0), error_message("INTERNAL: the chunk failed; reference 1"))
    with client.session(PIXELS) as session:
        replies = session.generate(receipt=True)
        with pytest.raises(Exception, match="the chunk failed"):
            list(replies)
        assert replies.receipt() == Receipt(0, 0, None)


def test_a_start_that_fails_after_its_receipt_can_be_sent_again(server, client):
    # The server frees a session whose first chunk fails: a receipt does not make it live.
    server.script = answer_once(receipt_message(0, 0), error_message("BUSY: denoise: 8 requests wait"))
    with client.session(PIXELS) as session:
        replies = session.generate(receipt=True)
        replies.receipt()
        with pytest.raises(BusyError):
            list(replies)
        assert [frame.frame_index for frame in session.frames()] == list(range(9))

    assert [seen.parameters["sequence_start"] for seen in server.seen] == [True, True, False]


def test_silence_after_a_receipt_is_a_timeout_without_frames(server):
    server.script = lambda seen: then_silence(receipt_message(0, 0))
    with WorldClient(server.url, timeout_s=0.2) as client:
        replies = client.session(PIXELS).generate(receipt=True)
        replies.receipt()
        with pytest.raises(ResponseTimeoutError) as caught:
            next(replies)
    assert caught.value.frames_received == 0


def test_nobody_waits_for_a_receipt_that_was_not_asked_for(server, client):
    server.script = lambda seen: silence()
    session = client.session(PIXELS)

    with pytest.raises(InvalidInputError, match="receipt: wanted a request sent with receipt=True"):
        session.generate().receipt()

    session.close()


@pytest.mark.parametrize(
    "messages",
    [
        pytest.param([frames_message(0, 4, (0, 0, 1), True)], id="frames"),
        pytest.param([frames_message(0, 0, (0, 0, 1), True)], id="nothing"),
    ],
)
def test_an_answer_without_the_receipt_that_was_asked_for_is_refused(server, client, messages):
    server.script = answer_once(*messages)
    session = client.session(PIXELS)

    with pytest.raises(ProtocolError, match="receipt: wanted it before all else"):
        session.generate(receipt=True).receipt()

    session.close()


@pytest.mark.parametrize("part_index", [0, 1, -2])
def test_an_empty_response_that_is_no_receipt_is_refused(server, client, part_index):
    server.script = answer_once(frames_message(0, 0, (0, part_index, 0), False))
    session = client.session(PIXELS)

    with pytest.raises(ProtocolError, match="frames: a response that is not final came without frames"):
        next(session.generate())

    session.close()


def test_asyncio_awaits_a_receipt_before_and_beside_the_batches(server):
    async def main(client):
        async with client.session(PIXELS) as session:
            replies = session.generate(event_id=4, receipt=True)
            assert await replies.receipt() == Receipt(0, 0, 4)  # and it was sent by that
            assert [batch.frame_index.tolist() async for batch in replies] == [[0, 1, 2, 3, 4], [5, 6, 7, 8]]
            assert await replies.receipt() == Receipt(0, 0, 4)
            assert [frame.frame_index async for frame in session.frames(receipt=True)] == list(range(9, 21))
            both = await session.generate(receipt=True), await session.generate(receipt=True)
            received = await asyncio.gather(*(each.receipt() for each in reversed(both)))
            assert [receipt.chunk_index for receipt in received] == [3, 2]
            assert [batch.chunk_index async for batch in both[0]] == [2, 2, 2]
            assert [batch.chunk_index async for batch in both[1]] == [3, 3, 3]

    run_with_client(server, main)


def test_asyncio_raises_what_came_in_place_of_a_receipt(server):
    async def main(client):
        server.script = answer_once(error_message("BUSY: denoise: 8 requests wait"))
        async with client.session(PIXELS) as session:
            replies = session.generate(receipt=True)
            with pytest.raises(BusyError):
                await replies.receipt()
            assert [batch async for batch in replies] == []
            with pytest.raises(CancelledError, match="ended before its receipt came"):
                await replies.receipt()
            with pytest.raises(InvalidInputError, match="receipt=True"):
                await session.generate().receipt()

    run_with_client(server, main)
