"""Saving and restoring sessions, blocking, with asyncio and from the command line, against the small server."""

import asyncio
import struct

import numpy as np
import pytest
from typer.testing import CliRunner
from worldstream import InvalidInputError, ProtocolError, SessionExistsError, SessionNotFoundError
from worldstream.aio import AsyncWorldClient
from worldstream.cli import app
from worldstream.snapshot import SnapshotPart, join_parts
from worldstream.testing import answer_once, error_message, frames_message

PIXELS = np.zeros((2, 3, 3), np.uint8)
AFTER_ONE_CHUNK = struct.pack("<2q", 9, 1)
AFTER_TWO_CHUNKS = struct.pack("<2q", 21, 2)


def cli(server, *arguments):
    return CliRunner().invoke(app, [*arguments, "--url", server.url, "--timeout", "5"])


def test_a_snapshot_joins_its_parts(client):
    with client.session(PIXELS) as session:
        list(session.generate())
        assert session.snapshot() == AFTER_ONE_CHUNK
        assert [batch.chunk_index for batch in session.generate()] == [1, 1, 1]


def test_a_request_that_saves_carries_the_session_and_nothing_else(client, server):
    with client.session(PIXELS, session_id="robot", num_steps=3, intrinsics=[1, 1, 1, 1]) as session:
        list(session.generate())
        session.snapshot()
    seen = server.seen[1]
    assert seen.model == "denoise"
    assert seen.parameters == {"sequence_id": "robot", "sequence_start": False, "sequence_end": False, "save": True}
    assert seen.inputs == {}
    assert seen.metadata["x-session-id"] == "robot"


def test_a_snapshot_waits_behind_frames_that_somebody_reads_later(client):
    with client.session(PIXELS) as session:
        batches = session.generate(num_chunks=2)
        assert session.snapshot() == AFTER_TWO_CHUNKS
        assert sum(len(batch.frames) for batch in batches) == 21


def test_a_live_session_is_saved_by_its_id(client):
    session = client.session(PIXELS, session_id=7)
    list(session.generate())
    session.close()
    assert client.session(None, session_id=7).snapshot() == AFTER_ONE_CHUNK


def test_a_session_that_has_not_begun_or_has_ended_cannot_be_saved(client, server):
    session = client.session(PIXELS)
    with pytest.raises(SessionNotFoundError, match="has not begun"):
        session.snapshot()
    list(session.generate(end=True))
    with pytest.raises(SessionNotFoundError, match="has ended"):
        session.snapshot()
    assert len(server.seen) == 1


def test_the_refusal_of_a_snapshot_is_raised_and_the_session_goes_on(client):
    session = client.session(None, session_id="nobody")
    with pytest.raises(SessionNotFoundError):
        session.snapshot()


def test_a_restored_session_starts_with_its_first_request(client, server):
    with client.session(None, snapshot=AFTER_TWO_CHUNKS, session_id="twin", prompt="night") as session:
        batches = list(session.generate(actions="w"))
        assert [batch.frame_index[0] for batch in batches] == [21, 26, 31]
        assert session.next_frame_index == 33
        assert session.num_frames_lost == 0
        assert [batch.chunk_index for batch in session.generate()] == [3, 3, 3]
    assert bytes(server.seen[0].inputs["snapshot"]) == AFTER_TWO_CHUNKS
    assert server.seen[0].inputs["prompt"] == [b"night"]
    assert server.seen[0].parameters["sequence_start"]
    assert "snapshot" not in server.seen[1].inputs
    assert "twin" not in server.sessions


def test_a_restored_session_that_is_not_steered_still_gives_a_chunk(client, server):
    with client.session(None, snapshot=AFTER_ONE_CHUNK) as session:
        assert [batch.chunk_index for batch in session.generate()] == [1, 1, 1]
    assert server.seen[0].inputs["num_chunks"] == [1]


def test_a_session_may_be_restored_before_it_is_steered(client, server):
    session = client.session(None, snapshot=AFTER_ONE_CHUNK, num_steps=3)
    session.restore()
    assert server.sessions[session.session_id].num_chunks == 1
    assert set(server.seen[0].inputs) == {"snapshot"}
    assert [batch.chunk_index for batch in session.generate()] == [1, 1, 1]
    with pytest.raises(InvalidInputError, match=r"^snapshot: wanted a session that was made from one and"):
        session.restore()


def test_a_session_from_a_picture_is_not_restored(client, server):
    with pytest.raises(InvalidInputError, match=r"^snapshot: "):
        client.session(PIXELS).restore()
    assert server.seen == []


