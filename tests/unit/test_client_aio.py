"""The client for asyncio against the small server: what it shares with the blocking one, and what only it does."""

import asyncio
import contextlib
import gc
import inspect
import socket
import threading
import time

import numpy as np
import pytest
from worldstream import (
    BusyError,
    CancelledError,
    ConnectionLostError,
    InvalidInputError,
    ResponseTimeoutError,
    Session,
    SessionExistsError,
    SessionNotFoundError,
    UnavailableError,
    WorldClient,
)
from worldstream.aio import AsyncSession, AsyncWorldClient
from worldstream.testing import answer_once, error_message, frames_message, silence

PIXELS = np.arange(2 * 3 * 3, dtype=np.uint8).reshape(2, 3, 3)


def run(main):
    """Run it in asyncio's debug mode; it must leave no task and no complaint behind."""

    async def checked():
        complaints = []
        asyncio.get_running_loop().set_exception_handler(lambda _, context: complaints.append(context))
        await main()
        gc.collect()
        await asyncio.sleep(0.05)
        assert asyncio.all_tasks() == {asyncio.current_task()}
        assert complaints == []

    asyncio.run(checked(), debug=True)


def run_with_client(server, main, **options):
    """Run it with a client of its own."""

    async def with_client():
        async with AsyncWorldClient(server.url, **{"timeout_s": 5, **options}) as client:
            await main(client)

    run(with_client)


async def until(condition, timeout_s=5.0):
    deadline = time.monotonic() + timeout_s
    while not condition() and time.monotonic() < deadline:
        await asyncio.sleep(0.01)
    assert condition()


def test_batches_and_frames_come_as_from_the_blocking_client(server):
    async def main(client):
        async with client.session(b"encoded", seed=7, prompt="dusk", num_steps=4) as session:
            batches = [batch async for batch in session.generate(actions="w.l", event_id=3)]
            frames = [(frame.frame_index, int(frame.pixels[0, 0, 0])) async for frame in session.frames(num_chunks=1)]
        assert [batch.frame_index.tolist() for batch in batches] == [[0, 1, 2, 3, 4], [5, 6, 7, 8]]
        assert {batch.event_id for batch in batches} == {3}
        assert batches[-1].is_last
        assert frames == [(number, number) for number in range(9, 21)]
        assert (session.next_frame_index, session.num_frames_lost) == (21, 0)

    run_with_client(server, main)

    decoded, start, later, end = server.seen
    assert decoded.model == "preprocess"
    assert (start.inputs["seed"], start.inputs["prompt"], start.inputs["num_steps"]) == ([7], [b"dusk"], [4])
    assert start.inputs["actions"] == [b"w", b"", b"l"]
    assert later.inputs == {"num_chunks": [1], "num_steps": [4]}
    assert (end.parameters["sequence_end"], end.inputs) == (True, {})
    assert len({seen.metadata["x-session-id"] for seen in (start, later, end)}) == 1
    assert server.sessions == {}


def test_pace_and_recache_go_out_as_from_the_blocking_client(server):
    async def main(client):
        async with client.session(PIXELS, fps=16) as session:
            assert len([batch async for batch in session.generate()]) == 2
            assert len([batch async for batch in session.generate(prompt="night", recache=True)]) == 3
        assert len([batch async for batch in client.generate(PIXELS, fps=30)]) == 2

    run_with_client(server, main)

    asked = [(seen.parameters.get("fps"), seen.parameters.get("recache")) for seen in server.seen]
    assert asked == [(16.0, None), (16.0, True), (None, None), (30.0, None)]


def test_it_has_the_names_and_arguments_of_the_blocking_client():
    for blocking, other in ((WorldClient, AsyncWorldClient), (Session, AsyncSession)):
        names = {name for name in vars(blocking) if not name.startswith("_")}
        assert names == {name for name in vars(other) if not name.startswith("_")}
        for name in names - {"session_id", "next_frame_index", "num_frames_lost", "steer"}:
            wanted = inspect.signature(getattr(blocking, name)).parameters
            assert list(inspect.signature(getattr(other, name)).parameters.items()) == list(wanted.items()), name


