"""What is made of perf_analyzer: which binary, which scenarios, which inputs, and what its files say. No server."""

import base64
import json
import struct
import sys
from pathlib import Path

import pytest
from google.protobuf import text_format
from PIL import Image
from tritonclient.grpc import model_config_pb2

sys.path.insert(0, str(Path(__file__).parents[2] / "perf"))

import analyzer
import fetch_perf_analyzer
from analyzer_exports import Request, Response, read_export, read_table, stream_figures
from analyzer_inputs import inputs_of
from analyzer_metrics import growth, parse_counters, server_figures
from analyzer_scenarios import Scenario, choose, load_scenarios, quick_scenarios
from common import ROOT

# Written by the binary of tritonclient 2.50.0; times changed into round ones, and frames cut to their first numbers.
# One sequence of two requests. The first ends by an empty response, the second has a response of one frame; a string
# holds a byte that is no UTF-8 and one that JSON would have escaped.
EXPORT = b"""{"experiments":[{"experiment":{"mode":"concurrency","value":1},"requests":[
{"timestamp":1796001556479000000,"sequence_id":5001,"request_inputs":{"pixels":[75,183,96],"actions":"w\x89\x01"},
"response_timestamps":[1796001556979000000,1796001557279000000,1796001557280000000],"response_outputs":[
{"timings":[0.3,1.5,2.5,3.5,0.1,8.0],"snapshot":[0,0],"frame_index":[0,1,2,3,4,5,6,7,8],"event_id":-1,
"encoded_frames":"","frames":[12,13,14],"chunk":[0,0,1]},
{"timings":[0.3,1.5,2.5,3.5,0.1,8.0],"frame_index":[9,10],"event_id":-1,"frames":[12,13,14],"chunk":[1,0,1]},
{"timings":"","snapshot":"","frame_index":"","event_id":"","encoded_frames":"","frames":"","chunk":""}]},
{"timestamp":1796001557290000000,"sequence_id":5001,"request_inputs":{"actions":"l"},
"response_timestamps":[1796001557529000000],"response_outputs":[
{"timings":[0.3,1.5,2.5,3.5,0.1,8.0],"frame_index":11,"event_id":-1,"frames":[12,13,14],"chunk":[2,0,1]}]}],
"window_boundaries":[1796001556477637052,1796001560482099754]}],"version":"","service_kind":"triton","endpoint":""}"""
TABLE = """Concurrency,Inferences/Second,Client Send,Network+Server Send/Recv,Server Queue,Server Compute Input,\
Server Compute Infer,Server Compute Output,Client Recv,p50 latency,p90 latency,p95 latency,p99 latency
2,9.98756,514,2935,47,33,8583,378,464,14558,15449,16151,17000
"""
METRICS = """# HELP worldstream_chunks_total Chunks
# TYPE worldstream_chunks_total counter
worldstream_chunks_total{model="denoise"} 3
# TYPE worldstream_active_sessions gauge
worldstream_active_sessions{model="denoise"} 1
# TYPE nv_inference_request_success counter
nv_inference_request_success{model="preprocess",version="1"} 4
# TYPE nv_inference_queue_duration_us counter
nv_inference_queue_duration_us{version="1",model="preprocess"} 800
# TYPE worldstream_stage_duration_seconds histogram
worldstream_stage_duration_seconds_count{model="denoise",stage="total"} 3
worldstream_stage_duration_seconds_sum{model="denoise",stage="total"} 1.5
worldstream_stage_duration_seconds_bucket{model="denoise",stage="total",le="1"} 3
"""


# The binary


@pytest.mark.parametrize(
    ("version", "carrier"),
    [
        ("2.31", "tritonclient==2.50.0"),
        ("2.37", "tritonclient==2.50.0"),
        ("2.38", "perf-analyzer==2.60.0"),
        ("2.41", "perf-analyzer==2.60.0"),
        ("2.100", "perf-analyzer==2.60.0"),
        ("3.0", "perf-analyzer==2.60.0"),
    ],
)
def test_the_c_library_decides_on_the_carrier(version, carrier):
    assert str(fetch_perf_analyzer.carrier_for(("glibc", version))) == carrier