def test_a_refused_restore_can_be_sent_again(client, server):
    server.script = answer_once(error_message("SESSION_EXISTS: sequence_id: a session with this id is live"))
    session = client.session(None, snapshot=AFTER_ONE_CHUNK, session_id="twin")
    with pytest.raises(SessionExistsError):
        session.restore()
    session.restore()
    assert server.sessions["twin"].num_frames == 9


@pytest.mark.parametrize(
    "settings", [{"seed": 1}, {"fit": "crop"}, {"size": (1, 1)}, {"translation_scale": 1.0}, {"picture": PIXELS}]
)
def test_a_snapshot_holds_what_a_start_would_set(client, settings):
    with pytest.raises(InvalidInputError, match=r"^snapshot: it holds picture, seed"):
        client.session(**{"picture": None, "snapshot": AFTER_ONE_CHUNK, **settings})


@pytest.mark.parametrize("file", [b"", "text", 7, np.zeros(3)])
def test_what_is_no_file_is_refused(client, file):
    with pytest.raises(InvalidInputError, match=r"^snapshot: wanted "):
        client.session(None, snapshot=file)


@pytest.mark.parametrize("places", [[], [(1, 2)], [(0, 2)], [(1, 2), (0, 2)], [(0, 1), (1, 2)], [(0, 3), (2, 3)]])
def test_parts_that_are_missing_or_out_of_order_are_no_file(places):
    with pytest.raises(ProtocolError, match=r"^snapshot: wanted all parts"):
        join_parts([SnapshotPart(*place, np.zeros(1, np.uint8)) for place in places])


def test_an_answer_without_a_file_is_no_snapshot(client, server):
    with client.session(PIXELS) as session:
        list(session.generate())
        server.script = answer_once(frames_message(0, 0, (1, 0, 1), True))
        with pytest.raises(ProtocolError, match=r"^snapshot: "):
            session.snapshot()


def test_the_client_for_asyncio_saves_and_restores_too(server):
    async def main():
        async with AsyncWorldClient(server.url, timeout_s=5) as client:
            async with client.session(PIXELS) as session:
                replies = await session.generate(num_chunks=2)
                file = await session.snapshot()
                assert sum([len(batch.frames) async for batch in replies]) == 21
            async with client.session(None, snapshot=file) as twin:
                await twin.restore()
                assert [batch.chunk_index async for batch in twin.generate()] == [2, 2, 2]
            with pytest.raises(SessionNotFoundError):
                await twin.snapshot()
        return file

    assert asyncio.run(main()) == AFTER_TWO_CHUNKS


def test_the_command_line_saves_and_restores(client, server, tmp_path):
    session, file = client.session(PIXELS, session_id="robot"), tmp_path / "robot.session"
    list(session.generate())
    session.close()
    saved = cli(server, "snapshot", "robot", "-o", str(file))
    assert (saved.exit_code, saved.stdout) == (0, f"{file}: session robot, 16 bytes\n")
    assert file.read_bytes() == AFTER_ONE_CHUNK
    restored = cli(server, "restore", str(file), "--session-id", "7", "--number")
    assert (restored.exit_code, restored.stdout) == (0, "7\n")
    assert server.sessions[7] == server.sessions["robot"]
    assert server.sessions[cli(server, "restore", str(file)).stdout.strip()] == server.sessions["robot"]


def test_a_snapshot_that_fails_leaves_the_old_file_alone(server, tmp_path):
    file = tmp_path / "robot.session"
    file.write_bytes(b"before")
    failed = cli(server, "snapshot", "robot", "-o", str(file))
    assert failed.exit_code == 1
    assert failed.stderr.startswith("error: SESSION_NOT_FOUND: ")
    assert [each.name for each in tmp_path.iterdir()] == ["robot.session"]
    assert file.read_bytes() == b"before"


def test_the_command_line_says_in_one_line_what_cannot_be_restored(server, tmp_path):
    missing = cli(server, "restore", str(tmp_path / "none"))
    assert (missing.exit_code, missing.stderr.count("\n")) == (1, 1)
    (tmp_path / "empty").write_bytes(b"")
    assert "snapshot: wanted a session's file" in cli(server, "restore", str(tmp_path / "empty")).stderr
    wrong = cli(server, "snapshot", "robot", "--number", "-o", str(tmp_path / "file"))
    assert "--number: wanted an id of digits, got 'robot'" in wrong.stderr
