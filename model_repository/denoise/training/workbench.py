"""What every training script here needs: a run's folder with checkpoints, a log, a loss curve and sample sheets.

A run is resumed from its last whole checkpoint. Budgets are minutes of training time or a number of steps, counted
over all of a run's resumptions; the learning rate, and what is trained when, follow the share of the budget that is
spent. A step draws from (seed, step) alone: a run of so many steps that was broken and resumed over the same walks ends
with the same weights as one that was not.
"""

import fcntl
import hashlib
import json
import math
import signal
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any, Protocol

import numpy as np
import torch
from commands import RefusedError
from courtyard.files import write_whole
from numpy.typing import NDArray
from PIL import Image, ImageDraw
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from torch import Tensor, nn

SAVE_EVERY_S = 180.0


def file_sha256(path: Path) -> str:
    """64 hexadecimal digits."""
    return hashlib.sha256(path.read_bytes()).hexdigest()


class Run:
    """One training run's folder: <cache>/runs/<name>."""

    def __init__(self, cache: Path, name: str, settings: dict[str, Any]) -> None:
        self.folder = cache / "runs" / name
        self.folder.mkdir(parents=True, exist_ok=True)
        self.settings = dict(settings)
        self.step = 0
        self.trained_s = 0.0
        self.saved_s = 0.0  # of training time, at the last checkpoint

    @property
    def checkpoint_path(self) -> Path:
        return self.folder / "checkpoint.pt"

    def load(self) -> dict[str, Any] | None:
        """The last checkpoint's state, with step and time taken over from it; None for a new run."""
        if not self.checkpoint_path.exists():
            return None
        try:
            state: dict[str, Any] = torch.load(self.checkpoint_path, map_location="cpu", weights_only=True)
            self.step, self.trained_s = state["step"], state["trained_s"]
        except Exception as error:  # of many classes, as the damage is
            raise RefusedError(
                f"{self.checkpoint_path}: cannot be read as a checkpoint, it is damaged or none; "
                "put it away to begin this run anew"
            ) from error
        self.saved_s = self.trained_s
        return state

    def save(self, **state: Any) -> None:
        """Replace the checkpoint; a broken write leaves the old one.

        Its settings are written with it: those of a call that was refused, or had nothing to do, made nothing.
        """
        settings = json.dumps(self.settings, indent=2, default=str) + "\n"
        write_whole(self.folder / "settings.json", lambda unfinished: unfinished.write_text(settings))
        whole = {**state, "step": self.step, "trained_s": self.trained_s}
        write_whole(self.checkpoint_path, lambda unfinished: torch.save(whole, unfinished))
        self.saved_s = self.trained_s

    def is_exported(self, path: Path) -> bool:
        """Whether what is shipped there was made of the last checkpoint: a run may be broken off between the two."""
        return path.exists() and path.stat().st_mtime_ns >= self.checkpoint_path.stat().st_mtime_ns

    @contextmanager
    def held(self) -> Iterator[None]:
        """Keep other processes from training the same run: each would write over what the other has learnt.

        Raises:
            RefusedError: another process holds it.
        """
        with (self.folder / "lock").open("a") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                raise RefusedError(
                    f"run {self.folder.name}: another process trains it; --name begins another"
                ) from error
            except OSError:
                pass  # a file system without locks
            yield

    @contextmanager
    def resuming(self) -> Iterator[None]:
        """Refuse a checkpoint whose state does not fit what it is loaded into."""
        try:
            yield
        except (KeyError, RuntimeError, ValueError) as error:
            raise RefusedError(
                f"run {self.folder.name}: its checkpoint is of another model or optimizer than this one; "
                "go on with the options and the code that it began with, or begin another --name"
            ) from error

    @property
    def is_save_due(self) -> bool:
        """Whether SAVE_EVERY_S of training would be lost by a crash now."""
        return self.trained_s - self.saved_s > SAVE_EVERY_S

    def log(self, **values: float) -> None:
        """Append a line to log.jsonl."""
        line = {"step": self.step, "trained_min": round(self.trained_s / 60, 2), **values}
        with (self.folder / "log.jsonl").open("a") as file:
            file.write(json.dumps({k: round(v, 5) if isinstance(v, float) else v for k, v in line.items()}) + "\n")

    def history(self, key: str) -> list[tuple[int, float]]:
        """(step, value) of every log line that has the key. Lines of steps that a resumed run repeats are dropped."""
        points: dict[int, float] = {}
        for values in read_log(self.folder):
            if key in values:
                points = {step: value for step, value in points.items() if step < values["step"]}
                points[values["step"]] = values[key]
        return sorted(points.items())


