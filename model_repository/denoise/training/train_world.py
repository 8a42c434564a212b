"""Train the embedded world's transformer on the codec's latents of walks. Goes on where a broken run stopped.

    python model_repository/denoise/training/train_world.py --minutes 120

Needs the run of train_codec.py. Everything lands in <cache>/runs/<name>: checkpoint.pt, transformer.safetensors (the
moving average), log.jsonl, curve.png, samples.png (streamed frames under true ones at the same poses).
"""

from __future__ import annotations

import argparse
import hashlib
import os
import sys
from pathlib import Path

import numpy as np
import torch
from courtyard.dataset import ClipStore, DatasetSpec, cache_folder
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from safetensors.torch import load_file, save_file
from torch import Tensor
from workbench import Budget, MovingAverage, Run, cosine_rate, psnr_db, save_curve, save_sheet, step_generator, steps_of

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "1"))
from latents import NUM_LATENT_FRAMES, Lesson, LessonStore, camera_of
from teacher import teacher_mask, teacher_velocity
from worldmodel.codec import StreamingCodec
from worldmodel.config import EMBEDDED, WorldConfig, frames_of_chunk
from worldmodel.layers import seed_parameters
from worldmodel.pixels import Pixels
from worldmodel.prompt import HashedWords
from worldmodel.schedule import NUM_TIMESTEPS, shifted_sigmas
from worldmodel.transformer import CausalWorldTransformer
from worldmodel.world import Controls, World

PURE_NOISE_SHARE = 0.25  # of the chunks start from nothing but noise, as every served chunk does
PAST_NOISE = 0.2  # the past is noised by up to this, so that the model bears its own errors
PAST_NOISE_SHARE = 0.6
NO_PROMPT_SHARE = 0.1
JUMP_SHARE = 0.4
LONGEST_JUMP = 240  # latent frames
CHECK_CLIPS = 4
CHECK_CHUNKS = 8


def main() -> None:
    """Train until the budget is spent."""
    options = _options()
    torch.set_num_threads(options.threads)
    cache = options.cache or cache_folder()
    WorldTrainer(options, cache).train(Budget(options.minutes, options.steps))


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--minutes", type=float, default=120, help="training time over all resumptions of the run")
    parser.add_argument(
        "--steps", type=int, help="a number of steps instead of minutes: the same result on any machine"
    )
    parser.add_argument("--batch", type=int, default=4, help="sessions in a step")
    parser.add_argument("--rate", type=float, default=1.5e-3)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--compile", action=argparse.BooleanOptionalAction, default=True)
    parser.add_argument("--check-every", type=float, default=15, help="minutes between checkpoints and evaluations")
    parser.add_argument("--codec", default="codec", help="the codec's run")
    parser.add_argument("--name", default="world")
    parser.add_argument("--cache", type=Path, help="default: $WORLDSTREAM_CACHE, else ~/.cache/worldstream/training")
    return parser.parse_args()


