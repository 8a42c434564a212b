"""What frames cost on their way to a client: raw, as differences under gzip, and as PNG, JPEG or WebP files.

    .venv/bin/python perf/transport.py            # 480x832, chunks of 12 frames: two minutes on two cores
    .venv/bin/python perf/transport.py --quick    # a small picture, for a look at the script

A replay engine plays one prepared chunk through the world's own emitter on a real server; nothing is computed, so what
is left is transport. The frames are a picture that moves, with a little noise in each: differences under gzip then take
the bytes (6.8-8.3 MiB a chunk) and the time (212-254 ms) that were published for them, so that files of all kinds have
honest sizes. Every client ends with pixels. What is measured:

- build: one chunk into payloads in this process, on as many threads as the world takes for it;
- end to end: from the request to the last frame as pixels in the client, over several chunks, all ways in turn.
"""

from __future__ import annotations

import argparse
import gzip
import statistics
import sys
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
from common import (
    ROOT,
    Arm,
    Bar,
    Timing,
    Wanted,
    interleave,
    machine,
    print_document,
    print_wanted,
    quartiles,
    ratio,
)
from PIL import Image
from transport_served import Pixels, Trip, Way, running_replay

sys.path.insert(0, str(ROOT / "model_repository" / "denoise" / "1"))

# isort: split
from worldmodel.encoding import Encoder, FrameEncoding, parts_of

PACKAGES = ("numpy", "pillow", "simplejpeg", "grpcio", "tritonclient", "torch")
SIZE, QUICK_SIZE = (480, 832), (96, 160)  # height, width
NUM_FRAMES = 12
NOISE = 1.0  # gray values
RAW, DELTA_GZIP, WHOLE = "raw", "delta-gzip", "raw, a chunk a message"
WAYS = {
    RAW: Way("raw"),  # at most 1 MiB a message, but a frame: at 480x832 a frame each
    "raw, 3 frames a message": Way("raw", 4 << 20),
    WHOLE: Way("raw", 1 << 30),
    DELTA_GZIP: Way("delta-gzip"),
    "png": Way("png"),
    "jpeg": Way("jpeg"),
    "webp": Way("webp"),
}
FAST_CHUNKS, SLOW_CHUNKS = 24, 4  # a request of each way takes about a second
RAW_RATE = Bar(
    "at least 600 MB/s of raw frames end to end on 2 cores from a replay engine behind the same emitter "
    "(a null source gave 700-930 here)",
    ">=",
    600,
)
OVER_GZIP = Bar("end-to-end frames per second at least 10x delta-gzip's", ">=", 10)
WANTED = (RAW_RATE, OVER_GZIP)


def moving_frames(size: tuple[int, int]) -> Pixels:
    """One chunk, [12, H, W, 3]: a picture through which the camera pans, and noise that is new in each frame."""
    height, width = size
    with Image.open(ROOT / "client" / "pictures" / "start.png") as picture:
        around = picture.convert("RGB").resize((width + 5 * NUM_FRAMES, height + 3 * NUM_FRAMES))
    noise = np.random.default_rng(0).normal(0, NOISE, (NUM_FRAMES, height, width, 3))
    seen = [np.asarray(around)[3 * i : 3 * i + height, 5 * i : 5 * i + width] for i in range(NUM_FRAMES)]
    return (np.stack(seen) + noise).round().clip(0, 255).astype(np.uint8)


# Build


def compare_builds(frames: Pixels, num_rounds: int) -> dict[str, Any]:
    """Making a chunk's payloads, all ways in turn."""
    encoder = Encoder()
    builds = {name: partial(build, frames, way, encoder) for name, way in WAYS.items()}
    timings = interleave({name: Arm(run) for name, run in builds.items()}, num_rounds)
    num_bytes = {name: sum(len(payload) for payload in run()) for name, run in builds.items()}
    return {name: {**timings[name].summary(), "bytes": num_bytes[name]} for name in builds}


def build(frames: Pixels, way: Way, encoder: Encoder) -> list[bytes]:
    if way.encoding == "raw":
        # The bytes that Triton is given: a copy that it makes itself, of a view that costs nothing.
        return [frames[part].tobytes() for part in parts_of([frame.nbytes for frame in frames], way.response_bytes)]
    if way.encoding == "delta-gzip":
        return [gzip.compress(np.concatenate([frames[:1], frames[1:] - frames[:-1]]).tobytes(), 1)]
    return encoder.encode(frames, FrameEncoding(way.encoding))


# End to end


