"""Every query of docker/'s dashboard and alerts against the metrics page of a real server: names and labels exist."""

from __future__ import annotations

import json
import re
import urllib.request
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.server.raw import ask, make_request, picture

pytestmark = pytest.mark.server

DOCKER = Path(__file__).parents[2] / "docker"
METRIC = re.compile(r"\b((?:worldstream|nv)_\w+|up\b)(?:\{([^}]*)\})?")
MATCHER = re.compile(r'(\w+)(=~|=)"([^"]*)"')
GROUPED = re.compile(r"\bby \(([^)]*)\)")
# What Prometheus itself adds to all that it reads.
ADDED_LABELS = {"instance", "job"}


def expressions() -> list[str]:
    dashboard = json.loads((DOCKER / "grafana" / "dashboards" / "worldstream.json").read_text(encoding="utf-8"))
    alerts = yaml.safe_load((DOCKER / "prometheus" / "alerts.yaml").read_text(encoding="utf-8"))
    shown = [target["expr"] for panel in dashboard["panels"] for target in panel["targets"]]
    return shown + [rule["expr"] for group in alerts["groups"] for rule in group["rules"]]


@pytest.fixture(scope="module")
def page(server: Any) -> dict[str, dict[str, set[str]]]:
    """By name, each label's values, once a chunk has been streamed and a request refused."""
    ask(server.grpc, make_request("denoise", {"pixels": picture(), "num_steps": 1}))
    ask(server.grpc, make_request("denoise", {"num_chunks": 1}, sequence_id=404))
    with urllib.request.urlopen(f"http://{server.metrics}/metrics", timeout=30) as answer:
        lines = answer.read().decode().splitlines()
    found: dict[str, dict[str, set[str]]] = {"up": {}}
    for line in lines:
        name, _, rest = line.partition("{")
        if rest and not line.startswith("#"):
            labels = found.setdefault(name, defaultdict(set))
            for label, value in re.findall(r'(\w+)="([^"]*)"', rest):
                labels[label].add(value)
    return found


@pytest.mark.parametrize("expression", expressions())
def test_a_query_asks_for_what_is_on_the_page(page: dict[str, dict[str, set[str]]], expression: str) -> None:
    names = {name for name, _ in METRIC.findall(expression)}
    assert names <= page.keys()
    for name, matchers in METRIC.findall(expression):
        for label, kind, value in MATCHER.findall(matchers):
            wanted = value.split("|") if kind == "=~" else [value]
            assert label in ADDED_LABELS or set(wanted) <= page[name][label]
    for labels in GROUPED.findall(expression):
        for label in labels.replace(" ", "").split(","):
            assert label in ADDED_LABELS or any(label in page[name] for name in names)


def test_what_only_grows_is_read_as_a_rate_and_what_may_fall_is_not(server: Any) -> None:
    with urllib.request.urlopen(f"http://{server.metrics}/metrics", timeout=30) as answer:
        kinds = dict(re.findall(r"^# TYPE (\w+) (\w+)$", answer.read().decode(), re.MULTILINE))
    read = [found for each in expressions() for found in re.findall(r"(\w+)\(((?:worldstream|nv)_\w+)[{[]", each)]
    assert {function for function, _ in read} == {"rate", "increase", "resets", "min_over_time"}
    for function, name in read:
        kind = kinds.get(name) or kinds[re.sub(r"_(bucket|sum|count)$", "", name)]
        assert kind in (["gauge"] if function == "min_over_time" else ["counter", "histogram"]), (function, name)
    quantiles = [each for each in expressions() if "histogram_quantile" in each]
    assert quantiles
    assert all(re.search(r"sum by \(le\b", each) and "_bucket[" in each for each in quantiles)


def test_each_wanted_picture_is_on_the_dashboard() -> None:
    together = " ".join(expressions())
    for name in (
        "active_sessions",
        "frames_total",
        "stage_duration_seconds_bucket",
        "queued_requests",
        "conditioner_hits_total",
        "picture_cache_hits_total",
        "recompiles_total",
        "errors_total",
    ):
        assert f"worldstream_{name}" in together


def test_a_refused_request_is_counted_by_its_code(page: dict[str, dict[str, set[str]]], server: Any) -> None:
    with urllib.request.urlopen(f"http://{server.metrics}/metrics", timeout=30) as answer:
        text = answer.read().decode()
    counts = dict(re.findall(r'^worldstream_errors_total\{code="(\w+)".*\} (\S+)$', text, re.MULTILINE))
    assert len(counts) == 9
    assert float(counts["SESSION_NOT_FOUND"]) >= 1
