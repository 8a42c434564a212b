"""The numbers, and `denoise`'s model.py as it shows them: on a page that is a small class, without a server."""

import importlib.util
import re
import sys
import threading
import time
from pathlib import Path
from types import ModuleType

import pytest
import worldmodel
from worldmodel.errors import WorldError
from worldmodel.metrics import COUNTS, HELP, ChunkTimes, Stats, changes
from worldmodel.reporter import Reporter

MODEL = Path(worldmodel.__file__).parents[1] / "model.py"
README = Path(__file__).parents[2] / "README.md"


def test_counts_tell_their_growth_and_gauges_their_value():
    before = Stats(chunks=3, frames=33, active_sessions=2, session_bytes=10)
    after = Stats(chunks=5, frames=33, active_sessions=0, session_bytes=10)
    assert changes(before, after) == {"chunks": 2, "active_sessions": 0}


def test_what_has_not_changed_is_not_told():
    assert changes(Stats(chunks=3), Stats(chunks=3)) == {}


def test_every_number_has_a_sentence_of_help():
    assert set(HELP) == set(vars(Stats())) > set(COUNTS)
    assert all(meaning.endswith(".") and len(meaning) > 20 for meaning in HELP.values())


class Metric:
    """What one metric was sent; refuses what its kind cannot take, and two calls at one time, as Triton does."""

    in_call = threading.Lock()

    def __init__(self, kind, labels, buckets):
        self.kind, self.labels, self.buckets, self.sent = kind, labels, buckets, []

    def increment(self, value):
        assert self.kind == "counter"
        assert value > 0
        self._send(value)

    def set(self, value):
        assert self.kind == "gauge"
        self._send(value)

    def observe(self, value):
        assert self.kind == "histogram"
        self._send(value)

    def _send(self, value):
        assert self.in_call.acquire(blocking=False), "two calls at one time"
        time.sleep(0.0002)  # a call gives the other thread its turn
        self.sent.append(value)
        self.in_call.release()


class MetricFamily:
    COUNTER, GAUGE, HISTOGRAM = "counter", "gauge", "histogram"
    page: dict[str, "MetricFamily"]  # by name

    def __init__(self, name, description, kind):
        assert name not in self.page
        self.page[name] = self
        self.kind, self.description, self.metrics = kind, description, []

    def Metric(self, labels, buckets=None):
        assert (buckets is not None) == (self.kind == "histogram")
        self.metrics.append(Metric(self.kind, labels, buckets))
        return self.metrics[-1]


@pytest.fixture
def page(monkeypatch):
    families = {}
    backend = ModuleType("triton_python_backend_utils")
    backend.MetricFamily = type("MetricFamily", (MetricFamily,), {"page": families})
    monkeypatch.setitem(sys.modules, backend.__name__, backend)
    return families


@pytest.fixture
def metrics(page):
    spec = importlib.util.spec_from_file_location("denoise_model", MODEL)
    model = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(model)
    return model.Metrics("a model")


def sent(page):
    """By name and stage, what was sent of it, where anything was."""
    every = {(name, each.labels.get("stage")): each.sent for name, family in page.items() for each in family.metrics}
    return {place: values for place, values in every.items() if values}


@pytest.mark.usefixtures("metrics")
def test_the_page_has_these_names(page):
    kinds = {name.removeprefix("worldstream_"): family.kind for name, family in page.items()}
    assert kinds == {
        "chunks_total": "counter",
        "frames_total": "counter",
        "denoising_steps_total": "counter",
        "conditioner_misses_total": "counter",
        "conditioner_hits_total": "counter",
        "step_cache_computed_blocks_total": "counter",
        "step_cache_skipped_blocks_total": "counter",
        "compiled_blocks_total": "counter",
        "recompiles_total": "counter",
        "pictures_encoded_total": "counter",
        "picture_cache_hits_total": "counter",
        "prompts_encoded_total": "counter",
        "prompt_cache_hits_total": "counter",
        "sessions_saved_total": "counter",
        "sessions_restored_total": "counter",
        "active_sessions": "gauge",
        "session_bytes": "gauge",
        "queued_requests": "gauge",
        "conditioner_bytes": "gauge",
        "conditioner_peak_bytes": "gauge",
        "stage_duration_seconds": "histogram",
        "first_frame_seconds": "histogram",
        "control_to_frame_seconds": "histogram",
        "errors_total": "counter",
    }
    assert all(each.labels["model"] == "a model" for family in page.values() for each in family.metrics)
    assert page["worldstream_chunks_total"].description == "Chunks computed and made part of their sessions."


