"""The benchmark of the first request: its arms differ as they should, with a quick compiler. No times are looked at."""

import json
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "perf"))

import first_request

# Three chunks of twenty requests, in each three steps of eight skipped by the second of two layers: the first four are
# always computed, then three are skipped in a row, and one is computed.
SKIPPED = 20 * 3 * 3


def start(arm, tmp_path):
    return first_request.run_start(arm, tmp_path, is_quick=True)


def test_our_first_request_makes_no_graph_and_takes_the_cached_path(tmp_path):
    ours = start(first_request.OURS, tmp_path)
    assert ours["graphs_of_warm_up"] > 0
    assert (ours["graphs_of_first"], ours["graphs_of_others"]) == (0, 0)
    assert ours["skipped_blocks"] == SKIPPED
    assert len(ours["requests_s"]) == 20


def test_the_wrong_order_with_the_whole_model_compiles_in_the_first_request(tmp_path):
    late = start(first_request.WHOLE_LATE, tmp_path)
    assert late["graphs_of_first"] > 0
    assert late["graphs_of_others"] == 0
    assert late["skipped_blocks"] == SKIPPED


def test_kept_code_is_looked_for_where_our_start_left_it():
    folders = [first_request.folder_of(arm) for arm in first_request.ARMS]
    assert folders[0] == folders[1]
    assert len(set(folders)) == 4


def made_up(first_s, ready_s=10.0, graphs=0):
    times = [first_s] + [1.0] * 19
    return {"ready_s": ready_s, "requests_s": times, "requests_cpu_s": times, "graphs_of_first": graphs}


def test_a_summary_has_the_median_ratio_and_the_most_graphs():
    row = first_request.summary([made_up(1.0), made_up(4.0, graphs=2), made_up(1.1)])
    assert (row["first_over_twentieth"], row["most_graphs_of_first"]) == (1.1, 2)


@pytest.mark.parametrize(("stall", "status"), [(2.9, 1), (3.0, 0)])
def test_a_run_whose_wrong_order_does_not_stall_is_invalid(monkeypatch, capsys, stall, status):
    starts = {arm: [made_up(stall if arm == first_request.WHOLE_LATE else 1.2)] for arm in first_request.ARMS}
    monkeypatch.setattr(first_request, "run_starts", lambda *_: starts)
    assert first_request.main(["--served-starts", "0"]) == status
    document = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert document["results"]["is_valid"] == (status == 0)
    assert [wanted["holds"] for wanted in document["wanted"]] == [False, True, status == 0]
