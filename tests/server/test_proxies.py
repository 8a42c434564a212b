"""Both proxies of docker/ before a small gRPC server of our own: how patient they are, and whom they refuse."""

from __future__ import annotations

import contextlib
import http.client
import json
import queue
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent import futures
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import grpc
import pytest
from worldstream import BusyError, WorldClient

from tests.certificates import Certificate, make_certificate
from tests.server.fronts import NGINX, running_front
from tests.server.proxies import running_proxy
from tests.waiting import wait_for

pytestmark = [
    pytest.mark.server,
    pytest.mark.skipif(NGINX is None, reason="no nginx here: apt-get install nginx-light"),
]

METHOD = "/inference.GRPCInferenceService/ModelStreamInfer"
MESSAGE = bytes(64 << 10)
MANY = 800  # messages: far more than all buffers on the way hold
PROXIES = ("front", "scale")


class Upstream(grpc.GenericRpcHandler):
    """Answers each message of a stream, which is a number, with so many large ones and a last one, `end`."""

    def __init__(self) -> None:
        self.ended = threading.Event()  # a stream was given up by who asked
        self._server = grpc.server(futures.ThreadPoolExecutor(80), handlers=(self,))
        self.address = f"127.0.0.1:{self._server.add_insecure_port('127.0.0.1:0')}"
        self._server.start()

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> Any:
        return grpc.stream_stream_rpc_method_handler(self._answer)

    def _answer(self, numbers: Iterator[bytes], context: grpc.ServicerContext) -> Iterator[bytes]:
        context.add_callback(self.ended.set)
        for number in numbers:
            for _ in range(int(number)):
                yield MESSAGE
            yield b"end"

    def close(self) -> None:
        self._server.stop(0).wait()


class Stream:
    """A client's stream to it."""

    def __init__(self, address: str) -> None:
        self._channel = grpc.insecure_channel(address)
        self._outgoing: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self._call = self._channel.stream_stream(METHOD)(iter(self._outgoing.get, None), timeout=30)

    def ask(self, number: int) -> None:
        self._outgoing.put(b"%d" % number)

    def read(self) -> bytes:
        return next(self._call)

    def read_all(self) -> int:
        """How many large messages come before the last one."""
        return sum(1 for _ in iter(self.read, b"end"))

    def close(self) -> None:
        self._outgoing.put(None)
        self._call.cancel()
        self._channel.close()


class Named(BaseHTTPRequestHandler):
    """Answers with the port that it listens on."""

    def do_GET(self) -> None:
        body = str(self.server.server_port).encode()  # type: ignore[attr-defined]
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Into no test's output."""


@pytest.fixture
def named() -> Iterator[Callable[[], str]]:
    """A function that starts an HTTP server which answers with its own port; its address."""
    with contextlib.ExitStack() as running:

        def start() -> str:
            server = running.enter_context(ThreadingHTTPServer(("127.0.0.1", 0), Named))
            threading.Thread(target=server.serve_forever, daemon=True).start()
            running.callback(server.shutdown)
            return f"127.0.0.1:{server.server_port}"

        yield start


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Certificate:
    return make_certificate(tmp_path_factory.mktemp("certificate"))


@pytest.fixture
def upstream() -> Iterator[Upstream]:
    made = Upstream()
    yield made
    made.close()


@dataclass(frozen=True)
class Place:
    """Where a proxy listens."""

    grpc: str
    http: str


StartProxy = Callable[..., Place]


@pytest.fixture
def start_proxy(tmp_path: Path, certificate: Certificate, upstream: Upstream) -> Iterator[StartProxy]:
    """A function that starts one of PROXIES before the upstream, with texts of its configuration replaced."""
    with contextlib.ExitStack() as running:

        def start(kind: str, http_address: str = "127.0.0.1:9", **changes: str) -> Place:
            # With what stands before it: grpc_send_timeout ends in send_timeout.
            inner = {f" {name} 1h;": f" {name} {value};" for name, value in changes.items()}
            outer = {f"\n{name} 1h;": f"\n{name} {value};" for name, value in changes.items()}
            if kind == "front":
                front = running_front(tmp_path, http_address, upstream.address, certificate, {**inner, **outer})
                made: Any = running.enter_context(front)
            else:
                servers = [(upstream.address, http_address)] * 2
                made = running.enter_context(running_proxy(tmp_path, servers, inner))
            return Place(made.grpc, made.http)

        yield start


@contextlib.contextmanager
def streams(address: str, count: int) -> Iterator[list[Stream]]:
    """So many that are open: each has got an answer."""
    made = [Stream(address) for _ in range(count)]
    try:
        for stream in made:
            stream.ask(0)
            assert stream.read() == b"end"
        yield made
    finally:
        for stream in made:
            stream.close()


# Each of them shortened alone cuts a stream, so each has to be as long as it is: nginx's own are a minute.
@pytest.mark.parametrize("kind", PROXIES)
@pytest.mark.parametrize("directive", ["client_body_timeout", "grpc_read_timeout"])
def test_a_stream_may_be_quiet_for_the_time_that_a_directive_says(
    start_proxy: StartProxy, kind: str, directive: str
) -> None:
    hasty = start_proxy(kind, **{directive: "1s"})
    with streams(hasty.grpc, 1) as (stream,), pytest.raises(grpc.RpcError) as cut:
        stream.read()
    assert cut.value.code() is not grpc.StatusCode.DEADLINE_EXCEEDED


