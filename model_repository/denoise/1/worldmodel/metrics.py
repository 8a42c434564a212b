"""What world and engine count, hold and time, as plain numbers with their help texts. Knows no metrics system."""

from __future__ import annotations

from dataclasses import dataclass, field, fields


def _count(meaning: str) -> int:
    number: int = field(default=0, metadata={"is_count": True, "help": meaning})
    return number


def _gauge(meaning: str) -> int:
    number: int = field(default=0, metadata={"is_count": False, "help": meaning})
    return number


@dataclass
class Counters:
    """What the world has done so far. Written by the compute thread only."""

    denoising_steps: int = 0
    context_passes: int = 0
    conditioner_misses: int = 0
    conditioner_hits: int = 0
    conditioner_bytes: int = 0  # held for the chunk that runs
    conditioner_peak_bytes: int = 0  # the most that one chunk has held
    pictures_encoded: int = 0
    picture_cache_hits: int = 0

    def forget(self) -> None:
        """Begin to count anew."""
        for each in fields(self):
            setattr(self, each.name, 0)


@dataclass(frozen=True)
class Stats:
    """What the engine has done since it was READY, and what it holds now."""

    chunks: int = _count("Chunks computed and made part of their sessions.")
    frames: int = _count("Pixel frames of those chunks.")
    denoising_steps: int = _count("Denoising steps run, those of chunks that were given up included.")
    conditioner_misses: int = _count(
        "Times that a layer's camera scale and shift were computed, the fewest once a chunk."
    )
    conditioner_hits: int = _count("Times that a pass took a layer's camera scale and shift from its chunk.")
    step_cache_computed_blocks: int = _count(
        "Transformer blocks computed in all passes, whether a step cache is mounted or not; "
        "with the skipped ones, layers times passes."
    )
    step_cache_skipped_blocks: int = _count("Transformer blocks that the step cache skipped; 0 where none is mounted.")
    compiled_blocks: int = _count("Computed transformer blocks that ran as compiled code.")
    recompiles: int = _count("Graphs compiled after READY; anything but 0 is a stall of seconds in some chunk.")
    pictures_encoded: int = _count("First pictures of sessions that the codec encoded.")
    picture_cache_hits: int = _count("First pictures whose latents were still cached.")
    prompts_encoded: int = _count("Prompts that the text encoder turned into token vectors.")
    prompt_cache_hits: int = _count("Prompts whose token vectors were still cached.")
    sessions_saved: int = _count("Snapshots taken of sessions.")
    sessions_restored: int = _count("Sessions that began from a snapshot.")
    active_sessions: int = _gauge("Sessions that live now.")
    session_bytes: int = _gauge("Bytes reserved for the state of all live sessions.")
    queued_requests: int = _gauge("Requests accepted and not yet done, the running one included.")
    conditioner_bytes: int = _gauge("Bytes of camera scale and shift held now, for the chunk that is denoised; else 0.")
    conditioner_peak_bytes: int = _gauge("Most bytes of camera scale and shift that one chunk has held.")


COUNTS = tuple(each.name for each in fields(Stats) if each.metadata["is_count"])
HELP: dict[str, str] = {each.name: each.metadata["help"] for each in fields(Stats)}


def changes(before: Stats, after: Stats) -> dict[str, int]:
    """What has to be told of: by how much a count grew, or a gauge's new value."""
    changed = {name: value for name, value in vars(after).items() if value != getattr(before, name)}
    return {name: value - getattr(before, name) if name in COUNTS else value for name, value in changed.items()}


STAGES = ("queued", "condition", "denoise", "decode", "transfer", "total")
STAGE_HELP = (
    "Seconds that a delivered chunk took, by stage, as its timings say; total is without queued, "
    "transfer is the copy to the host and what was sent before the last response."
)
FIRST_FRAME_HELP = "Seconds from an accepted start to its first frames, as they are handed to Triton."
ERRORS_HELP = "Requests answered by an error, by its code word."
CONTROL_HELP = "Seconds from an accepted request of a live session to the first frames that it steered."
# Upper edges, from one pass on a GPU to a long chunk on a CPU.
BUCKETS_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)


@dataclass(frozen=True)
class ChunkTimes:
    """How long one chunk took."""

    stages_s: tuple[float, ...]  # in the order of STAGES
    first_frame_s: float | None  # since the start was accepted; None but for the first chunk of a start
    control_to_frame_s: float | None = None  # since the request was accepted; None but for its first chunk
