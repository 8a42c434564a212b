"""What runs beside what: a chunk's decode and its way to the host, while the next chunk is denoised.

Two classes with the same few methods. On a CPU there is nothing to overlap: everything happens when it is asked for, on
the thread that asks. On a GPU three streams run side by side: the compute thread's own (denoising), one that decodes,
and one that copies to the host; the compute thread goes on once a chunk's decode is queued, and whoever wants frames or
times waits for them. Knows no worlds, sessions or requests.

Why no tensor is given back too early on a GPU. The caching allocator keeps a pool a stream, and gives freed memory out
again in that stream's own order:
- the latent belongs to the compute stream and is read by the decode stream: `record_stream` says so;
- the codec's memory and the frames are made on the decode stream, and only read there or (frames) by a copy that the
  emitter waits for before it lets them go. So they may be dropped at any moment, by any thread: at a commit, at a
  session's end, with a chunk that failed or that nobody wants, also while a decode that reads them is still under way;
- what a picture becomes, and all other state of a session, lives on the compute stream alone.
The price is that what one stream has freed does not serve the other: a GPU keeps both peaks.
"""

from __future__ import annotations

import contextlib
import functools
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor


class Mark(Protocol):
    """A moment in a device's work; torch.cuda.Event is one."""

    def synchronize(self) -> None:
        """Wait until the device has come this far."""

    def elapsed_time(self, end_event: Any) -> float:
        """Milliseconds from here to another of the same class; both must be past."""


class Moment:
    """A moment of the host's clock: past as soon as it is made."""

    def __init__(self) -> None:
        self._at_s = time.perf_counter()

    def synchronize(self) -> None:
        """Nothing to wait for."""

    def elapsed_time(self, end_event: Any) -> float:
        """Milliseconds from here to another moment."""
        return 1e3 * (end_event._at_s - self._at_s)


@dataclass(frozen=True)
class Timings:
    """Where a chunk's time went, in ms."""

    condition_ms: float
    denoise_ms: float
    decode_ms: float


@dataclass(frozen=True)
class Decoding:
    """A chunk's frames on their way, and the moments between its stages."""

    frames: Tensor  # [n, H, W, 3] uint8, on the device; not there yet: see `wait`
    began: Mark
    conditioned: Mark
    denoised: Mark
    decode_began: Mark
    decoded: Mark

    @property
    def num_frames(self) -> int:
        """Known before the frames are."""
        return self.frames.shape[0]

    def wait(self) -> Tensor:
        """The frames, once they are there: the calling thread waits, and then any stream may read them.

        Raises:
            RuntimeError: the device failed.
        """
        self.decoded.synchronize()
        return self.frames

    def timings(self) -> Timings:
        """How long each stage took on the device; waits as `wait` does."""
        self.decoded.synchronize()
        return Timings(
            self.began.elapsed_time(self.conditioned),
            self.conditioned.elapsed_time(self.denoised),
            self.decode_began.elapsed_time(self.decoded),
        )


class Streams(Protocol):
    """What the world and the emitter ask of a device."""

    def mark(self) -> Mark:
        """This moment in the work that the calling thread has queued."""

    def beside(self, *inputs: Tensor) -> AbstractContextManager[None]:
        """Do what is inside beside what the calling thread queues afterwards.

        Args:
            inputs: tensors of the calling thread's stream that are read inside; they may be dropped afterwards. Others
                may only be read there if they outlive all work.
        """

    def to_host(self, frames: Tensor) -> NDArray[np.uint8]:
        """Finished frames as an array; no copy where they are on the host already."""


class CpuStreams:
    """The host: one thing after the other."""

    def mark(self) -> Moment:
        """Now."""
        return Moment()

    def beside(self, *inputs: Tensor) -> AbstractContextManager[None]:
        """At once."""
        return contextlib.nullcontext()

    def to_host(self, frames: Tensor) -> NDArray[np.uint8]:
        """The same memory."""
        return frames.numpy()


class CudaStreams:
    """One GPU: `beside` for the thread that computes, `to_host` for the one that sends."""

    def __init__(self, device: torch.device) -> None:
        """Take a device with its index."""
        self._device = device
        # Before denoising wherever both have work: a client waits for these frames, nobody yet for the next chunk's.
        self._decode = torch.cuda.Stream(device, priority=-1)
        self._copy = torch.cuda.Stream(device)

    def mark(self) -> Mark:
        """An event on the calling thread's stream."""
        # blocking: a thread that waits sleeps, and leaves its core to the one that queues kernels.
        event = torch.cuda.Event(enable_timing=True, blocking=True)
        event.record(torch.cuda.current_stream(self._device))
        return event

    @contextlib.contextmanager
    def beside(self, *inputs: Tensor) -> Iterator[None]:
        """On the decode stream, behind all that the calling thread has queued so far."""
        self._decode.wait_stream(torch.cuda.current_stream(self._device))
        for each in inputs:
            each.record_stream(self._decode)
        with torch.cuda.stream(self._decode):
            yield

    def to_host(self, frames: Tensor) -> NDArray[np.uint8]:
        """Through pinned memory, on the copy stream; the calling thread waits for the copy, the others do not."""
        # torch keeps freed pinned blocks for reuse (cudaHostAlloc takes milliseconds, so it must not run each chunk).
        # A block is free when the last array that looks at it is gone. The emitter holds it until every part is sent,
        # and Triton's `send` copies a part into shared memory before it returns.
        with torch.cuda.stream(self._copy):
            host = torch.empty(frames.shape, dtype=frames.dtype, pin_memory=True)
            host.copy_(frames, non_blocking=True)
            done = torch.cuda.Event(blocking=True)
            done.record(self._copy)
        done.synchronize()
        return host.numpy()


def streams_of(device: torch.device) -> Streams:
    """The streams of a device."""
    return CudaStreams(device) if device.type == "cuda" else CpuStreams()


@contextlib.contextmanager
def beside_computing(device: torch.device) -> Iterator[torch.cuda.Stream | None]:
    """A stream of its own for what is inside: on the default one, the compute thread's, it would wait for a chunk."""
    if device.type != "cuda":
        yield None
        return
    stream = _stream_beside_computing(device)
    with torch.cuda.stream(stream):
        yield stream


@functools.cache
def _stream_beside_computing(device: torch.device) -> torch.cuda.Stream:
    """One a device, made when the first input comes on it: the allocator keeps a pool of memory for each stream."""
    return torch.cuda.Stream(device)
