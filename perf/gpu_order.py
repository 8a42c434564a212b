"""Which sections gpu_check.py runs, in the order of their worth: what comes last is lost where time runs out."""

from __future__ import annotations

import dataclasses
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from common import ROOT
from gpu_files import PUBLISHED_1_3B, PUBLISHED_LINGBOT, PUBLISHED_TINY, Checkpoint, Published, write_checkpoint
from gpu_lab import LINGBOT, TINY, WAN_1_3B, Budget, Lab, NotHereError, Section
from gpu_published import as_in_memory, served_with
from gpu_sections import (
    FEW_STEPS,
    FEW_STEPS_ARMS,
    MANY_STEPS,
    MANY_STEPS_ARMS,
    compiled_or_not,
    conditioner,
    equality,
    first_request,
    overlap,
    stages,
    step_cache,
)
from gpu_text import text_encoder
from gpu_worlds import random_world, world_bytes

# isort: split
import torch
from worldmodel.config import EMBEDDED, WorldConfig
from worldmodel.world import World

MARGIN = 1.25  # on what a world is counted to take: activations
FURTHER: Mapping[str, Callable[[Lab, WorldConfig, Budget], dict[str, Any]]] = {
    "step cache": partial(step_cache, MANY_STEPS_ARMS, MANY_STEPS),
    "step cache, few steps": partial(step_cache, FEW_STEPS_ARMS, FEW_STEPS),
    "compiled": compiled_or_not,
    "first request": first_request,
}


def sections_of(lab: Lab) -> list[Section]:
    """All of them; seconds are the most that one may take, most take less."""
    if lab.is_tiny:
        return [
            *general_sections(lab, TINY),
            *sized_sections(lab, TINY, (3, 6), (12, 12, 18)),
            *published_sections(lab, PUBLISHED_TINY, {"files": 30, "as in memory": 30, "Wan VAE": 30, "TAEHV": 30}),
            Section("text encoder", 30, partial(text_encoder, lab)),
            *(further_section(lab, TINY, what, 20) for what in FURTHER),
        ]
    small = {"files": 40, "as in memory": 40, "Wan VAE": 120, "TAEHV": 70}
    large = published_sections(lab, PUBLISHED_LINGBOT, {"files": 80, "Wan VAE": 180}, least_s=200)
    *others, conditioned = sized_sections(lab, LINGBOT, (18,), (35, 40, 50))
    return [
        *general_sections(lab, EMBEDDED),
        *sized_sections(lab, EMBEDDED, (3, 18, 45), (8, 8, 12)),
        *sized_sections(lab, WAN_1_3B, (3, 18, 45), (12, 12, 20)),
        *published_sections(lab, PUBLISHED_1_3B, small),
        further_section(lab, WAN_1_3B, "step cache", 25),
        Section("text encoder", 25, partial(text_encoder, lab)),
        *large,
        *(dataclasses.replace(section, unless=large[-1].name) for section in others),
        conditioned,
        further_section(lab, LINGBOT, "step cache, few steps", 35),
        dataclasses.replace(further_section(lab, LINGBOT, "first request", 130), unless=large[-1].name),
        further_section(lab, EMBEDDED, "first request", 40),
        further_section(lab, WAN_1_3B, "compiled", 60),
        further_section(lab, EMBEDDED, "compiled", 80),
        further_section(lab, EMBEDDED, "step cache", 12),
    ]


def general_sections(lab: Lab, config: WorldConfig) -> list[Section]:
    """What this machine is, and whether it computes what it should."""
    return [
        Section("environment", 5, partial(environment, lab)),
        Section("tests", 100, partial(gpu_tests, lab)),
        Section("equality", 30, partial(equality, lab, config)),
    ]


