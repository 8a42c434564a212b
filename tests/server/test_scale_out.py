"""Two real servers behind nginx, as docker/scale has it: who goes where, and what one server's death costs."""

from __future__ import annotations

import http.client
import itertools
import json
import os
import signal
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from launcher.metrics import read_metrics
from worldstream import SessionNotFoundError, UnavailableError, WorldClient
from worldstream.session import Session

from tests.conftest import RunningServer, running_server
from tests.server.proxies import NGINX, Proxy, running_proxy
from tests.server.raw import Stream, make_request, picture, wait_for_metrics
from tests.waiting import wait_for

pytestmark = [
    pytest.mark.server,
    pytest.mark.skipif(NGINX is None, reason="no nginx here: apt-get install nginx-light"),
]

MOST_SESSIONS = 24  # that all of them choose one server: never
REJOIN_S = 6.0  # the proxy tries a server that has failed again after 5 s


@dataclass(frozen=True)
class Pair:
    """Two servers and the proxy before them."""

    servers: tuple[RunningServer, RunningServer]
    proxy: Proxy

    def num_sessions(self) -> list[int]:
        """How many live on each server."""
        return [wait_for_metrics(each.metrics, queued_requests=0)["active_sessions"] for each in self.servers]


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    folder = tmp_path_factory.mktemp("pair")
    (folder / "proxy").mkdir()
    with (
        running_server(folder / "a.log") as a,
        running_server(folder / "b.log") as b,
        running_proxy(folder / "proxy", [(a.grpc, a.http), (b.grpc, b.http)]) as proxy,
    ):
        yield Pair((a, b), proxy)


def begin(client: WorldClient, name: str, seed: int = 0) -> Session:
    """A session that has its first chunk."""
    session = client.session(picture()[0], session_id=name, seed=seed)
    frames(session, "w")
    return session


def begin_on_both(pair: Pair, client: WorldClient, name: str) -> list[Session]:
    """As many sessions as it takes until two live on each server."""
    sessions = []
    for number in range(MOST_SESSIONS):
        sessions.append(begin(client, f"{name}-{number}"))
        if min(pair.num_sessions()) >= 2:
            return sessions
    raise AssertionError(f"the proxy sends all sessions to one server: {pair.num_sessions()}")


def end_one_on_the_first(pair: Pair, client: WorldClient) -> None:
    """A server that has failed gets one stream in 5 s, until one has ended well: then the proxy trusts it again."""
    for number in range(MOST_SESSIONS):
        session = begin(client, f"trial-{number}")
        is_there = pair.num_sessions()[0] > 0
        session.end()
        session.close()
        if is_there:
            return
    raise AssertionError("the proxy does not try the server that came back")


def frames(session: Session, actions: str) -> np.ndarray:
    return np.concatenate([batch.frames for batch in session.generate(actions=actions)])


def test_new_sessions_spread_and_each_stays_on_its_server(pair: Pair) -> None:
    with WorldClient(pair.proxy.grpc) as client, WorldClient(pair.proxy.grpc) as other:
        sessions = begin_on_both(pair, client, "spread")
        assert sum(pair.num_sessions()) == len(sessions)

        for session in sessions:  # on its own stream, then on a new one, then from another client
            assert len(frames(session, "w")) == 12
            session.close()
            assert len(frames(session, "w")) == 12
            session.close()
            other.session(None, session_id=session.session_id).end()

    assert pair.num_sessions() == [0, 0]


def test_a_session_through_the_proxy_is_the_same_byte_for_byte(pair: Pair) -> None:
    with (
        WorldClient(pair.proxy.grpc) as proxied,
        WorldClient(pair.servers[0].grpc) as direct,
        begin(proxied, "same", seed=5) as one,
        begin(direct, "same-direct", seed=5) as other,
    ):
        np.testing.assert_array_equal(frames(one, "wl"), frames(other, "wl"))


def test_requests_of_no_session_go_to_both_servers(pair: Pair) -> None:
    before = [served(each) for each in pair.servers]
    with WorldClient(pair.proxy.grpc) as client:
        for _ in range(32):
            client.preprocess([picture()[0]])

    def gone() -> list[int]:
        return [served(each) - count for each, count in zip(pair.servers, before, strict=True)]

    wait_for(lambda: sum(gone()) >= 32, 10)  # a request is counted a moment after its answer
    assert sum(gone()) == 32
    assert min(gone()) >= 1


def served(server: RunningServer) -> int:
    """Requests that `preprocess` has answered."""
    lines = read_metrics(server.metrics, 'nv_inference_request_success{model="preprocess"')
    return sum(int(float(line.rpartition(" ")[2])) for line in lines)


def test_a_stream_may_send_more_than_a_request_may(pair: Pair) -> None:
    noise = np.random.default_rng(0).integers(
        0, 256, (1024, 1024, 3), dtype=np.uint8
    )  # 3 MiB, nginx's usual limit is 1
    with WorldClient(pair.proxy.grpc) as client, client.session(noise, session_id="large") as session:
        assert len(frames(session, "w")) == 9


def test_a_stream_without_the_metadata_stays_on_one_server(pair: Pair) -> None:
    """As plain tritonclient sends it: its requests go where its stream went, wherever that is."""
    with Stream(pair.proxy.grpc) as stream:
        for number in range(4):
            inputs = {"pixels": picture(), "num_chunks": 1} if number == 0 else {"num_chunks": 1}
            ids = {"sequence_id": "unnamed", "sequence_start": number == 0, "sequence_end": number == 3}
            stream.send(make_request("denoise", inputs, **ids))
        answers = stream.receive_all()
    assert [answer.error for answer in answers if answer.error] == []
    assert pair.num_sessions() == [0, 0]