@pytest.mark.usefixtures("metrics")
def test_the_readme_names_every_metric(page):
    table = re.findall(r"^\| (`worldstream_.*?) \|", README.read_text(encoding="utf-8"), re.MULTILINE)
    assert sorted(re.findall(r"`(\w+)`", " ".join(table))) == sorted(page)


@pytest.mark.usefixtures("metrics")
def test_a_histogram_goes_from_a_millisecond_to_half_a_minute(page):
    for name in ("stage_duration_seconds", "first_frame_seconds", "control_to_frame_seconds"):
        for each in page[f"worldstream_{name}"].metrics:
            assert (each.buckets[0], each.buckets[-1]) == (0.001, 30)
            assert each.buckets == sorted(set(each.buckets))


def test_only_what_has_changed_is_sent(page, metrics):
    metrics.update(Stats(chunks=2, frames=21, active_sessions=1))
    metrics.update(Stats(chunks=3, frames=21, active_sessions=0))
    assert sent(page) == {
        ("worldstream_chunks_total", None): [2, 1],
        ("worldstream_frames_total", None): [21],
        ("worldstream_active_sessions", None): [1, 0],
    }


def test_a_chunk_is_one_observation_of_each_stage(page, metrics):
    metrics.observe(ChunkTimes((0.1, 0.2, 0.3, 0.4, 0.5, 1.4), 1.1))
    metrics.observe(ChunkTimes((0.0, 0.1, 0.2, 0.3, 0.4, 1.0), None, 0.7))
    assert sent(page) == {
        ("worldstream_stage_duration_seconds", "queued"): [0.1, 0.0],
        ("worldstream_stage_duration_seconds", "condition"): [0.2, 0.1],
        ("worldstream_stage_duration_seconds", "denoise"): [0.3, 0.2],
        ("worldstream_stage_duration_seconds", "decode"): [0.4, 0.3],
        ("worldstream_stage_duration_seconds", "transfer"): [0.5, 0.4],
        ("worldstream_stage_duration_seconds", "total"): [1.4, 1.0],
        ("worldstream_first_frame_seconds", None): [1.1],
        ("worldstream_control_to_frame_seconds", None): [0.7],
    }


def test_an_error_counts_under_its_code_word(page, metrics):
    for code in ("BUSY", "SESSION_LIMIT", "BUSY"):
        metrics.count_error(code)
    family = page["worldstream_errors_total"]
    counts = {each.labels["code"]: each.sent for each in family.metrics if each.sent}
    assert counts == {"BUSY": [1, 1], "SESSION_LIMIT": [1]}


def test_every_code_word_is_on_the_page_from_the_beginning(page, metrics):
    words = {error.code for error in [WorldError, *WorldError.__subclasses__()]}
    assert {each.labels["code"] for each in page["worldstream_errors_total"].metrics} == words


def test_two_threads_never_call_triton_at_one_time(page, metrics, caplog):
    # Two calls at one time have ended the process that Triton runs a model in.
    reporter = Reporter(metrics.update, metrics.observe, metrics.count_error)
    reporter.start()

    def deliver():
        for _ in range(40):
            reporter.note_chunk(ChunkTimes((0.1,) * 6, None))
            reporter.note_error("BUSY")
            reporter.tell()

    emitter = threading.Thread(target=deliver)
    emitter.start()
    for number in range(1, 41):
        reporter.note(Stats(chunks=number))
        time.sleep(0.0005)
    emitter.join()
    reporter.close(10)
    assert sum(sent(page)["worldstream_chunks_total", None]) == 40
    assert sent(page)["worldstream_stage_duration_seconds", "total"] == [0.1] * 40
    assert sum(len(each.sent) for each in page["worldstream_errors_total"].metrics) == 40
    assert caplog.text == ""
