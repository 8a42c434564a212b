"""What whoever steers must be able to do; the keyboard can, and a script."""

from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True)
class Sample:
    """What was pressed for one chunk."""

    actions: list[str]  # one entry a latent frame
    prompt: str | None = None
    pressed_s: float | None = None  # when the first of these keys went down, by time.monotonic; None where none did


class Hands(Protocol):
    """Somebody who steers."""

    @property
    def has_quit(self) -> bool:
        """Whether they want no more, at once."""

    def sample(self, num_latent_frames: int, due_s: float) -> Sample | None:
        """Wait until `due_s`, by time.monotonic, and tell what was pressed since the last time; None to quit."""
