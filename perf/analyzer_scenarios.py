"""The table of scenarios: what scenarios.toml says, one scenario an entry.

Knows the file's own keys; knows nothing of perf_analyzer's options, and nothing of how a picture becomes an input.
"""

from __future__ import annotations

import dataclasses
import fnmatch
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tomllib

FILE = Path(__file__).parent / "scenarios.toml"
QUICK_SHARE = 4


@dataclass(frozen=True)
class Scenario:
    """One kind of load on one model."""

    name: str
    model: str
    protocol: str  # http or grpc
    requests: tuple[Mapping[str, Any], ...]  # {input: value}; of a sequence, all of it
    concurrency: tuple[int, ...]
    num_requests: int  # of a window where it is unary, else in all
    is_stream: bool
    is_sequence: bool = False
    server: str = ""  # the server's --model-config-name

    def num_requests_at(self, concurrency: int) -> int:
        """How many requests to ask for: the same number of each sender, and of whole sequences."""
        if not self.is_stream:
            return self.num_requests
        # At its end perf_analyzer ends a sequence under way at once, and does not wait for its last answer.
        whole = concurrency * (len(self.requests) if self.is_sequence else 1)
        # Two rounds at least: in a single one all senders would begin and end together.
        return whole * max(2, math.ceil(self.num_requests / whole))

    def shortened(self, concurrency: Sequence[int]) -> Scenario:
        """The same at fewer points, and a part of the requests."""
        kept = tuple(each for each in self.concurrency if each in concurrency)
        return dataclasses.replace(self, concurrency=kept, num_requests=math.ceil(self.num_requests / QUICK_SHARE))


def load_scenarios(path: Path = FILE) -> list[Scenario]:
    """All scenarios, in the file's order."""
    document = read(path)
    unary = [scenario for entry in document.get("unary", []) for scenario in unary_scenarios(**entry)]
    return unary + [stream_scenario(**entry) for entry in document.get("stream", [])]


def quick_scenarios(path: Path = FILE) -> list[Scenario]:
    """The few that are enough for a look, shortened."""
    quick = read(path)["quick"]
    return [each.shortened(quick["concurrency"]) for each in load_scenarios(path) if each.name in quick["scenarios"]]


def read(path: Path) -> dict[str, Any]:
    return tomllib.loads(path.read_text(encoding="utf-8"))


def unary_scenarios(
    name: str,
    model: str,
    input: str,
    protocols: Sequence[str],
    pictures: Sequence[str],
    concurrency: Sequence[int],
    requests_per_window: int,
) -> list[Scenario]:
    return [
        Scenario(
            name=f"{name}-{protocol}-{picture.lower().replace(' ', '-')}",
            model=model,
            protocol=protocol,
            requests=({input: picture},),
            concurrency=tuple(concurrency),
            num_requests=requests_per_window,
            is_stream=False,
        )
        for protocol in protocols
        for picture in pictures
    ]


def stream_scenario(
    name: str,
    model: str,
    requests: Sequence[Mapping[str, Any]],
    concurrency: Sequence[int],
    num_requests: int,
    is_sequence: bool = False,
    server: str = "",
) -> Scenario:
    return Scenario(
        name=name,
        model=model,
        protocol="grpc",
        requests=tuple(requests),
        concurrency=tuple(concurrency),
        num_requests=num_requests,
        is_stream=True,
        is_sequence=is_sequence,
        server=server,
    )


def choose(scenarios: Sequence[Scenario], patterns: Sequence[str]) -> list[Scenario]:
    """Those whose names match any of the patterns (as of file names), in their order; all, where there is none.

    Raises:
        ValueError: if a pattern matches none.
    """
    names = [scenario.name for scenario in scenarios]
    for pattern in patterns:
        if not fnmatch.filter(names, pattern):
            raise ValueError(f"no scenario {pattern!r}; there are: {', '.join(names)}")
    wanted = {name for pattern in patterns or ["*"] for name in fnmatch.filter(names, pattern)}
    return [scenario for scenario in scenarios if scenario.name in wanted]
