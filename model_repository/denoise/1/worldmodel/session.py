"""One session's whole state, and the table of sessions. Decides who may come and who must go; does nothing itself.

A chunk works on a `Staged` copy of the small state and on cache slots that nobody can see yet; `Session.commit` makes
it the session's own. Dropping a `Staged` leaves the session exactly as it was.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from worldmodel.camera import CameraState, Views
from worldmodel.codec import Memory
from worldmodel.config import WorldConfig, frames_of_chunk
from worldmodel.errors import SessionExistsError, SessionLimitError, SessionNotFoundError
from worldmodel.kv_cache import KVCache, Placement

SessionId = tuple[str, str | int]  # kind and id: 7 and "7" are two sessions
_HEX = re.compile("[0-9a-f]{1,32}")


@dataclass(frozen=True)
class Prompt:
    """A prompt as the layers read it: cross-attention keys and values, [1, H, S, D] each."""

    keys: tuple[Tensor, ...]
    values: tuple[Tensor, ...]


class Noise:
    """A session's generator: the same seed is the same noise on every device, whatever else is served.

    NumPy's, since torch's CPU generator keeps only the lower 32 bits of a seed.
    """

    def __init__(self, seed: int) -> None:
        """Take any seed of 64 bits, negative ones too."""
        self._generator = np.random.Generator(np.random.PCG64(seed % 2**64))

    def copy(self) -> Noise:
        """A generator that goes on from here by itself."""
        twin = Noise(0)
        twin._generator.bit_generator.state = self._generator.bit_generator.state
        return twin

    def state(self) -> dict[str, str]:
        """Where the generator stands, as hexadecimal numbers: JSON's own do not hold 128 bits everywhere."""
        state = self._generator.bit_generator.state
        numbers = {**state["state"], "has_uint32": state["has_uint32"], "uinteger": state["uinteger"]}
        return {name: f"{int(value):x}" for name, value in numbers.items()}

    @classmethod
    def from_state(cls, state: Any) -> Noise:
        """A generator that goes on from what `state` returned.

        Raises:
            ValueError: this is no such state.
        """
        bits = {"state": 128, "inc": 128, "has_uint32": 1, "uinteger": 32}
        if not (isinstance(state, dict) and state.keys() == bits.keys()):
            raise ValueError(f"wanted {', '.join(bits)} and nothing else")
        numbers = {}
        for name, width in bits.items():
            if not (isinstance(state[name], str) and _HEX.fullmatch(state[name])):
                raise ValueError(f"{name}: wanted hexadecimal digits")
            numbers[name] = int(state[name], 16)
            if numbers[name] >> width:
                raise ValueError(f"{name}: wanted at most {width} bits")
        if numbers["inc"] % 2 == 0:
            raise ValueError("inc: wanted an odd number")
        noise = cls(0)
        noise._generator.bit_generator.state = {
            "bit_generator": "PCG64",
            "state": {"state": numbers["state"], "inc": numbers["inc"]},
            "has_uint32": numbers["has_uint32"],
            "uinteger": numbers["uinteger"],
        }
        return noise

    def draw(self, shape: tuple[int, ...]) -> Tensor:
        """The next standard normal numbers, float32, on the host."""
        return torch.from_numpy(self._generator.standard_normal(shape, dtype=np.float32))


@dataclass(frozen=True)
class PastChunk:
    """What a finished chunk was made from: enough to write its keys and values again."""

    first_frame: int  # latent, absolute
    latent: Tensor  # [1, C, T, h, w], clean
    views: Views


@dataclass(frozen=True)
class Staged:
    """What a chunk will change, once it is committed."""

    placement: Placement
    decoder_memory: Memory
    camera: CameraState
    prompt: Prompt
    noise: Noise
    past: PastChunk | None = None
    cache: KVCache | None = None  # in place of the session's own, where the history was written again


