"""Eight sessions at once, with random controls, cancels, ends, reconnects, bad requests: nobody notices the others.

What a cancelled request has committed is seen from the next one's chunk index; the solo run then asks for just that.
"""

import random
import signal
import threading
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest

from tests.server.processes import own_bytes, shm_bytes, stub_pids
from tests.server.raw import (
    Array,
    Stream,
    ask,
    join,
    make_request,
    picture,
    read_metrics,
    settled_metrics,
    wait_for_metrics,
)

pytestmark = [pytest.mark.server, pytest.mark.timeout(600)]

NUM_SESSIONS = 8
NUM_CHUNKS = 200  # of all sessions together
CHUNK = 3  # latent frames
PROMPTS = ("day", "dusk", "night", "snow")
BAD = (
    {"actions": ["x"]},
    {"cam_to_world": np.zeros((3, 4, 4), np.float32)},
    {"num_chunks": 0},
    {"num_steps": 99},
    {"event_id": -3},
    {"seed": 4},
)


@dataclass
class Life:
    """One session: what was asked of it, and the frames of each chunk that it committed."""

    name: str
    start: dict[str, Any]
    asked: list[tuple[dict[str, Any], int]] = field(default_factory=list)  # inputs, chunks that were committed
    frames: dict[int, Array] = field(default_factory=dict)  # by chunk; some were committed and never arrived

    @property
    def num_chunks(self) -> int:
        return sum(committed for _, committed in self.asked)


class Client(threading.Thread):
    """Lives one session after another until all clients together have seen enough chunks."""

    def __init__(self, server: Any, number: int, budget: threading.Semaphore) -> None:
        super().__init__(name=f"client {number}")
        self.server, self.number, self.budget = server, number, budget
        self.rng = random.Random(number)
        self.lives: list[Life] = []
        self.counts = {"cancelled": 0, "refused": 0, "ended": 0, "reconnected": 0}
        self.error: BaseException | None = None

    def run(self) -> None:
        try:
            while self.budget.acquire(blocking=False):
                self._live()
        except BaseException as error:
            self.error = error

    def _live(self) -> None:
        start = {"pixels": picture(96 + 2 * self.number), "seed": self.rng.randrange(2**62), "prompt": "day"}
        life = Life(f"life {self.number}.{len(self.lives)}", start)
        self.lives.append(life)
        stream = Stream(self.server.grpc)
        self._ask(stream, life, {**start, "num_chunks": 1}, 1, is_start=True)
        for _ in range(self.rng.randint(3, 9)):
            if not self.budget.acquire(blocking=False):
                break
            deed = self.rng.choice(["steer"] * 6 + ["cancel", "reconnect", "bad"])
            if deed == "bad":
                self._ask_badly(stream, life)
            if deed == "cancel":
                self._ask_and_cancel(stream, life)
            if deed in ("cancel", "reconnect"):
                stream.__exit__(None, None, None)
                stream = Stream(self.server.grpc)
                self.counts["reconnected"] += 1
            inputs, num_chunks = self._controls()
            self._ask(stream, life, inputs, num_chunks)  # also after a cancel: what that has committed shows here
        stream.send(make_request("denoise", {}, sequence_id=life.name, sequence_end=True))
        assert stream.receive().is_final
        self.counts["ended"] += 1
        stream.__exit__(None, None, None)

    def _controls(self) -> tuple[dict[str, Any], int]:
        num_chunks, rng = self.rng.choice([1, 1, 2]), self.rng
        inputs: dict[str, Any] = {"num_steps": rng.choice([1, 1, 2, 4])}
        if rng.random() < 0.6:
            inputs["actions"] = [rng.choice(["w", "wl", "s", "j", "", "di"]) for _ in range(CHUNK * num_chunks)]
        elif rng.random() < 0.5:
            poses = np.tile(np.eye(4, dtype=np.float32), (CHUNK * num_chunks, 1, 1))
            poses[:, :3, 3] = np.cumsum([[rng.uniform(-0.1, 0.1) for _ in range(3)] for _ in poses], axis=0)
            inputs["cam_to_world"] = poses
        else:
            inputs["num_chunks"] = num_chunks
        if rng.random() < 0.2:
            inputs["prompt"] = rng.choice(PROMPTS)
        return inputs, num_chunks

    def _ask(self, stream: Stream, life: Life, inputs: Any, num_chunks: int, is_start: bool = False) -> None:
        stream.send(make_request("denoise", inputs, sequence_id=life.name, sequence_start=is_start))
        responses = [stream.receive()]
        while not responses[-1].is_final:
            responses.append(stream.receive())
        frames = join(responses)  # no error among them
        chunks = join(responses, "chunk").reshape(-1, 3)[:, 0]
        self._settle(life, int(chunks[0]))
        life.asked.append((inputs, num_chunks))
        assert sorted(set(chunks)) == list(range(life.num_chunks - num_chunks, life.num_chunks))
        lengths = [9 if chunk == 0 else 12 for chunk in sorted(set(chunks))]
        for chunk, own in zip(sorted(set(chunks)), np.split(frames, np.cumsum(lengths)[:-1]), strict=True):
            life.frames[int(chunk)] = own

    def _ask_and_cancel(self, stream: Stream, life: Life) -> None:
        """How many chunks it commits is not known before the next request is answered."""
        inputs, _ = self._controls()
        stream.send(make_request("denoise", {**inputs, "num_steps": 4}, sequence_id=life.name))
        threading.Event().wait(self.rng.uniform(0, 1.5))
        stream.cancel()
        life.asked.append(({**inputs, "num_steps": 4}, -1))
        self.counts["cancelled"] += 1

    @staticmethod
    def _settle(life: Life, next_chunk: int) -> None:
        if life.asked and life.asked[-1][1] < 0:
            inputs, _ = life.asked.pop()
            life.asked.append((inputs, next_chunk - life.num_chunks))

    def _ask_badly(self, stream: Stream, life: Life) -> None:
        stream.send(make_request("denoise", self.rng.choice(BAD), sequence_id=life.name))
        response = stream.receive()
        assert response.error.startswith("INVALID_INPUT"), response.error
        assert response.is_final
        self.counts["refused"] += 1


