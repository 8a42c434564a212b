"""Measure how well a world follows the camera, against the renderer's truth. Prints a table; the last line is JSON.

    python model_repository/denoise/training/evaluate.py

Measures the shipped weights unless --weights names others or --seeded asks for what no training gives. Held-out walks,
places, looks and seeds are always the same. Contact sheets go to --sheets. Quick: --clips 1 --chunks 2.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from commands import RefusedError, count, device, run_command
from courtyard.dataset import CLIPS_PER_SHARD, VARIANT_NAMES, ClipStore, DatasetSpec, cache_folder, write_shard
from rich.console import Console
from rich.progress import track
from workbench import save_sheet

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "1"))
import measures
from export import EVALUATION, FACTS, WEIGHTS, sha256_of, write_card
from measures import LOOK_PAIRS, MOVES, Row, Walked
from worldmodel.checkpoint_files import CheckpointError
from worldmodel.config import EMBEDDED
from worldmodel.loading import Instance, load_world
from worldmodel.serving import ServingConfig
from worldmodel.world import World

ROOT = Path(__file__).resolve().parents[3]
Results = dict[str, Any]
Item = TypeVar("Item")

CHUNK_BARS_DB = {1: 25.0, 2: 22.0, 3: 20.0, 4: 19.0, 8: 17.0}
FLOOR_DB = {1: 22.2, 2: 18.9, 3: 17.5, 4: 16.9}  # of the feasibility run
MARGIN_BAR_DB = 3.0
STILL_BAR_DB = 14.0
SHEET_CLIPS = 8
CHUNKS_OF_A_WALK = DatasetSpec("held_out", 0).num_latent_frames // EMBEDDED.chunk_latent_frames


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure and report."""
    options = _options(arguments)
    torch.set_num_threads(options.threads)
    options.sheets.mkdir(parents=True, exist_ok=True)  # refused now rather than when all has been measured
    origin = origin_of(options.weights)
    world = load(options)
    clips = held_out_clips(options.cache or cache_folder(), options.clips)
    results: Results = {"weights": options.weights.name if options.weights else "seeded", "clips": options.clips}
    results["window_latent_frames"] = world.config.window_latent_frames
    sheets: dict[str, list[Row]] = {}
    measure_walks(world, clips, options, results, sheets)
    measure_motions(world, options, results, sheets)
    measure_standing(world, options, results, sheets)
    measure_prompts(world, options, results, sheets)
    document = report(world, results, wanted(results), origin)
    print(json.dumps(document), flush=True)  # before files: what was measured is told, whatever becomes of these
    for name, rows in sheets.items():
        save_sheet(options.sheets / f"{name}.png", rows)
    if options.keep:
        (options.weights / EVALUATION).write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")
        write_card(options.weights)


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--weights", type=Path, help="a folder as `make train` writes it; default: the shipped ones")
    parser.add_argument("--seeded", action="store_true", help="measure untrained weights, drawn from a seed")
    parser.add_argument(
        "--keep", action="store_true", help=f"write {EVALUATION} beside the weights, and their card anew"
    )
    parser.add_argument("--clips", type=count, default=32, help="walks and places to measure")
    parser.add_argument("--chunks", type=count, default=8, help="chunks of a walk; standing still takes twice as many")
    parser.add_argument("--window", type=count, help="latent frames of the causal window; default: the configuration's")
    parser.add_argument("--threads", type=count, default=os.cpu_count() or 2)
    parser.add_argument("--device", type=device, default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--sheets", type=Path, default=ROOT / "demo" / "evaluation", help="folder of contact sheets")
    parser.add_argument("--cache", type=Path, help="default: $WORLDSTREAM_CACHE, else ~/.cache/worldstream/training")
    options = parser.parse_args(arguments)
    if options.chunks > CHUNKS_OF_A_WALK:
        parser.error(f"--chunks: a walk has {CHUNKS_OF_A_WALK}, got {options.chunks}")
    if options.seeded and options.weights:
        parser.error("--seeded: wanted without --weights, got both")
    if options.seeded and options.keep:
        parser.error("--keep: wanted weights of a folder, beside which it writes, got --seeded")
    if not options.seeded:
        options.weights = options.weights or WEIGHTS
    if options.keep and options.window:
        parser.error("--keep: wanted the window that is served, got --window")
    if options.keep and not (options.weights / FACTS).is_file():
        parser.error(f"--keep: wanted weights with their {FACTS}, of which their card is made")
    return options


def origin_of(weights: Path | None) -> dict[str, Any]:
    """What is measured, told before it is: in half an hour both may be others."""
    return {"commit": _commit(), "weights_sha256": sha256_of(weights) if weights else None}


def load(options: argparse.Namespace) -> World:
    """The world as the server loads it."""
    config = EMBEDDED.replace(vocabulary=VARIANT_NAMES)
    if options.window:
        try:
            config = config.replace(window_latent_frames=options.window)
        except ValueError as error:
            raise RefusedError(f"--window: {error}") from error
    checkpoint = str(options.weights.resolve()) if options.weights else ""
    serving = ServingConfig(checkpoint=checkpoint, device=options.device)
    try:
        return load_world(config, serving, ROOT, Instance("MODEL", 0))
    except CheckpointError as error:
        raise RefusedError(f"--weights: {error}") from error


def held_out_clips(cache: Path, count: int) -> ClipStore:
    """Walks that no training has seen; rendered if they are not there yet."""
    spec = DatasetSpec("held_out", seed=0)
    for shard in track(range(-(-count // CLIPS_PER_SHARD)), "rendering", console=Console(stderr=True)):
        write_shard(cache, spec, shard)
    return ClipStore(cache, spec)


def measure_walks(
    world: World, clips: ClipStore, options: argparse.Namespace, results: Results, sheets: dict[str, list[Row]]
) -> None:
    """PSNR of each chunk beside its controls, and of the codec alone."""
    indices = range(options.clips)
    walks = [measures.walk(world, clips, index, options.chunks) for index in _tracked(indices, "walks")]
    codec = [measures.codec_db(world, clips, index) for index in _tracked(indices, "codec")]
    results["codec_db"], results["codec_worst_db"] = _rounded(np.mean(codec)), _rounded(np.min(codec))
    for name in ("model_db", "still_db", "mirrored_db"):
        results[name] = [_rounded(value) for value in np.mean([getattr(each, name) for each in walks], 0)]
    results["margin_over_still_db"] = _margins(walks, "still_db")
    results["margin_over_mirrored_db"] = _margins(walks, "mirrored_db")
    sheets["walks"] = [row for each in walks[:SHEET_CLIPS] for row in each.rows[:2]]
    sheets["mirrored"] = [row for each in walks[:SHEET_CLIPS] for row in each.rows]


def _margins(walks: list[Walked], control: str) -> list[float | None]:
    """For each chunk, how much nearer the model is: mean over the walks that have moved by then, each apart."""
    margins: list[float | None] = []
    for chunk in range(len(walks[0].model_db)):
        moved = [each for each in walks if each.has_moved[chunk]]
        if control == "mirrored_db":
            moved = [each for each in moved if each.is_mirrored_apart[chunk]]
        apart = [each.model_db[chunk] - getattr(each, control)[chunk] for each in moved]
        margins.append(_rounded(np.mean(apart)) if apart else None)
    return margins


def measure_motions(world: World, options: argparse.Namespace, results: Results, sheets: dict[str, list[Row]]) -> None:
    """One-chunk tests: is the way that was asked for the way that is seen?"""
    told: dict[str, list[tuple[bool, bool]]] = {name: [] for name in MOVES}
    rows: list[Row] = []
    for number, start in enumerate(_tracked(measures.sample_open_starts(options.clips), "motions")):
        seen, pictures = measures.motion_test(world, start, VARIANT_NAMES[number % len(VARIANT_NAMES)], number)
        rows += pictures if number < SHEET_CLIPS else []
        for name, pair in seen.items():
            told[name].append(pair)
    for kind, names in (("turn", ("left", "right")), ("walk", ("forward", "back"))):
        pairs = [pair for name in names for pair in told[name]]
        model, truth = np.mean(pairs, 0)
        results[f"{kind}s_recognised"], results[f"{kind}s_recognised_in_truth"] = _rounded(model), _rounded(truth)
    results["recognised"] = {name: _rounded(np.mean([model for model, _ in pairs])) for name, pairs in told.items()}
    sheets["motions"] = rows


def measure_standing(world: World, options: argparse.Namespace, results: Results, sheets: dict[str, list[Row]]) -> None:
    """Does the colour stay while nothing moves?"""
    drifts, sheets["standing"] = [], []
    starts = measures.sample_open_starts(min(8, options.clips), seed=1)
    for number, start in enumerate(_tracked(starts, "standing")):
        look = VARIANT_NAMES[number % len(VARIANT_NAMES)]
        drift, rows = measures.standing_drift(world, start, look, 2 * options.chunks, number)
        drifts.append(drift)
        sheets["standing"] += rows
    results["standing_chunks"] = 2 * options.chunks
    results["drift_worst"], results["drift_mean"] = _rounded(max(drifts)), _rounded(np.mean(drifts))


def measure_prompts(world: World, options: argparse.Namespace, results: Results, sheets: dict[str, list[Row]]) -> None:
    """Does a new prompt change the light to what it names?"""
    told, shares, sheets["prompts"] = [], [], []
    pairs = LOOK_PAIRS[: min(len(LOOK_PAIRS), options.clips)]
    starts = measures.sample_open_starts(len(pairs), seed=2)
    for number, (start, looks) in enumerate(_tracked(list(zip(starts, pairs, strict=True)), "prompts")):
        is_named, share, rows = measures.prompt_switch(world, start, looks, number)
        told.append(is_named)
        shares.append(share)
        sheets["prompts"] += rows
    results["prompt_switches_recognised"] = _rounded(np.mean(told))
    results["prompt_switch_share"] = _rounded(np.mean(shares))


def wanted(results: Results) -> list[dict[str, Any]]:
    """Every bar that could be measured: at least (or at most) so much."""
    bars: list[dict[str, Any]] = []

    def at_least(what: str, value: float, bar: float) -> None:
        bars.append({"what": what, "value": value, "sense": "at least", "bar": bar, "holds": value >= bar})

    def at_most(what: str, value: float, bar: float) -> None:
        bars.append({"what": what, "value": value, "sense": "at most", "bar": bar, "holds": value <= bar})

    at_least("codec, dB", results["codec_db"], 30.0)
    chunks = results["model_db"]
    for number, bar in CHUNK_BARS_DB.items():
        if number <= len(chunks):
            at_least(f"chunk {number}, dB", chunks[number - 1], bar)
    for number, bar in FLOOR_DB.items():
        if number <= len(chunks):
            at_least(f"chunk {number} beats the feasibility run, dB", chunks[number - 1], bar)
    for control, name in (("still", "the first frame repeated"), ("mirrored", "the mirrored path")):
        margins = [value for value in results[f"margin_over_{control}_db"] if value is not None]
        if margins:
            at_least(f"least margin over {name}, dB", min(margins), MARGIN_BAR_DB)
    if len(chunks) > 2:
        at_most("the first frame repeated, chunks 3 and on, dB", max(results["still_db"][2:]), STILL_BAR_DB)
    at_least("turns recognised", results["turns_recognised"], 0.95)
    at_least("walks recognised", results["walks_recognised"], 0.90)
    for kind in ("turns", "walks"):
        at_least(f"{kind} recognised in rendered frames", results[f"{kind}_recognised_in_truth"], 1.0)
    at_most(f"drift over {results['standing_chunks']} chunks of standing still", results["drift_worst"], 8.0)
    at_least("prompt switches recognised", results["prompt_switches_recognised"], 0.9)
    return bars


def report(world: World, results: Results, bars: list[dict[str, Any]], origin: dict[str, Any]) -> dict[str, Any]:
    """Print a table for people; return the same for programs."""
    for name, value in results.items():
        print(f"{name:32} {value}")
    print()
    for bar in bars:
        verdict = "holds" if bar["holds"] else "FAILS"
        print(f"{verdict:6} {bar['what']:56} {bar['value']:8} (bar {bar['bar']})")
    machine = {"device": str(world.device), "cpus": os.cpu_count(), "torch": torch.__version__}
    machine["python"] = platform.python_version()
    return {"bench": "world_quality", "machine": machine, **origin, "results": results, "wanted": bars}


def _commit() -> str:
    """The commit's hash, with "-dirty" behind it if tracked files differ from it; "" where git cannot tell."""
    command = ["git", "describe", "--always", "--abbrev=40", "--exclude=*", "--dirty"]
    try:
        return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False).stdout.strip()
    except OSError:  # there is no git
        return ""


def _tracked(items: Sequence[Item], what: str) -> Iterable[Item]:
    return track(items, what, console=Console(stderr=True))


def _rounded(value: float | np.floating[Any]) -> float:
    return round(float(value), 3)


if __name__ == "__main__":
    run_command(main)
