"""What runs the benchmarks: one after the other, whatever fails, with the command in each document."""

import json
import re
import sys
import time
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "perf"))

import report_figures
import run
from common import ROOT

DOCUMENT = {
    "bench": "good",
    "machine": {"cpu": "A CPU", "num_cpus": 2, "load_average": [0.1, 0, 0], "system": "Linux", "python": "3.11"},
    "commit": "abc",
    "results": {"ratio": 1.5},
    "wanted": [{"what": "much", "value": 1.5, "bar": ">= 2", "holds": False, "where": ""}],
}


@pytest.fixture
def root(tmp_path, monkeypatch):
    """A repository with three benchmarks: one measures, one fails, one ends without a document."""
    perf = tmp_path / "perf"
    perf.mkdir()
    (perf / "good.py").write_text(f"print('a table')\nprint({json.dumps(DOCUMENT)!r})")
    (perf / "bad.py").write_text("print('half a table')\nraise SystemExit('it broke')")
    (perf / "mute.py").write_text("print('a table')")
    benchmarks = tuple(run.Benchmark(name, "--rounds 2", 1, "embedded") for name in ("bad", "good", "mute", "gone"))
    monkeypatch.setattr(run, "ROOT", tmp_path)
    monkeypatch.setattr(run, "BENCHMARKS", benchmarks)
    monkeypatch.setattr(run, "has_gpu", lambda: False)
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    return tmp_path


def test_failures_are_named_and_take_nothing_with_them(root, capsys):
    assert run.main(["--out", str(root / "results")]) == 1
    said = capsys.readouterr().err
    assert "[1/4] bad: FAILED: exit status 1; see perf/out/bad.log" in said
    assert "[3/4] mute: FAILED: its last line is no document" in said
    assert "[4/4] gone: FAILED: there is no perf/gone.py" in said
    assert "0 of 1 bars hold; MISSED: much (1.5, wanted >= 2)" in said
    assert said.splitlines()[-1] == "FAILED: bad, mute, gone"
    assert sorted(path.name for path in (root / "results").iterdir()) == ["good.json", "report.md"]
    log = (root / "perf" / "out" / "bad.log").read_text()
    assert "half a table" in log
    assert "it broke" in log


@pytest.mark.parametrize(
    "last_line",
    [
        json.dumps({**DOCUMENT, "wanted": [{"what": "much", "bar": ">= 2", "holds": False}]}),
        json.dumps({**DOCUMENT, "results": []}),
        json.dumps([DOCUMENT]),
        "[" * 100_000,
        "\udcff",
    ],
)
def test_garbage_for_a_document_takes_nothing_with_it(root, capsys, last_line):
    script = f"import sys\nsys.stdout.buffer.write({last_line!r}.encode(errors='surrogateescape'))"
    (root / "perf" / "bad.py").write_text(script)
    assert run.main(["--only", "bad", "good", "--out", str(root / "results")]) == 1
    said = capsys.readouterr().err
    assert "[1/2] bad: FAILED: its last line" in said
    assert said.splitlines()[-1] == "FAILED: bad"
    assert (root / "results" / "good.json").exists()


def test_a_folder_that_holds_something_else_has_no_report_but_its_results(root, capsys):
    (root / "results").mkdir()
    (root / "results" / "notes.json").write_text("[]")
    assert run.main(["--only", "good", "--out", str(root / "results")]) == 1
    assert "report: FAILED: notes.json is no benchmark's document" in capsys.readouterr().err
    assert (root / "results" / "good.json").exists()


def test_a_bar_without_a_value_is_missed(root, capsys):
    bar = {"what": "much", "value": None, "bar": ">= 2", "holds": False}
    (root / "perf" / "good.py").write_text(f"print({json.dumps({**DOCUMENT, 'wanted': [bar]})!r})")
    assert run.main(["--only", "good"]) == 0
    assert "0 of 1 bars hold; MISSED: much (, wanted >= 2)" in capsys.readouterr().err


def test_a_document_says_how_it_came_about(root, monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    assert run.main(["--only", "perf/good.py"]) == 0
    document = json.loads((next((root / "perf" / "results").iterdir()) / "good.json").read_text())
    assert document["command"] == "OMP_NUM_THREADS=1 .venv/bin/python perf/good.py --rounds 2"
    assert document["configuration"] == "embedded"
    assert document["took_s"] < 60
    assert {name: document[name] for name in DOCUMENT} == DOCUMENT


def test_an_unknown_name_is_told_what_there_is(root, capsys):
    with pytest.raises(SystemExit, match="2"):
        run.main(["--only", "speed"])
    assert "--only: wanted some of bad, good, mute, gone, got speed" in capsys.readouterr().err


def test_a_benchmark_that_hangs_is_stopped_with_what_it_started(root, monkeypatch):
    script = "import subprocess, sys, time\nprint(subprocess.Popen(['sleep', '600']).pid, flush=True)\ntime.sleep(600)"
    (root / "perf" / "good.py").write_text(script)
    status, printed = run.run_command([sys.executable, "perf/good.py"], 2.0, root / "log")
    assert status is None
    deadline = time.monotonic() + 10
    while Path(f"/proc/{int(printed)}").exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    # Where nobody reaps it, what is left is a dead process's entry.
    stat = Path(f"/proc/{int(printed)}/stat")
    assert not stat.exists() or stat.read_text().rpartition(")")[2].split()[0] == "Z"


def test_a_folder_is_named_after_cpu_and_cores():
    found = {"cpu": "Intel(R) Xeon(R) Platinum 8481C CPU @ 2.70GHz", "num_cpus": 2}
    assert run.machine_slug(found) == "intel-xeon-platinum-8481c-cpu-2.70ghz-2-cores"


def test_without_a_gpu_all_takes_less_than_a_quarter_of_an_hour():
    assert sum(each.minutes for each in run.BENCHMARKS if not each.needs_gpu) < 15


def test_the_folders_page_tells_the_same_minutes():
    page = (ROOT / "perf" / "README.md").read_text(encoding="utf-8")
    told = dict(re.findall(r"^\| `(\w+)` \|.*\| ([\d.]+) \|", page, re.MULTILINE))
    assert told == {each.name: f"{each.minutes:g}" for each in run.BENCHMARKS}


def test_the_list_tells_which_benchmarks_the_readme_shows():
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    figures = [figure for _, passage in report_figures.passages(text) for figure in report_figures.figures(passage)]
    shown = {figure.place.partition(".")[0] for figure in figures}
    shown |= set(re.findall(r"\]\(perf/results/[^/]+/(\w+)\.png\)", text))
    assert shown == {each.name for each in run.BENCHMARKS if each.is_in_readme}
