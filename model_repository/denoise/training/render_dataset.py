"""Render walks through the courtyard world into the cache folder. Goes on where a broken run stopped.

python model_repository/denoise/training/render_dataset.py --clips 512 --workers 2
"""

import argparse
import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from functools import partial
from pathlib import Path
from typing import Any

import torch
from commands import RefusedError, count, device, run_command, seed
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
    run_in_processes([partial(write_shard, folder, spec, shard) for shard in missing], options.workers)


def run_in_processes(jobs: Sequence[Callable[[], Any]], workers: int) -> None:
    """Do the jobs in so many processes at most, and end these wherever it is broken off.

    Raises:
        RefusedError: a process was ended from outside.
    """
    with ProcessPoolExecutor(workers, multiprocessing.get_context("spawn"), _begin_worker) as pool:
        on_interrupt = signal.signal(signal.SIGINT, signal.SIG_IGN)  # as workers inherit it: to end them is done here
        try:
            waiting = [pool.submit(job) for job in jobs]
        finally:
            signal.signal(signal.SIGINT, on_interrupt)
        try:
            for each in track(as_completed(waiting), "rendering", total=len(jobs)):
                each.result()
        except BaseException as error:
            for worker in multiprocessing.active_children():  # those jobs that wait for one fail at once
                worker.terminate()
            if isinstance(error, BrokenProcessPool):
                raise RefusedError("--workers: one was ended from outside; fewer need less memory") from error
            raise


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


def _begin_worker() -> None:
    torch.set_num_threads(1)
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    """Wait until the parent is gone, killed perhaps: workers would wait for its next job for ever."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)


if __name__ == "__main__":
    run_command(main)
