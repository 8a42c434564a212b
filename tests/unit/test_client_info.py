"""What a server says of itself, read past proxies that the environment names."""

import contextlib
import socket
import threading

import pytest
from worldstream import UnavailableError, WorldClient
from worldstream.info import fetch_metrics, metric_lines, parse_metrics, plain_names
from worldstream.loopback import is_loopback

PAGE = """# HELP worldstream_session_bytes Session bytes
worldstream_session_bytes{model="denoise",version="1"} 36700160
worldstream_active_sessions{model="denoise",version="1"} 2
worldstream_active_sessions{model="other",version="1"} 1
worldstream_queued_requests{model="denoise",version="1"} 4
worldstream_chunks_total{model="denoise",version="1"} 16777217
nv_inference_count{model="denoise"} 3
"""


@pytest.fixture
def dead_proxy(monkeypatch):
    """An environment that sends everything through a proxy that does not answer."""
    for name in ("no_proxy", "NO_PROXY", "no_grpc_proxy"):
        monkeypatch.delenv(name, raising=False)
    for name in ("http_proxy", "https_proxy", "grpc_proxy", "HTTP_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:1")


@pytest.fixture
def answering():
    """A function that starts a port of 127.0.0.1 which answers one connection with these bytes."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        listener.settimeout(5)
        threads = []

        def start(answer):
            def run():
                with contextlib.suppress(TimeoutError):  # nobody came: the test fails by itself
                    connection, _ = listener.accept()
                    with connection:
                        connection.recv(4096)
                        connection.sendall(answer)

            threads.append(threading.Thread(target=run))
            threads[-1].start()
            return f"127.0.0.1:{listener.getsockname()[1]}"

        yield start
        for thread in threads:
            thread.join()


@pytest.mark.parametrize(
    "url",
    [
        "localhost:8001",
        "LOCALHOST",
        "127.0.0.1:8001",
        "127.9.0.1:8001",
        "[::1]:8001",
        "http://localhost:8002/metrics",
        "dns:///localhost:8001",
        "dns:localhost:8001",
        "ipv4:127.0.0.1:8001",
    ],
)
def test_this_machine_is_known_by_all_its_names(url):
    assert is_loopback(url)


@pytest.mark.parametrize(
    "url",
    [
        "host:8001",
        "10.0.0.1:8001",
        "http://example.com/127.0.0.1",
        "localhost.example.com:80",
        "http://h//localhost",
        "[::1",
        "",
    ],
)
def test_other_machines_are_not_this_one(url):
    assert not is_loopback(url)


def test_no_proxy_comes_between_a_client_and_its_own_machine(server, dead_proxy):
    with WorldClient(server.url, timeout_s=5) as client:
        assert client.info().is_live


def test_no_proxy_comes_between_a_client_and_a_metrics_page_of_its_own_machine(answering, dead_proxy):
    url = answering(b"HTTP/1.0 200 OK\r\n\r\nworldstream_active_sessions 1\n")

    assert fetch_metrics(url, timeout_s=5) == {"worldstream_active_sessions": 1}


def test_a_proxy_serves_for_other_machines(answering, monkeypatch):
    proxy = answering(b"HTTP/1.0 200 OK\r\n\r\nworldstream_active_sessions 1\n")
    monkeypatch.setenv("http_proxy", f"http://{proxy}")
    monkeypatch.delenv("no_proxy", raising=False)

    assert fetch_metrics("metrics.invalid:8002", timeout_s=5) == {"worldstream_active_sessions": 1}


@pytest.mark.parametrize(
    "answer",
    [
        pytest.param(b"\0\0\x18\4\0\0\0\0\0", id="gRPC's port"),
        pytest.param(b"HTTP/1.0 200 OK\r\n\r\nworldstream_x one\n", id="no number"),
        pytest.param(b"HTTP/1.0 200 OK\r\n\r\n\xff\xfe", id="no text"),
        pytest.param(b"HTTP/1.0 404 Not Found\r\n\r\n", id="no page"),
    ],
)
def test_what_is_no_metrics_page_is_unavailable(answering, answer):
    url = answering(answer)

    with pytest.raises(UnavailableError, match=rf"^UNAVAILABLE: metrics: cannot read http://{url}/metrics: "):
        fetch_metrics(url, timeout_s=5)


def test_the_summary_adds_up_over_labels_and_leaves_them_out():
    assert metric_lines(parse_metrics(PAGE)) == [
        "sessions: 3, holding 35.0 MiB; requests queued: 4",
        "worldstream_chunks_total 16777217",
    ]


def test_the_summary_shows_a_histogram_by_its_mean():
    page = """worldstream_active_sessions{model="denoise"} 0
worldstream_stage_duration_seconds_count{model="denoise",stage="total"} 4
worldstream_stage_duration_seconds_sum{model="denoise",stage="total"} 1
worldstream_stage_duration_seconds_bucket{model="denoise",stage="total",le="0.5"} 3
worldstream_stage_duration_seconds_bucket{model="denoise",stage="total",le="+Inf"} 4
worldstream_stage_duration_seconds_count{model="denoise",stage="decode"} 4
worldstream_stage_duration_seconds_sum{model="denoise",stage="decode"} 0.0104
worldstream_first_frame_seconds_count{model="denoise"} 0
worldstream_first_frame_seconds_sum{model="denoise"} 0
"""
    assert metric_lines(parse_metrics(page))[1:] == [
        "worldstream_stage_duration_seconds total: mean 0.25, count 4",
        "worldstream_stage_duration_seconds decode: mean 0.0026, count 4",
        "worldstream_first_frame_seconds: count 0",
    ]


def test_labels_stay_where_models_share_a_name():
    two = {'worldstream_x{model="a"}': 1.0, 'worldstream_x{model="b"}': 2.0}

    assert plain_names(two) == two
    assert plain_names({'worldstream_x{model="a"}': 1.0, "worldstream_y": 2.0}) == {
        "worldstream_x": 1.0,
        "worldstream_y": 2.0,
    }


def test_labels_go_from_a_number_beside_a_histogram():
    bucket = 'worldstream_x_bucket{model="a",le="%s"}'
    page = {bucket % 1: 1.0, bucket % "+Inf": 2.0, 'worldstream_y{model="a"}': 3.0}
    assert plain_names(page) == {bucket % 1: 1.0, bucket % "+Inf": 2.0, "worldstream_y": 3.0}


def test_a_page_without_our_metrics_is_said():
    assert metric_lines({}) == ["no worldstream metrics on this page"]
