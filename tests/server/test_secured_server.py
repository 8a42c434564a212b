"""What a server lets whom do: restricted interfaces, a key, TLS, and the limits of the proxy in front."""

from __future__ import annotations

import contextlib
import gzip
import http.client
import json
import socket
import ssl
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
from tritonclient.grpc import service_pb2, service_pb2_grpc
from worldstream import InvalidInputError, TooLargeError, UnavailableError, WorldClient

from tests.certificates import Certificate, make_certificate
from tests.conftest import RunningServer, running_server
from tests.server.container import API_KEY, install_server, probe, write_api_key
from tests.server.fronts import NGINX, Front, running_front
from tests.server.raw import ask, join, make_request, picture, png
from tests.server.repositories import preprocess_alone

pytestmark = pytest.mark.server

PICTURE = picture()
HTTP_CALLS = [
    ("POST", "/v2/repository/index"),
    ("POST", "/v2/repository/models/preprocess/load"),
    ("POST", "/v2/repository/models/preprocess/unload"),
    ("GET", "/v2/systemsharedmemory/status"),
    ("POST", "/v2/systemsharedmemory/region/r/register"),
    ("GET", "/v2/cudasharedmemory/status"),
    ("GET", "/v2/logging"),
    ("POST", "/v2/trace/setting"),
]
GRPC_CALLS = {
    "RepositoryIndex": service_pb2.RepositoryIndexRequest(),
    "RepositoryModelLoad": service_pb2.RepositoryModelLoadRequest(model_name="preprocess"),
    "RepositoryModelUnload": service_pb2.RepositoryModelUnloadRequest(model_name="preprocess"),
    "SystemSharedMemoryStatus": service_pb2.SystemSharedMemoryStatusRequest(),
    "SystemSharedMemoryRegister": service_pb2.SystemSharedMemoryRegisterRequest(name="r", key="/r", byte_size=8),
    "CudaSharedMemoryStatus": service_pb2.CudaSharedMemoryStatusRequest(),
    "LogSettings": service_pb2.LogSettingsRequest(),
    "TraceSetting": service_pb2.TraceSettingRequest(),
}
KEYED = {"x-api-key": API_KEY}
BODY = json.dumps({"image": "no picture"}).encode()


@dataclass(frozen=True)
class Secured:
    """A server with TLS and a key, laid out as in a container, and the files that open it."""

    server: RunningServer
    certificate: Certificate
    key_file: Path

    def client(self, **options: Any) -> WorldClient:
        return WorldClient(self.server.grpc, **{"tls_ca": self.certificate.cert, "api_key": API_KEY, **options})

    @property
    def ports(self) -> list[str]:
        """serve.py's options that name its ports."""
        places = {"http": self.server.http, "grpc": self.server.grpc, "metrics": self.server.metrics}
        return [f"--{service}-port={place.rpartition(':')[2]}" for service, place in places.items()]

    @property
    def access(self) -> list[str]:
        """serve.py's options that let it in."""
        made = self.certificate
        return [f"--tls-cert={made.cert}", f"--tls-key={made.key}", f"--api-key-file={self.key_file}"]


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    folder = tmp_path_factory.mktemp("secured")
    certificate, key_file = make_certificate(folder), write_api_key(folder)
    arguments = (
        f"--server={install_server(folder / 'opt')}",
        f"--tls-cert={certificate.cert}",
        f"--tls-key={certificate.key}",
        f"--api-key-file={key_file}",
    )
    with running_server(folder / "server.log", arguments=arguments) as running:
        yield Secured(running, certificate, key_file)


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    """`preprocess` alone, as serve.py starts it without any option of safety."""
    folder = tmp_path_factory.mktemp("plain")
    with running_server(folder / "server.log", repository=preprocess_alone(folder)) as running:
        yield running


@pytest.fixture(scope="module")
def front(secured: Secured, server: RunningServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Front]:
    """The proxy before the shared server, with the secured one's certificate."""
    if NGINX is None:
        pytest.skip("no nginx here: apt-get install nginx")
    folder = tmp_path_factory.mktemp("front")
    with running_front(folder, server.http, server.grpc, secured.certificate) as running:
        yield running


def call(address: str, method: str, path: str, body: bytes = b"", **headers: str) -> tuple[int, str]:
    """Status and text of an HTTP answer."""
    connection = http.client.HTTPConnection(address, timeout=60)
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    connection.request(method, path, body, named)
    answer = connection.getresponse()
    text = answer.read().decode(errors="replace")
    connection.close()
    return answer.status, text