class WorldTrainer:
    """A transformer, its optimiser and its moving average, in a run."""

    def __init__(self, options: argparse.Namespace, cache: Path) -> None:
        self.options, self.config = options, EMBEDDED
        self.run = Run(cache, options.name, vars(options))
        weights = cache / "runs" / options.codec / "codec.safetensors"
        digest = hashlib.sha256(weights.read_bytes()).hexdigest()[:16]
        self.codec = StreamingCodec(self.config.codec).eval().requires_grad_(False)
        self.codec.load_state_dict(load_file(weights))
        self.lessons = LessonStore(cache, DatasetSpec("train", 0), self.codec, self.config, digest)
        self.held_out = ClipStore(cache, DatasetSpec("held_out", seed=0))
        self.prompts = HashedWords(self.config.transformer.text_len, self.config.transformer.text_dim)
        self.mask = teacher_mask(self.config, NUM_LATENT_FRAMES).to(options.device)
        self.transformer = CausalWorldTransformer(self.config.transformer)
        seed_parameters(self.transformer, options.seed)
        self._start_quietly()
        self.transformer.to(options.device)
        self.optimizer = torch.optim.AdamW(
            self.transformer.parameters(), options.rate, betas=(0.9, 0.95), weight_decay=0.01
        )
        self.average = MovingAverage(self.transformer, 0.998)
        state = self.run.load()
        if state:
            self.transformer.load_state_dict(state["transformer"])
            self.optimizer.load_state_dict(state["optimizer"])
            self.average.values = {k: v.to(options.device) for k, v in state["average"].items()}
        if options.compile:
            for block in self.transformer.blocks:
                block.compile()

    def _start_quietly(self) -> None:
        """Begin near the identity: gates, camera modulation and output small, so that learning is smooth."""
        quiet = ("cam_scale_layer", "cam_shift_layer", "cross_attn.o", "head.head")
        with torch.no_grad():
            for name, value in self.transformer.named_parameters():
                layer, _, kind = name.rpartition(".")
                if layer.endswith(quiet):
                    value.mul_(0.1 if kind == "weight" else 0)
                elif layer == "time_projection.1" and kind == "weight":
                    value.mul_(0.3)

    def train(self, budget: Budget) -> None:
        """Step until the budget is spent, with a check every now and then."""
        checked_s, losses = self.run.trained_s, []
        columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
        with Progress(*columns, refresh_per_second=0.2) as progress:
            task = progress.add_task("world", total=1.0)
            for spent in steps_of(self.run, budget):
                losses.append(self._step(spent))
                if len(losses) == 25:
                    self.run.log(loss=float(np.mean(losses)))
                    progress.update(
                        task, completed=spent, description=f"step {self.run.step} loss {np.mean(losses):.4f}"
                    )
                    losses = []
                if self.run.trained_s - checked_s > self.options.check_every * 60:
                    checked_s = self.run.trained_s
                    self.check()
        self.check()

    def _step(self, spent: float) -> float:
        rng = step_generator(self.options.seed, self.run.step)
        batch = [self.lessons.lesson(int(rng.integers(len(self.lessons)))) for _ in range(self.options.batch)]
        for group in self.optimizer.param_groups:
            group["lr"] = cosine_rate(spent, self.run.step, self.options.rate)
        loss = self._loss(batch, rng)
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.transformer.parameters(), 1.0)
        self.optimizer.step()
        self.average.update(self.transformer, self.run.step)
        return float(loss.detach())

    def _loss(self, batch: list[Lesson], rng: np.random.Generator) -> Tensor:
        config, device = self.config, self.options.device
        latents = torch.stack([lesson.latents for lesson in batch]).to(device)
        condition = torch.stack([lesson.condition for lesson in batch]).to(device)
        camera = torch.stack([camera_of(lesson.cam_to_world, config) for lesson in batch]).to(device)
        sigmas = self._draw_sigmas(len(batch), rng).to(device)
        noise = torch.randn_like(latents)
        mix = sigmas[:, None, :, None, None]
        noisy = (1 - mix) * latents + mix * noise
        past_sigma = torch.from_numpy(
            rng.uniform(0, PAST_NOISE, len(batch)) * (rng.random(len(batch)) < PAST_NOISE_SHARE)
        )
        past_mix = past_sigma.float().to(device)[:, None, None, None, None]
        past = (1 - past_mix) * latents + past_mix * torch.randn_like(latents)
        text, prompt_of_frame = self._prompts(batch, rng)
        jump = int(rng.integers(1, LONGEST_JUMP)) if rng.random() < JUMP_SHARE else 0
        # On a GPU only: CPUs without matrix units are slower in bfloat16.
        with torch.autocast("cuda", torch.bfloat16, enabled=torch.device(device).type == "cuda"):
            velocity = teacher_velocity(
                self.transformer,
                config,
                self.mask,
                past,
                noisy,
                condition,
                camera,
                NUM_TIMESTEPS * sigmas,
                text.to(device),
                prompt_of_frame.to(device),
                jump,
            )
        return (velocity.float() - (noise - latents)).square().mean()

    def _draw_sigmas(self, count: int, rng: np.random.Generator) -> Tensor:
        """[B, L]: one noise level a chunk."""
        size = self.config.chunk_latent_frames
        even = rng.uniform(1e-3, 1, (count, NUM_LATENT_FRAMES // size))
        even[rng.random(even.shape) < PURE_NOISE_SHARE] = 1
        shifted = [shifted_sigmas((NUM_TIMESTEPS * row).tolist(), self.config.shift) for row in even]
        return torch.tensor(shifted, dtype=torch.float32).repeat_interleave(size, 1)

    def _prompts(self, batch: list[Lesson], rng: np.random.Generator) -> tuple[Tensor, Tensor]:
        """Token vectors [B, 2, n, text_dim] of a session's first and second look, and which one a frame reads."""
        size = self.config.transformer
        text = torch.zeros(len(batch), 2, 1, size.text_dim)
        prompt_of_frame = torch.zeros(len(batch), NUM_LATENT_FRAMES, dtype=torch.int64)
        for row, lesson in enumerate(batch):
            looks = list(dict.fromkeys(lesson.looks))
            is_silent = len(looks) == 1 and rng.random() < NO_PROMPT_SHARE
            for index, look in enumerate(looks):
                if not is_silent:
                    text[row, index] = torch.from_numpy(self.prompts.encode(look))
            prompt_of_frame[row] = torch.tensor([looks.index(look) for look in lesson.looks])
        return text, prompt_of_frame

    def check(self) -> None:
        """Save, stream held-out walks through the real world, measure, draw."""
        state = {"transformer": self.transformer.state_dict(), "optimizer": self.optimizer.state_dict()}
        self.run.save(**state, average=self.average.values)
        tensors = {name: value.detach().float().cpu().contiguous() for name, value in self.average.values.items()}
        path = self.run.folder / "transformer.safetensors"
        save_file(tensors, path.with_suffix(".part"))
        path.with_suffix(".part").replace(path)
        transformer = CausalWorldTransformer(self.config.transformer)
        transformer.load_state_dict(tensors)
        world = World(self.config, transformer, self.codec, torch.device("cpu"), torch.float32)
        quality, still, rows = [], [], []
        for index in range(CHECK_CLIPS):
            truth = np.asarray(self.held_out.frames(index))
            streamed = stream_walk(world, self.held_out, index, CHECK_CHUNKS)
            quality.append(chunk_psnr(streamed, truth, self.config))
            still.append(chunk_psnr(np.repeat(truth[:1], len(truth), 0), truth, self.config))
            rows += [truth[:: len(truth) // 9][:10], streamed[:: len(truth) // 9][:10]]
        means, controls = np.mean(quality, 0), np.mean(still, 0)
        self.run.log(
            **{f"chunk{i + 1}_db": float(db) for i, db in enumerate(means)}, still_db=float(controls[3:].mean())
        )
        save_sheet(self.run.folder / "samples.png", rows)
        curves = {key: self.run.history(key) for key in ("loss", "chunk1_db", "chunk4_db", "chunk8_db")}
        save_curve(self.run.folder / "curve.png", curves)


def stream_walk(world: World, clips: ClipStore, index: int, num_chunks: int) -> Pixels:
    """Frames of a held-out walk, streamed as a session would: [T, H, W, 3] uint8."""
    clip = clips.clip(index)
    poses = clip.poses()[::4]
    session = world.start(np.array(clips.frames(index, 0, 1)[0]), clip.variants[0], seed=index)
    size, frames, look = world.config.chunk_latent_frames, [], clip.variants[0]
    for chunk in range(num_chunks):
        own = slice(chunk * size, (chunk + 1) * size)
        switch = clip.variants[own.start] if clip.variants[own.start] != look else None
        look = clip.variants[own.start]
        done = world.next_chunk(session, Controls(cam_to_world=poses[own], prompt=switch), lambda: None)
        session.commit(done.staged)
        frames.append(done.frames.numpy())
    return np.concatenate(frames)


def chunk_psnr(frames: Pixels, truth: Pixels, config: WorldConfig) -> list[float]:
    """PSNR in dB of each chunk's frames."""
    numbers: list[float] = []
    first = 0
    while first < len(frames):
        count = frames_of_chunk(config.chunk_latent_frames, len(numbers))
        a, b = (torch.from_numpy(clip[first : first + count]).float()[None] / 255 for clip in (frames, truth))
        numbers.append(float(psnr_db(a, b)))
        first += count
    return numbers


if __name__ == "__main__":
    os.nice(5)  # training is never in a hurry
    main()