def test_a_request_is_sent_at_once_by_await_and_two_under_way_answer_each_its_own(server):
    async def main(client):
        async with client.session(PIXELS) as session:
            first = await session.generate(event_id=1)
            second = await session.frames(event_id=2)
            await until(lambda: len(server.seen) == 2)
            numbers = [frame.frame_index async for frame in second]
            events = [batch.event_id async for batch in first]
        assert numbers == list(range(9, 21))
        assert events == [1, 1]

    run_with_client(server, main)


def test_two_tasks_read_two_requests_of_one_session(server):
    async def count(replies):
        return [batch.chunk_index async for batch in replies]

    async def main(client):
        async with client.session(PIXELS) as session:
            replies = [await session.generate(num_chunks=2) for _ in range(2)]
            assert await asyncio.gather(*map(count, reversed(replies))) == [[2, 2, 2, 3, 3, 3], [0, 0, 1, 1, 1]]

    run_with_client(server, main)


def test_leaving_the_loop_cancels_on_the_server_and_the_session_goes_on(server):
    async def main(client):
        server.chunk_s = 0.1
        async with client.session(PIXELS) as session:
            async for _ in session.generate(num_chunks=50):
                break
            await until(server.cancelled.is_set)
            server.chunk_s = 0
            assert (await anext(session.frames())).frame_index >= 9

    run_with_client(server, main)
    assert server.sessions == {}


def test_a_request_right_after_a_loop_that_was_left_is_answered(server):
    async def main(client):
        async with client.session(PIXELS) as session:
            async for _ in session.frames(num_chunks=50):
                break
            assert len([batch async for batch in session.generate()]) == 3

    run_with_client(server, main)


def test_closing_an_iterator_cancels_too_and_nothing_comes_after_it(server):
    async def main(client):
        server.chunk_s = 0.1
        session = client.session(PIXELS)
        async with contextlib.aclosing(session.frames(num_chunks=50)) as frames:
            await anext(frames)
        await until(server.cancelled.is_set)
        assert [frame async for frame in frames] == []
        await session.end()

    run_with_client(server, main)
    assert server.sessions == {}


def test_a_dropped_iterator_leaves_other_requests_alone(server):
    async def main(client):
        async with client.session(PIXELS) as session:
            first, second = await session.generate(), await session.frames()
            del first
            assert [frame.frame_index async for frame in second] == list(range(9, 21))
        assert not server.cancelled.is_set()

    run_with_client(server, main)


def test_a_cancelled_task_cancels_on_the_server_and_the_session_goes_on(server):
    async def main(client):
        server.chunk_s = 0.1
        async with client.session(PIXELS) as session:
            replies = session.generate(num_chunks=50)
            await anext(replies)

            async def read():
                async for _ in replies:
                    pass

            task = asyncio.create_task(read())
            await asyncio.sleep(0.15)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            await until(server.cancelled.is_set)
            server.chunk_s = 0
            assert await anext(session.frames())

    run_with_client(server, main)
    assert server.sessions == {}


def test_a_cancel_while_nothing_has_come_yet_is_seen_and_the_start_is_undone(server):
    async def main(client):
        server.script = answer_once()  # the start is never answered
        session = client.session(PIXELS)
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(anext(session.generate()), 0.2)
        assert [frame.frame_index async for frame in session.frames()] == list(range(9))
        await session.end()

    run_with_client(server, main)
    flags = [(seen.parameters["sequence_start"], seen.parameters["sequence_end"]) for seen in server.seen]
    assert flags == [(True, False), (False, True), (True, False), (False, True)]


def test_cancel_from_another_task_raises_the_packages_own_error(server):
    async def main(client):
        server.script = lambda seen: silence()
        session = client.session(PIXELS)
        asyncio.get_running_loop().call_later(0.1, session.cancel)
        before = time.monotonic()
        with pytest.raises(CancelledError, match="this client cancelled"):
            await anext(session.generate())
        assert time.monotonic() - before < 1
        await session.close()

    run_with_client(server, main)