def read_log(folder: Path) -> list[dict[str, Any]]:
    """The lines of a run's log. What a full disk left of a line, and what was joined to it, is passed over."""
    path = folder / "log.jsonl"
    lines = []
    for line in path.read_text(encoding="utf-8", errors="replace").splitlines() if path.exists() else []:
        try:
            values = json.loads(line)
        except ValueError:
            continue
        if isinstance(values, dict) and "step" in values:
            lines.append(values)
    return lines


class Budget:
    """How far a run is: minutes of training time, or steps if given."""

    def __init__(self, minutes: float, steps: int | None) -> None:
        self.minutes, self.steps = minutes, steps

    def spent(self, run: Run) -> float:
        """0 at the start, 1 or more when the budget is used up."""
        return run.step / self.steps if self.steps else run.trained_s / 60 / self.minutes


def steps_of(run: Run, budget: Budget, step: Callable[[float], float]) -> Iterator[tuple[float, float]]:
    """Take steps until the budget is spent, counting them and their time.

    Args:
        step: is told the share of the budget that is spent, and returns its loss.

    Yields:
        That share and the loss, after each step: the run may be saved then.
    """
    while (spent := budget.spent(run)) < 1:
        began = time.monotonic()
        loss = step(spent)
        run.step += 1
        run.trained_s += time.monotonic() - began
        yield spent, loss


class StopWish:
    """Whether somebody has asked the training to stop."""

    is_made = False


@contextmanager
def polite_stop() -> Iterator[StopWish]:
    """Take the first SIGINT or SIGTERM as a wish to stop after the running step; a second one stops at once."""
    wish, signals = StopWish(), (signal.SIGINT, signal.SIGTERM)

    def note(number: int, frame: FrameType | None) -> None:
        if wish.is_made:
            raise KeyboardInterrupt
        wish.is_made = True

    before = [signal.signal(each, note) for each in signals]
    try:
        yield wish
    finally:
        for each, handler in zip(signals, before, strict=True):
            signal.signal(each, handler)


class Trainer(Protocol):
    """What a training loop calls."""

    def step(self, spent: float) -> float:
        """Train on one batch; the loss."""

    def save(self) -> None:
        """Replace the checkpoint."""

    def check(self) -> None:
        """Save, measure, draw."""


def train_run(name: str, run: Run, budget: Budget, trainer: Trainer, check_every_s: float) -> None:
    """Step until the budget is spent, with a bar, a log line every 25 steps, and a check every now and then.

    Raises:
        KeyboardInterrupt: after a SIGINT or SIGTERM; all that was trained is saved.
        RefusedError: another process trains this run; or it has diverged, and its last checkpoint is from before that.
    """
    with run.held():
        _train_on(name, run, budget, trainer, check_every_s)
        trainer.check()


def _train_on(name: str, run: Run, budget: Budget, trainer: Trainer, check_every_s: float) -> None:
    checked_s, losses = run.trained_s, []
    columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    with polite_stop() as stop, Progress(*columns, refresh_per_second=0.2) as progress:
        task = progress.add_task(name, total=1.0)
        for spent, loss in steps_of(run, budget, trainer.step):
            if not math.isfinite(loss):
                raise RefusedError(
                    f"--rate: at step {run.step} the loss is {loss}; a smaller rate goes on from before it"
                )
            losses.append(loss)
            if len(losses) == 25:
                mean = float(np.mean(losses))
                run.log(loss=mean)
                progress.update(task, completed=spent, description=f"step {run.step} loss {mean:.4f}")
                losses = []
            if run.trained_s - checked_s > check_every_s:
                checked_s = run.trained_s
                trainer.check()
            if run.is_save_due or stop.is_made:
                trainer.save()
            if stop.is_made:
                raise KeyboardInterrupt


def cosine_rate(spent: float, step: int, warm_up_steps: int = 200, floor: float = 0.02) -> float:
    """A share of the peak learning rate that rises over warm_up_steps and then falls along a cosine to `floor`."""
    fall = floor + (1 - floor) * (0.5 + 0.5 * math.cos(math.pi * min(1.0, spent)))
    return fall * min(1.0, (step + 1) / warm_up_steps)


