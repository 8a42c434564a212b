"""Train the streaming codec of the embedded world on walks through the courtyard. Goes on where a broken run stopped.

    python model_repository/denoise/training/train_codec.py --minutes 60

Render the data set first or at the same time (render_dataset.py): clips are used as they come. Everything lands in
<cache>/runs/<name>: checkpoint.pt, codec.safetensors (the moving average, with the latents' statistics), log.jsonl,
curve.png, samples.png (decoded pictures under true ones).
"""

import argparse
import dataclasses
import os
import sys
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import numpy as np
import torch
from commands import count, device, minutes, rate, run_command, run_name, seed
from courtyard.dataset import CLIPS_PER_SHARD, RECIPE, ClipStore, DatasetSpec, cache_folder, write_shard
from courtyard.files import write_whole
from numpy.typing import NDArray
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.nn import functional
from workbench import (
    Budget,
    MovingAverage,
    Optimizers,
    Run,
    cosine_rate,
    psnr_db,
    save_curve,
    save_sheet,
    step_generator,
    to_model,
    train_run,
)

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "1"))
from worldmodel.codec import MemoryBlock, StreamingCodec
from worldmodel.config import EMBEDDED, TIME_STRIDE, CodecConfig, WorldConfig

SHARP_EDGES = 0.25  # weight of the loss on differences between neighbouring pixels
LATENT_NOISE = 0.12  # the decoder learns to live with errors of the transformer up to this size
LATENT_SIZE = 1e-4  # a light hand on the latents' size: the decoder clamps them softly at 3
CROP_SHARE = 0.6  # of the budget is spent on parts of pictures, a third each: more steps, and the same textures
CROP_PX = (64, 80)
DECODER_BLOCKS = (3, 2, 2)  # for now: train_decoder.py adds the others
HELD_OUT_CLIPS = 16
HELD_OUT_FRAMES = 45


