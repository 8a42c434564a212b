"""A small request through a model: only an answer proves that it lives."""

from __future__ import annotations

import base64
import queue
import random
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from launcher.access import Access
from launcher.told import ServeError

# A 16 x 16 picture of one colour.
CANARY_PNG = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAABAAAAAQCAIAAACQkWg2AAAAGklEQVR42mNMaFjAQApgYiARjGoY1TB0NAAAyQwBoBPSDnMAAAAASUVORK5CYII="
)


@dataclass(frozen=True)
class Canary:
    """A small request to one model."""

    model: str
    inputs: tuple[tuple[str, str, Any], ...]  # name, datatype, value
    output: str  # one that holds pictures
    proof: str  # how the lines of the metrics page begin that change with each answer, whoever asked


CANARIES = (
    Canary(
        "preprocess", (("image", "BYTES", CANARY_PNG),), "pixels", 'nv_inference_request_success{model="preprocess"'
    ),
    # One chunk from one picture goes through every model. What counts is a chunk's delivery: Triton's own count of a
    # decoupled model's successes grows before there is an answer.
    Canary(
        "world",
        (("image", "BYTES", CANARY_PNG), ("num_chunks", "INT32", 1)),
        "frames",
        "worldstream_stage_duration_seconds_count{",
    ),
)
# A model that holds as many sessions as it may is well, whatever they do.
FULL = "SESSION_LIMIT:"
# Denoise's and Triton's own words for a full queue.
BUSY = ("BUSY:", "Exceeds maximum queue size")


def canaries_of(repository: Path) -> list[Canary]:
    """Those whose models are there."""
    return [canary for canary in CANARIES if (repository / canary.model).is_dir()]


def run_canary(grpc_address: str, access: Access, canary: Canary, keep_waiting: Callable[[], None]) -> None:
    """Send a canary until it is answered.

    Only a request finds out: a model whose process has died still counts as ready.

    Args:
        keep_waiting: called every second; raises once it is not worth while any more.

    Raises:
        ServeError: it failed, or keep_waiting raised this.
    """
    from tritonclient.grpc import InferenceServerClient, InferenceServerException

    is_answered = False
    with InferenceServerClient(grpc_address, **access.channel) as client:
        while not is_answered:
            try:
                ask(client, access, canary, keep_waiting)
                is_answered = True
            except InferenceServerException as error:
                is_answered = FULL in str(error)
                if not is_answered and not any(word in str(error) for word in BUSY):
                    keep_waiting()  # it knows best why a stream broke off
                    raise ServeError(f"the canary request to model {canary.model!r} failed: {error}") from error
            finally:
                client.stop_stream(cancel_requests=True)
            if not is_answered:
                time.sleep(1.0)
                keep_waiting()


def ask(client: Any, access: Access, canary: Canary, keep_waiting: Callable[[], None]) -> None:
    """Send a canary once, as a session of its own, and take its responses up to the final one."""
    stream = responses(
        client,
        access,
        keep_waiting,
        model_name=canary.model,
        inputs=[input_tensor(*each) for each in canary.inputs],
        # A session of one request. With an id it passes under sequence batching too, which refuses requests without.
        sequence_id=random.SystemRandom().getrandbits(62) + 1,
        sequence_start=True,
        sequence_end=True,
    )
    pixels, *_ = [result.as_numpy(canary.output) for result in stream]
    if pixels is None or pixels.ndim != 4 or pixels.shape[0] < 1 or pixels.shape[3] != 3:
        came = "nothing" if pixels is None else f"shape {list(pixels.shape)}"
        raise ServeError(
            f"the canary request to model {canary.model!r} failed: "
            f"{canary.output}: wanted [n, H, W, 3] with n >= 1, got {came}"
        )


def input_tensor(name: str, datatype: str, value: Any) -> Any:
    """A request's input of shape [1]."""
    import numpy
    from tritonclient.grpc import InferInput
    from tritonclient.utils import triton_to_np_dtype

    tensor = InferInput(name, [1], datatype)
    tensor.set_data_from_numpy(numpy.array([value], dtype=triton_to_np_dtype(datatype)))
    return tensor


def responses(client: Any, access: Access, keep_waiting: Callable[[], None], **request: Any) -> Iterator[Any]:
    """The responses to one streamed request, up to the one with the final flag."""
    arrived: queue.SimpleQueue[tuple[Any, Any]] = queue.SimpleQueue()
    client.start_stream(callback=lambda result, error: arrived.put((result, error)), headers=access.headers)
    client.async_stream_infer(enable_empty_final_response=True, **request)
    is_final = False
    while not is_final:
        try:
            result, error = arrived.get(timeout=1.0)
        except queue.Empty:
            keep_waiting()
            continue
        if error is not None:
            raise error
        is_final = result.get_response().parameters["triton_final_response"].bool_param
        yield result
