"""Make the embedded world's weights from nothing: render walks, train codec and world, export.

    python model_repository/denoise/training/train.py

Stop it whenever you like and start it again: each stage goes on where it stopped, and a stage that is done is passed
over. Everything but the weights lands in the cache folder: clips, latents, runs with checkpoints, curves and samples.
A GPU is used where torch sees one.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import render_dataset
import torch
import train_codec
import train_decoder
import train_world
from commands import count, device, minutes, run_command, seed
from courtyard.dataset import cache_folder
from export import WEIGHTS, export_weights

HELD_OUT_CLIPS = 32
CODEC_SHARE, DECODER_SHARE = 0.3, 0.1  # of --minutes


def main(arguments: Sequence[str] | None = None) -> int:
    """Run every stage; 0 when the weights are written, 130 when stopped."""
    options = _options(arguments)
    try:
        for name, stage in _stages(options):
            print(f"== {name}", flush=True)
            stage()
    except KeyboardInterrupt:
        print("stopped; all that was trained is kept: the same command goes on from here", file=sys.stderr)
        return 130
    export_weights(options.cache or cache_folder(), options.weights)
    print(f"wrote {options.weights}")
    return 0


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--clips", type=count, default=2672, help="walks to render for training")
    parser.add_argument("--codec-steps", type=count, default=5000)
    parser.add_argument("--decoder-steps", type=count, default=3000)
    parser.add_argument("--world-steps", type=count, default=12000)
    parser.add_argument("--minutes", type=minutes, help="time for all trainings together, instead of steps")
    parser.add_argument("--codec-batch", type=count, default=4)
    parser.add_argument("--world-batch", type=count, default=4)
    parser.add_argument("--seed", type=seed, default=0)
    parser.add_argument("--threads", type=count, default=os.cpu_count() or 2)
    parser.add_argument("--device", type=device, default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument(
        "--compile", action=argparse.BooleanOptionalAction, default=True, help="the transformer's blocks"
    )
    parser.add_argument("--check-every", type=minutes, default=15, help="minutes between evaluations")
    parser.add_argument("--weights", type=Path, default=WEIGHTS, help="where the weights go")
    parser.add_argument("--cache", type=Path, help="default: $WORLDSTREAM_CACHE, else ~/.cache/worldstream/training")
    return parser.parse_args(arguments)


def _stages(options: argparse.Namespace) -> list[tuple[str, Callable[[], None]]]:
    """The stages by name: each is a script of its own, called with arguments."""
    cache = ["--cache", str(options.cache)] if options.cache else []
    render = ["--workers", str(options.threads), "--device", options.device, *cache]
    train = ["--threads", str(options.threads), "--device", options.device, *cache]
    train += ["--seed", str(options.seed), "--check-every", str(options.check_every)]
    codec, world = ["--batch", str(options.codec_batch)], ["--batch", str(options.world_batch)]
    world += ["--compile" if options.compile else "--no-compile", "--clips", str(options.clips)]
    if options.minutes:
        shares = (CODEC_SHARE, DECODER_SHARE, 1 - CODEC_SHARE - DECODER_SHARE)
        budgets = [["--minutes", str(options.minutes * share)] for share in shares]
    else:
        budgets = [["--steps", str(n)] for n in (options.codec_steps, options.decoder_steps, options.world_steps)]
    codec_budget, decoder_budget, world_budget = budgets
    held_out = ["--split", "held_out", "--clips", str(HELD_OUT_CLIPS)]
    return [
        ("1/5 walks to learn from", partial(render_dataset.main, [*render, "--clips", str(options.clips)])),
        ("2/5 walks to measure with", partial(render_dataset.main, [*render, *held_out])),
        ("3/5 the codec", partial(train_codec.main, [*train, *codec, *codec_budget])),
        ("4/5 its decoder, further", partial(train_decoder.main, [*train, *codec, *decoder_budget])),
        ("5/5 the world", partial(train_world.main, [*train, *world, *world_budget])),
    ]


if __name__ == "__main__":
    os.nice(5)  # training is never in a hurry
    run_command(main)