def refusal_of(channel: Any, rpc: str, metadata: tuple[tuple[str, str], ...] = ()) -> str:
    stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
    with pytest.raises(grpc.RpcError) as refusal:
        getattr(stub, rpc)(GRPC_CALLS[rpc], timeout=30, metadata=metadata)
    return str(refusal.value.details())


@pytest.mark.parametrize(("method", "path"), HTTP_CALLS)
def test_what_changes_the_server_is_closed_over_http(
    plain: RunningServer, secured: Secured, method: str, path: str
) -> None:
    for address in (plain.http, secured.server.http):
        status, text = call(address, method, path, b"{}", **KEYED)
        assert (status, "x-closed" in text) == (403, True)


@pytest.mark.parametrize("rpc", GRPC_CALLS)
def test_what_changes_the_server_is_closed_over_grpc(plain: RunningServer, secured: Secured, rpc: str) -> None:
    key = ("triton-grpc-protocol-x-api-key", API_KEY)
    credentials = grpc.ssl_channel_credentials(secured.certificate.cert.read_bytes())
    with grpc.insecure_channel(plain.grpc) as channel:
        assert "x-closed" in refusal_of(channel, rpc)
    with grpc.secure_channel(secured.server.grpc, credentials) as channel:
        assert "x-closed" in refusal_of(channel, rpc, (key,))


def test_without_a_key_a_server_serves_all(plain: RunningServer) -> None:
    with WorldClient(plain.grpc) as client:
        np.testing.assert_array_equal(client.preprocess([png(PICTURE)]).pixels, PICTURE)


def test_a_session_streams_over_tls_with_the_key_and_is_the_same(secured: Secured, server: RunningServer) -> None:
    with secured.client() as client, client.session(PICTURE[0], num_steps=1) as session:
        assert client.info().is_ready
        secret = np.concatenate([batch.frames for batch in session.generate(num_chunks=2)])
    inputs = {"pixels": PICTURE, "num_chunks": 2, "num_steps": 1}
    np.testing.assert_array_equal(secret, join(ask(server.grpc, make_request("denoise", inputs))))


def test_without_the_key_nothing_is_served_over_grpc(secured: Secured) -> None:
    for key in (None, "another-key-0123456789"):
        with secured.client(api_key=key) as client:
            with pytest.raises(InvalidInputError, match=r"api_key: the server at .* wants one"):
                client.preprocess([png(PICTURE)])
            with pytest.raises(InvalidInputError, match=r"api_key: the server at .* wants one"):
                list(client.generate(PICTURE[0]))


def test_without_tls_nobody_is_heard(secured: Secured) -> None:
    with (
        WorldClient(secured.server.grpc, reconnect_s=0, api_key=API_KEY) as client,
        pytest.raises(UnavailableError, match="or one that wants TLS"),
    ):
        client.info()


def test_a_server_that_is_not_trusted_or_without_tls_is_told_apart(
    secured: Secured, plain: RunningServer, tmp_path: Path
) -> None:
    stranger = make_certificate(tmp_path)  # for the same name
    for trusted in ({"tls_ca": stranger.cert}, {"tls": True, "tls_ca": None}):
        with secured.client(reconnect_s=0, **trusted) as client, pytest.raises(UnavailableError, match="not trusted"):
            client.info()
    with (
        WorldClient(plain.grpc, reconnect_s=0, tls_ca=secured.certificate.cert) as client,
        pytest.raises(UnavailableError, match="speaks without TLS"),
    ):
        client.info()


def test_clients_that_send_half_a_request_or_noise_keep_nobody_out(secured: Secured) -> None:
    noise = np.random.default_rng(0).bytes(300)
    with contextlib.ExitStack() as held:
        for place in (secured.server.http, secured.server.grpc, secured.server.metrics):
            host, _, port = place.partition(":")
            for beginning in (b"", b"POST / HTTP/1.1\r\nX-Slow: ", noise) * 30:
                half = held.enter_context(socket.create_connection((host, int(port))))
                half.sendall(beginning)
        assert call(secured.server.http, "GET", "/v2/health/ready") == (200, "")
        with secured.client() as client:
            np.testing.assert_array_equal(client.preprocess([png(PICTURE)]).pixels, PICTURE)