class Session:
    """Everything that outlives a chunk: cache, codec memory, camera, prompt, generator, counters."""

    def __init__(
        self,
        config: WorldConfig,
        cache: KVCache,
        condition: Tensor,
        camera: CameraState,
        prompt: Prompt,
        seed: int,
        picture_px: tuple[int, int],
        fit: str,
    ) -> None:
        self.config = config
        self.cache = cache
        self.condition = condition  # [4 + C, condition_latent_frames, h, w]
        self.camera = camera
        self.prompt = prompt
        self.noise = Noise(seed)
        self.picture_px = picture_px
        self.fit = fit
        self.decoder_memory: Memory | None = None
        self.history: tuple[PastChunk, ...] = ()  # the chunks of which the cache holds a frame, oldest first
        self.chunk_index = 0
        self.next_latent_frame = 0
        self.next_frame = 0

    @property
    def frames_in_next_chunk(self) -> int:
        """Pixel frames that the next chunk decodes to."""
        return frames_of_chunk(self.config.chunk_latent_frames, self.chunk_index)

    def condition_of_next_chunk(self) -> Tensor:
        """[1, 4 + C, T, h, w]."""
        return self.condition_from(self.next_latent_frame)

    def condition_from(self, first: int) -> Tensor:
        """[1, 4 + C, T, h, w] of the chunk that begins with this latent frame.

        Past the encoded prefix its last frame (settled black) repeats for ever.
        """
        last = self.condition.shape[1] - 1
        index = torch.arange(first, first + self.config.chunk_latent_frames, device=self.condition.device)
        return self.condition[:, index.clamp(max=last)].unsqueeze(0)

    def commit(self, staged: Staged) -> None:
        """Make a finished chunk part of the session."""
        self.next_frame += self.frames_in_next_chunk
        self.cache = staged.cache or self.cache
        self.cache.commit(staged.placement)
        if staged.past is not None:
            self.history = tuple(past for past in (*self.history, staged.past) if self._is_held(past))
        self.decoder_memory = staged.decoder_memory
        self.camera = staged.camera
        self.prompt = staged.prompt
        self.noise = staged.noise
        self.chunk_index += 1
        self.next_latent_frame += self.config.chunk_latent_frames

    def _is_held(self, past: PastChunk) -> bool:
        frames = range(past.first_frame, past.first_frame + self.config.chunk_latent_frames)
        return any(frame in frames for frame in self.cache.frames if frame is not None)


@dataclass
class Entry:
    """One row of the table."""

    id: SessionId
    num_bytes: int
    last_used_s: float
    session: Session | None = None  # None until the engine has made it
    is_ending: bool = False  # a request that ends it has been accepted: no further one is
    is_stopped: bool = False  # that end was a bare one: whatever runs or waits is given up
    watched_until_s: float = 0.0  # when its last paced chunk has been watched, by the clock of last_used_s


class SessionTable:
    """Which sessions live, what they weigh, and when they were last used. Not thread-safe: its owner locks."""

    def __init__(self, budget_bytes: int, idle_timeout_s: float) -> None:
        self.budget_bytes = budget_bytes
        self.idle_timeout_s = idle_timeout_s
        self.entries: dict[SessionId, Entry] = {}

    @property
    def num_bytes(self) -> int:
        """Bytes that all live sessions may take."""
        return sum(entry.num_bytes for entry in self.entries.values())

    def admit(self, session_id: SessionId, num_bytes: int, now_s: float) -> Entry:
        """Reserve a new session's bytes before anything is allocated.

        Raises:
            SessionExistsError: the id is live.
            SessionLimitError: the budget would be passed.
        """
        if session_id in self.entries:
            raise SessionExistsError("sequence_id: a session with this id is live; end it before starting another")
        if self.num_bytes + num_bytes > self.budget_bytes:
            raise SessionLimitError(
                f"session: its state takes {num_bytes} bytes; {len(self.entries)} live sessions hold "
                f"{self.num_bytes} of {self.budget_bytes} bytes; end one, or serve with a larger session_budget_bytes "
                "or a smaller window_latent_frames"
            )
        entry = Entry(session_id, num_bytes, now_s)
        self.entries[session_id] = entry
        return entry

    def find(self, session_id: SessionId, is_bare_end: bool = False) -> Entry:
        """The live session with this id. One whose end has been asked for is found by a bare end only, and once.

        Raises:
            SessionNotFoundError: never started, ended, or expired.
        """
        entry = self.entries.get(session_id)
        if entry is None or entry.is_stopped or (entry.is_ending and not is_bare_end):
            raise SessionNotFoundError(
                "sequence_id: no session with this id is live (never started, ended, or expired); "
                "start one with sequence_start and a picture"
            )
        return entry

    def remove(self, session_id: SessionId) -> None:
        """Forget a session; its tensors go with it."""
        self.entries.pop(session_id, None)

    def expired(self, now_s: float) -> list[SessionId]:
        """Sessions that have been idle for too long: the caller removes those that have no work."""
        return [entry.id for entry in self.entries.values() if now_s - entry.last_used_s > self.idle_timeout_s]
