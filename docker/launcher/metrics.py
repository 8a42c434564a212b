"""What the server's pages say over plain HTTP."""

from __future__ import annotations

import contextlib
import http.client
import urllib.request

# A proxy that the environment names must not come between us and this machine.
NO_HTTP_PROXY = urllib.request.ProxyHandler({})
SESSIONS = "worldstream_active_sessions{"  # how the lines of the metrics page begin that count them


def read_page(url: str) -> str | None:
    """What the server answers there, if it says that all is well."""
    opener = urllib.request.build_opener(NO_HTTP_PROXY)
    with contextlib.suppress(OSError, http.client.HTTPException), opener.open(url, timeout=5) as page:
        return str(page.read().decode())
    return None


def read_metrics(address: str, beginning: str) -> list[str]:
    """The lines of the metrics page that begin so; none if it cannot be had."""
    page = read_page(f"http://{address}/metrics") or ""
    return [line for line in page.splitlines() if line.startswith(beginning)]


def count_sessions(metrics_address: str) -> int | None:
    """How many sessions live, by the metrics page; None where it cannot be had."""
    page = read_page(f"http://{metrics_address}/metrics")
    if page is None:
        return None
    return sum(int(float(line.rpartition(" ")[2])) for line in page.splitlines() if line.startswith(SESSIONS))