@pytest.mark.parametrize("libc", [("", ""), ("musl", "1.2.4")])
def test_another_c_library_is_refused(libc):
    with pytest.raises(fetch_perf_analyzer.FetchError, match="needs the GNU C library; this system has"):
        fetch_perf_analyzer.carrier_for(libc)


def write_program(path, says, status=0):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\necho '{says}' >&2\nexit {status}\n", encoding="utf-8")
    path.chmod(0o755)


def test_what_runs_already_is_not_fetched_again(tmp_path, monkeypatch):
    monkeypatch.setattr(fetch_perf_analyzer, "download", None)
    program = tmp_path / "perf-analyzer-2.60.0" / "perf_analyzer"
    write_program(program, "Perf Analyzer Version 2.60.0 (commit abc)")
    assert fetch_perf_analyzer.fetch(tmp_path, fetch_perf_analyzer.NEWER) == program


def test_a_missing_library_is_named_with_its_package(tmp_path):
    said = "bin/perf_analyzer: error while loading shared libraries: libb64.so.0d: cannot open shared object file"
    write_program(tmp_path / "perf_analyzer", said, status=127)
    complaint = fetch_perf_analyzer.complaint_of(tmp_path / "perf_analyzer")
    assert complaint.startswith("error while loading shared libraries: libb64.so.0d")
    assert complaint.endswith("apt-get install libb64-0d")


@pytest.mark.parametrize("content", [b"\xff\xfe\0 no program", b"#!/bin/sh\nprintf '\\377\\376 broken'\nexit 3\n"])
def test_what_is_broken_is_fetched_again(tmp_path, monkeypatch, content):
    def lay_out(home, carrier):
        write_program(home / "perf_analyzer", "Perf Analyzer Version 2.60.0 (commit abc)")

    monkeypatch.setattr(fetch_perf_analyzer, "lay_out", lay_out)
    program = tmp_path / "perf-analyzer-2.60.0" / "perf_analyzer"
    write_program(program, "")
    program.write_bytes(content)
    assert fetch_perf_analyzer.fetch(tmp_path, fetch_perf_analyzer.NEWER) == program
    assert fetch_perf_analyzer.complaint_of(program) == ""
    assert [path.name for path in tmp_path.iterdir()] == ["perf-analyzer-2.60.0"]