def cut(inputs: dict[str, Any], num_chunks: int) -> dict[str, Any]:
    """The same request for fewer chunks."""
    short = {name: inputs[name][: CHUNK * num_chunks] for name in ("actions", "cam_to_world") if name in inputs}
    return {**inputs, **short, "num_chunks": num_chunks}


def solo_frames(server: Any, life: Life) -> dict[int, Array]:
    """What the session's committed chunks are when nobody else is there, by chunk."""
    frames = []
    for number, (inputs, committed) in enumerate(life.asked):
        if committed > 0:
            flags = {"sequence_id": f"solo {life.name}", "sequence_start": number == 0}
            frames.append(join(ask(server.grpc, make_request("denoise", cut(inputs, committed), **flags))))
    ask(server.grpc, make_request("denoise", {}, sequence_id=f"solo {life.name}", sequence_end=True))
    lengths = [9, *[12] * (life.num_chunks - 1)]
    return dict(enumerate(np.split(np.concatenate(frames), np.cumsum(lengths)[:-1])))


def run_clients(server: Any, numbers: range) -> list[Client]:
    """Eight clients at once, until they have asked for half of the chunks."""
    budget = threading.Semaphore(NUM_CHUNKS // 2)  # of requests: one asks for a chunk or two, some are cancelled
    clients = [Client(server, number, budget) for number in numbers]
    for client in clients:
        client.start()
    for client in clients:
        client.join()
    for client in clients:
        if client.error is not None:
            raise client.error
    return clients


def test_eight_sessions_at_once_give_what_each_gives_alone(start_server: Any) -> None:
    server = start_server()
    ask(server.grpc, make_request("denoise", {"pixels": picture(), "num_chunks": 8}))
    stubs, shared = stub_pids(server.pid), shm_bytes(server.pid)
    clients = run_clients(server, range(NUM_SESSIONS))
    memory = [own_bytes(pid) for pid in stubs]
    clients += run_clients(server, range(NUM_SESSIONS, 2 * NUM_SESSIONS))
    grown = [own_bytes(pid) - before for pid, before in zip(stubs, memory, strict=True)]
    counts = {name: sum(client.counts[name] for client in clients) for name in clients[0].counts}
    assert min(counts.values()) >= 3, counts

    gauges = {"active_sessions": 0, "session_bytes": 0, "queued_requests": 0, "conditioner_bytes": 0}
    assert gauges.items() <= wait_for_metrics(server.metrics, **gauges).items()
    assert settled_metrics(server.metrics)["chunks_total"] >= NUM_CHUNKS

    seen = []
    for life in (life for client in clients for life in client.lives):
        solo = solo_frames(server, life)
        for chunk, frames in life.frames.items():
            assert np.array_equal(frames, solo[chunk]), (life.name, chunk)
        seen.append(solo[0].tobytes())
    assert len(set(seen)) == len(seen)  # and each session is its own

    assert gauges.items() <= wait_for_metrics(server.metrics, **gauges).items()
    assert stub_pids(server.pid) == stubs
    # The first wave fills the allocator's pools; a leak would go on with the second.
    assert max(grown) < 64 << 20, grown
    assert shm_bytes(server.pid) - shared <= 64 << 20
    server.launcher.send_signal(signal.SIGTERM)
    assert server.launcher.wait(timeout=60) == 0
    assert "was killed" not in server.log()


def test_a_client_that_goes_at_any_moment_costs_one_step_and_leaves_its_session_as_it_was(server: Any) -> None:
    rng, name, steps = random.Random(5), "goes often", 50
    ask(server.grpc, make_request("denoise", {"pixels": picture(), "seed": 3}, sequence_id=name, sequence_start=True))
    committed = 0
    for _ in range(20):
        before = settled_metrics(server.metrics)
        with Stream(server.grpc) as stream:
            stream.send(make_request("denoise", {"num_chunks": 1, "num_steps": steps}, sequence_id=name))
            threading.Event().wait(rng.uniform(0, 1.2))
            gone = read_metrics(server.metrics)["denoising_steps_total"]
            stream.cancel()
        after = wait_for_metrics(server.metrics, queued_requests=0)
        # One that runs, and one that may begin while the cancel travels.
        assert after["denoising_steps_total"] - gone <= 2
        committed += after["chunks_total"] - before["chunks_total"]
    went_on = join(ask(server.grpc, make_request("denoise", {}, sequence_id=name)))
    start = {"pixels": picture(), "seed": 3}
    ask(server.grpc, make_request("denoise", start, sequence_id="stays", sequence_start=True))
    for _ in range(committed):
        ask(server.grpc, make_request("denoise", {"num_steps": steps}, sequence_id="stays"))
    assert np.array_equal(went_on, join(ask(server.grpc, make_request("denoise", {}, sequence_id="stays"))))
    for each in (name, "stays"):
        ask(server.grpc, make_request("denoise", {}, sequence_id=each, sequence_end=True))