def sized_sections(
    lab: Lab, config: WorldConfig, windows: Sequence[int], seconds: tuple[float, float, float]
) -> list[Section]:
    """Those that one world serves; it is gone before the next one is made."""
    kept: dict[str, World] = {}

    def with_world(what: str, budget: Budget) -> dict[str, Any]:
        try:
            if not kept:
                check_memory(lab, config)
                kept["world"] = random_world(config, lab)
            return measures[what](lab, kept["world"], budget)
        finally:
            if what == list(measures)[-1]:
                kept.clear()
                lab.forget()

    measures: dict[str, Callable[[Lab, World, Budget], dict[str, Any]]] = {
        "stages": stages,
        "overlap": overlap,
        "conditioner": partial(conditioner, windows),
    }
    return [
        Section(f"{config.name}: {what}", most_s, partial(with_world, what))
        for what, most_s in zip(measures, seconds, strict=True)
    ]


def published_sections(lab: Lab, size: Published, seconds: Mapping[str, float], least_s: float = 1.0) -> list[Section]:
    """Those that one checkpoint serves, by their names and most seconds; its folder is gone after the last of them."""
    folder = lab.scratch / re.sub(r"\W+", "-", size.name)
    kept: dict[str, Checkpoint] = {}
    measures: dict[str, Callable[[Lab, Checkpoint, Budget], dict[str, Any]]] = {
        "as in memory": as_in_memory,
        "Wan VAE": partial(served_with, "wan"),
        "TAEHV": partial(served_with, "taehv"),
    }

    def write(budget: Budget) -> dict[str, Any]:
        check_memory(lab, size.config)
        folder.mkdir()
        try:
            kept["checkpoint"], found = write_checkpoint(lab, size, folder, budget)
        except BaseException:
            shutil.rmtree(folder)
            raise
        return found

    def with_checkpoint(what: str, budget: Budget) -> dict[str, Any]:
        try:
            if not kept:
                raise NotHereError("its files were not written")
            return measures[what](lab, kept["checkpoint"], budget)
        finally:
            if kept and what == list(seconds)[-1]:
                kept.clear()
                shutil.rmtree(folder)

    first, *others = seconds
    return [
        Section(f"{size.name}: {first}", seconds[first], write, least_s),
        *(Section(f"{size.name}: {what}", seconds[what], partial(with_checkpoint, what)) for what in others),
    ]


def further_section(lab: Lab, config: WorldConfig, what: str, seconds: float) -> Section:
    """One that makes its own worlds."""

    def alone(budget: Budget) -> dict[str, Any]:
        check_memory(lab, config)
        return FURTHER[what](lab, config, budget)

    return Section(f"{config.name}: {what}", seconds, alone)


def check_memory(lab: Lab, config: WorldConfig) -> None:
    """Give up what this device has no memory for; nothing is kept of what ran before.

    Raises:
        NotHereError: with the numbers.
    """
    lab.forget()
    needed, free = MARGIN * world_bytes(config, lab.dtype), lab.free_bytes()
    if needed > free:
        raise NotHereError(f"{config.name} takes about {needed / 2**30:.0f} GiB, {free / 2**30:.0f} GiB are free")


def environment(lab: Lab, budget: Budget) -> dict[str, Any]:
    """The device, and the disk for checkpoints."""
    found: dict[str, Any] = {"device": str(lab.device), "dtype": str(lab.dtype).removeprefix("torch.")}
    found["disk_free_gb"] = round(shutil.disk_usage(lab.scratch).free / 1e9, 1)
    if lab.is_gpu:
        facts = torch.cuda.get_device_properties(lab.device)
        found |= {
            "name": facts.name,
            "memory_gib": round(facts.total_memory / 2**30, 1),
            "free_gib": round(lab.free_bytes() / 2**30, 1),
            "capability": f"{facts.major}.{facts.minor}",
            "cuda": torch.version.cuda,
            "cudnn": torch.backends.cudnn.version(),
        }
    return found


def gpu_tests(lab: Lab, budget: Budget) -> dict[str, Any]:
    """What `pytest -m gpu` says, in a process of its own."""
    if not lab.is_gpu:
        raise NotHereError("there is no GPU")
    command = [sys.executable, "-m", "pytest", "-m", "gpu", "-q", "-p", "no:cacheprovider", "tests/unit"]
    done = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, timeout=max(1, budget.left_s() - 2), check=False
    )
    lines = done.stdout.strip().splitlines()
    return {"exit_code": done.returncode, "says": lines[-1:], "failures": [x for x in lines if x.startswith("FAILED")]}
