"""Compiled, with every cache on, through the real server: what warmed up is what requests run."""

import shutil
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from tests.conftest import RunningServer, running_server
from tests.server.raw import Stream, ask, join, make_request, picture, png, settled_metrics, walk

pytestmark = [
    pytest.mark.server,
    pytest.mark.skipif(shutil.which("c++") is None, reason="torch.compile on a CPU needs a C++ compiler"),
]

PICTURE = picture()
NUM_LAYERS = 6
SIZES = ((96, 160), (64, 96), (96, 96))
# What a session asks for, request by request: its window of 18 latent frames is full with the sixth chunk, then rolls.
STEPS = (
    ({"num_chunks": 1}, {}),
    ({"actions": ["w", "wl", "d"] * 2}, {}),
    ({"num_chunks": 1, "num_steps": 1}, {}),
    ({"num_chunks": 1, "num_steps": 2, "prompt": "night"}, {"step_cache": "10"}),
    ({"num_chunks": 2}, {"step_cache": "1011"}),
    ({"num_chunks": 1, "num_steps": 7}, {}),
    ({"num_chunks": 1, "num_steps": 20}, {"step_cache": "dynamic", "step_cache_threshold": 0.9}),
    ({"num_chunks": 1, "num_steps": 20, "prompt": "snow"}, {"step_cache_taylorseer_order": 1, "recache": True}),
    ({"num_chunks": 1}, {"step_cache": "1001", "step_cache_last_blocks": 1}),
)


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    folder = tmp_path_factory.mktemp("compiled")
    overrides = {
        "denoise.compile": "on",
        "denoise.compile_cache": str(folder / "code"),
        "denoise.step_cache": "auto",
        "denoise.further_sizes": ",".join(f"{height}x{width}" for height, width in SIZES[1:]),
    }
    with running_server(folder / "server.log", overrides=overrides) as server:
        yield server


def session_requests(name: str, entrance: str, size: tuple[int, int], seed: int) -> list[Any]:
    """The requests of one session, its start through either entrance."""
    start = {"image": [png(PICTURE)]} if entrance == "world" else {"pixels": PICTURE}
    requests = []
    for number, (inputs, parameters) in enumerate(STEPS):
        is_start, is_end = number == 0, number + 1 == len(STEPS)
        inputs = {**inputs, **start, "seed": seed} if is_start else inputs
        parameters = {**parameters, "height": size[0], "width": size[1]} if is_start else parameters
        sequence = {"sequence_id": name, "sequence_start": is_start, "sequence_end": is_end}
        requests.append(make_request(entrance if is_start else "denoise", inputs, **parameters, **sequence))
    return requests


def frames_of(server: Any, requests: list[Any]) -> Any:
    return [join(ask(server.grpc, request)) for request in requests]


def test_nothing_is_compiled_after_ready_whatever_is_asked_for(compiled: Any) -> None:
    ready = settled_metrics(compiled.metrics)
    # Warming up is nobody's request: what is counted is the launcher's canary, four steps and a context pass.
    canary = (ready["chunks_total"], ready["compiled_blocks_total"], ready["recompiles_total"])
    assert canary == (1, NUM_LAYERS * 5, 0)

    plans = [("a", "denoise", SIZES[0]), ("b", "world", SIZES[0]), ("c", "denoise", SIZES[1]), ("d", "world", SIZES[2])]
    solo = {
        name: frames_of(compiled, session_requests(f"solo {name}", entrance, size, seed))
        for seed, (name, entrance, size) in enumerate(plans)
    }
    for name, _, size in plans:
        assert {frames.shape[1:] for frames in solo[name]} == {(*size, 3)}

    # All at once: a session's next request goes out when its last one is answered, so the engine turns between them.
    streams = {name: Stream(compiled.grpc) for name, _, _ in plans}
    waiting = {name: session_requests(name, entrance, size, seed) for seed, (name, entrance, size) in enumerate(plans)}
    for number in range(len(STEPS)):
        for name, stream in streams.items():
            stream.send(waiting[name][number])
        for name, stream in streams.items():
            responses = [stream.receive()]
            while not responses[-1].is_final:
                responses.append(stream.receive())
            assert np.array_equal(join(responses), solo[name][number]), (name, number)
    for stream in streams.values():
        stream.receive_all()

    done = settled_metrics(compiled.metrics)
    assert done["recompiles_total"] == 0
    assert done["step_cache_skipped_blocks_total"] > 0
    # Counted where compiled code is called: every block that was computed ran as such.
    assert done["compiled_blocks_total"] == done["step_cache_computed_blocks_total"] > 0
    assert done["chunks_total"] - 1 == 2 * len(plans) * sum(_num_chunks(inputs) for inputs, _ in STEPS)
    assert (done["active_sessions"], done["session_bytes"], done["conditioner_bytes"]) == (0, 0, 0)


def _num_chunks(inputs: dict[str, Any]) -> int:
    return int(inputs.get("num_chunks", len(inputs.get("actions", ())) // 3))


def test_start_up_says_what_was_warmed_up_and_how_long_each_took(compiled: Any) -> None:
    log = compiled.log()
    for height, width in SIZES:
        for chunk in range(1, 9):  # six fill the window, then it rolls
            assert f"warmed up {height}x{width}, chunk {chunk} of 8 in " in log
    assert log.index("mounted the step cache in") < log.index("warmed up 96x160, chunk 1")


def test_poses_and_one_shot_requests_make_no_graph_either(compiled: Any) -> None:
    before = settled_metrics(compiled.metrics)["recompiles_total"]
    inputs = {"pixels": PICTURE, "cam_to_world": walk(7), "num_steps": 3}
    assert len(join(ask(compiled.grpc, make_request("denoise", inputs)))) == 9 + 12 + 12
    assert settled_metrics(compiled.metrics)["recompiles_total"] == before == 0


@pytest.mark.parametrize(
    ("parameters", "says"),
    [
        ({"height": 64, "width": 64}, "wanted a size that is served (96 x 160, 64 x 96, 96 x 96; height x width), got"),
        ({"step_cache": "111"}, "step_cache: wanted a mask of 4 digits that begins with 1, got 111"),
        ({"step_cache": "0111"}, "step_cache: wanted a mask of 4 digits that begins with 1, got 0111"),
        ({"step_cache": 1011}, "parameter 'step_cache': wanted a value of type str, got 1011"),
    ],
)
def test_what_was_not_warmed_up_is_refused_by_name(compiled: Any, parameters: dict[str, Any], says: str) -> None:
    responses = ask(compiled.grpc, make_request("denoise", {"pixels": PICTURE}, **parameters))
    assert [response.is_final for response in responses] == [True]
    assert responses[0].error.startswith("INVALID_INPUT: ")
    assert says in responses[0].error
