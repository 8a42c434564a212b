"""The Python client on the real server: what the small server of its unit tests cannot show."""

from __future__ import annotations

import asyncio
import io
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from worldstream import CancelledError, Receipt, WorldClient
from worldstream.aio import AsyncWorldClient

from tests.server.raw import picture, settled_metrics, wait_for_metrics

pytestmark = pytest.mark.server

NUM_STEPS = 50  # the longest chunk there is: time enough to cancel in its middle


def png() -> bytes:
    data = io.BytesIO()
    Image.fromarray(picture()[0]).save(data, format="PNG")
    return data.getvalue()


def test_a_cancel_in_the_first_request_from_an_encoded_picture_stops_the_server(server: Any) -> None:
    # Through the ensemble `world` all nine chunks would be made first, for Triton carries no cancel into it.
    before = settled_metrics(server.metrics)
    with WorldClient(server.grpc) as client, client.session(png(), num_steps=NUM_STEPS) as session:
        batches = session.generate(num_chunks=9)
        next(batches)
        time.sleep(0.1)
        session.cancel()
        with pytest.raises(CancelledError):
            list(batches)
        stopped = wait_for_metrics(server.metrics, queued_requests=0)
        num_chunks = stopped["chunks_total"] - before["chunks_total"]
        cancelled_at = time.monotonic()
        first = next(session.frames(num_chunks=1, num_steps=1))
        took_s = time.monotonic() - cancelled_at

    assert 1 <= num_chunks < 9
    assert first.frame_index == 9 + 12 * (num_chunks - 1)
    assert took_s < 5


def test_a_receipt_comes_before_the_frames_that_its_request_steers(server: Any) -> None:
    with WorldClient(server.grpc) as client, client.session(png(), num_steps=20, frame_encoding="png") as session:
        first = session.generate(num_chunks=2, event_id=1, receipt=True)
        second = session.generate(event_id=2, receipt=True)
        # Waiting for the second's leaves frames of the first for later.
        receipts = [second.receipt(), first.receipt()]
        batches = [*first, *second]

    assert receipts == [Receipt(chunk_index=2, num_ahead=1, event_id=2), Receipt(0, 0, 1)]
    steered = {(batch.event_id, batch.chunk_index) for batch in batches}
    assert steered == {(1, 0), (1, 1), (2, 2)}
    assert np.concatenate([batch.frame_index for batch in batches]).tolist() == list(range(33))


def test_a_paced_session_makes_no_chunk_before_the_last_one_was_watched(server: Any) -> None:
    with WorldClient(server.grpc) as client, client.session(png(), num_steps=1, fps=12) as session:
        began = time.monotonic()
        num_frames = sum(len(batch.frames) for batch in session.generate(num_chunks=3))
        took_s = time.monotonic() - began

    assert num_frames == 9 + 12 + 12
    assert took_s >= 21 / 12


def test_a_prompt_that_holds_for_the_past_makes_other_frames(server: Any) -> None:
    with WorldClient(server.grpc) as client:

        def after_the_switch(**options: Any) -> bytes:
            with client.session(png(), prompt="day", num_steps=2) as session:
                list(session.generate(num_chunks=2))
                return b"".join(batch.frames.tobytes() for batch in session.generate(prompt="night", **options))

        plain, recached = after_the_switch(), after_the_switch(recache=True)
        again = after_the_switch(recache=True)

    assert len(recached) == len(plain)
    assert recached != plain
    assert recached == again


def test_a_session_from_an_encoded_picture_makes_the_frames_that_world_makes(server: Any) -> None:
    with WorldClient(server.grpc) as client:
        through_world = [batch.frames for batch in client.generate(png(), actions="wwl", seed=3, num_steps=2)]
        with client.session(png(), seed=3, num_steps=2) as session:
            decoded_first = [batch.frames for batch in session.generate(actions="wwl")]

    assert np.concatenate(decoded_first).tobytes() == np.concatenate(through_world).tobytes()


def test_a_session_that_is_saved_while_it_streams_is_restored_by_the_command_line(server: Any, tmp_path: Path) -> None:
    file, command = tmp_path / "walk.session", (sys.executable, "-m", "worldstream")
    environment = os.environ | {"WORLDSTREAM_GRPC": server.grpc}
    with WorldClient(server.grpc) as client, client.session(png(), session_id="walk", num_steps=2) as session:
        list(session.generate(actions="wwlwww"))
        for arguments in (("snapshot", "walk", "-o", file), ("restore", file, "--session-id", "7", "--number")):
            done = subprocess.run([*command, *arguments], env=environment, capture_output=True, text=True, check=True)
        assert done.stdout == "7\n"
        stayed = [batch.frames for batch in session.generate(actions="s", prompt="night")]
        with client.session(None, session_id=7, num_steps=2) as twin:
            moved = [batch.frames for batch in twin.generate(actions="s", prompt="night")]
    assert np.concatenate(stayed).tobytes() == np.concatenate(moved).tobytes()


def test_the_client_for_asyncio_moves_a_session_while_others_stream(server: Any) -> None:
    async def move() -> tuple[list[Any], list[Any]]:
        async with AsyncWorldClient(server.grpc) as client, client.session(png(), num_steps=2) as session:
            other = await client.session(png(), session_id="beside", num_steps=1).generate(num_chunks=6, end=True)
            async for _ in session.generate(num_chunks=2):
                pass
            file = await session.snapshot()
            stayed = [batch.frames async for batch in session.generate(actions="wl")]
            async with client.session(None, snapshot=file, num_steps=2) as twin:
                moved = [batch.frames async for batch in twin.generate(actions="wl")]
            assert sum([len(batch.frames) async for batch in other]) == 69
            return stayed, moved

    stayed, moved = asyncio.run(move())
    assert np.concatenate(stayed).tobytes() == np.concatenate(moved).tobytes()
