"""What the engine counts and holds, as plain numbers. Knows no metrics system."""

from __future__ import annotations

from dataclasses import dataclass, fields


@dataclass(frozen=True)
class Stats:
    """What the engine has done since it started, and what it holds now."""

    chunks: int = 0
    frames: int = 0
    denoising_steps: int = 0
    conditioner_evaluations: int = 0
    conditioner_reuses: int = 0
    computed_blocks: int = 0  # of all passes
    skipped_blocks: int = 0  # by the step cache
    compiled_blocks: int = 0  # computed ones that ran as compiled code
    recompiles: int = 0  # graphs made after READY
    pictures_encoded: int = 0
    picture_cache_hits: int = 0
    active_sessions: int = 0
    session_bytes: int = 0
    queued_requests: int = 0
    conditioner_peak_bytes: int = 0  # the most scale and shift that one chunk has held


GAUGES = ("active_sessions", "session_bytes", "queued_requests", "conditioner_peak_bytes")
COUNTS = tuple(each.name for each in fields(Stats) if each.name not in GAUGES)


def changes(before: Stats, after: Stats) -> dict[str, int]:
    """What has to be told of: by how much a count grew, or a gauge's new value."""
    grown = {name: getattr(after, name) - getattr(before, name) for name in COUNTS}
    held = {name: getattr(after, name) for name in GAUGES if getattr(after, name) != getattr(before, name)}
    return {name: growth for name, growth in grown.items() if growth} | held