def main(arguments: Sequence[str] | None = None) -> None:
    """Train until the budget is spent."""
    options = parse(arguments)
    torch.set_num_threads(options.threads)
    cache = options.cache or cache_folder()
    train, held_out = DatasetSpec("train", seed=0), DatasetSpec("held_out", seed=0)
    for spec, num_clips in ((held_out, HELD_OUT_CLIPS), (train, 1)):
        for shard in range(-(-num_clips // CLIPS_PER_SHARD)):
            write_shard(cache, spec, shard)
    codec = dataclasses.replace(EMBEDDED.codec, decoder_blocks=DECODER_BLOCKS)
    trainer = CodecTrainer(options, cache, train, held_out, EMBEDDED.replace(codec=codec))
    trainer.train(Budget(options.minutes, options.steps))


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """The options, from the command line if no arguments are given."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add_options(parser, 1e-3, name="codec")
    return parser.parse_args(arguments)


def clip_frames(text: str) -> int:
    """So many frames as the codec joins into whole latent frames, for argparse."""
    most = DatasetSpec("train", seed=0).num_frames
    if not text.isdecimal() or int(text) % TIME_STRIDE != 1 or int(text) > most:
        raise argparse.ArgumentTypeError(f"wanted 1 + 4k frames, {most} at most, got {text!r}")
    return int(text)


def add_options(parser: argparse.ArgumentParser, default_rate: float, name: str) -> None:
    """Those of every training of a codec, with a script's own learning rate and name of the run."""
    parser.add_argument("--minutes", type=minutes, default=60, help="training time over all resumptions of the run")
    parser.add_argument("--steps", type=count, help="a number of steps instead of minutes")
    parser.add_argument("--batch", type=count, default=4, help="clips in a step; half as many once pictures are whole")
    parser.add_argument("--frames", type=clip_frames, default=13, help="frames in a training clip: 1 + 4k")
    parser.add_argument("--rate", type=rate, default=default_rate)
    parser.add_argument("--seed", type=seed, default=0)
    parser.add_argument("--threads", type=count, default=2)
    parser.add_argument("--device", type=device, default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--check-every", type=minutes, default=10, help="minutes between evaluations")
    parser.add_argument("--name", type=run_name, default=name)
    parser.add_argument("--cache", type=Path, help="default: $WORLDSTREAM_CACHE, else ~/.cache/worldstream/training")


class CodecTrainer:
    """A codec, its optimiser and its moving average, in a run."""

    def __init__(
        self,
        options: argparse.Namespace,
        cache: Path,
        train: DatasetSpec,
        held_out: DatasetSpec,
        config: WorldConfig = EMBEDDED,
    ) -> None:
        self.options, self.cache, self.train_spec, self.config = options, cache, train, config
        self.clips, self.held_out = ClipStore(cache, train), ClipStore(cache, held_out)
        self.run = Run(cache, options.name, {**vars(options), "recipe": RECIPE})
        torch.manual_seed(options.seed)
        self.codec = new_codec(options.device, config.codec)
        self.optimizers = Optimizers(
            torch.optim.AdamW(self.learnt(), options.rate, betas=(0.9, 0.99), weight_decay=1e-3)
        )
        self.average = MovingAverage(self.codec, 0.998)
        state = self.run.load()
        if state:
            with self.run.resuming():
                self.codec.load_state_dict(state["codec"])
                self.optimizers.load(state["optimizers"])
                self.average.values = {k: v.to(options.device) for k, v in state["average"].items()}

    def train(self, budget: Budget) -> None:
        """Step until the budget is spent, with a check every now and then. A run that is done is left alone.

        Raises:
            KeyboardInterrupt: after a SIGINT or SIGTERM; all that was trained is saved.
        """
        if budget.spent(self.run) >= 1 and self.run.is_exported(self.export_path):
            return
        train_run("codec", self.run, budget, self, 60 * self.options.check_every)

    @property
    def export_path(self) -> Path:
        """The moving average, with the latents' statistics: what is shipped."""
        return self.run.folder / "codec.safetensors"

    def save(self) -> None:
        """Replace the checkpoint."""
        state = {"codec": self.codec.state_dict(), "optimizers": self.optimizers.state()}
        self.run.save(**state, average=self.average.values)

    def step(self, spent: float) -> float:
        """Train on one batch; everything in it follows from the seed and the run's step. Returns the loss."""
        rng = step_generator(self.options.seed, self.run.step)
        frames = self._batch(rng, is_cropped=spent < CROP_SHARE)
        latents, _ = self.codec.encode(frames)
        noise = torch.randn_like(latents) * (LATENT_NOISE * torch.rand(len(latents), 1, 1, 1, 1, device=latents.device))
        decoded, _ = self.codec.decode(latents + noise)
        loss = self.loss(decoded, frames, latents)
        self.optimizers.step(loss, self.learnt(), cosine_rate(spent, self.run.step))
        self.average.update(self.codec, self.run.step)
        return float(loss.detach())

    def learnt(self) -> list[nn.Parameter]:
        """The parameters that are trained."""
        return list(self.codec.parameters())

    def loss(self, decoded: Tensor, frames: Tensor, latents: Tensor) -> Tensor:
        """What is made small: pixels' errors, a little of it the latents' size."""
        return reconstruction_loss(decoded, frames) + LATENT_SIZE * latents.square().mean()

    def _batch(self, rng: np.random.Generator, is_cropped: bool) -> Tensor:
        """[B, T, 3, H, W] in [-1, 1], each from a clip, a moment and (cropped) a place of its own."""
        spec, count = self.train_spec, self.options.frames
        height, width = min(CROP_PX[0], spec.height_px), min(CROP_PX[1], spec.width_px)
        parts = []
        for _ in range(self.options.batch if is_cropped else max(1, self.options.batch // 2)):
            index, start = rng.integers(len(self.clips)), rng.integers(spec.num_frames - count + 1)
            top, left = rng.integers(spec.height_px - height + 1), rng.integers(spec.width_px - width + 1)
            frames = self.clips.frames(int(index), int(start), count)
            parts.append(frames[:, top : top + height, left : left + width] if is_cropped else frames)
        return to_model(np.stack(parts)).to(self.options.device)

    def check(self) -> None:
        """Save, measure on held-out walks, draw, export; and take up the clips that have been rendered meanwhile."""
        self.save()
        self.clips = ClipStore(self.cache, self.train_spec)
        codec = new_codec(self.options.device, self.config.codec)
        codec.load_state_dict(self.average.values)
        began, quality, latents, rows = time.monotonic(), [], [], []
        with torch.inference_mode():
            for index in range(min(HELD_OUT_CLIPS, len(self.held_out))):
                frames = to_model(self.held_out.frames(index, 0, HELD_OUT_FRAMES)[None]).to(self.options.device)
                z, _ = codec.encode(frames)
                decoded, _ = codec.decode(z)
                quality.append(float(psnr_db(to_unit(decoded), to_unit(frames))))
                latents.append(z.flatten(0, 1))
                if index < 6:
                    rows += [to_pixels(clip[0, ::7]) for clip in (frames, decoded)]
        self.run.log(
            held_out_db=float(np.mean(quality)), worst_db=float(np.min(quality)), check_s=time.monotonic() - began
        )
        save_sheet(self.run.folder / "samples.png", rows)
        curves = {key: self.run.history(key) for key in ("loss", "held_out_db", "worst_db")}
        save_curve(self.run.folder / "curve.png", curves)
        self.set_statistics(codec, torch.cat(latents).transpose(0, 1).flatten(1))
        self._export(codec)

    def set_statistics(self, codec: StreamingCodec, cells: Tensor) -> None:
        """Make latents roughly unit normal: cells is [C, n], of held-out walks."""
        codec.latent_mean.copy_(cells.mean(1))
        codec.latent_std.copy_(cells.std(1))

    def _export(self, codec: StreamingCodec) -> None:
        tensors = {name: value.detach().cpu().contiguous() for name, value in codec.state_dict().items()}
        write_whole(self.export_path, partial(save_file, tensors))


def new_codec(device: str, config: CodecConfig) -> StreamingCodec:
    """An untrained codec, whose signals keep their size from end to end.

    Torch's own start shrinks them a hundredfold through these layers; the first steps then take three times as long.
    """
    codec = StreamingCodec(config).to(device)
    for module in codec.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, nonlinearity="linear")
            # Convolutions run a third faster over channels that lie together.
            module.weight.data = module.weight.data.contiguous(memory_format=torch.channels_last)
            if module.bias is not None:
                nn.init.zeros_(module.bias)
    for block in codec.modules():
        if isinstance(block, MemoryBlock):
            last = block.conv[2]
            assert isinstance(last, nn.Conv2d)
            nn.init.zeros_(last.weight)  # each block starts as a pass-through
    return codec


def reconstruction_loss(decoded: Tensor, frames: Tensor) -> Tensor:
    """Nearly absolute error, quadratic when small, of pixels and of the differences between neighbours."""

    def error(a: Tensor, b: Tensor) -> Tensor:
        return ((a - b).square() + 0.02**2).sqrt().mean()

    edges = error(decoded.diff(dim=-1), frames.diff(dim=-1)) + error(decoded.diff(dim=-2), frames.diff(dim=-2))
    return error(decoded, frames) + SHARP_EDGES * edges + functional.mse_loss(decoded, frames)


def to_unit(frames: Tensor) -> Tensor:
    """[-1, 1] -> [0, 1], clamped."""
    return (frames * 0.5 + 0.5).clamp(0, 1)


def to_pixels(frames: Tensor) -> NDArray[np.uint8]:
    """[n, 3, H, W] in [-1, 1] -> [n, H, W, 3] uint8."""
    pixels: NDArray[np.uint8] = (to_unit(frames) * 255).round().to(torch.uint8).permute(0, 2, 3, 1).cpu().numpy()
    return pixels


if __name__ == "__main__":
    os.nice(5)  # training is never in a hurry
    run_command(main)
