"""Plain HTTP: a POST to `generate_stream` and the events that come back. Knows no model."""

import json
import urllib.error
import urllib.request
from typing import Any

from tests.server.raw import TIMEOUT_S


def generate_stream(server: Any, model: str = "world", **body: Any) -> list[dict[str, Any]]:
    """The events of one POST to generate_stream, which must succeed."""
    status, events = post(server, body, model)
    assert status == 200
    return events


def post(server: Any, body: dict[str, Any], model: str = "world") -> tuple[int, list[dict[str, Any]]]:
    """The status and the events of one POST to generate_stream."""
    url = f"http://{server.http}/v2/models/{model}/generate_stream"
    request = urllib.request.Request(url, json.dumps(body).encode(), {"Content-Type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=TIMEOUT_S) as response:
            return response.status, events_of(response.read())
    except urllib.error.HTTPError as error:
        with error:
            return error.code, events_of(error.read())


def events_of(text: bytes) -> list[dict[str, Any]]:
    """A stream of events as JSON documents."""
    lines = [line for line in text.decode().splitlines() if line]
    assert [line for line in lines if not line.startswith("data: ")] == []
    return [json.loads(line.removeprefix("data: ")) for line in lines]
