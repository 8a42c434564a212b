"""The report of a results folder, and figures in a text that are held to it."""

import json
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "perf"))

import report
import report_figures
import report_plots
import report_style
import report_tables
from common import ROOT
from report_documents import PlaceError, number_at
from worldstream.bench.percentiles import Summary

MACHINE = {
    "cpu": "A CPU", "num_cpus": 2, "load_average": [0.25, 0, 0], "system": "Linux", "python": "3.11", "numpy": "1.26"
}  # fmt: skip
SAVED = "here/window 18/saved"
TEXT = f"""Settings: 8 sessions.
<!-- figures: results/mine -->
It saves 11 %<!-- reuse.json#/results/{SAVED} as percent --> at window 18 (threshold `0.4`),
x1.25<!-- reuse.json#/results/ratio -->.
![a picture](perf/results/mine/reuse.png)
<!-- end of figures -->
"""


@pytest.fixture
def root(tmp_path):
    """A folder of one made-up benchmark."""
    folder = tmp_path / "results" / "mine"
    folder.mkdir(parents=True)
    write(folder, saved=0.1123)
    return tmp_path


def write(folder, saved):
    results = {"here": {"window 18": {"saved": saved}}, "ratio": 1.25, "a/b": 3}
    document = {"bench": "reuse", "machine": MACHINE, "commit": "abc", "results": results, "wanted": []}
    (folder / "reuse.json").write_text(json.dumps({**document, "command": "python perf/reuse.py"}))


def test_a_value_is_found_by_its_place():
    documents = {"x": {"results": {"a/b": [1, {"c": 2.5}]}}}
    assert number_at(documents, "x.json#/results/a~1b/1/c") == 2.5
    with pytest.raises(PlaceError, match=r"there is no y\.json"):
        number_at(documents, "y.json#/results")


def test_right_figures_pass(root):
    assert report_figures.wrong(TEXT, root) == []


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("11 %", "12 %", f"12: reuse.json#/results/{SAVED} is 11.23"),
        ("11 %", "11.3 %", f"11.3: reuse.json#/results/{SAVED} is 11.23"),
        ("window 18/saved", "window 3/saved", "there is no 'window 3'"),
        ("8 sessions", "8 ms", "8 ms: says no place"),
        ("at window 18", "at 30 dB", "30 dB: says no place"),
        ("threshold `0.4`", "threshold 0.4", "0.4: says no place"),
    ],
)
def test_wrong_figures_are_told(root, old, new, said):
    (problem,) = report_figures.wrong(TEXT.replace(old, new), root)
    assert said in problem


def test_a_result_that_names_no_command_backs_no_figure(root):
    path = root / "results" / "mine" / "reuse.json"
    path.write_text(path.read_text().replace("python perf/reuse.py", ""))
    assert set(report_figures.wrong(TEXT, root)) == {
        "11: reuse.json names no command",
        "1.25: reuse.json names no command",
    }


def test_figures_take_the_values_of_another_folder(root):
    other = root / "results" / "other"
    other.mkdir()
    write(other, saved=0.0951)
    text = report_figures.rewritten(TEXT, other)
    assert "It saves 10 %<!--" in text
    assert "<!-- figures: perf/results/other -->" in text
    assert "](perf/results/other/reuse.png)" in text
    assert "x1.25<!--" in text


def test_the_report_names_machine_commit_command_and_numbers(root):
    folder = root / "results" / "mine"
    text = report.write_report(folder).read_text()
    assert "| reuse | A CPU, 2 cores | 0.25 | `abc` |" in text
    assert "`python perf/reuse.py`" in text
    assert "| here: window 18: saved | 0.1123 |" in text


def test_a_folder_without_results_has_a_report_too(tmp_path):
    assert "Nothing yet" in report.write_report(tmp_path).read_text()


def test_what_is_no_document_is_named(tmp_path, capsys):
    (tmp_path / "x.json").write_text("[]")
    assert report.main([str(tmp_path)]) == 2
    assert "x.json is no benchmark's document" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"machine": None}, "reuse.json/machine is missing"),
        ({"machine": {**MACHINE, "load_average": []}}, "reuse.json#/machine/load_average: wanted numbers"),
        ({"machine": {**MACHINE, "num_cpus": True}}, "reuse.json#/machine/num_cpus is missing, or of another type"),
        ({"wanted": [1]}, "reuse.json#/wanted/0/what is missing"),
        ({"wanted": [{"what": "much", "bar": ">= 2", "holds": False}]}, "reuse.json#/wanted/0/value is missing"),
        ({"checks": None}, "reuse.json/checks is missing"),
        ({"started": 5}, "reuse.json/started is missing"),
    ],
)
def test_a_document_that_no_report_can_be_made_of_is_named(root, capsys, changes, said):
    path = root / "results" / "mine" / "reuse.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))
    assert report.main([str(path.parent)]) == 2
    assert said in capsys.readouterr().err