def test_http_keeps_a_session_by_the_same_header(pair: Pair) -> None:
    pixels = np.zeros((16, 16, 3), np.uint8).tolist()
    start = {"image": json.dumps(pixels), "session": "by-http", "session_start": True, "num_chunks": 1}
    later = {"session": "by-http", "num_chunks": 1}
    end = {**later, "session_end": True}
    for body, model in ((start, "world"), (later, "denoise"), (later, "denoise"), (end, "denoise")):
        connection = http.client.HTTPConnection(pair.proxy.http, timeout=60)
        path = f"/v2/models/{model}/generate_stream"
        connection.request("POST", path, json.dumps(body), {"x-session-id": "by-http"})
        response = connection.getresponse()
        events = response.read()
        connection.close()
        assert response.status == 200
        assert b"frame_index" in events, events[:300]
    assert pair.num_sessions() == [0, 0]


def test_a_server_that_is_marked_down_keeps_its_streams_and_gets_no_new_session(pair: Pair) -> None:
    a, _ = pair.servers
    shipped = pair.proxy.upstreams.read_text()
    with WorldClient(pair.proxy.grpc) as client:
        sessions = begin_on_both(pair, client, "moved")
        on_a, on_b = pair.num_sessions()

        pair.proxy.mark_down(a.grpc)
        wait_for_new_workers(pair, a.grpc)
        assert [len(frames(session, "w")) for session in sessions] == [12] * len(sessions)

        with WorldClient(pair.proxy.grpc) as newcomer:
            later = [begin(newcomer, f"later-{number}") for number in range(4)]
            assert pair.num_sessions() == [on_a, on_b + 4]
            for session in later:
                session.end()
        for session in sessions:
            session.end()
    pair.proxy.upstreams.write_text(shipped)
    pair.proxy.reload()
    assert pair.num_sessions() == [0, 0]


def wait_for_new_workers(pair: Pair, address: str) -> None:
    """Return once the proxy sends nothing to this server any more: a reload takes a moment."""
    before = served(pair.servers[0])
    for number in itertools.count():
        with WorldClient(pair.proxy.grpc) as client:
            for _ in range(24):
                client.preprocess([picture()[0]])
        now = served(pair.servers[0])
        if now == before:
            return
        before = now
        assert number < 20, f"{address} is marked down and still gets requests"


def ports_of(server: RunningServer) -> tuple[str, ...]:
    """The options that start another one in its place."""
    return tuple(
        f"--{service}-port={getattr(server, service).rpartition(':')[2]}" for service in ("http", "grpc", "metrics")
    )


def test_a_dead_server_loses_its_own_sessions_and_they_go_on_from_snapshots(pair: Pair) -> None:
    """The next test needs it: one of the two is gone then."""
    a, b = pair.servers
    with WorldClient(pair.proxy.grpc, timeout_s=30) as client, WorldClient(b.grpc) as direct:
        sessions = begin_on_both(pair, client, "mortal")
        on_a, _ = pair.num_sessions()
        saved = [session.snapshot() for session in sessions]
        twin = begin(direct, "twin")
        wanted = frames(twin, "l")
        twin.end()

        os.kill(a.pid, signal.SIGKILL)

        lost = []
        for session, snapshot in zip(sessions, saved, strict=True):
            try:
                np.testing.assert_array_equal(frames(session, "l"), wanted)
            except (UnavailableError, SessionNotFoundError):  # told by its stream, or by the server that has it not
                lost.append((session.session_id, snapshot))
        assert len(lost) == on_a

        for name, snapshot in lost:
            session = client.session(None, session_id=name, snapshot=snapshot)
            np.testing.assert_array_equal(frames(session, "l"), wanted)
        assert wait_for_metrics(b.metrics, queued_requests=0)["active_sessions"] == len(sessions)
        for session in sessions:
            client.session(None, session_id=session.session_id).end()


def test_a_server_that_comes_back_serves_and_what_began_meanwhile_stays_on_its_stream(
    pair: Pair, tmp_path: Path
) -> None:
    """Last: the server that the test before has killed is started again in its place."""
    a, b = pair.servers
    with WorldClient(pair.proxy.grpc, timeout_s=30) as client:
        meanwhile = [begin(client, f"meanwhile-{number}") for number in range(12)]
        assert wait_for_metrics(b.metrics, queued_requests=0)["active_sessions"] == len(meanwhile)

        with running_server(tmp_path / "again.log", arguments=ports_of(a)):
            assert [len(frames(session, "w")) for session in meanwhile] == [12] * len(meanwhile)

            time.sleep(REJOIN_S)
            end_one_on_the_first(pair, client)
            newcomers = begin_on_both(pair, client, "newcomer")
            for session in newcomers:
                session.end()

            away = 0
            for session in meanwhile:  # a new stream goes where the ring leads, which may be the one that came back
                session.close()
                try:
                    assert len(frames(session, "w")) == 12
                except SessionNotFoundError:
                    away += 1
            assert 0 < away < len(meanwhile)
            assert pair.num_sessions() == [0, len(meanwhile)]
