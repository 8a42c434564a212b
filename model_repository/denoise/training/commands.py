"""What the command lines here share: values that are checked where they are read, and refusals of one line."""

import argparse
import math
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import NoReturn

import torch
from courtyard.dataset import ClipStore


class RefusedError(Exception):
    """What was asked for cannot be done; says what was wanted and what came."""


def run_command(main: Callable[[], int | None], *refusals: type[Exception]) -> NoReturn:
    """End the program with what `main` returns; where it refuses, with one line and 1; where it is stopped, with 130.

    A SIGTERM stops it as Ctrl-C does.

    Args:
        refusals: errors whose own words say what to change. RefusedError and the system's (no such file, no
            permission) are among them always; everything else is a bug and keeps its traceback.
    """
    expected: tuple[type[Exception], ...] = (RefusedError, OSError, *refusals)
    try:
        with _stopped_by_sigterm():
            sys.exit(main())
    except expected as error:
        sys.exit(f"error: {error}")
    except KeyboardInterrupt:
        print("stopped", file=sys.stderr)
        sys.exit(130)


@contextmanager
def _stopped_by_sigterm() -> Iterator[None]:
    """Let a SIGTERM clean up as Ctrl-C does: by itself it would leave workers and half-written files behind."""

    def stop(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def require_walks(*stores: ClipStore) -> None:
    """Refuse to begin a training that has nothing to learn from, or would find later that it cannot be measured."""
    for store in stores:
        if not len(store):
            raise RefusedError(f"--cache: no {store.spec.name} walks there; render_dataset.py makes them")


def count(text: str) -> int:
    """A whole number from 1 on, for argparse."""
    return _whole_number(text, 1)


def seed(text: str) -> int:
    """A whole number from 0 on, for argparse."""
    return _whole_number(text, 0)


def _whole_number(text: str, least: int) -> int:
    try:
        value = int(text)
    except ValueError:
        value = least - 1
    if value < least:
        raise argparse.ArgumentTypeError(f"wanted a whole number, {least} or more, got {text!r}")
    return value


def minutes(text: str) -> float:
    """A time that is not nothing, for argparse."""
    return _positive(text, "a number of minutes")


def rate(text: str) -> float:
    """A learning rate, for argparse."""
    return _positive(text, "a number")


def _positive(text: str, what: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < math.inf:
        raise argparse.ArgumentTypeError(f"wanted {what}, more than 0, got {text!r}")
    return value


def run_name(text: str) -> str:
    """The name of a folder in <cache>/runs, for argparse."""
    if text in ("", ".", "..") or Path(text).name != text:
        raise argparse.ArgumentTypeError(f"wanted the name of a run, a folder in <cache>/runs, got {text!r}")
    return text


def device(text: str) -> str:
    """A device that torch can use here, for argparse."""
    try:
        torch.empty(0, device=text).cpu()  # from "meta" nothing comes back
    except (RuntimeError, AssertionError) as error:
        raise argparse.ArgumentTypeError(f"wanted a device that torch has here, such as cpu, got {text!r}") from error
    return text