def test_over_http_the_key_is_wanted_for_all_but_health(secured: Secured) -> None:
    stream = "/v2/models/world/generate_stream"
    for method, path, body in (("GET", "/v2", b""), ("GET", "/v2/models/stats", b""), ("POST", stream, BODY)):
        assert call(secured.server.http, method, path, body)[0] == 403
        assert call(secured.server.http, method, path, body, x_api_key="another-key-0123456789")[0] == 403
    assert call(secured.server.http, "GET", "/v2/models/stats", **KEYED)[0] == 200
    assert call(secured.server.http, "GET", "/v2/models/stats", X_API_KEY=API_KEY)[0] == 200
    assert "INVALID_INPUT: image[0]" in call(secured.server.http, "POST", stream, BODY, **KEYED)[1]
    assert call(secured.server.http, "GET", "/v2/health/ready") == (200, "")


def test_the_key_is_in_no_log(secured: Secured) -> None:
    assert "serve.py: ready: " in secured.server.log()
    assert API_KEY not in secured.server.log()


def test_a_probe_says_whether_the_models_answer(secured: Secured) -> None:
    let_in = probe(*secured.ports, *secured.access, timeout_s=120)
    assert (let_in.returncode, let_in.stderr) == (0, "")

    kept_out = probe(*secured.ports, *secured.access[:2])
    assert kept_out.returncode == 1
    assert "the canary request to model 'preprocess' failed" in kept_out.stderr


def test_the_front_serves_what_the_server_does(front: Front, secured: Secured) -> None:
    with WorldClient(front.grpc) as client, client.session(PICTURE[0], num_steps=1) as session:
        assert sum(len(batch.frames) for batch in session.generate(num_chunks=1)) == 9
        assert client.info().is_ready
    assert call(front.http, "GET", "/v2/health/ready") == (200, "")
    assert "INVALID_INPUT: image[0]" in call(front.http, "POST", "/v2/models/world/generate_stream", BODY)[1]


def test_the_front_speaks_tls_for_a_server_without(front: Front, secured: Secured) -> None:
    with WorldClient(front.grpcs, tls_ca=secured.certificate.cert) as client:
        assert client.preprocess([png(PICTURE)]).pixels.shape == PICTURE.shape
    trusted = ssl.create_default_context(cafile=str(secured.certificate.cert))
    connection = http.client.HTTPSConnection(front.https, timeout=30, context=trusted)
    connection.request("GET", "/v2/health/ready")
    assert connection.getresponse().status == 200
    connection.close()


@pytest.mark.parametrize(("method", "path"), [*HTTP_CALLS, ("GET", "/metrics"), ("GET", "/v2/models/stats")])
def test_the_front_lets_through_only_what_serves(front: Front, method: str, path: str) -> None:
    status, text = call(front.http, method, path)
    assert (status, json.loads(text)) == (404, {"error": "INVALID_INPUT: request: this address is not served"})


@pytest.mark.parametrize("rpc", GRPC_CALLS)
def test_the_front_lets_through_only_calls_that_serve(front: Front, rpc: str) -> None:
    with grpc.insecure_channel(front.grpc) as channel:
        assert refusal_of(channel, rpc) == "INVALID_INPUT: request: this call is not served"


def test_the_front_refuses_a_large_body_before_the_server_has_it(front: Front) -> None:
    connection = http.client.HTTPConnection(front.http, timeout=30)
    connection.putrequest("POST", "/v2/models/preprocess/infer")
    connection.putheader("Content-Length", str((64 << 20) + 1))
    connection.endheaders()  # not one byte of the body is waited for
    answer = connection.getresponse()
    assert answer.status == 413
    assert json.loads(answer.read()) == {"error": "TOO_LARGE: request: wanted a body of at most 64 MiB"}
    connection.close()


def test_the_front_refuses_a_large_call(front: Front) -> None:
    large = b"\x89PNG\r\n\x1a\n" + bytes(65 << 20)
    with (
        WorldClient(front.grpc, reconnect_s=0) as client,
        pytest.raises(TooLargeError, match="at most 64 MiB in a call or stream"),
    ):
        client.preprocess([large])
    with WorldClient(front.grpc) as client:  # and goes on
        assert client.is_ready()


def test_the_front_refuses_what_is_compressed(front: Front) -> None:
    path = "/v2/models/world/generate_stream"
    status, text = call(front.http, "POST", path, gzip.compress(BODY), Content_Encoding="gzip")
    assert (status, json.loads(text)["error"]) == (
        415,
        "TOO_LARGE: request: wanted a body that is not compressed",
    )
    with grpc.insecure_channel(front.grpc, compression=grpc.Compression.Gzip) as channel:
        stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
        with pytest.raises(grpc.RpcError, match="wanted messages that are not compressed"):
            stub.ModelInfer(make_request("preprocess", {"image": bytes(4096)}), timeout=30)
