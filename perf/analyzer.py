"""Let NVIDIA's perf_analyzer load the models, and say when frames came: the scenarios of perf/scenarios.toml.

    .venv/bin/python perf/analyzer.py                       # all scenarios, on servers of its own: 3 minutes
    .venv/bin/python perf/analyzer.py --quick               # a few of them, short
    .venv/bin/python perf/analyzer.py --only 'denoise-*'    # those whose names match
    .venv/bin/python perf/analyzer.py --url localhost:8001  # on a server that runs (its configuration decides which)

Of unary models the figures are perf_analyzer's own: percentiles of a request's time, and requests a second. Of streams
they are not: its latency is the time to a request's last response. Its profile export says when each response came, and
what is reported of it is:

- first response: from sending a request that brings a picture to its first frames;
- control to response: the same of a request that goes on with a session;
- inter-response: between neighbouring responses of one session. A chunk of the built-in world is one response;
- last response: from sending a request to its end, which is what perf_analyzer calls latency;
- frames a second, over the time in which all senders were busy.

perf_analyzer sends a request as soon as the last one is answered (a closed loop), and shares the machine with the
server. All sessions start from one picture, which the world finds encoded from the second time on.
"""

from __future__ import annotations

import argparse
import itertools
import platform
import random
import re
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from analyzer_exports import read_export, read_table, stream_figures
from analyzer_inputs import write_inputs
from analyzer_metrics import fetch_counters, growth, server_figures
from analyzer_scenarios import Scenario, choose, load_scenarios, quick_scenarios
from common import ROOT, machine, print_document
from denoise_served import running_server
from fetch_perf_analyzer import FetchError, cache_folder, carrier_for, fetch

PACKAGES = ("numpy", "torch", "nvidia-pytriton")
REPOSITORY = ROOT / "model_repository"
WANTED = ()  # no bar was asked for here
POINT_TIMEOUT_S = 300
NUM_WINDOWS = 3  # perf_analyzer looks at three for whether they agree
MOST_LINES = 6
FAILURE = re.compile(r"^error|failed to|had error", re.IGNORECASE)
ANY_STABILITY = 1000  # percent: short windows never agree, and the spread is reported


@dataclass(frozen=True)
class Addresses:
    """Where a server listens, each HOST:PORT."""

    http: str
    grpc: str
    metrics: str


def command_of(scenario: Scenario, concurrency: int, addresses: Addresses, folder: Path) -> list[str]:
    """perf_analyzer's arguments for one point; its files are in `folder`."""
    command = [
        *("-m", scenario.model, "-i", scenario.protocol, "-u", getattr(addresses, scenario.protocol)),
        *("--input-data", str(folder / "inputs.json"), "--concurrency-range", str(concurrency)),
    ]
    num_requests = str(scenario.num_requests_at(concurrency))
    if scenario.is_stream:
        command += ["--streaming", "--request-count", num_requests]
        command += ["--profile-export-file", str(folder / "export.json")]
    else:
        command += ["--measurement-mode", "count_windows", "--measurement-request-count", num_requests]
        command += ["--max-trials", str(NUM_WINDOWS), "--stability-percentage", str(ANY_STABILITY)]
        command += ["-f", str(folder / "table.csv")]
    if scenario.is_sequence:
        # Far from those of whoever else uses the server, and of a run before that was broken off.
        command += ["--sequence-id-range", str(random.SystemRandom().randrange(1 << 20, 1 << 31))]
    return command