def test_a_place_where_it_cannot_be_kept_is_named(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(
        fetch_perf_analyzer.FetchError, match=r"perf-analyzer==2\.60\.0 cannot be kept in .*: Not a dir"
    ):
        fetch_perf_analyzer.fetch(tmp_path / "file" / "cache", fetch_perf_analyzer.NEWER)


def test_a_damaged_package_is_named(tmp_path):
    (tmp_path / "some.whl").write_bytes(b"half a package")
    with pytest.raises(fetch_perf_analyzer.FetchError, match=r"some\.whl is damaged"):
        fetch_perf_analyzer.take_binary(tmp_path / "some.whl", tmp_path / "perf_analyzer")


# The scenarios


def config_of(scenario):
    folder = ROOT / "model_repository" / scenario.model
    named = folder / "configs" / f"{scenario.server}.pbtxt"
    path = named if scenario.server and named.is_file() else folder / "config.pbtxt"
    return text_format.Parse(path.read_text(encoding="utf-8"), model_config_pb2.ModelConfig())


@pytest.mark.parametrize("scenario", load_scenarios(), ids=lambda scenario: scenario.name)
def test_each_scenario_sends_inputs_that_its_model_has(scenario):
    tensors = {tensor.name: tensor for tensor in config_of(scenario).input}
    data = inputs_of(scenario)["data"]
    requests = data[0] if scenario.is_sequence else data
    assert len(requests) == len(scenario.requests)
    for name, tensor in [pair for request in requests for pair in request.items()]:
        dims = list(tensors[name].dims)
        assert len(tensor["shape"]) == len(dims)
        assert all(wanted in (-1, came) for wanted, came in zip(dims, tensor["shape"], strict=True))
        if isinstance(tensor["content"], list):
            kind = str if tensors[name].data_type == model_config_pb2.TYPE_STRING else int
            assert {type(value) for value in tensor["content"]} == {kind}


def test_names_are_unique_and_every_model_and_way_is_there():
    scenarios = load_scenarios()
    assert len({scenario.name for scenario in scenarios}) == len(scenarios)
    ways = {(each.model, each.protocol, each.is_stream, each.is_sequence) for each in scenarios}
    unary = {("preprocess", protocol, False, False) for protocol in ("http", "grpc")}
    assert ways == unary | {(model, "grpc", True, way) for model in ("world", "denoise") for way in (False, True)}
    assert all(each.concurrency == (1, 2, 3, 4) for each in scenarios if each.is_stream)


def test_sequences_are_those_of_the_server_that_batches_sequences():
    assert {each.is_sequence for each in load_scenarios() if each.server == "sequences"} == {True}
    assert {each.is_sequence for each in load_scenarios() if each.server == ""} == {False}


def test_the_quick_ones_are_some_of_all_and_ask_for_less():
    full = {scenario.name: scenario for scenario in load_scenarios()}
    quick = quick_scenarios()
    assert 0 < len(quick) < len(full)
    for scenario in quick:
        assert 0 < len(scenario.concurrency) <= 2
        assert scenario.num_requests < full[scenario.name].num_requests


def scenario_of(num_requests, num_steps=1, is_stream=True):
    requests = ({"actions": ["w"]},) * num_steps
    return Scenario("s", "denoise", "grpc", requests, (1,), num_requests, is_stream, is_sequence=num_steps > 1)


@pytest.mark.parametrize(
    ("scenario", "concurrency", "asked"),
    [
        (scenario_of(8), 1, 8),
        (scenario_of(8), 3, 9),  # three senders, three requests each
        (scenario_of(2), 4, 8),  # two rounds at least
        (scenario_of(15, num_steps=3), 2, 18),  # two senders, three whole sequences each
        (scenario_of(20, is_stream=False), 4, 20),  # of a window
    ],
)
def test_each_sender_gets_the_same_number_of_whole_sequences(scenario, concurrency, asked):
    assert scenario.num_requests_at(concurrency) == asked


def test_scenarios_are_chosen_by_name_and_an_unknown_one_is_refused():
    names = [scenario.name for scenario in choose(load_scenarios(), ["*-sequences", "denoise-one-shot"])]
    assert names == ["denoise-one-shot", "denoise-sequences", "world-sequences"]
    with pytest.raises(ValueError, match="no scenario 'denoise'; there are: preprocess-http"):
        choose(load_scenarios(), ["denoise"])


def test_sequences_have_ids_of_their_own_and_streams_a_number_of_requests():
    folder = Path("folder")
    addresses = analyzer.Addresses("h:1", "g:2", "m:3")
    by_name = {scenario.name: scenario for scenario in load_scenarios()}
    command = analyzer.command_of(by_name["denoise-sequences"], 2, addresses, folder)
    assert command[:6] == ["-m", "denoise", "-i", "grpc", "-u", "g:2"]
    assert {"--streaming", "--request-count", "--profile-export-file"} < set(command)
    assert int(command[command.index("--sequence-id-range") + 1]) > 1_000_000
    command = analyzer.command_of(by_name["preprocess-http-png-360x640"], 2, addresses, folder)
    assert command[:6] == ["-m", "preprocess", "-i", "http", "-u", "h:1"]
    assert "--sequence-id-range" not in command


def test_a_failure_is_told_without_the_help_that_follows_it(tmp_path):
    program = tmp_path / "perf_analyzer"
    lines = ["Error: Failed to parse --x. Path must not exist.", "Usage:", *["help"] * 50]
    program.write_text("#!/bin/sh\ncat <<END\n" + "\n".join(lines) + "\nEND\nexit 1\n", encoding="utf-8")
    program.chmod(0o755)
    with pytest.raises(SystemExit) as failure:
        analyzer.run_program([str(program)], "denoise-one-shot/1")
    assert str(failure.value).splitlines() == [
        "analyzer.py: perf_analyzer failed at denoise-one-shot/1 with status 1:",
        "Error: Failed to parse --x. Path must not exist.",
    ]


def test_a_program_that_does_not_end_is_named(tmp_path, monkeypatch):
    program = tmp_path / "perf_analyzer"
    program.write_text("#!/bin/sh\nexec sleep 60\n", encoding="utf-8")
    program.chmod(0o755)
    monkeypatch.setattr(analyzer, "POINT_TIMEOUT_S", 0.2)
    with pytest.raises(SystemExit, match=r"perf_analyzer did not end at denoise-one-shot/1 within 0\.2 s"):
        analyzer.run_program([str(program)], "denoise-one-shot/1")


@pytest.mark.parametrize(
    ("left", "said"),
    [
        (None, "No such file or directory"),
        ("not json", "JSONDecodeError"),
        ("[]", "TypeError"),
        ('{"experiments": [{}]}', "KeyError"),
        ('{"experiments": [{"requests": []}]}', "wanted requests with frames, got 0 requests"),
    ],
)
def test_a_program_that_leaves_no_measurement_is_named(tmp_path, monkeypatch, left, said):
    folder = tmp_path / "point"
    script = "" if left is None else f"printf '%s' '{left}' > '{folder}/export.json'"
    program = tmp_path / "perf_analyzer"
    program.write_text(f"#!/bin/sh\n{script}\n", encoding="utf-8")
    program.chmod(0o755)
    monkeypatch.setattr(analyzer, "fetch_counters", lambda address: {})
    (scenario,) = choose(load_scenarios(), ["denoise-one-shot"])
    with pytest.raises(SystemExit, match="perf_analyzer left no measurement at denoise-one-shot/2") as failure:
        analyzer.measure(program, scenario, 2, analyzer.Addresses("h:1", "h:2", "h:3"), folder)
    assert said in str(failure.value)


def test_the_metrics_page_of_another_server_is_named(tmp_path, monkeypatch):
    program = tmp_path / "perf_analyzer"
    program.write_text("#!/bin/sh\n", encoding="utf-8")
    program.chmod(0o755)
    monkeypatch.setattr(analyzer, "fetch_counters", lambda address: {})
    monkeypatch.setattr(analyzer, "read_table", lambda path: {"requests_per_s": 5.0})
    (scenario,) = choose(load_scenarios(), ["preprocess-http-jpeg-360x640"])
    with pytest.raises(SystemExit, match="the metrics page at h:3 counted nothing of preprocess-http-jpeg-360x640/1"):
        analyzer.measure(program, scenario, 1, analyzer.Addresses("h:1", "h:2", "h:3"), tmp_path / "point")


# The inputs


def test_a_sequence_is_a_list_of_requests_and_a_picture_is_raw():
    scenario = Scenario(
        "s", "denoise", "grpc", ({"pixels": "rgb 48x80", "seed": 7}, {"actions": ["w", ""]}), (1,), 4, True, True
    )
    [[start, later]] = inputs_of(scenario)["data"]
    assert start["pixels"]["shape"] == [1, 48, 80, 3]
    assert len(base64.b64decode(start["pixels"]["content"]["b64"])) == 48 * 80 * 3
    assert start["seed"] == {"content": [7], "shape": [1]}
    assert later == {"actions": {"content": ["w", ""], "shape": [2]}}


def test_an_element_of_bytes_comes_behind_its_length(tmp_path):
    scenario = Scenario("s", "preprocess", "http", ({"image": "PNG 48x80"},), (1,), 4, False)
    [request] = inputs_of(scenario)["data"]
    assert request["image"]["shape"] == [1]
    content = base64.b64decode(request["image"]["content"]["b64"])
    assert struct.unpack("<I", content[:4]) == (len(content) - 4,)
    (tmp_path / "picture").write_bytes(content[4:])
    with Image.open(tmp_path / "picture") as picture:
        assert (picture.format, picture.size) == ("PNG", (80, 48))


@pytest.mark.parametrize(("wish", "complaint"), [("BMP 48x80", "no form 'BMP'"), ("PNG", "wanted FORM HEIGHTxWIDTH")])
def test_an_unknown_picture_is_refused(wish, complaint):
    with pytest.raises(ValueError, match=complaint):
        inputs_of(Scenario("s", "preprocess", "http", ({"image": wish},), (1,), 4, False))


# What comes back


def test_an_export_becomes_times_of_responses_with_frames(tmp_path):
    (tmp_path / "export.json").write_bytes(EXPORT)
    start, later = read_export(tmp_path / "export.json")
    assert [response.num_frames for response in start.responses] == [9, 2]
    assert [response.came_ms - start.sent_ms for response in start.responses] == [500, 800]
    assert [response.num_frames for response in later.responses] == [1]
    assert [(each.sequence_id, each.is_start) for each in (start, later)] == [(5001, True), (5001, False)]


def test_first_control_and_inter_response_times_are_told_apart(tmp_path):
    (tmp_path / "export.json").write_bytes(EXPORT)
    figures = stream_figures(read_export(tmp_path / "export.json"), 1)
    assert (figures["requests"], figures["responses"], figures["frames"]) == (2, 3, 12)
    assert figures["first_response_ms"]["p50"] == 500
    assert figures["control_to_response_ms"]["p50"] == 239
    # 300 ms within the first request, and 250 from its last response to the next request's.
    assert (figures["inter_response_ms"]["n"], figures["inter_response_ms"]["p50"]) == (2, 275)
    assert figures["last_response_ms"]["max"] == 800
    assert figures["frames_per_s"] == pytest.approx(12 / 1.05, abs=0.01)


def test_frames_a_second_count_while_all_senders_are_busy():
    # Two senders. The first is done at 3,000 ms, the second alone takes until 5,000.
    requests = [
        Request(0, (Response(1000, 10),), 0, True),
        Request(1000, (Response(3000, 10),), 0, True),
        Request(0, (Response(2500, 10),), 0, True),
        Request(2500, (Response(5000, 10),), 0, True),
    ]
    figures = stream_figures(requests, 2)
    assert figures["frames_per_s"] == 10
    # Requests without a sequence are sessions of their own: nothing is between their only responses.
    assert "inter_response_ms" not in figures


@pytest.mark.parametrize("requests", [[], [{"timestamp": 1, "request_inputs": {}, **{"response_timestamps": []}}]])
def test_an_export_without_frames_is_refused(tmp_path, requests):
    document = {"experiments": [{"requests": [{**each, "response_outputs": []} for each in requests]}]}
    (tmp_path / "export.json").write_text(json.dumps(document), encoding="utf-8")
    with pytest.raises(ValueError, match="wanted requests with frames"):
        read_export(tmp_path / "export.json")


def test_the_table_of_a_unary_model_is_read_in_milliseconds(tmp_path):
    (tmp_path / "table.csv").write_text(TABLE, encoding="utf-8")
    assert read_table(tmp_path / "table.csv") == {
        "requests_per_s": 9.99,
        "latency_ms": {"p50": 14.558, "p95": 16.151, "p99": 17.0},
    }


def test_counters_and_sums_are_read_and_gauges_and_buckets_are_not():
    assert parse_counters(METRICS) == {
        "worldstream_chunks_total{model=denoise}": 3,
        "nv_inference_request_success{model=preprocess,version=1}": 4,
        "nv_inference_queue_duration_us{model=preprocess,version=1}": 800,
        "worldstream_stage_duration_seconds_count{model=denoise,stage=total}": 3,
        "worldstream_stage_duration_seconds_sum{model=denoise,stage=total}": 1.5,
    }


def test_the_servers_means_are_those_of_the_measurement_alone():
    before = parse_counters(METRICS)
    grown = {
        "worldstream_stage_duration_seconds_count{model=denoise,stage=total}": 2,
        "worldstream_stage_duration_seconds_sum{model=denoise,stage=total}": 0.5,
        "nv_inference_request_success{model=preprocess,version=1}": 4,
        "nv_inference_queue_duration_us{model=preprocess,version=1}": 1000,
    }
    after = {name: value + grown.get(name, 0) for name, value in before.items()}
    assert growth(before, after) == grown
    means = server_figures(grown)["mean_ms"]
    assert means["total"] == 250
    assert means["preprocess queue"] == 0.25


def test_addresses_beside_no_server_are_refused(capsys):
    with pytest.raises(SystemExit, match="2"):
        analyzer.main(["--list", "--metrics-url", "127.0.0.1:8002"])
    assert "--http-url, --metrics-url: wanted with --url" in capsys.readouterr().err
