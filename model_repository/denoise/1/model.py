"""Triton's side of `denoise`: tensors in, responses out, error codes, metrics. No logic."""

# The stub starts in an ASCII locale whatever the environment says; torch.compile needs UTF-8 before torch loads.
import locale

locale.setlocale(locale.LC_CTYPE, "C.UTF-8")

import json  # noqa: E402
import logging  # noqa: E402
import os  # noqa: E402
from pathlib import Path  # noqa: E402
from typing import Any  # noqa: E402

import numpy as np  # noqa: E402
import triton_python_backend_utils as pb_utils  # noqa: E402
from worldmodel.drain import DrainFile  # noqa: E402
from worldmodel.emitter import Batch  # noqa: E402
from worldmodel.engine import Engine  # noqa: E402
from worldmodel.errors import InvalidInputError, WorldError, internal_error  # noqa: E402
from worldmodel.inputs import read_inputs  # noqa: E402
from worldmodel.loading import Instance, load_world  # noqa: E402
from worldmodel.metrics import (  # noqa: E402
    BUCKETS_S,
    CONTROL_HELP,
    COUNTS,
    ERRORS_HELP,
    FIRST_FRAME_HELP,
    HELP,
    STAGE_HELP,
    STAGES,
    ChunkTimes,
    Stats,
    changes,
)
from worldmodel.published import checkpoint_config  # noqa: E402
from worldmodel.request import parse_request  # noqa: E402
from worldmodel.request_parameters import Envelope  # noqa: E402
from worldmodel.serving import read_parameters  # noqa: E402
from worldmodel.snapshot import most_bytes  # noqa: E402

log = logging.getLogger("worldstream")

# Names on the TritonError class; the class itself does not exist yet while this file is imported.
TRITON_CODES = {
    "INVALID_INPUT": "INVALID_ARG",
    "TOO_LARGE": "INVALID_ARG",
    "SESSION_NOT_FOUND": "NOT_FOUND",
    "SESSION_EXISTS": "ALREADY_EXISTS",
    "SESSION_LIMIT": "UNAVAILABLE",
    "BUSY": "UNAVAILABLE",
    "CANCELLED": "CANCELLED",
    "UNAVAILABLE": "UNAVAILABLE",
    "INTERNAL": "INTERNAL",
}


class TritonPythonModel:
    """One instance: one process, one device, one engine."""

    def initialize(self, args: dict[str, str]) -> None:
        """Load the world; the model is READY when this returns."""
        log.addHandler(TritonLog())
        log.setLevel(logging.INFO)
        log.propagate = False
        parameters = json.loads(args["model_config"])["parameters"]
        folder = Path(args["model_repository"]) / args["model_version"]
        self.config, self.serving = read_parameters(
            {key: value["string_value"] for key, value in parameters.items()},
            lambda preset, checkpoint: checkpoint_config(preset, folder / checkpoint),
        )
        instance = Instance(args["model_instance_kind"], int(args["model_instance_device_id"]))
        metrics = Metrics(args["model_name"])
        self.engine = Engine(
            lambda: load_world(self.config, self.serving, folder, instance),
            self.serving,
            metrics.update,
            metrics.observe,
            metrics.count_error,
            DrainFile.named_by(os.environ).is_draining,
        )
        self.max_snapshot_bytes = most_bytes(self.engine.start())

    def execute(self, requests: list[Any]) -> None:
        """Check and queue. What is refused is answered here, all else by the engine's emitter thread."""
        for request in requests:
            try:
                self._take(request)
            except Exception:
                # Triton itself refused: the other requests must not go with this one.
                log.exception("a request could not be answered")

    def _take(self, request: Any) -> None:
        reply = TritonReply(request.get_response_sender())
        try:
            tensors = read_inputs(request.inputs())
            envelope = read_envelope(request)
            checked = parse_request(tensors, envelope, self.config, self.serving, self.max_snapshot_bytes)
            self.engine.submit(checked, reply)
        except WorldError as error:
            self._refuse(reply, error)
        except Exception:
            self._refuse(reply, internal_error("the request failed"))

    def _refuse(self, reply: "TritonReply", error: WorldError) -> None:
        self.engine.note_refusal(error)
        reply.fail(error)

    def finalize(self) -> None:
        """Stop at the next denoising step."""
        self.engine.close()


