"""Render walks through the courtyard world into the cache folder. Goes on where a broken run stopped.

python model_repository/denoise/training/render_dataset.py --clips 512 --workers 2
"""

import argparse
import multiprocessing
import signal
from collections.abc import Sequence
from pathlib import Path

import torch
from commands import count, device, run_command, seed
from courtyard.dataset import CLIPS_PER_SHARD, SPLITS, DatasetSpec, cache_folder, shard_path, write_shard
from rich.progress import track


def main(arguments: Sequence[str] | None = None) -> None:
    """Render what is missing."""
    options = _options(arguments)
    spec = DatasetSpec(options.split, options.seed, options.latent_frames, options.height, options.width)
    folder = options.cache or cache_folder()
    shards = range(-(-options.clips // CLIPS_PER_SHARD))
    missing = [shard for shard in shards if not shard_path(folder, spec, shard).exists()]
    print(f"{spec.name}: {len(shards)} shards of {CLIPS_PER_SHARD} clips, {len(missing)} to render")
    if options.device != "cpu":
        for shard in track(missing, "rendering"):
            write_shard(folder, spec, shard, options.device)
        return
    jobs = [(folder, spec, shard) for shard in missing]
    with multiprocessing.get_context("spawn").Pool(options.workers, _one_thread) as pool:
        for _ in track(pool.imap_unordered(_write, jobs), "rendering", total=len(jobs)):
            pass


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--clips", type=count, default=512)
    parser.add_argument("--split", choices=SPLITS, default="train")
    parser.add_argument("--seed", type=seed, default=0)
    parser.add_argument("--latent-frames", type=count, default=24)
    parser.add_argument("--height", type=count, default=96)
    parser.add_argument("--width", type=count, default=160)
    parser.add_argument("--workers", type=count, default=2)
    parser.add_argument("--device", type=device, default="cpu")
    parser.add_argument("--cache", type=Path, help="default: $WORLDSTREAM_CACHE, else ~/.cache/worldstream/training")
    return parser.parse_args(arguments)


def _one_thread() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent's business, which ends its workers
    torch.set_num_threads(1)


def _write(job: tuple[Path, DatasetSpec, int]) -> None:
    write_shard(*job)


if __name__ == "__main__":
    run_command(main)
