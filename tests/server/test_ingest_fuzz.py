"""A seeded fuzz run over the real server: broken pictures and text, on all ways in, for a bounded time.

WORLDSTREAM_FUZZ_S is its length in seconds; WORLDSTREAM_FUZZ_SEED chooses another run. Request number n of a seed is
the same in every run while the table of image cases is, so a failure's number is enough to send it again.
"""

import base64
import os
import random
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.server.entrance import Answer, Entrance, is_utf8, open_entrances
from tests.server.image_cases import CASES
from tests.server.image_files import png
from tests.server.image_mutations import mutate
from tests.server.processes import own_bytes, shm_bytes, stub_pids
from tests.server.repositories import preprocess_alone

pytestmark = pytest.mark.server

FUZZ_S = float(os.environ.get("WORLDSTREAM_FUZZ_S", "60"))
SEED = os.environ.get("WORLDSTREAM_FUZZ_SEED", "1")
WARM_UP_SHARE = 0.25
# The largest picture that a header may claim, 16 megapixels, takes some tenths of a second; other programs may have the
# machine's cores. A hang is longer than any of that.
ANSWER_S = 15.0
# What may still be added after the warm-up. Seen were 3 MB in 45 s and 6 MB in 180 s, ever more slowly: allocators keep
# the most that each of their arenas once had. A leak of 1 KB in each request would add 45 MB in 45 s.
MORE_OWN_BYTES = 32 << 20
# Shared memory never shrinks: it stands where the largest answer so far has put it, and that of the largest picture, 48
# MiB, may come late. Seen was none.
MORE_SHM_BYTES = 64 << 20

CORPUS = sorted({element for case in CASES for element in case.elements if 0 < len(element) <= 20_000})
GOOD_PIXELS = [[[1, 2, 3], [250, 251, 252]]]
GOOD = base64.b64encode(png(GOOD_PIXELS))


@dataclass(frozen=True)
class Sent:
    """One request of the run."""

    number: int
    way: str
    elements: tuple[bytes, ...]
    size: tuple[int, int] | None


def make_request(number: int) -> Sent:
    generator = random.Random(f"{SEED}:{number}")
    elements = tuple(
        mutate(generator.choice(CORPUS), CORPUS, generator) for _ in range(generator.choice((1, 1, 1, 1, 2, 3)))
    )
    size = (generator.randint(0, 64), generator.randint(1, 64)) if generator.random() < 0.2 else None
    ways = ("grpc", "http-binary", "http-json") if is_utf8(elements) else ("grpc", "http-binary")
    return Sent(number, generator.choice(ways), elements, size)


@dataclass(frozen=True)
class Held:
    """Who the server's processes are, and what they hold."""

    pids: tuple[int, ...]
    own_bytes: int
    shm_bytes: int


def look_at(server_pid: int) -> Held:
    pids = (server_pid, *stub_pids(server_pid))
    return Held(pids, sum(own_bytes(pid) for pid in pids), shm_bytes(server_pid))


def run_for(seconds: float, entrances: dict[str, Entrance], first: int) -> int:
    """Send requests from number `first` on; the number of the one after the last."""
    number, deadline = first, time.monotonic() + seconds
    while time.monotonic() < deadline:
        sent = make_request(number)
        start = time.monotonic()
        answer = entrances[sent.way].ask(sent.elements, sent.size)
        wrong = what_is_wrong(answer, time.monotonic() - start)
        assert not wrong, f"{wrong}: {answer.status} {answer.message!r}, to {describe(sent)}"
        number += 1
    return number


def what_is_wrong(answer: Answer, seconds: float) -> str:
    """Why an answer is not one of those that any element may have, or ""."""
    if seconds > ANSWER_S:
        return f"took {seconds:.1f} s"
    if answer.status == "":
        return "" if answer.pixels.ndim == 4 and answer.pixels.size else "no pixels"
    if not answer.is_refusal:
        return "not the client's fault"
    if not any(f"{code}: " in answer.message for code in ("INVALID_INPUT", "TOO_LARGE")):
        return "no code word"
    if len(answer.message) > 1000:
        return "tells too much"
    leaks = [word for word in ("Traceback", ".py", "site-packages", "/1/") if word in answer.message]
    return f"shows {leaks[0]}" if leaks else ""


def describe(sent: Sent) -> str:
    return f"request {SEED}:{sent.number} over {sent.way}, size {sent.size}: {sent.elements!r}"[:4000]


@pytest.fixture
def fuzzed(start_server: Any, tmp_path: Path) -> Any:
    return start_server(repository=preprocess_alone(tmp_path))


@pytest.fixture
def entrances(fuzzed: Any) -> Iterator[dict[str, Entrance]]:
    opened = open_entrances(fuzzed)
    yield opened
    for entrance in opened.values():
        entrance.close()


@pytest.mark.timeout(FUZZ_S + 240)
def test_broken_elements_harm_nothing(fuzzed: Any, entrances: dict[str, Entrance]) -> None:
    at_first = look_at(fuzzed.pid)
    number = run_for(FUZZ_S * WARM_UP_SHARE, entrances, 0)
    warm = look_at(fuzzed.pid)
    number = run_for(FUZZ_S * (1 - WARM_UP_SHARE), entrances, number)
    after = look_at(fuzzed.pid)

    print(f"{number} requests; at first {at_first}, warm {warm}, after {after}")
    assert len(at_first.pids) == 3  # the server and two stubs
    assert at_first.pids == warm.pids == after.pids
    assert after.own_bytes - warm.own_bytes < MORE_OWN_BYTES
    assert after.shm_bytes - warm.shm_bytes <= MORE_SHM_BYTES
    assert "INTERNAL" not in fuzzed.log()
    for entrance in entrances.values():
        assert entrance.ask([GOOD]).pixels.tolist() == [GOOD_PIXELS]
