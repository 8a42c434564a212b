"""What a server says of itself: readiness, models and the `worldstream_*` metrics."""

import urllib.error
import urllib.parse
import urllib.request
from dataclasses import asdict, dataclass
from typing import Any

from worldstream.errors import UnavailableError

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
        """The same as plain values, ready for JSON."""
        return asdict(self)


def parse_metrics(text: str) -> dict[str, float]:
    """Read the `worldstream_*` lines of a Prometheus page; its comments and other lines are left out."""
    metrics = {}
    for line in text.splitlines():
        if line.startswith(METRIC_PREFIX):
            name, _, value = line.rpartition(" ")
            metrics[name] = float(value)
    return metrics


def fetch_metrics(url: str, timeout_s: float) -> dict[str, float]:
    """Read the metrics page at `url`, such as 127.0.0.1:8002 or http://host/behind/a/proxy.

    Raises:
        UnavailableError: if it cannot be read.
    """
    if not url.startswith(("http://", "https://")):
        url = f"http://{url}"
    if urllib.parse.urlsplit(url).path in ("", "/"):
        url = f"{url.rstrip('/')}/metrics"  # where Triton has it
    try:
        with urllib.request.urlopen(url, timeout=timeout_s) as page:
            return parse_metrics(page.read().decode())
    except (urllib.error.URLError, OSError) as error:
        raise UnavailableError(f"UNAVAILABLE: metrics: cannot read {url}: {getattr(error, 'reason', error)}") from error
