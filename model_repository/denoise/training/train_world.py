"""Train the embedded world's transformer on the codec's latents of walks. Goes on where a broken run stopped.

    python model_repository/denoise/training/train_world.py --minutes 120

Needs a run of train_decoder.py, which need not have ended: only its decoder still changes. Everything lands in
<cache>/runs/<name>: checkpoint.pt, transformer.safetensors (the moving average), log.jsonl, curve.png, samples.png
(streamed frames under true ones at the same poses).
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from commands import RefusedError, count, device, minutes, rate, require_walks, run_command, run_name, seed
from courtyard.dataset import RECIPE, SPLITS, ClipStore, DatasetSpec, cache_folder
from courtyard.files import write_whole
from safetensors.torch import save_file
from torch import Tensor
from torch.nn import functional
from workbench import (
    Budget,
    MovingAverage,
    Optimizers,
    Run,
    cosine_rate,
    file_sha256,
    save_curve,
    save_sheet,
    step_generator,
    train_run,
)

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "1"))
from latents import SESSIONS, Lesson, LessonStore, camera_of
from streaming import chunk_psnr, stream_walk
from teacher import attend_chunkwise, num_clean_frames, teacher_velocity
from worldmodel.checkpoint import fill_strict, read_tensors
from worldmodel.checkpoint_files import CheckpointError
from worldmodel.codec import StreamingCodec
from worldmodel.config import EMBEDDED, WorldConfig
from worldmodel.layers import seed_parameters
from worldmodel.prompt import HashedWords
from worldmodel.schedule import NUM_TIMESTEPS, shifted_sigmas
from worldmodel.transformer import CausalWorldTransformer
from worldmodel.world import World

NUM_LATENT_FRAMES = 12  # of every lesson: one tensor a batch
PURE_NOISE_SHARE = 0.25  # of the chunks start from nothing but noise, as every served chunk does
PAST_NOISE = 0.2  # the past is noised by up to this, so that the model bears its own errors
PAST_NOISE_SHARE = 0.6
PAST_TINT = 0.12  # how far off what follows the sink is at most, RMS, the same all over: 0.08 is 9 of 255 in colour
PAST_TINT_SHARE = 0.5
NO_PROMPT_SHARE = 0.1
GAP_SHARE = 0.4  # of the steps show a session's sink and then a later part, as a full window does
LONGEST_JUMP = 240  # latent frames by which that part is said to be later still
OWN_PAST_FROM = 0.3  # of the budget: later, and long walks drift while single chunks get better; from there on ...
OWN_PAST_SHARE = 0.6  # ... so many steps show the past as the model itself would have made it, ...
OWN_PAST_DEPTH = 2  # ... each chunk of it from up to so many chunks that it made before
RAY_RATE_SHARE = 0.2  # of the rate, for the weights on rays: a patch's are nearly alike, so all push its sum one way
CHECK_CLIPS = 4
CHECK_CHUNKS = 8


def main(arguments: Sequence[str] | None = None) -> None:
    """Train until the budget is spent."""
    options = parse(arguments)
    torch.set_num_threads(options.threads)
    cache = options.cache or cache_folder()
    require_walks(*(ClipStore(cache, DatasetSpec(split, 0)) for split in SPLITS))
    WorldTrainer(options, cache).train(Budget(options.minutes, options.steps))


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """The options, from the command line if no arguments are given."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--minutes", type=minutes, default=120, help="training time over all resumptions of the run")
    parser.add_argument(
        "--steps", type=count, help="a number of steps instead of minutes: the same result on any machine"
    )
    parser.add_argument("--batch", type=count, default=4, help="sessions in a step")
    parser.add_argument("--rate", type=rate, default=1.5e-3)
    parser.add_argument("--clips", type=count, help="walks to learn from; default all that are rendered")
    parser.add_argument("--start-from", type=Path, help="a transformer.safetensors to begin a new run with")
    parser.add_argument("--optimizer", choices=("muon", "adamw"), default="muon")
    parser.add_argument("--seed", type=seed, default=0)
    parser.add_argument("--threads", type=count, default=2)
    parser.add_argument("--device", type=device, default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--compile", action=argparse.BooleanOptionalAction, default=True)
    parser.add_argument("--check-every", type=minutes, default=15, help="minutes between evaluations")
    parser.add_argument("--codec", type=run_name, default="decoder", help="the run of train_decoder.py")
    parser.add_argument("--name", type=run_name, default="world")
    parser.add_argument("--cache", type=Path, help="default: $WORLDSTREAM_CACHE, else ~/.cache/worldstream/training")
    return parser.parse_args(arguments)


class Frames(NamedTuple):
    """Which latent frames of their sessions a batch shows, and how they are to be read."""

    shown: tuple[int, ...]  # NUM_LATENT_FRAMES, by chunks; a gap may lie behind the sink
    jump: int  # by how much what follows the sink is said to be later than it would be without a gap
    learnt: tuple[int, ...]  # places among them whose chunks count


class WorldTrainer:
    """A transformer, its optimiser and its moving average, in a run."""

    def __init__(self, options: argparse.Namespace, cache: Path, config: WorldConfig = EMBEDDED) -> None:
        self.options, self.config = options, config
        self.run = Run(cache, options.name, {**vars(options), "recipe": RECIPE})
        self.codec = StreamingCodec(config.codec).eval().requires_grad_(False).to(options.device)
        self._load_codec(cache / "runs" / options.codec / "codec.safetensors")
        sizes = {"height_px": config.height_px, "width_px": config.width_px}
        self.spec = DatasetSpec("train", 0, **sizes)
        self.lessons = LessonStore(cache, self.spec, self.codec, config, options.clips)
        if options.clips and options.clips > self.lessons.num_clips:
            there = self.lessons.num_clips
            raise RefusedError(f"--clips: wanted {there} at most, the walks that are rendered, got {options.clips}")
        self.run.settings["clips"] = self.lessons.num_clips
        self.held_out = ClipStore(cache, DatasetSpec("held_out", 0, **sizes))
        self.prompts = HashedWords(config.transformer.text_len, config.transformer.text_dim)
        self.transformer = CausalWorldTransformer(config.transformer)
        seed_parameters(self.transformer, options.seed)
        self._start_quietly()
        state = self.run.load()
        start_from: str | None = state.get("start_from") if state else None
        if options.start_from and not state:
            start_from = self._take_over(options.start_from)
        elif options.start_from and options.start_from.exists() and file_sha256(options.start_from) != start_from:
            raise RefusedError(f"--start-from: run {options.name} began with other weights; --name begins a new one")
        self.run.settings["start_from"] = start_from
        self.transformer.to(options.device)
        attend_chunkwise(self.transformer, config, NUM_LATENT_FRAMES)
        self.optimizers = self._new_optimizers()
        self.average = MovingAverage(self.transformer, 0.998)
        if state:
            self._resume(state)
        if options.compile:
            for block in self.transformer.blocks:
                block.compile()

    def _load_codec(self, file: Path) -> None:
        try:
            fill_strict(self.codec, read_tensors(file), file, torch.device(self.options.device))
        except CheckpointError as error:
            name = self.options.codec
            raise RefusedError(f"--codec: wanted a run of train_decoder.py, got {name}: {error}") from error

    def _new_optimizers(self) -> Optimizers:
        """AdamW, slower for the weights on rays; with Muon, only for what is no matrix inside a block."""
        settings = {"lr": self.options.rate, "weight_decay": 0.01}
        parameters = dict(self.transformer.named_parameters())
        rays = [parameters.pop("patch_embedding_wancamctrl.weight")]
        muon = []
        if self.options.optimizer == "muon":
            names = [name for name, value in parameters.items() if "blocks." in name and value.dim() == 2]
            matrices = [parameters.pop(name) for name in names]
            muon = [torch.optim.Muon(matrices, adjust_lr_fn="match_rms_adamw", **settings)]
        groups = [{"params": list(parameters.values())}, {"params": rays, "lr": self.options.rate * RAY_RATE_SHARE}]
        return Optimizers(*muon, torch.optim.AdamW(groups, betas=(0.9, 0.95), fused=True, **settings))

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

    def _take_over(self, file: Path) -> str:
        """Begin with a file's weights. Where it has none for start rays, those count for nothing at first.

        Returns:
            The file's SHA-256, 64 hexadecimal digits.

        Raises:
            RefusedError: it cannot be read, or is of another transformer.
        """
        name = "patch_embedding_wancamctrl.weight"
        wanted = self.transformer.get_parameter(name)
        try:
            tensors = read_tensors(file)
            found = tensors.get(name)
            if found is not None and found.dim() == 2 and 2 * found.shape[1] == wanted.shape[1]:
                tensors[name] = functional.pad(found, (0, found.shape[1]))
            fill_strict(self.transformer, tensors, file, wanted.device)
        except CheckpointError as error:
            raise RefusedError(f"--start-from: {error}") from error
        self.transformer.requires_grad_(True)
        return file_sha256(file)

    def _resume(self, state: dict[str, Any]) -> None:
        """Go on from a checkpoint, whose weights and averages replace those that the run began with."""
        with self.run.resuming():
            self.transformer.load_state_dict(state["transformer"])
            self.optimizers.load(state["optimizers"])
            self.average.values = {k: v.to(self.options.device) for k, v in state["average"].items()}

    def train(self, budget: Budget) -> None:
        """Step until the budget is spent, with a check every now and then. A run that is done is left alone.

        Raises:
            KeyboardInterrupt: after a SIGINT or SIGTERM; all that was trained is saved.
        """
        if budget.spent(self.run) >= 1 and self.run.is_exported(self.export_path):
            return
        self.lessons.prepare()
        train_run("world", self.run, budget, self, 60 * self.options.check_every)

    @property
    def export_path(self) -> Path:
        """The moving average: what is shipped."""
        return self.run.folder / "transformer.safetensors"

    def save(self) -> None:
        """Replace the checkpoint."""
        state = {"transformer": self.transformer.state_dict(), "optimizers": self.optimizers.state()}
        self.run.save(**state, average=self.average.values, start_from=self.run.settings["start_from"])

    def step(self, spent: float) -> float:
        """Train on one batch; everything in it follows from the seed and the run's step. Returns the loss."""
        rng = step_generator(self.options.seed, self.run.step)
        frames = draw_frames(rng, self.config, self.spec.num_latent_frames)
        batch = [self._draw_lesson(rng, frames) for _ in range(self.options.batch)]
        has_own_past = spent >= OWN_PAST_FROM and rng.random() < OWN_PAST_SHARE
        loss = self.loss(batch, frames, rng, has_own_past)
        self.optimizers.step(loss, self.transformer.parameters(), cosine_rate(spent, self.run.step))
        self.average.update(self.transformer, self.run.step)
        return float(loss.detach())

    def _draw_lesson(self, rng: np.random.Generator, frames: Frames) -> Lesson:
        """A session that is long enough for these frames."""
        lengths = [len(session.latent_frames(self.spec.num_latent_frames)) for session in SESSIONS]
        fit = [session for session, length in enumerate(lengths) if length > frames.shown[-1]]
        clip, session = rng.integers(self.lessons.num_clips), rng.choice(fit)
        return self.lessons.lesson(int(clip), int(session), frames.shown)

    def loss(self, batch: list[Lesson], frames: Frames, rng: np.random.Generator, has_own_past: bool) -> Tensor:
        """How far the velocity of every chunk is from the true one, squared."""
        device = self.options.device
        latents = torch.stack([lesson.latents for lesson in batch]).to(device)
        condition = torch.stack([lesson.condition for lesson in batch]).to(device)
        camera = torch.stack([camera_of(lesson, self.config) for lesson in batch]).to(device)
        text, prompt_of_frame = (part.to(device) for part in self._prompts(batch, rng))

        def velocity(past: Tensor, noisy: Tensor, sigmas: Tensor) -> Tensor:
            # On a GPU only: CPUs without matrix units are slower in bfloat16.
            with torch.autocast("cuda", torch.bfloat16, enabled=torch.device(device).type == "cuda"):
                steps = NUM_TIMESTEPS * sigmas
                seen = past[:, :, : num_clean_frames(self.config, NUM_LATENT_FRAMES)]
                inputs = (seen, noisy, condition, camera, steps, text, prompt_of_frame, frames.jump)
                return teacher_velocity(self.transformer, self.config, None, *inputs).float()

        past, learnt = latents, list(frames.learnt)
        for _ in range(int(rng.integers(OWN_PAST_DEPTH)) + 1 if has_own_past else 0):
            # Each round is one chunk deeper: a chunk made from chunks that the model made.
            noise = torch.randn_like(latents)
            with torch.no_grad():
                own = noise - velocity(past, noise, torch.ones(len(batch), NUM_LATENT_FRAMES, device=device))
            past = latents.clone()
            past[:, :, learnt] = own[:, :, learnt]
        sigmas = self._draw_sigmas(len(batch), rng).to(device)
        noise = torch.randn_like(latents)
        noisy = _mixed(latents, noise, sigmas)
        is_noised = rng.random(len(batch)) < PAST_NOISE_SHARE
        past_sigmas = torch.from_numpy(rng.uniform(0, PAST_NOISE, len(batch)) * is_noised).float().to(device)
        past = _mixed(past, torch.randn_like(latents), past_sigmas[:, None])
        past = past + draw_tints(len(batch), self.config, rng).to(device)
        error = velocity(past, noisy, sigmas) - (noise - latents)
        return error[:, :, learnt].square().mean()

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
        """Save, stream held-out walks through the real world, measure, draw, export."""
        self.save()
        tensors = {name: value.detach().float().cpu().contiguous() for name, value in self.average.values.items()}
        transformer = CausalWorldTransformer(self.config.transformer)
        transformer.load_state_dict(tensors)
        codec = StreamingCodec(self.config.codec)
        codec.load_state_dict(self.codec.state_dict())
        world = World(self.config, transformer, codec, torch.device(self.options.device), torch.float32)
        quality, still, rows = [], [], []
        for index in range(min(CHECK_CLIPS, len(self.held_out))):
            truth, clip = np.array(self.held_out.frames(index)), self.held_out.clip(index)
            num = CHECK_CHUNKS * self.config.chunk_latent_frames
            streamed = stream_walk(world, truth[0], clip.poses()[::4][:num], clip.variants, seed=index)
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
        # Last: a run whose export is there is done, and has been measured.
        write_whole(self.export_path, partial(save_file, tensors))


def draw_frames(rng: np.random.Generator, config: WorldConfig, num_latent_frames: int) -> Frames:
    """A session's first chunks, or its sink and then later ones: what the window of a long session holds.

    Right behind a gap only start rays say where the camera is: without them, nobody could guess what that chunk shows,
    and it is not learnt.
    """
    size, sink = config.chunk_latent_frames, config.sink_latent_frames
    rest = NUM_LATENT_FRAMES - sink
    gaps = range(size, num_latent_frames - NUM_LATENT_FRAMES + 1, size)
    if not gaps or sink % size or rng.random() >= GAP_SHARE:
        return Frames(tuple(range(NUM_LATENT_FRAMES)), 0, tuple(range(NUM_LATENT_FRAMES)))
    gap = int(rng.choice(gaps))
    later = int(rng.integers(LONGEST_JUMP)) if rng.random() < 0.5 else 0
    shown = (*range(sink), *range(sink + gap, sink + gap + rest))
    untold = 0 if config.transformer.has_start_rays else size
    learnt = (*range(sink), *range(sink + untold, NUM_LATENT_FRAMES))
    return Frames(shown, gap + later, learnt)


def draw_tints(count: int, config: WorldConfig, rng: np.random.Generator) -> Tensor:
    """[B, 16, L, 1, 1] float32: how far off the past is; not at all in the sink, by which the rest can be put right."""
    size = rng.uniform(0, PAST_TINT, count) * (rng.random(count) < PAST_TINT_SHARE)
    tints = size[:, None] * rng.normal(size=(count, config.transformer.latent_channels))
    is_behind = np.arange(NUM_LATENT_FRAMES) >= config.sink_latent_frames
    return torch.from_numpy(tints[:, :, None, None, None] * is_behind[:, None, None]).float()


def _mixed(clean: Tensor, noise: Tensor, sigmas: Tensor) -> Tensor:
    """[B, 16, L, h, w] at noise levels [B, L] or [B, 1]."""
    mix = sigmas[:, None, :, None, None]
    return (1 - mix) * clean + mix * noise


if __name__ == "__main__":
    os.nice(5)  # training is never in a hurry
    run_command(main)
