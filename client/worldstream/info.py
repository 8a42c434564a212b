"""What a server says of itself: readiness, models and the `worldstream_*` metrics."""

import http.client
import urllib.parse
import urllib.request
from collections import defaultdict
from dataclasses import asdict, dataclass
from typing import Any

from worldstream.errors import UnavailableError
from worldstream.loopback import is_loopback

METRIC_PREFIX = "worldstream_"


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
    """The metrics without labels; as they are where names repeat, as those of several models do."""
    plain = {name.partition("{")[0]: value for name, value in metrics.items()}
    return plain if len(plain) == len(metrics) else metrics


def metric_lines(metrics: dict[str, float]) -> list[str]:
    """The metrics for people: what the server holds now in one line, then the others; sums over all labels."""
    sums: defaultdict[str, float] = defaultdict(float)
    for name, value in metrics.items():
        sums[name.partition("{")[0].removeprefix(METRIC_PREFIX)] += value
    if "active_sessions" not in sums:
        return ["no worldstream metrics on this page"]
    sessions, memory_bytes, queued = (
        sums.pop(name, 0) for name in ("active_sessions", "session_bytes", "queued_requests")
    )
    held = f"sessions: {sessions:g}, holding {memory_bytes / 2**20:.1f} MiB; requests queued: {queued:g}"
    return [held, *(f"{METRIC_PREFIX}{name} {value:.15g}" for name, value in sums.items())]


def fetch_metrics(url: str, timeout_s: float) -> dict[str, float]:
    """Read the metrics page at `url`, such as 127.0.0.1:8002 or http://host/behind/a/proxy.

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
            return parse_metrics(page.read().decode())
    except (OSError, http.client.HTTPException, ValueError) as error:  # no answer, none in HTTP, or no such page
        raise UnavailableError(f"UNAVAILABLE: metrics: cannot read {url}: {getattr(error, 'reason', error)}") from error
