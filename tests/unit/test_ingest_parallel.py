"""Work side by side: in order, errors at their turn, never far ahead."""

import threading
import time

import pytest
from ingest.parallel import map_in_order

TIMEOUT_S = 20.0


@pytest.fixture(autouse=True)
def two_cpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda _: {0, 1})


def always(_: object) -> bool:
    return True


def test_results_come_in_order_whichever_is_ready_first() -> None:
    second_is_done = threading.Event()

    def work(item: int) -> int:
        if item == 0:
            assert second_is_done.wait(TIMEOUT_S)
        if item == 1:
            second_is_done.set()
        return item * 10

    assert list(map_in_order(work, range(5), always)) == [0, 10, 20, 30, 40]


def test_the_error_of_the_first_wrong_item_is_raised_and_no_more_is_begun() -> None:
    begun = []

    def work(item: int) -> int:
        begun.append(item)
        if item in (1, 2):
            time.sleep(0.05 if item == 1 else 0)
            raise ValueError(f"item {item}")
        return item

    results = map_in_order(work, range(50), always)
    assert next(results) == 0
    with pytest.raises(ValueError, match="item 1"):
        list(results)
    assert len(begun) <= 4


def test_what_is_not_threadable_is_done_in_the_callers_thread() -> None:
    names = list(map_in_order(lambda _: threading.current_thread().name, range(6), lambda item: item % 2 == 0))
    here = threading.current_thread().name
    assert [name == here for name in names] == [False, True] * 3


def test_a_single_item_needs_no_thread() -> None:
    names = list(map_in_order(lambda _: threading.current_thread().name, [1], always))
    assert names == [threading.current_thread().name]


def test_no_items_give_no_results() -> None:
    assert list(map_in_order(str, [], always)) == []
