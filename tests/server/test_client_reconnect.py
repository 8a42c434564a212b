"""The client on the real server when something breaks off: processes, connections, tasks, loops, terminals."""

from __future__ import annotations

import asyncio
import os
import pty
import re
import select
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import av
import pytest
from PIL import Image
from worldstream import ResponseTimeoutError, SessionExistsError, UnavailableError, WorldClient
from worldstream.aio import AsyncWorldClient

from tests.server.processes import stub_pids
from tests.server.raw import picture, settled_metrics, wait_for_metrics

pytestmark = pytest.mark.server

NUM_STEPS = 50  # the longest chunk there is: time enough to break off in its middle


def denoise_stub(server: Any) -> int:
    """The process of the model `denoise`."""
    (pid,) = [pid for pid in stub_pids(server.pid) if b"denoise" in Path(f"/proc/{pid}/cmdline").read_bytes()]
    return pid


def test_a_killed_model_is_told_in_bounded_time(start_server: Any) -> None:
    # Triton itself says nothing to those who wait, and goes on to call the model ready.
    server = start_server()
    with WorldClient(server.grpc, timeout_s=8) as client:
        session = client.session(picture()[0], num_steps=20)
        batches = session.generate(num_chunks=50)
        next(batches)
        os.kill(denoise_stub(server), signal.SIGKILL)
        killed_s = time.monotonic()
        with pytest.raises(UnavailableError) as caught:
            list(batches)
        with pytest.raises(UnavailableError):
            next(session.generate())
        took_s = time.monotonic() - killed_s

    assert took_s < 20  # at most twice the time allowed, and a little
    assert isinstance(caught.value, ResponseTimeoutError)
    assert caught.value.frames_received >= 9


def test_a_session_outlives_its_client_and_its_id_cannot_be_started_twice(server: Any) -> None:
    with WorldClient(server.grpc) as first:
        mine = first.session(picture()[0], session_id="robot-7", num_steps=1)
        assert sum(len(batch.frames) for batch in mine.generate()) == mine.next_frame_index == 9
        mine.close()
    with WorldClient(server.grpc) as second:
        with pytest.raises(SessionExistsError):
            next(second.session(picture()[0], session_id="robot-7").generate())
        with second.session(None, session_id="robot-7", num_steps=1) as goes_on:
            assert next(goes_on.frames()).frame_index == 9
            goes_on.reconnect()
            assert next(goes_on.frames()).frame_index == 21


@pytest.mark.parametrize("how", ["leave the loop", "cancel the task"])
def test_the_server_sees_a_loop_that_is_left_and_the_session_goes_on(server: Any, how: str) -> None:
    before = settled_metrics(server.metrics)

    async def read(session: Any) -> None:
        async for _ in session.generate(num_chunks=9):
            if how == "leave the loop":
                break

    async def main() -> int:
        async with (
            AsyncWorldClient(server.grpc) as client,
            client.session(picture()[0], num_steps=NUM_STEPS) as session,
        ):
            task = asyncio.create_task(read(session))
            if how == "cancel the task":
                await asyncio.sleep(0.5)
                task.cancel()
            await asyncio.wait([task])
            await asyncio.to_thread(wait_for_metrics, server.metrics, queued_requests=0)
            frame = await anext(session.frames(num_steps=1))
            await session.end()
            assert asyncio.all_tasks() == {asyncio.current_task()}
            return frame.frame_index

    next_frame = asyncio.run(main(), debug=True)

    after = settled_metrics(server.metrics)
    num_chunks = after["chunks_total"] - before["chunks_total"] - 1
    assert num_chunks < 9
    assert next_frame == (9 + 12 * (num_chunks - 1) if num_chunks else 0)
    assert after["active_sessions"] == before["active_sessions"]


def test_keys_in_a_terminal_steer_the_served_world(server: Any, tmp_path: Path) -> None:
    Image.fromarray(picture()[0]).save(tmp_path / "start.png")
    main, other = pty.openpty()
    command = ["play", str(tmp_path / "start.png"), "--url", server.grpc, "--steps", "2", "-o", str(tmp_path / "a.mp4")]
    with subprocess.Popen([sys.executable, "-m", "worldstream", *command], stdin=other, stdout=other) as walk:
        output = b""
        keys = [(rb"fps", b"w"), (rb"key to frame \d+ ms", b"q")]  # what is pressed once this is on the screen
        deadline = time.monotonic() + 60
        while walk.poll() is None and time.monotonic() < deadline:
            if select.select([main], [], [], 0.05)[0]:
                output += os.read(main, 65536)
            if keys and re.search(keys[0][0], output):
                os.write(main, keys.pop(0)[1])
        walk.wait(timeout=10)
    os.close(main)
    os.close(other)

    assert walk.returncode == 0
    assert "▀".encode() in output
    with av.open(str(tmp_path / "a.mp4")) as container:
        assert sum(1 for _ in container.decode(video=0)) >= 9 + 12
