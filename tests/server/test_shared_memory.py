"""A picture handed over in system shared memory: both entrances read it there; and why frames do not come that way."""

import contextlib
import itertools
import queue
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc as triton
from tritonclient.utils import serialize_byte_tensor, shared_memory

from tests.server.raw import TIMEOUT_S, Array, ask, join, make_request, picture, png

pytestmark = pytest.mark.server

PICTURE = picture()
NAMES = (f"worldstream-test-{number}" for number in itertools.count())


@contextlib.contextmanager
def region(client: Any, num_bytes: int) -> Iterator[tuple[str, Any]]:
    """Shared memory that the server knows: its name and its handle."""
    name = next(NAMES)
    handle = shared_memory.create_shared_memory_region(name, f"/{name}", num_bytes)
    try:
        client.register_system_shared_memory(name, f"/{name}", num_bytes)
        yield name, handle
        client.unregister_system_shared_memory(name)
    finally:
        shared_memory.destroy_shared_memory_region(handle)


def answers_of(client: Any, model: str, inputs: list[Any], outputs: list[Any] | None = None) -> list[Any]:
    """The results, or errors, of a request for two chunks, until the final one."""
    answers: queue.Queue[Any] = queue.Queue()
    num_chunks, num_steps = (triton.InferInput(name, [1], "INT32") for name in ("num_chunks", "num_steps"))
    num_chunks.set_data_from_numpy(np.array([2], np.int32))
    num_steps.set_data_from_numpy(np.array([1], np.int32))
    client.start_stream(lambda result, error: answers.put(error or result))
    client.async_stream_infer(model, [*inputs, num_chunks, num_steps], outputs=outputs)
    found = [answers.get(timeout=TIMEOUT_S)]
    while not is_final(found[-1]):
        found.append(answers.get(timeout=TIMEOUT_S))
    client.stop_stream()
    return found


def is_final(answer: Any) -> bool:
    if isinstance(answer, Exception):
        return True
    return answer.get_response().parameters["triton_final_response"].bool_param


@pytest.fixture(scope="module")
def frames(server: Any) -> Array:
    return join(ask(server.grpc, make_request("denoise", {"pixels": PICTURE, "num_chunks": 2, "num_steps": 1})))


def test_pixels_may_lie_in_shared_memory(server: Any, frames: Array) -> None:
    pixels = triton.InferInput("pixels", list(PICTURE.shape), "UINT8")
    with triton.InferenceServerClient(server.grpc) as client, region(client, PICTURE.nbytes) as (name, handle):
        shared_memory.set_shared_memory_region(handle, [PICTURE])
        pixels.set_shared_memory(name, PICTURE.nbytes)
        answers = answers_of(client, "denoise", [pixels])
    assert np.concatenate([answer.as_numpy("frames") for answer in answers]).tobytes() == frames.tobytes()


def test_the_picture_may_be_overwritten_once_frames_have_come(server: Any, frames: Array) -> None:
    # A copy of it was made at the start: a client can write its next picture into the same memory.
    other = 255 - PICTURE
    wanted = join(ask(server.grpc, make_request("denoise", {"pixels": other, "num_chunks": 2, "num_steps": 1})))
    pixels = triton.InferInput("pixels", list(PICTURE.shape), "UINT8")
    with triton.InferenceServerClient(server.grpc) as client, region(client, PICTURE.nbytes) as (name, handle):
        pixels.set_shared_memory(name, PICTURE.nbytes)
        runs = []
        for each in (PICTURE, other):
            shared_memory.set_shared_memory_region(handle, [each])
            runs.append(answers_of(client, "denoise", [pixels]))
    for answers, of_its_own in zip(runs, (frames, wanted), strict=True):
        assert np.concatenate([answer.as_numpy("frames") for answer in answers]).tobytes() == of_its_own.tobytes()


def test_an_encoded_picture_may_lie_in_shared_memory(server: Any, frames: Array) -> None:
    # BYTES lie there as they travel: each element's length as four bytes before it.
    contents = serialize_byte_tensor(np.array([png(PICTURE)], np.object_))
    num_bytes = len(contents.item())
    image = triton.InferInput("image", [1], "BYTES")
    with triton.InferenceServerClient(server.grpc) as client, region(client, num_bytes) as (name, handle):
        shared_memory.set_shared_memory_region(handle, [contents])
        image.set_shared_memory(name, num_bytes)
        answers = answers_of(client, "world", [image])
    assert np.concatenate([answer.as_numpy("frames") for answer in answers]).tobytes() == frames.tobytes()


def test_memory_that_is_too_small_for_the_picture_is_refused(server: Any) -> None:
    pixels = triton.InferInput("pixels", list(PICTURE.shape), "UINT8")
    with triton.InferenceServerClient(server.grpc) as client, region(client, PICTURE.nbytes - 1) as (name, _):
        pixels.set_shared_memory(name, PICTURE.nbytes - 1)
        [refused] = answers_of(client, "denoise", [pixels])
    assert "pixels" in str(refused)
    assert f"{PICTURE.nbytes}" in str(refused)


def test_frames_in_shared_memory_overwrite_each_other(server: Any, frames: Array) -> None:
    # Why the README says to leave outputs alone: every response of a stream is written to the one place.
    pixels, output = triton.InferInput("pixels", list(PICTURE.shape), "UINT8"), triton.InferRequestedOutput("frames")
    pixels.set_data_from_numpy(PICTURE)
    num_bytes = 12 * PICTURE.nbytes
    with triton.InferenceServerClient(server.grpc) as client, region(client, num_bytes) as (name, handle):
        output.set_shared_memory(name, num_bytes)
        first, last = answers_of(client, "denoise", [pixels], [output])
        held = shared_memory.get_contents_as_numpy(handle, np.uint8, [12, 96, 160, 3]).copy()
    assert [answer.get_output("frames").shape for answer in (first, last)] == [[9, 96, 160, 3], [12, 96, 160, 3]]
    assert held.tobytes() == frames[9:].tobytes()
