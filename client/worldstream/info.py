"""What a server says of itself: readiness, models and the `worldstream_*` metrics."""

import http.client
import re
import urllib.parse
import urllib.request
from collections import Counter, defaultdict
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

from worldstream.errors import UnavailableError
from worldstream.loopback import is_loopback

METRIC_PREFIX = "worldstream_"
_STAGE = re.compile(r'\bstage="([^"]*)"')


@dataclass(frozen=True)
class ServerInfo:
    """The state of one server."""

    is_live: bool
    is_ready: bool
    name: str
    version: str
    models: dict[str, bool]  # whether each model of this repository is ready
    metrics: dict[str, float] | None  # by name with labels, as Prometheus writes them; None when not asked for

    def to_dict(self) -> dict[str, Any]:
        """The same as plain values, ready for JSON; metrics go without labels where their names tell them apart."""
        return {**asdict(self), "metrics": None if self.metrics is None else plain_names(self.metrics)}


def parse_metrics(text: str) -> dict[str, float]:
    """Read the `worldstream_*` lines of a Prometheus page; its comments and other lines are left out."""
    metrics = {}
    for line in text.splitlines():
        if line.startswith(METRIC_PREFIX):
            name, _, value = line.rpartition(" ")
            metrics[name] = float(value)
    return metrics


def plain_names(metrics: dict[str, float]) -> dict[str, float]:
    """The metrics without labels; with them where a name repeats, as those of histograms and of several models do."""
    repeats = Counter(map(_plain, metrics))
    return {_plain(name) if repeats[_plain(name)] == 1 else name: value for name, value in metrics.items()}


def _plain(name: str) -> str:
    return name.partition("{")[0]


def metric_lines(metrics: dict[str, float]) -> list[str]:
    """The metrics for people: what the server holds now in one line, then the others; sums over all models."""
    sums: defaultdict[str, float] = defaultdict(float)
    for name, value in metrics.items():
        stage = _STAGE.search(name)
        sums[_plain(name).removeprefix(METRIC_PREFIX) + (f" {stage[1]}" if stage else "")] += value
    if "active_sessions" not in sums:
        return ["no worldstream metrics on this page"]
    sessions, memory_bytes, queued = (
        sums.pop(name, 0) for name in ("active_sessions", "session_bytes", "queued_requests")
    )
    held = f"sessions: {sessions:g}, holding {memory_bytes / 2**20:.1f} MiB; requests queued: {queued:g}"
    return [held, *(f"{METRIC_PREFIX}{line}" for name in sums if (line := _line(name, sums)))]


def _line(name: str, sums: dict[str, float]) -> str:
    """A number as it is; a histogram by its mean and count, in place of its sum."""
    base, _, stage = name.partition(" ")
    if base.endswith("_sum"):
        count = sums.get(f"{base.removesuffix('_sum')}_count {stage}".rstrip(), 0)
        mean = f"mean {sums[name] / count:.3g}, " if count else ""
        return f"{base.removesuffix('_sum')} {stage}".rstrip() + f": {mean}count {count:.15g}"
    return "" if base.endswith(("_bucket", "_count")) else f"{name} {sums[name]:.15g}"


def fetch_metrics(
    url: str, timeout_s: float, parse: Callable[[str], dict[str, float]] = parse_metrics
) -> dict[str, float]:
    """Read the metrics page at `url`, such as 127.0.0.1:8002 or http://host/behind/a/proxy.

    Args:
        parse: makes numbers of its text; ValueError where that is no metrics page.

    Raises:
        UnavailableError: if it cannot be read.
    """
    if not url.startswith(("http://", "https://")):
        url = f"http://{url}"
    handlers = [urllib.request.ProxyHandler({})] if is_loopback(url) else []
    try:
        if urllib.parse.urlsplit(url).path in ("", "/"):
            url = f"{url.rstrip('/')}/metrics"  # where Triton has it
        with urllib.request.build_opener(*handlers).open(url, timeout=timeout_s) as page:
            return parse(page.read().decode())
    except (OSError, http.client.HTTPException, ValueError) as error:  # no answer, none in HTTP, or no such page
        raise UnavailableError(f"UNAVAILABLE: metrics: cannot read {url}: {getattr(error, 'reason', error)}") from error