def measure(program: Path, scenario: Scenario, concurrency: int, addresses: Addresses, folder: Path) -> dict[str, Any]:
    """One point: what clients saw, and the server's own counters beside it."""
    what = f"{scenario.name}/{concurrency}"
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise SystemExit(f"analyzer.py: --keep: {folder}: {error.strerror}") from error
    (folder / "export.json").unlink(missing_ok=True)  # perf_analyzer writes over none
    write_inputs(scenario, folder / "inputs.json")
    before = fetch_counters(addresses.metrics)
    run_program([str(program), *command_of(scenario, concurrency, addresses, folder)], what)
    grown = growth(before, fetch_counters(addresses.metrics))
    try:
        if scenario.is_stream:
            figures = stream_figures(read_export(folder / "export.json"), concurrency)
        else:
            figures = read_table(folder / "table.csv")
    except (OSError, ValueError, LookupError, TypeError) as error:
        said = getattr(error, "strerror", None) or f"{type(error).__name__}: {error}"
        raise SystemExit(f"analyzer.py: perf_analyzer left no measurement at {what}: {said}") from error
    server = server_figures(grown)
    if not server["mean_ms"]:
        raise SystemExit(
            f"analyzer.py: the metrics page at {addresses.metrics} counted nothing of {what}; is it another server's?"
        )
    return {**figures, "server": server}


def run_program(command: Sequence[str], what: str) -> None:
    """Run perf_analyzer; where it fails, say why in its own words."""
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, errors="replace", timeout=POINT_TIMEOUT_S, check=False
        )
    except subprocess.TimeoutExpired as error:
        raise SystemExit(f"analyzer.py: perf_analyzer did not end at {what} within {POINT_TIMEOUT_S} s") from error
    if done.returncode != 0:
        said = "\n".join(why(done.stdout + done.stderr))
        raise SystemExit(f"analyzer.py: perf_analyzer failed at {what} with status {done.returncode}:\n{said}")


def why(said: str) -> list[str]:
    """The lines that tell of a failure: those with the word, of which a page of help may follow; else the last ones."""
    lines = said.strip().splitlines()
    return [line for line in lines if FAILURE.search(line)][:MOST_LINES] or lines[-MOST_LINES:]


def measure_all(
    program: Path, scenarios: Sequence[Scenario], addresses: Addresses, folder: Path
) -> dict[str, dict[str, Any]]:
    """All points of the scenarios on one server, each printed as it comes."""
    results = {}
    for scenario in scenarios:
        points = {}
        for concurrency in scenario.concurrency:
            where = folder / scenario.name / str(concurrency)
            points[str(concurrency)] = measure(program, scenario, concurrency, addresses, where)
            print_point(scenario, concurrency, points[str(concurrency)])
        results[scenario.name] = {"model": scenario.model, "server": scenario.server, "concurrency": points}
    return results


def measure_on_own_servers(program: Path, scenarios: Sequence[Scenario], folder: Path) -> dict[str, dict[str, Any]]:
    """A server for each configuration that the scenarios want, one after the other."""
    results: dict[str, dict[str, Any]] = {}
    by_server = itertools.groupby(sorted(scenarios, key=lambda each: each.server), lambda each: each.server)
    for config_name, group in by_server:
        with running_server(REPOSITORY, {}, config_name) as served:
            addresses = Addresses(served.http, served.grpc, served.metrics)
            print_heading(f"--model-config-name={config_name}" if config_name else "the default configuration")
            results |= measure_all(program, list(group), addresses, folder)
    return results


def measure_on_theirs(
    program: Path, scenarios: Sequence[Scenario], addresses: Addresses, folder: Path
) -> dict[str, dict[str, Any]]:
    """On a server that somebody else runs: those scenarios that its configuration lets through."""
    config_name = config_name_of(addresses)
    fitting = [scenario for scenario in scenarios if scenario.server == config_name]
    left_out = [scenario.name for scenario in scenarios if scenario.server != config_name]
    if left_out:
        print(f"left out, for a server with another configuration: {', '.join(left_out)}")
    if not fitting:
        raise SystemExit("analyzer.py: --url: nothing is left to measure")
    print_heading(addresses.grpc)
    return measure_all(program, fitting, addresses, folder)


def config_name_of(addresses: Addresses) -> str:
    """Which of our configurations a server runs: with sequences, or the default."""
    from tritonclient.grpc import InferenceServerClient, InferenceServerException

    try:
        with InferenceServerClient(addresses.grpc) as client:
            config = client.get_model_config("denoise", client_timeout=10).config
    except InferenceServerException as error:
        raise SystemExit(
            f"analyzer.py: --url: no server with `denoise` at {addresses.grpc}: {error.message()}"
        ) from error
    return "sequences" if config.HasField("sequence_batching") else ""