def test_silence_is_a_timeout_with_the_frames_that_had_come(server):
    async def main(client):
        async def after_five_frames():
            async for _ in session.generate(num_chunks=2):
                pass

        server.script = answer_once(frames_message(0, 5, (0, 0, 2), False))
        session = client.session(PIXELS)
        with pytest.raises(ResponseTimeoutError, match=r"no response within 0\.3 s") as caught:
            await after_five_frames()
        assert caught.value.frames_received == 5
        assert isinstance(caught.value, UnavailableError)
        await session.close()

    run_with_client(server, main, timeout_s=0.3)


def test_a_server_that_accepts_and_never_speaks_is_a_timeout():
    with socket.create_server(("127.0.0.1", 0)) as mute:

        async def main():
            async with AsyncWorldClient(f"127.0.0.1:{mute.getsockname()[1]}", timeout_s=0.3, reconnect_s=0) as client:
                session = client.session(PIXELS)
                with pytest.raises(ResponseTimeoutError):
                    await anext(session.generate())
                with pytest.raises(ResponseTimeoutError):
                    await client.info()

        run(main)


def test_an_error_is_raised_once_and_a_refused_start_can_be_sent_again(server):
    async def main(client):
        server.script = answer_once(error_message("BUSY: denoise: 8 requests wait"))
        async with client.session(b"encoded") as session:
            replies = session.generate()
            with pytest.raises(BusyError):
                await anext(replies)
            assert [batch async for batch in replies] == []
            assert len([batch async for batch in session.generate()]) == 2

    run_with_client(server, main)
    assert [seen.model for seen in server.seen] == ["preprocess", "denoise", "denoise", "denoise"]


def test_what_cannot_be_right_is_refused_before_anything_is_sent(server):
    async def main(client):
        with pytest.raises(InvalidInputError, match="'q' is no key"):
            client.session(PIXELS).generate(actions="q")
        with pytest.raises(InvalidInputError, match="image 0: not a picture"):
            await anext(client.session(b"broken").generate())

    run_with_client(server, main)
    assert [seen.model for seen in server.seen] == ["preprocess"]


def test_a_request_that_failed_to_go_out_is_not_sent_by_asking_again(server):
    async def main(client):
        session = client.session(PIXELS)
        assert len([batch async for batch in session.generate(end=True)]) == 2
        late = session.generate()
        with pytest.raises(SessionNotFoundError, match="has ended"):
            await anext(late)
        assert [batch async for batch in late] == []

    run_with_client(server, main)


def test_the_end_is_sent_when_the_body_raises(server):
    async def main(client):
        async def fail():
            async with client.session(PIXELS) as session:
                async for _ in session.generate(num_chunks=50):
                    raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError):
            await fail()

    server.chunk_s = 0.05
    run_with_client(server, main)
    assert server.sessions == {}


def test_the_end_is_sent_when_the_task_is_cancelled(server):
    async def main(client):
        async def play():
            async with client.session(PIXELS) as session:
                async for _ in session.generate(num_chunks=50):
                    pass

        task = asyncio.create_task(play())
        await until(lambda: server.sessions)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    server.chunk_s = 0.05
    run_with_client(server, main)
    assert server.sessions == {}


def test_a_live_session_goes_on_by_its_id_and_cannot_be_started_again(server):
    async def main(client):
        mine = client.session(PIXELS, session_id="robot-7")
        await anext(await mine.generate())
        await mine.close()
        with pytest.raises(SessionExistsError):
            await anext(client.session(PIXELS, session_id="robot-7").generate())
        async with client.session(None, session_id="robot-7") as session:
            assert (await anext(session.frames())).frame_index == 9

    run_with_client(server, main)


