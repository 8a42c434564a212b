"""A model that computes nothing: it plays prepared frames through the world's own emitter and Triton reply.

The benchmark copies it into a model repository, beside `denoise`'s code; there it is a Triton model, here it is never
imported. The older published way, one gzip a chunk of differences between frames, is only here: the world lacks it.
"""

from __future__ import annotations

import gzip
import json
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import denoise_model
import numpy as np
import torch
from worldmodel.emitter import Batch, Delivery, Emitter, Frames
from worldmodel.encoding import FrameEncoding
from worldmodel.reporter import Reporter
from worldmodel.streams import CpuStreams, Decoding, Moment


class TritonPythonModel:
    """One replay engine; an emitter for each size of messages that is asked for."""

    def initialize(self, args: dict[str, str]) -> None:
        parameters = json.loads(args["model_config"])["parameters"]
        self.frames = np.load(parameters["frames"]["string_value"])  # [n, H, W, 3] uint8
        self.emitters: dict[int, Emitter] = {}
        self.engine = ThreadPoolExecutor(1)

    def execute(self, requests: list[Any]) -> None:
        for request in requests:
            reply = denoise_model.TritonReply(request.get_response_sender())
            self.engine.submit(self.replay, reply, json.loads(request.parameters()))

    def replay(self, reply: Any, asked: dict[str, Any]) -> None:
        """Answer one request, chunk by chunk; the emitter makes this thread wait as it does the world's."""
        encoding = asked["encoding"]
        if encoding == "delta-gzip":
            delivery = None
        else:
            emitter = self.emitter(asked["response_bytes"])
            delivery = Delivery(reply, None if encoding == "raw" else FrameEncoding(encoding))
        for chunk in range(asked["num_chunks"]):
            is_last = chunk + 1 == asked["num_chunks"]
            if delivery is None:
                reply.send(self.compressed(chunk, is_last))
            else:
                emitter.put(self.chunk(delivery, chunk, is_last))

    def emitter(self, response_bytes: int) -> Emitter:
        if response_bytes not in self.emitters:
            emitter = Emitter(response_bytes, Reporter(lambda _: None, lambda _: None))
            emitter.start(CpuStreams())
            self.emitters[response_bytes] = emitter
        return self.emitters[response_bytes]

    def chunk(self, delivery: Delivery, chunk_index: int, is_last: bool) -> Frames:
        now = Moment()
        return Frames(
            delivery,
            Decoding(torch.from_numpy(self.frames), now, now, now, now, now),
            first_frame=chunk_index * len(self.frames),
            chunk_index=chunk_index,
            event_id=-1,
            queued_ms=0.0,
            began_s=time.monotonic(),
            is_last=is_last,
            opens="nothing",
        )

    def compressed(self, chunk_index: int, is_last: bool) -> Batch:
        # Differences wrap around, as uint8 does.
        deltas = np.concatenate([self.frames[:1], self.frames[1:] - self.frames[:-1]])
        payload = gzip.compress(deltas.tobytes(), 1)
        index = chunk_index * len(self.frames) + np.arange(len(self.frames), dtype=np.int64)
        return Batch(self.frames[:0], index, (chunk_index, 0, 1), -1, (0.0,) * 6, is_last, (payload,))

    def finalize(self) -> None:
        self.engine.shutdown()
        for emitter in self.emitters.values():
            emitter.close(10)
