"""Fresh results against baselines, by made-up documents."""

import json
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "perf"))

import check
from report_documents import read_documents

SAVED = {
    "name": "reuse saves time",
    "place": "conditioner.json#/results/here/window 18/saved",
    "value": 0.10,
    "tolerance": 0.2,
    "better": "higher",
    "why": "quartiles lie that far apart",
}
GRAPHS = {
    "name": "no new graphs",
    "place": "first_request.json#/results/arms/0/graphs",
    "value": 0,
    "tolerance": 0.5,
    "better": "lower",
    "why": "none is none",
}


def write(folder, saved=0.10, graphs=0):
    """A results folder."""
    results = {
        "conditioner": {"here": {"window 18": {"saved": saved}}},
        "first_request": {"arms": [{"graphs": graphs}]},
    }
    for name, each in results.items():
        (folder / f"{name}.json").write_text(json.dumps({"bench": name, "results": each}))
    return folder


def run(folder, *entries, options=()):
    """check.py's exit status over these baselines."""
    baselines = folder.parent / "baselines.json"
    baselines.write_text(json.dumps(entries))
    return check.main([str(folder), "--baselines", str(baselines), *options])


@pytest.fixture
def folder(tmp_path):
    made = tmp_path / "results"
    made.mkdir()
    return made


@pytest.mark.parametrize("saved", [0.5, 0.10, 0.0801])
def test_what_is_better_or_a_little_worse_passes(folder, saved):
    assert run(write(folder, saved=saved), SAVED, GRAPHS) == 0


def test_a_regression_is_named(folder, capsys):
    assert run(write(folder, saved=0.0799), SAVED, GRAPHS) == 1
    said = capsys.readouterr()
    assert "worse than their tolerance: reuse saves time" in said.err
    assert "REGRESSION" in said.out
    assert "no new graphs" not in said.err


def test_where_none_is_allowed_one_is_too_many(folder, capsys):
    assert run(write(folder, graphs=1), SAVED, GRAPHS) == 1
    assert "no new graphs" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("saved", "said"),
    [
        (float("nan"), "wanted a finite number, got nan"),
        (float("inf"), "wanted a finite number, got inf"),
        (True, "wanted a number, got bool"),
        ("0.1", "wanted a number, got str"),
        (None, "wanted a number, got NoneType"),
        (10**400, "wanted a finite number, got 1000"),
    ],
)
def test_what_is_no_number_is_bad_input(folder, capsys, saved, said):
    assert run(write(folder, saved=saved), SAVED, GRAPHS) == 2
    out, err = capsys.readouterr()
    assert said in out
    assert "no value: reuse saves time" in err


@pytest.mark.parametrize(
    ("place", "said"),
    [
        ("conditioner.json#/results/here/window 3/saved", "there is no 'window 3'"),
        ("conditioner.json#/results/here/window 18/saved/median", "there is no 'median'"),
        ("first_request.json#/results/arms/1/graphs", "there is no '1'"),
        ("transport.json#/results/raw", "there is no transport.json"),
    ],
)
def test_a_missing_place_is_bad_input_even_beside_a_regression(folder, capsys, place, said):
    assert run(write(folder, graphs=9), {**SAVED, "place": place}, GRAPHS) == 2
    out, err = capsys.readouterr()
    assert said in out
    assert "worse than their tolerance: no new graphs" in err


@pytest.mark.parametrize(
    "place",
    [
        *("a.json#/results/total_ms", "a.json#/results/ms", "a.json#/results/ms_p25", "a.json#/results/served/ready_s"),
        *("a.json#/results/frames_per_s", "a.json#/results/denoise_ms/median", "a.json#/results/file_bytes"),
    ],
)
def test_absolute_measurements_are_no_baselines(folder, capsys, place):
    assert run(write(folder), {**SAVED, "place": place}) == 2
    assert f"place: wanted a ratio's, got '{place}'" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"tolerance": -0.1}, "tolerance: wanted a share of the value"),
        ({"tolerance": 1}, "tolerance: wanted a share of the value"),
        ({"tolerance": float("nan")}, "tolerance: wanted a finite number"),
        ({"value": "0.1"}, "value: wanted a finite number, got '0.1'"),
        ({"better": "more"}, "better: wanted higher or lower, got 'more'"),
        ({"why": " "}, "why: wanted the reason"),
        ({"name": None}, "name: wanted a text, got None"),
        ({"name": []}, "name: wanted a text, got []"),
        ({"value": 10**400}, "value: wanted a finite number, got 1000"),
        ({"unit": "ms"}, "baseline 0: wanted ['better', 'name', 'place', 'tolerance', 'value', 'why'], got"),
    ],
)
def test_baselines_that_say_nonsense_are_bad_input(folder, capsys, changes, said):
    assert run(write(folder), {**SAVED, **changes}) == 2
    assert said in capsys.readouterr().err


@pytest.mark.parametrize("text", ["{", "[" * 100_000])
def test_broken_files_are_bad_input(folder, capsys, text):
    write(folder)
    (folder / "conditioner.json").write_text(text)
    assert run(folder, SAVED) == 2
    assert "conditioner.json cannot be read" in capsys.readouterr().err
    assert run(folder) == 2
    assert check.main([str(folder), "--baselines", str(folder / "none.json")]) == 2


def test_only_some_benchmarks_can_be_compared(folder):
    write(folder, graphs=1)
    assert run(folder, SAVED, GRAPHS, options=["--only", "conditioner"]) == 0
    assert run(folder, SAVED, GRAPHS, options=["--only", "ingest"]) == 2


def test_an_update_takes_over_the_values_and_nothing_else(folder):
    assert run(write(folder, saved=0.05), SAVED, GRAPHS, options=["--update"]) == 0
    assert json.loads((folder.parent / "baselines.json").read_text()) == [{**SAVED, "value": 0.05}, GRAPHS]
    assert run(write(folder, saved=float("nan")), SAVED, options=["--update"]) == 2


def test_the_committed_baselines_are_met_by_the_committed_results():
    baselines = check.read_baselines(check.BASELINES)
    folders = [path for path in (check.BASELINES.parent / "results").iterdir() if path.is_dir()]
    assert folders
    for each in folders:
        documents = read_documents(each)
        measured = [baseline for baseline in baselines if baseline.place.partition(".")[0] in documents]
        assert [verdict for verdict in check.compare(measured, documents) if verdict.word != "ok"] == []