def test_a_lost_connection_is_told_and_the_session_goes_on_over_a_new_one(server):
    async def main(client):
        session = client.session(PIXELS)
        frames = [frame async for frame in session.frames()]
        server.chunk_s = 0.2

        async def lose():
            async for batch in session.generate(num_chunks=50):
                frames.extend(batch.singles())
                if len(frames) == 21:
                    await asyncio.to_thread(server.stop)

        with pytest.raises(ConnectionLostError) as caught:
            await lose()
        assert caught.value.frames_received == len(frames) - 9
        server.chunk_s = 0
        asyncio.get_running_loop().call_later(0.3, server.start)
        goes_on = await anext(session.frames())
        assert session.num_frames_lost == goes_on.frame_index - len(frames)
        await session.end()

    run_with_client(server, main, reconnect_s=20)


def test_an_idle_stream_that_broke_is_opened_anew_without_a_word(server):
    async def main(client):
        async with client.session(PIXELS) as session:
            async for _ in session.generate():
                pass
            await asyncio.to_thread(server.stop)
            server.start()
            await until(lambda: session._stream.has_ended)
            assert [frame.frame_index async for frame in session.frames()] == list(range(9, 21))
            await session.reconnect()
            assert (await anext(session.frames())).frame_index == 21

    run_with_client(server, main, reconnect_s=20)


def test_no_server_is_unavailable_and_a_closed_client_too(server):
    async def main():
        async with AsyncWorldClient("127.0.0.1:1", timeout_s=5, reconnect_s=0) as client:
            with pytest.raises(UnavailableError, match=r"no server at 127\.0\.0\.1:1"):
                await anext(client.session(PIXELS).generate())
            with pytest.raises(UnavailableError, match=r"no server at 127\.0\.0\.1:1"):
                await client.info()
            assert not await client.is_ready()
        with pytest.raises(UnavailableError, match="client is closed"):
            await anext(client.session(PIXELS).generate())

    run(main)


def test_one_request_makes_a_clip_and_leaves_no_stream(server):
    async def main(client):
        assert sum([len(batch.frames) async for batch in client.generate(b"encoded", actions="wwwwww")]) == 21
        async for _ in client.generate(PIXELS, num_chunks=5):
            break

    run_with_client(server, main)
    assert [seen.model for seen in server.seen] == ["world", "denoise"]
    assert "sequence_id" not in server.seen[0].parameters


def test_other_calls_answer_as_those_of_the_blocking_client(server):
    async def main(client):
        with WorldClient(server.url) as blocking:
            assert await client.info() == blocking.info()
            assert await client.chunk_latent_frames() == 3
            assert await client.is_ready()
        pictures = await client.preprocess([b"first", np.full((1, 1, 3), 9, np.uint8)], size=(3, 5))
        assert pictures.pixels.shape == (2, 3, 5, 3)
        server.is_ready = False
        assert not await client.is_ready()

    run_with_client(server, main)


def test_a_session_is_steered_until_there_are_no_more_keys(server):
    async def main(client):
        keys = iter(["w.l", ["wl", "", ""], None])

        async def next_keys():
            return next(keys)

        async with client.session(PIXELS) as session:
            numbers = [int(batch.frame_index[0]) async for batch in session.steer(next_keys)]
        assert numbers == [0, 5, 9, 14, 19]

    run_with_client(server, main)
    assert [seen.inputs.get("actions") for seen in server.seen] == [[b"w", b"", b"l"], [b"wl", b"", b""], None]


def test_a_client_may_be_made_before_its_loop_runs(server):
    client = AsyncWorldClient(server.url)

    async def main():
        async with client:
            assert await client.is_ready()

    run(main)


def test_a_cancel_may_come_from_another_thread(server):
    async def main(client):
        server.script = lambda seen: silence()
        session = client.session(PIXELS)
        timer = threading.Timer(0.1, session.cancel)
        timer.start()
        with pytest.raises(CancelledError, match="this client cancelled"):
            await anext(session.generate())
        timer.join()
        await session.close()

    run_with_client(server, main)


def test_an_iterator_that_outlives_its_loop_is_no_trouble(server):
    kept = []

    async def main():
        client = AsyncWorldClient(server.url)
        kept.append(client.session(PIXELS).generate(num_chunks=50))
        await anext(kept[0])
        await client.close()

    asyncio.run(main())
    kept.clear()
