"""Faults of our own on the real server: what a client is told, what the log keeps, and what goes on."""

import re
import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.server.raw import ask, join, make_request, picture, wait_for_metrics
from tests.server.repositories import REPOSITORY

pytestmark = pytest.mark.server

# Fails in a chunk of seed 13, and outside of any request after a chunk of seed 14.
FAULTS = {
    "world.py": (
        "        began = self.streams.mark()\n        sigmas",
        "        if session.seed == 13:\n            raise RuntimeError('a secret at /secret/path')\n"
        "        began = self.streams.mark()\n        sigmas",
    ),
    "session.py": ("        self.noise = Noise(seed)", "        self.noise = Noise(seed)\n        self.seed = seed"),
    "engine.py": (
        "        entry.last_used_s = time.monotonic()\n",
        "        entry.last_used_s = time.monotonic()\n"
        "        if entry.session is not None and entry.session.seed == 14:\n"
        "            raise RuntimeError('a secret at /secret/path')\n",
    ),
}


@pytest.fixture
def faulty(tmp_path: Path) -> Path:
    """A copy of the repository whose world fails when it is told to."""
    repository = tmp_path / "models"
    shutil.copytree(REPOSITORY, repository, ignore=shutil.ignore_patterns("__pycache__", "training", ".mypy_cache"))
    for name, (whole, broken) in FAULTS.items():
        file = repository / "denoise" / "1" / "worldmodel" / name
        text = file.read_text(encoding="utf-8")
        assert text.count(whole) == 1
        file.write_text(text.replace(whole, broken), encoding="utf-8")
    return repository


def start(seed: int, **parameters: Any) -> Any:
    return make_request("denoise", {"pixels": picture(), "seed": seed}, **parameters)


def told(responses: list[Any], word: str) -> str:
    """The one refusal that a request got: final, with its word, and nothing of what went wrong inside."""
    assert [response.is_final for response in responses] == [True]
    assert word in responses[0].error
    assert not re.search(r"secret|Traceback|RuntimeError|\.py|/", responses[0].error)
    return str(responses[0].error)


def test_a_fault_in_a_chunk_is_told_by_reference_and_the_server_goes_on(start_server: Any, faulty: Path) -> None:
    server = start_server(repository=faulty)
    message = told(ask(server.grpc, start(13)), "INTERNAL")
    reference = re.search(r"([0-9a-f]{8})$", message)
    assert reference is not None
    log = server.log().partition(f"INTERNAL {reference[1]}")[2]
    assert "RuntimeError: a secret at /secret/path" in log
    assert join(ask(server.grpc, start(1))).shape == (9, 96, 160, 3)
    assert wait_for_metrics(server.metrics, active_sessions=0)["session_bytes"] == 0


def test_an_engine_that_has_failed_says_so_to_everyone(start_server: Any, faulty: Path) -> None:
    server = start_server(repository=faulty)
    told(ask(server.grpc, start(14, sequence_id=1, sequence_start=True)), "UNAVAILABLE")
    told(ask(server.grpc, start(1)), "UNAVAILABLE")
    assert "the engine has failed" in server.log()