@pytest.mark.parametrize("kind", PROXIES)
def test_a_reader_may_pause_for_the_time_that_a_directive_says(start_proxy: StartProxy, kind: str) -> None:
    """A minute's pause cut the stream of a client that had frames waiting: nginx's own send_timeout."""
    hasty = start_proxy(kind, send_timeout="1s")
    with streams(hasty.grpc, 1) as (stream,):
        stream.ask(MANY)
        time.sleep(3)
        with pytest.raises(grpc.RpcError):
            stream.read_all()


@pytest.mark.parametrize("kind", PROXIES)
def test_a_reader_that_pauses_gets_all_in_the_end(start_proxy: StartProxy, kind: str) -> None:
    with streams(start_proxy(kind).grpc, 1) as (stream,):
        stream.ask(MANY)
        time.sleep(3)
        assert stream.read_all() == MANY


@pytest.mark.parametrize("kind", PROXIES)
def test_a_client_that_goes_in_mid_stream_is_told_to_the_server(
    start_proxy: StartProxy, upstream: Upstream, kind: str
) -> None:
    with streams(start_proxy(kind).grpc, 1) as (stream,):
        stream.ask(MANY)
        assert len(stream.read()) == len(MESSAGE)
        assert not upstream.ended.is_set()
    assert upstream.ended.wait(10)


def test_one_address_has_64_streams_at_one_time(start_proxy: StartProxy) -> None:
    front = start_proxy("front")
    with streams(front.grpc, 64) as opened:
        with WorldClient(front.grpc, reconnect_s=0) as client, pytest.raises(BusyError, match="too many"):
            client.info()
        opened[0].ask(0)  # the others go on
        assert opened[0].read() == b"end"
    wait_for(lambda: has_room(front.grpc), 10)  # the proxy counts until it has seen them end


def has_room(address: str) -> bool:
    with contextlib.suppress(grpc.RpcError), streams(address, 1):
        return True
    return False


def test_one_address_has_50_requests_a_second_after_a_burst(start_proxy: StartProxy, named: Callable[[], str]) -> None:
    front = start_proxy("front", named())
    began = time.monotonic()
    num_served = 0
    while (answer := call(front.http, "GET", "/v2/health/ready"))[0] == 200 and num_served < 5000:
        num_served += 1
    took_s = time.monotonic() - began

    status, refused = answer
    assert status == 429
    assert 101 <= num_served <= 101 + 50 * took_s + 5  # it counts in milliseconds
    assert json.loads(refused) == {"error": "BUSY: request: too many from this address at one time"}
    with grpc.insecure_channel(front.grpc) as channel:  # of the same burst, for all that comes over it
        ask = channel.unary_unary("/inference.GRPCInferenceService/ServerLive")
        calls = [ask.future(b"", timeout=20) for _ in range(40)]
        told = [refused_call.exception().details() for refused_call in calls]
    assert "BUSY: request: too many from this address at one time" in told

    time.sleep(1)
    assert call(front.http, "GET", "/v2/health/ready")[0] == 200


def call(address: str, method: str, path: str) -> tuple[int, str]:
    connection = http.client.HTTPConnection(address, timeout=20)
    connection.request(method, path)
    answer = connection.getresponse()
    text = answer.read().decode()
    connection.close()
    return answer.status, text


@pytest.mark.parametrize(("method", "path"), [("DELETE", "/v2/health/ready"), ("GET", "/v2/models/world/infer")])
def test_the_front_refuses_another_method_in_tritons_form(start_proxy: StartProxy, method: str, path: str) -> None:
    status, text = call(start_proxy("front").http, method, path)
    wanted = "INVALID_INPUT: request: this address is not served by this method"
    assert (status, json.loads(text)) == (405, {"error": wanted})


def test_the_front_tells_over_http_that_the_server_is_away(start_proxy: StartProxy) -> None:
    status, text = call(start_proxy("front").http, "GET", "/v2/health/ready")  # its server's port is closed
    wanted = "UNAVAILABLE: the server behind this proxy does not answer"
    assert (status, json.loads(text)) == (503, {"error": wanted})


@pytest.mark.parametrize("beginning", [b"", b"GET /v2/health/ready HTTP/1.1\r\nHost: a\r\nX-Slow: "])
def test_the_front_waits_ten_seconds_for_a_request_that_does_not_come(
    tmp_path: Path, certificate: Certificate, beginning: bytes
) -> None:
    changes = {"client_header_timeout 10s;": "client_header_timeout 1s;"}
    with running_front(tmp_path, "127.0.0.1:9", "127.0.0.1:9", certificate, changes) as front:
        for place in (front.http, front.grpc, front.https, front.grpcs):
            host, _, port = place.partition(":")
            with socket.create_connection((host, int(port)), timeout=8) as loris:
                loris.sendall(beginning)
                while loris.recv(4096):  # a 408 or a GOAWAY may come first
                    pass


def test_sessions_spread_evenly_and_stay(tmp_path: Path, named: Callable[[], str]) -> None:
    ids = [f"session-{number}" for number in range(300)]
    with running_proxy(tmp_path, [("127.0.0.1:9", named()) for _ in range(2)]) as proxy:
        homes = {name: home_of(proxy.http, name) for name in ids}
        again = {name: home_of(proxy.http, name) for name in ids}

    assert homes == again
    # 150 each but for the ring's own unevenness, which the ports decide, and chance.
    assert len(set(homes.values())) == 2
    assert all(90 <= count <= 210 for count in Counter(homes.values()).values())


def home_of(address: str, session_id: str) -> str:
    connection = http.client.HTTPConnection(address, timeout=20)
    connection.request("GET", "/", headers={"x-session-id": session_id})
    name = connection.getresponse().read().decode()
    connection.close()
    return name
