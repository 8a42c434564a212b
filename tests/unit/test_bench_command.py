"""`worldstream bench` against the small server: what it asks for, and what it says. No times are looked at."""

import http.server
import json
import subprocess
import sys
import threading
from collections import Counter

import pytest
from typer.testing import CliRunner
from worldstream.cli import app
from worldstream.testing import error_message, frames_message

RUNNER = CliRunner()


def bench(server, *arguments):
    return RUNNER.invoke(app, ["bench", "--quick", "--url", server.url, *arguments])


def figures(result):
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)["arms"]


def test_json_alone_goes_to_stdout(server):
    result = bench(server, "--json", "-")

    assert list(figures(result)) == ["1 session", "2 sessions"]
    assert "chunk period" in result.stderr
    assert "cancels were left out" in result.stderr


def test_the_counts_are_what_the_server_was_asked_for(server):
    arms = figures(bench(server, "--json", "-", "--rate", "500"))

    # Of each session a start, a warm chunk, four that stream and two actions; and four requests of the loop.
    assert arms["1 session"]["counts"]["chunks"] == 1 + 1 + 4 + 2 + 4
    assert arms["2 sessions"]["counts"]["chunks"] == 2 * (1 + 1 + 4 + 2) + 4
    asked = Counter(seen.parameters["sequence_id"] for seen in server.seen if "actions" in seen.inputs)
    # The first is the trial's, which does not count.
    assert list(asked.values()) == [3, 12, 10, 10]
    assert server.sessions == {}


def test_a_quick_run_does_no_more_than_was_asked_for(server):
    arms = figures(bench(server, "--json", "-", "--chunks", "2", "--actions", "0", "--sessions", "1"))

    # A start, a warm chunk, and the two that stream.
    assert arms["1 session"]["counts"]["chunks"] == 1 + 1 + 2


def test_every_session_starts_from_a_picture_of_its_own(server):
    figures(bench(server, "--json", "-"))

    pictures = [bytes(seen.inputs["pixels"]) for seen in server.seen if "pixels" in seen.inputs]
    assert len(pictures) == len(set(pictures)) == 1 + 1 + 2


def test_steps_and_pace_are_sent(server):
    figures(bench(server, "--json", "-", "--steps", "3", "--warm-steps", "1", "--paced", "--fps", "900"))

    counted = [seen for seen in server.seen if seen.parameters.get("fps") == 900]
    steps = Counter(seen.inputs["num_steps"][0] for seen in counted)
    assert steps == {1: 3, 3: 3 * (1 + 4 + 2)}


def test_refused_requests_of_the_open_loop_are_counted(server):
    def refuse(seen):
        # The first session's eighth request is the first of its open loop.
        is_one = seen.inputs.get("event_id") == [8]
        return iter([error_message("BUSY: request: too many wait")]) if is_one else None

    server.script = refuse
    arm = figures(bench(server, "--json", "-", "--rate", "500"))["1 session"]

    assert arm["open_loop"]["refused"] == {"BUSY": 1}
    assert (arm["counts"]["refused"], arm["open_loop"]["from_intended_ms"]["n"]) == (1, 3)


def test_a_server_that_is_too_busy_for_the_plan_ends_the_run_and_is_named(server):
    # It once was passed over: a start that was refused ended as SESSION_NOT_FOUND of the request behind it.
    def refuse(seen):
        return iter([error_message("BUSY: request: too many wait")]) if seen.inputs.get("event_id") == [3] else None

    server.script = refuse
    result = bench(server)

    assert (result.exit_code, result.stderr.splitlines()[-1]) == (1, "error: BUSY: request: too many wait")
    assert server.sessions == {}


@pytest.mark.parametrize("place", ["gone/figures.json", "."])
def test_a_place_that_cannot_be_written_to_is_found_before_anything_is_asked_for(server, tmp_path, place):
    result = bench(server, "--json", str(tmp_path / place))

    assert result.exit_code == 1
    assert result.stderr.startswith("error: [Errno ")
    assert server.seen == []
    assert list(tmp_path.iterdir()) == []


class OtherPage(http.server.BaseHTTPRequestHandler):
    """A page of somebody else's metrics."""

    def do_GET(self):
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b"nv_inference_count 7\n")

    def log_message(self, *_):
        """Nobody reads it."""


def test_a_metrics_page_that_is_not_worldstreams_is_found_before_anything_is_asked_for(server):
    with http.server.HTTPServer(("127.0.0.1", 0), OtherPage) as other:
        threading.Thread(target=other.handle_request, daemon=True).start()
        result = bench(server, "--metrics-url", f"127.0.0.1:{other.server_port}")

    assert result.exit_code == 1
    assert "has no worldstream_queued_requests" in result.stderr
    assert server.seen == []


def test_a_metrics_page_that_is_not_there_is_found_before_anything_is_asked_for(server):
    result = bench(server, "--metrics-url", "127.0.0.1:1")

    assert result.exit_code == 1
    assert "metrics: cannot read http://127.0.0.1:1/metrics" in result.stderr
    assert server.seen == []


@pytest.mark.parametrize(("option", "value"), [("--fps", "inf"), ("--buffer-s", "inf"), ("--rate", "inf")])
def test_a_number_without_an_end_is_refused_before_anything_is_asked_for(server, option, value):
    result = bench(server, option, value)

    assert (result.exit_code, result.stderr) == (1, f"error: {option}: wanted a number that is finite, got {value}\n")
    assert server.seen == []


def test_frames_that_another_request_steered_end_the_run(server):
    server.script = lambda seen: iter([frames_message(0, 9, (0, 0, 1), True, event_id=7)]) if seen.inputs else None

    result = bench(server)

    assert (result.exit_code, result.stderr) == (1, "error: event_id: wanted 0, got 7\n")


def test_figures_are_written_to_a_file(server, tmp_path):
    file = tmp_path / "bench.json"

    result = bench(server, "--json", str(file))

    assert (result.exit_code, result.stdout) == (0, "")
    document = json.loads(file.read_text(encoding="utf-8"))
    assert (document["asked"]["num_sessions"], document["asked"]["num_chunks"]) == ([1, 2], 4)
    overhead = document["arms"]["1 session"]["overhead"]
    # The small server's timings: 2, 3 and 4 of 14 ms are computing.
    assert (overhead["ms"]["p50"], overhead["share"]["median"]) == (5, pytest.approx(5 / 14, abs=1e-4))


def test_a_server_that_is_not_there_is_one_line():
    result = RUNNER.invoke(app, ["bench", "--quick", "--url", "127.0.0.1:1"])

    assert result.exit_code == 1
    assert result.stderr.startswith("error: UNAVAILABLE: no server at 127.0.0.1:1")
    assert result.stderr.count("\n") == 1


def test_the_bench_needs_no_torch():
    program = "import sys; sys.modules['torch'] = None; import worldstream.bench.run, worldstream.bench.command"

    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)