def compare_trips(frames: Pixels, num_rounds: int, chunks: tuple[int, int]) -> dict[str, list[Trip]]:
    """Requests of all ways in turn, after one of each whose frames are looked at."""
    trips: dict[str, list[Trip]] = {name: [] for name in WAYS}
    fast, slow = chunks
    with running_replay(frames) as replay:
        for way in WAYS.values():
            check(replay.receive(way, 2), frames, way)
        for _ in range(num_rounds):
            for name, way in WAYS.items():
                trips[name].append(replay.travel(way, fast if way.encoding == "raw" else slow))
    return trips


def check(received: Pixels, sent: Pixels, way: Way) -> None:
    """Two chunks came as they were sent, or, where something may be lost, nearly."""
    wanted = np.concatenate([sent, sent])
    if way.encoding in ("jpeg", "webp"):
        off = np.abs(received.astype(np.int16) - wanted).mean()
        assert off < 4 * max(1, NOISE), f"{way.encoding}: off by {off} gray values"
    else:
        assert np.array_equal(received, wanted), f"{way.encoding}: other frames came"


def summary(trips: Sequence[Trip], frame_bytes: int) -> dict[str, Any]:
    """Rates: medians over rounds with quartiles; CPU milliseconds, bytes and messages a chunk."""
    low, median, high = quartiles([trip.num_frames / trip.wall_s for trip in trips])
    num_chunks = trips[0].num_frames / NUM_FRAMES
    return {
        "frames_per_s": round(median, 1),
        "frames_per_s_p25": round(low, 1),
        "frames_per_s_p75": round(high, 1),
        "pixel_mb_per_s": round(median * frame_bytes / 1e6, 1),
        "wire_bytes_per_chunk": round(trips[0].num_bytes / num_chunks),
        "messages_per_chunk": trips[0].num_messages / num_chunks,
        "server_cpu_ms_per_chunk": round(1e3 * statistics.median(trip.server_cpu_s for trip in trips) / num_chunks, 1),
        "client_cpu_ms_per_chunk": round(1e3 * statistics.median(trip.client_cpu_s for trip in trips) / num_chunks, 1),
    }


def per_frame(trips: Sequence[Trip]) -> Timing:
    """Milliseconds a frame, by the clock and of both sides' CPU."""
    return Timing(
        [1e3 * trip.wall_s / trip.num_frames for trip in trips],
        [1e3 * (trip.client_cpu_s + trip.server_cpu_s) / trip.num_frames for trip in trips],
    )


def judge(trips: Mapping[str, Sequence[Trip]], frame_bytes: int) -> list[Wanted]:
    raw = summary(trips[RAW], frame_bytes)["pixel_mb_per_s"]
    return [
        RAW_RATE.held_against(raw),
        OVER_GZIP.held_against(ratio(per_frame(trips[DELTA_GZIP]), per_frame(trips[RAW]))["median"]),
    ]


def print_table(builds: Mapping[str, Any], served: Mapping[str, Any]) -> None:
    print(f"{'a chunk:':29s} build         MB  messages   frames/s (p25-p75)    MB/s   CPU ms: server  client")
    for name in WAYS:
        made, came = builds[name], served[name]
        spread = f"({came['frames_per_s_p25']:.0f}-{came['frames_per_s_p75']:.0f})"
        print(
            f"  {name:24s} {made['ms']:7.1f} ms {made['bytes'] / 1e6:8.2f} {came['messages_per_chunk']:9g} "
            f"{came['frames_per_s']:10.1f} {spread:13s} {came['pixel_mb_per_s']:4.0f} "
            f"{came['server_cpu_ms_per_chunk']:16.1f} {came['client_cpu_ms_per_chunk']:7.1f}"
        )


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=9, help="of each comparison (default 9)")
    parser.add_argument("--quick", action="store_true", help="small frames, few of them: for a look at the script")
    options = parser.parse_args(arguments)
    measured_on = machine(PACKAGES)  # before we are its load
    frames = moving_frames(QUICK_SIZE if options.quick else SIZE)
    num_rounds = 2 if options.quick else options.rounds
    builds = compare_builds(frames, num_rounds)
    trips = compare_trips(frames, num_rounds, (2, 2) if options.quick else (FAST_CHUNKS, SLOW_CHUNKS))
    served = {name: summary(each, frames[0].nbytes) for name, each in trips.items()}
    print(f"chunks of {NUM_FRAMES} frames of {frames.shape[1]}x{frames.shape[2]}, {frames.nbytes / 1e6:.1f} MB raw")
    print_table(builds, served)
    raw = per_frame(trips[RAW])
    over_raw = {name: ratio(per_frame(each), raw) for name, each in trips.items() if name != RAW}
    results = {"frames": list(frames.shape), "build": builds, "served": served, "raw_is_faster_by": over_raw}
    wanted = judge(trips, frames[0].nbytes)
    print_wanted(wanted)
    print_document("transport", measured_on, results, wanted)
    return 0


if __name__ == "__main__":
    sys.exit(main())