# Tables


def print_heading(server: str) -> None:
    print(f"\n{server}; p50 / p95 / p99 in ms (of few requests, the latter two are hardly more than the largest)")
    print(f"  {'scenario':40s}  at once  requests  latency or first response  inter-response                    rate")


def print_point(scenario: Scenario, concurrency: int, point: Mapping[str, Any]) -> None:
    if scenario.is_stream:
        first, between = point["first_response_ms"], point.get("inter_response_ms")
        count, rate = f"{point['requests']}", f"{point['frames_per_s']:.1f} frames/s"
        server = point["server"]["mean_ms"]
        beside = f"server: chunk {server['total']:.0f} ms, queued {server['queued']:.0f} ms"
        if "control_to_response_ms" in point:
            beside = f"control to response {percentiles_text(point['control_to_response_ms'])}; {beside}"
    else:
        first, between, count = point["latency_ms"], None, ""
        rate = f"{point['requests_per_s']:.1f} requests/s"
        server = point["server"]["mean_ms"]
        beside = f"server: compute {server['preprocess compute']:.1f} ms, queue {server['preprocess queue']:.1f} ms"
    times, gap = percentiles_text(first), percentiles_text(between) if between else ""
    print(
        f"  {scenario.name:40s} {concurrency:7d} {count:>9s}  {times:25s} {gap:20s} {rate:>17s}  {beside}",
        flush=True,
    )


def percentiles_text(summary: Mapping[str, float]) -> str:
    return " / ".join(f"{summary[name]:.{0 if summary[name] >= 100 else 1}f}" for name in ("p50", "p95", "p99"))


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add = parser.add_argument
    add("--quick", action="store_true", help="a few scenarios, short: for a look at the script")
    add("--only", nargs="+", default=[], metavar="NAME", help="these scenarios; * and ? match any")
    add("--list", action="store_true", help="only list the scenarios")
    add("--url", metavar="HOST:PORT", help="gRPC of a server that runs, instead of servers of its own")
    add("--http-url", metavar="HOST:PORT", help="its HTTP, where that is not port 8000 of the same host")
    add("--metrics-url", metavar="HOST:PORT", help="its metrics page, where that is not port 8002 of the same host")
    add("--keep", type=Path, metavar="FOLDER", help="leave inputs and perf_analyzer's files there")
    options = parser.parse_args(arguments)
    if options.url is None and (options.http_url or options.metrics_url):
        parser.error("--http-url, --metrics-url: wanted with --url; servers of its own have their own addresses")
    try:
        scenarios = choose(quick_scenarios() if options.quick else load_scenarios(), options.only)
        if options.list:
            print("\n".join(scenario.name for scenario in scenarios))
            return 0
        carrier = carrier_for(platform.libc_ver())
        program = fetch(cache_folder(), carrier)
    except (ValueError, FetchError) as error:
        print(f"analyzer.py: {error}", file=sys.stderr)
        return 1
    measured_on = machine(PACKAGES)  # before we are its load
    with tempfile.TemporaryDirectory(prefix="worldstream-perf-") as temporary:
        folder = options.keep or Path(temporary)
        if options.url is None:
            results = measure_on_own_servers(program, scenarios, folder)
        else:
            results = measure_on_theirs(program, scenarios, addresses_of(options), folder)
    document = {"perf_analyzer": str(carrier), "is_quick": options.quick, "scenarios": results}
    print_document("analyzer", measured_on, document, WANTED)
    return 0


def addresses_of(options: argparse.Namespace) -> Addresses:
    """Those given; else Triton's usual ports beside the gRPC address."""
    host = options.url.rpartition(":")[0]
    return Addresses(options.http_url or f"{host}:8000", options.url, options.metrics_url or f"{host}:8002")


if __name__ == "__main__":
    sys.exit(main())
