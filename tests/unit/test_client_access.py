"""The client over TLS and with a key, blocking, asyncio and command line, against a small gRPC server."""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest
from typer.testing import CliRunner
from worldstream import InvalidInputError, UnavailableError, WorldClient
from worldstream.aio import AsyncWorldClient
from worldstream.cli import app
from worldstream.endpoint import error_from_status
from worldstream.testing import FakeServer

from tests.certificates import Certificate, make_certificate
from tests.unit.worlds import picture

API_KEY = "0123456789abcdef"
HEADER = "triton-grpc-protocol-x-api-key"
RUNNER = CliRunner()


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Certificate:
    return make_certificate(tmp_path_factory.mktemp("certificate"))


@pytest.fixture
def tls_server(certificate: Certificate) -> Iterator[FakeServer]:
    pair = (certificate.key.read_bytes(), certificate.cert.read_bytes())
    with FakeServer(credentials=grpc.ssl_server_credentials([pair])) as fake:
        yield fake


def test_a_session_streams_over_tls(tls_server, certificate):
    with WorldClient(tls_server.url, timeout_s=10, tls_ca=certificate.cert) as client:
        assert client.is_ready()
        with client.session(picture()) as session:
            assert sum(len(batch.frames) for batch in session.generate(actions="www")) == 9


def test_a_session_streams_over_tls_with_asyncio(tls_server, certificate):
    async def count() -> int:
        async with AsyncWorldClient(tls_server.url, timeout_s=10, tls_ca=str(certificate.cert)) as client:
            assert await client.is_ready()
            async with client.session(picture()) as session:
                return sum([len(batch.frames) async for batch in session.generate(actions="www")])

    assert asyncio.run(count()) == 9


def test_a_server_whose_certificate_nobody_vouches_for_is_not_trusted(tls_server, certificate, tmp_path):
    other = make_certificate(tmp_path)
    for options in ({"tls": True}, {"tls_ca": other.cert}):
        with (
            WorldClient(tls_server.url, timeout_s=5, reconnect_s=0, **options) as client,
            pytest.raises(UnavailableError, match="is not trusted: its certificate is none of tls_ca's"),
        ):
            client.info()


def test_a_client_without_tls_is_told_that_the_server_may_want_it(tls_server):
    with (
        WorldClient(tls_server.url, timeout_s=5, reconnect_s=0) as client,
        pytest.raises(UnavailableError, match="or one that wants TLS: tls or tls_ca"),
    ):
        client.info()


def test_a_client_with_tls_is_told_that_the_server_has_none(server, certificate):
    with (
        WorldClient(server.url, timeout_s=5, reconnect_s=0, tls_ca=certificate.cert) as client,
        pytest.raises(UnavailableError, match="speaks without TLS"),
    ):
        client.info()


def test_the_key_goes_with_streams_and_with_single_calls(server):
    with WorldClient(server.url, timeout_s=10, api_key=API_KEY) as client:
        client.preprocess([b"a picture"])
        with client.session(picture()) as session:
            list(session.generate(actions="www"))
    assert len(server.seen) >= 2
    assert {seen.metadata.get(HEADER) for seen in server.seen} == {API_KEY}


def test_the_key_goes_with_streams_and_with_single_calls_of_asyncio(server):
    async def stream() -> None:
        async with AsyncWorldClient(server.url, timeout_s=10, api_key=API_KEY) as client:
            await client.preprocess([b"a picture"])
            async with client.session(picture()) as session:
                async for _ in session.generate(actions="www"):
                    pass

    asyncio.run(stream())
    assert len(server.seen) >= 2
    assert {seen.metadata.get(HEADER) for seen in server.seen} == {API_KEY}


def test_without_a_key_none_is_sent(server):
    with WorldClient(server.url, timeout_s=10) as client:
        client.preprocess([b"a picture"])
    assert HEADER not in server.seen[0].metadata


def test_a_wrong_key_is_a_wrong_input_and_not_tried_again():
    # Triton 2.51's own words.
    words = f"This protocol is restricted, expecting header '{HEADER}'"
    error = error_from_status(grpc.StatusCode.UNAVAILABLE, words, "robot:8001")
    assert type(error) is InvalidInputError
    assert str(error) == "INVALID_INPUT: api_key: the server at robot:8001 wants one, and not what came"


@pytest.mark.parametrize("key", ["", "two words", "lösung", "line\n"])
def test_what_cannot_be_a_key_is_refused_before_anything_is_sent(key):
    with pytest.raises(InvalidInputError, match="api_key: wanted printable ASCII without spaces"):
        WorldClient(api_key=key)


def test_authorities_that_are_none_are_refused_before_anything_is_sent(tmp_path):
    (tmp_path / "ca.pem").write_text("nothing", encoding="ascii")
    with pytest.raises(InvalidInputError, match=r"tls_ca: wanted certificates in PEM, got none in .*ca\.pem"):
        WorldClient(tls_ca=tmp_path / "ca.pem")
    with pytest.raises(InvalidInputError, match=r"tls_ca: cannot read .*: No such file or directory"):
        WorldClient(tls_ca=tmp_path / "nowhere.pem")


def write_key(folder: Path) -> str:
    (folder / "key").write_text(f"{API_KEY}\n", encoding="ascii")
    return str(folder / "key")


def test_the_command_line_takes_authorities_and_key_before_the_command(tls_server, certificate, tmp_path):
    arguments = ["--tls-ca", str(certificate.cert), "--api-key-file", write_key(tmp_path)]
    result = RUNNER.invoke(app, [*arguments, "info", "--url", tls_server.url])
    assert result.exit_code == 0, result.output
    assert "ready" in result.output


def test_the_command_line_takes_authorities_and_key_from_the_environment(tls_server, certificate, tmp_path):
    environment = {"WORLDSTREAM_TLS_CA": str(certificate.cert), "WORLDSTREAM_API_KEY_FILE": write_key(tmp_path)}
    result = RUNNER.invoke(app, ["info", "--url", tls_server.url], env=environment)
    assert result.exit_code == 0, result.output


@pytest.mark.parametrize("content", [None, b"\xff\xfe"])
def test_a_key_file_that_cannot_be_read_is_one_line(server, tmp_path, content):
    if content is not None:
        (tmp_path / "key").write_bytes(content)
    result = RUNNER.invoke(app, ["--api-key-file", str(tmp_path / "key"), "info", "--url", server.url])
    assert result.exit_code == 1
    assert result.output.startswith("error: ")
    assert result.output.count("\n") == 1