def test_a_folder_that_is_not_there_is_named(tmp_path, capsys):
    assert report.main([str(tmp_path / "gone")]) == 2
    assert "gone is no folder of documents" in capsys.readouterr().err


@pytest.mark.parametrize("results", [{}, {"served": None, "build": {}, "arms": [], "frames": [1]}])
@pytest.mark.parametrize("bench", sorted(report_tables.TABLES))
def test_results_of_any_other_form_are_reported_as_they_are(root, bench, results):
    path = root / "results" / "mine" / "reuse.json"
    document = {**json.loads(path.read_text()), "bench": bench, "results": results}
    path.with_name(f"{bench}.json").write_text(json.dumps(document))
    assert f"## {bench}" in report.write_report(path.parent).read_text()


def test_an_older_form_is_shown_number_by_number():
    (table,) = report_tables.tables_of({"bench": "transport", "results": {"raw": {"rate": 5}}})
    assert table.rows == [("raw: rate", "5")]


def test_columns_of_numbers_are_flush_right():
    table = str(report_style.Table("t", ("a", "n", "w"), [["x", "1.5 (1 to 2)", "so"], ["y|z", "", "so"]]))
    assert table.splitlines()[3:] == ["| --- | ---: | --- |", "| x | 1.5 (1 to 2) | so |", "| y\\|z |  | so |"]


TIMES = Summary(n=40, mean=100.0, p50=99.0, p95=120.0, p99=130.5, max=131.0).to_dict()  # so few support no p99
RATES = {"n": 2, "p25": 0.01, "median": 0.02, "p75": 0.03}
ARM = {
    "first_frame_ms": TIMES,
    "chunk_period_ms": TIMES,
    "period_over_median": TIMES,
    "inter_frame_ms": TIMES,
    "frames_per_s": RATES,
    "viewer": {"fps": 16.0, "buffer_s": 1.0, "in_time": 0.995, "underruns_per_minute": 0.25},
    "control_to_frame_ms": None,
    "cancel_to_idle_ms": TIMES,
    "overhead": {"share": RATES},
    "open_loop": None,
}
LOOP = {"rate_per_s": 5.0, "requests": 16, "refused": {"BUSY": 2}, "from_intended_ms": TIMES, "from_sent_ms": TIMES}


def test_a_cadence_has_a_row_an_arm_and_a_picture(tmp_path):
    results = {"arms": {"1 session": ARM, "4 sessions": {**ARM, "open_loop": LOOP}}, "throughput_4_over_1": RATES}
    times, rates, loops = report_tables.tables_of({"bench": "cadence", "results": results})
    assert times.rows[0] == ["1 session", *["99 / 120 / ~130 (40)"] * 3, ""]
    assert [row[0] for row in rates.rows] == ["1 session", "4 sessions"]
    assert (rates.rows[0][3], rates.rows[0][-1]) == ("99.5", "2 (1 to 3)")
    assert loops.rows == [["4 sessions", "5", "16", "2", *["99 / 120 / ~130 (40)"] * 2]]
    assert report_plots.draw_plots({"cadence": {"results": results}}, tmp_path) == {"cadence": "cadence.png"}


def test_an_analyzer_has_a_row_a_point_and_a_picture(tmp_path):
    stream = {
        "first_response_ms": TIMES,
        "last_response_ms": TIMES,
        "frames_per_s": 61.25,
        "server": {"mean_ms": {"total": 90.0, "queued": 1.5}},
    }
    unary = {
        "latency_ms": {"p50": 4.0, "p95": 5.0, "p99": 6.0},
        "requests_per_s": 222.0,
        "server": {"mean_ms": {"preprocess compute": 3.5, "preprocess queue": 0.1}},
    }
    scenarios = {"denoise": {"concurrency": {"1": stream, "2": stream}}, "preprocess": {"concurrency": {"4": unary}}}
    document = {"bench": "analyzer", "results": {"scenarios": scenarios}}
    streams, requests = report_tables.tables_of(document)
    text = "99 / 120 / ~130 (40)"
    assert streams.rows[1] == ["denoise", "2", text, "", "", text, "61.2", "90", "1.5"]
    assert requests.rows == [["preprocess", "4", "4 / 5 / 6", "222", "3.5", "0.1"]]
    assert report_plots.draw_plots({"analyzer": document}, tmp_path) == {"analyzer": "analyzer.png"}


@pytest.mark.parametrize("path", sorted((ROOT / "perf" / "results").glob("*/*.json")), ids=lambda path: path.stem)
def test_committed_results_have_tables_of_their_own(path):
    document = json.loads(path.read_text(encoding="utf-8"))
    tables = report_tables.tables_of(document)
    assert (document["bench"] in report_tables.TABLES) == all("number" not in table.title for table in tables)
    assert all(len(row) == len(table.header) for table in tables for row in table.rows)