class Optimizers:
    """Several optimisers, each with parameters and a peak rate of its own, that step together."""

    def __init__(self, *each: torch.optim.Optimizer) -> None:
        """Take them; the rate of each parameter group as it is now is its peak."""
        self.each = each
        self._peaks = [[group["lr"] for group in optimizer.param_groups] for optimizer in each]

    def step(self, loss: Tensor, parameters: Iterable[nn.Parameter], rate_share: float) -> None:
        """Follow the loss's gradient, clipped to a norm of 1.

        Args:
            rate_share: of its peak that every rate has in this step.
        """
        for optimizer, peaks in zip(self.each, self._peaks, strict=True):
            optimizer.zero_grad(set_to_none=True)
            for group, peak in zip(optimizer.param_groups, peaks, strict=True):
                group["lr"] = peak * rate_share
        loss.backward()
        nn.utils.clip_grad_norm_(parameters, 1.0)
        for optimizer in self.each:
            optimizer.step()

    def state(self) -> list[dict[str, Any]]:
        """What `load` takes."""
        return [optimizer.state_dict() for optimizer in self.each]

    def load(self, state: list[dict[str, Any]]) -> None:
        """Go on from a saved state."""
        for optimizer, own in zip(self.each, state, strict=True):
            optimizer.load_state_dict(own)


class MovingAverage:
    """An exponential average of a module's parameters, which is what gets evaluated and shipped."""

    def __init__(self, module: nn.Module, decay: float) -> None:
        self.decay = decay
        self.values = {name: value.detach().clone() for name, value in module.state_dict().items()}

    def update(self, module: nn.Module, step: int) -> None:
        """Follow the module; faster in the first steps, so that its random start is soon forgotten."""
        decay = min(self.decay, (step + 1) / (step + 10))
        with torch.no_grad():
            for name, value in module.state_dict().items():
                self.values[name].lerp_(value.to(self.values[name].dtype), 1 - decay)


def step_generator(seed: int, step: int) -> np.random.Generator:
    """What a step draws its data from; also seeds torch for the step."""
    torch.manual_seed((seed * 1_000_003 + step) % 2**63)
    return np.random.default_rng([2, seed, step])


def to_model(frames: NDArray[np.uint8]) -> Tensor:
    """[..., H, W, 3] uint8 -> [..., 3, H, W] in [-1, 1]."""
    return torch.from_numpy(np.array(frames)).movedim(-1, -3).float() / 127.5 - 1


def psnr_db(picture: Tensor, truth: Tensor) -> Tensor:
    """Peak signal to noise of [B, ...] in [0, 1], one number for each of B."""
    error = (picture - truth).square().flatten(1).mean(1)
    return -10 * torch.log10(error.clamp(min=1e-10))


def save_sheet(path: Path, rows: Sequence[NDArray[np.uint8]]) -> None:
    """Rows of pictures, each [n, H, W, 3], as one PNG."""
    Image.fromarray(np.concatenate([np.concatenate(list(row), axis=1) for row in rows])).save(path)


def save_curve(path: Path, curves: dict[str, list[tuple[int, float]]], size_px: tuple[int, int] = (900, 260)) -> None:
    """Each curve, [(step, value)], in a panel of its own, with its range and last value written beside it."""
    width, height = size_px
    image = Image.new("RGB", (width, height * len(curves)), "white")
    draw = ImageDraw.Draw(image)
    for panel, (name, points) in enumerate(curves.items()):
        top = panel * height
        draw.rectangle((60, top + 24, width - 12, top + height - 22), outline=(190, 190, 190))
        if len(points) < 2:
            continue
        steps, values = (np.array(column, dtype=float) for column in zip(*points, strict=True))
        low, high = float(values.min()), float(np.percentile(values, 99.5))
        x = 60 + (width - 72) * (steps - steps[0]) / max(1.0, steps[-1] - steps[0])
        y = top + 24 + (height - 46) * (1 - (values.clip(low, high) - low) / max(1e-9, high - low))
        draw.line(list(zip(x.tolist(), y.tolist(), strict=True)), fill=(30, 90, 200), width=2)
        draw.text((64, top + 8), f"{name}: last {values[-1]:.4g}", fill="black")
        draw.text((4, top + 20), f"{high:.4g}", fill="black")
        draw.text((4, top + height - 30), f"{low:.4g}", fill="black")
        draw.text((width - 90, top + height - 16), f"step {int(steps[-1])}", fill="black")
    image.save(path)
