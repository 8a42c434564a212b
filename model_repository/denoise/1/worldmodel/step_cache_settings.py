"""Which denoising steps of a chunk may be skipped. Values and their checks; knows neither the library nor torch."""

from __future__ import annotations

from dataclasses import dataclass

from worldmodel.errors import InvalidInputError

MOST_STEPS = 1000
MANY_STEPS = 8  # from here on "auto" caches: fewer steps are noised anew after each, and never change little


@dataclass(frozen=True)
class StepCacheSettings:
    """How steps of a chunk are skipped.

    `mode` is "off", "auto" (dynamic from MANY_STEPS steps on, else off), "dynamic", or a mask such as "1011" with a
    digit a step: 1 computes, 0 takes the blocks' last change again.
    """

    mode: str = "auto"
    threshold: float = 0.24  # of the first blocks' relative change; below it, a step is skipped
    warmup_steps: int = 4  # that are always computed
    max_continuous: int = 3  # skipped steps in a row
    taylorseer_order: int = 0  # 0: the last change as it was; 1 or 2: extrapolated
    first_blocks: int = 1  # that are always computed
    last_blocks: int = 0

    def check(self, num_steps: int, num_layers: int) -> None:
        """Refuse what cannot be meant for a chunk of so many steps.

        Raises:
            InvalidInputError: naming the parameter.
        """
        if self.mode not in ("off", "auto", "dynamic"):
            self._check_mask(num_steps)
        if not 0 < self.threshold < 1:
            raise InvalidInputError(f"step_cache_threshold: wanted a number between 0 and 1, got {self.threshold}")
        for name in ("warmup_steps", "max_continuous"):  # the library makes lists of that length
            if getattr(self, name) > MOST_STEPS:
                raise InvalidInputError(f"step_cache_{name}: wanted at most {MOST_STEPS}, got {getattr(self, name)}")
        for name, least in (("warmup_steps", 0), ("max_continuous", 1), ("first_blocks", 1), ("last_blocks", 0)):
            if getattr(self, name) < least:
                raise InvalidInputError(f"step_cache_{name}: wanted {least} or more, got {getattr(self, name)}")
        if self.first_blocks + self.last_blocks > num_layers:
            raise InvalidInputError(
                f"step_cache_first_blocks, step_cache_last_blocks: wanted at most {num_layers} together, "
                f"got {self.first_blocks} and {self.last_blocks}"
            )
        if not 0 <= self.taylorseer_order <= 2:
            raise InvalidInputError(f"step_cache_taylorseer_order: wanted 0 to 2, got {self.taylorseer_order}")

    def _check_mask(self, num_steps: int) -> None:
        if not self.mode or set(self.mode) - {"0", "1"}:
            raise InvalidInputError(
                f"step_cache: wanted off, auto, dynamic or a mask of 0 and 1, got {self.mode[:40]!a}"
            )
        if len(self.mode) != num_steps or self.mode[0] != "1":
            raise InvalidInputError(
                f"step_cache: wanted a mask of {num_steps} digits that begins with 1, got {self.mode[:40]} "
                f"({len(self.mode)} digits)"
            )

    def mask(self) -> list[int] | None:
        """1 or 0 a step where the mode is a mask."""
        return [int(digit) for digit in self.mode] if set(self.mode) <= {"0", "1"} and self.mode else None

    def is_on(self, num_steps: int) -> bool:
        """Whether a chunk of so many steps is cached at all.

        A mask says nothing of chunks that have another number of steps: the server's own meets them where a request
        asks for steps and for no step cache.
        """
        if self.mask():
            return len(self.mode) == num_steps
        return self.mode == "dynamic" or (self.mode == "auto" and num_steps >= MANY_STEPS)