class TritonReply:
    """The answers to one request, as Triton responses."""

    def __init__(self, sender: Any) -> None:
        self._sender = sender

    def send(self, batch: Batch) -> None:
        """Send one response; the final flag goes with the last one, so that every client sees the end."""
        tensors = {
            "frames": batch.frames,
            "frame_index": batch.frame_index,
            "chunk": np.array(batch.chunk, np.int32),
            "event_id": np.array([batch.event_id], np.int64),
            "timings": np.array(batch.timings_ms, np.float32),
        }
        if batch.encoded is not None:  # else left out, which Triton allows also in an ensemble
            tensors["encoded_frames"] = np.array(batch.encoded, np.object_)
        if batch.snapshot is not None:
            tensors["snapshot"] = batch.snapshot
        response = pb_utils.InferenceResponse([pb_utils.Tensor(name, value) for name, value in tensors.items()])
        self._sender.send(response, pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL if batch.is_last else 0)

    def fail(self, error: WorldError) -> None:
        """Send error and final flag in one response: an error without it leaks the request of an ensemble."""
        code = getattr(pb_utils.TritonError, TRITON_CODES[error.code])
        response = pb_utils.InferenceResponse(error=pb_utils.TritonError(f"{error.code}: {error}", code))
        self._sender.send(response, pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)

    def is_cancelled(self) -> bool:
        """Whether the client has gone or cancelled."""
        return self._sender.is_cancelled()


def read_envelope(request: Any) -> Envelope:
    """The sequence fields and parameters of a Triton request."""
    flags = request.flags()
    return Envelope(
        request.correlation_id(),
        bool(flags & pb_utils.TRITONSERVER_REQUEST_FLAG_SEQUENCE_START),
        bool(flags & pb_utils.TRITONSERVER_REQUEST_FLAG_SEQUENCE_END),
        _parameters(request),
        tuple(request.requested_output_names()),
    )


def _parameters(request: Any) -> dict[str, Any]:
    try:
        parameters: dict[str, Any] = json.loads(request.parameters() or "{}")
    except UnicodeDecodeError as error:
        raise InvalidInputError("parameters: wanted names and texts in UTF-8") from error
    return parameters


class Metrics:
    """The engine's counts, gauges and times on Triton's own metrics page, as worldstream_*.

    Each call to Triton crosses a process, so only what changed is sent. The engine never calls from two threads at one
    time: that would end this process (seen on 2.51).
    """

    def __init__(self, model_name: str) -> None:
        kinds = pb_utils.MetricFamily
        self._last = Stats()
        self._families: list[Any] = []  # a family lives as long as something refers to it
        labels = {"model": model_name}
        self._numbers = {
            name: self._family(f"{name}_total", meaning, kinds.COUNTER).Metric(labels=labels)
            if name in COUNTS
            else self._family(name, meaning, kinds.GAUGE).Metric(labels=labels)
            for name, meaning in HELP.items()
        }
        stages = self._family("stage_duration_seconds", STAGE_HELP, kinds.HISTOGRAM)
        self._stages = [stages.Metric(labels={**labels, "stage": each}, buckets=list(BUCKETS_S)) for each in STAGES]
        first_frame = self._family("first_frame_seconds", FIRST_FRAME_HELP, kinds.HISTOGRAM)
        self._first_frame = first_frame.Metric(labels=labels, buckets=list(BUCKETS_S))
        control = self._family("control_to_frame_seconds", CONTROL_HELP, kinds.HISTOGRAM)
        self._control_to_frame = control.Metric(labels=labels, buckets=list(BUCKETS_S))
        errors = self._family("errors_total", ERRORS_HELP, kinds.COUNTER)
        self._errors = {code: errors.Metric(labels={**labels, "code": code}) for code in TRITON_CODES}

    def _family(self, name: str, meaning: str, kind: Any) -> Any:
        self._families.append(pb_utils.MetricFamily(name=f"worldstream_{name}", description=meaning, kind=kind))
        return self._families[-1]

    def update(self, stats: Stats) -> None:
        """Bring counts and gauges up to date."""
        told, self._last = self._last, stats  # first: a call that fails must not count the others twice
        for name, value in changes(told, stats).items():
            metric = self._numbers[name]
            metric.increment(value) if name in COUNTS else metric.set(value)

    def observe(self, times: ChunkTimes) -> None:
        """Add one chunk to the histograms."""
        for metric, seconds in zip(self._stages, times.stages_s, strict=True):
            metric.observe(seconds)
        if times.first_frame_s is not None:
            self._first_frame.observe(times.first_frame_s)
        if times.control_to_frame_s is not None:
            self._control_to_frame.observe(times.control_to_frame_s)

    def count_error(self, code: str) -> None:
        """Add one request that was answered by an error."""
        self._errors[code].increment(1)


class TritonLog(logging.Handler):
    """Hands the project's log lines to Triton's log."""

    def emit(self, record: logging.LogRecord) -> None:
        """Triton adds time and place itself."""
        text = f"{record.name}: {self.format(record)}"
        logger = pb_utils.Logger
        write = {logging.ERROR: logger.log_error, logging.WARNING: logger.log_warn}.get(record.levelno, logger.log_info)
        write(text)
