"""The trainers at a size that trains in seconds: what they learn from, every gradient, resumption."""

import dataclasses
import hashlib
import json
import os
import resource
import signal
import sys
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from worldmodel.rays import camera_input
from worldmodel.world import Controls

from tests.unit.worlds import START_RAYS, TINY, tiny_world

TRAINING = Path(__file__).parents[2] / "model_repository" / "denoise" / "training"
CONFIG = START_RAYS.replace(translation_scale=0.25)
sys.path.append(str(TRAINING))  # the scripts there import one another by name

import latents  # noqa: E402
import teacher  # noqa: E402
import train_codec  # noqa: E402
import train_decoder  # noqa: E402
import train_world  # noqa: E402
import workbench  # noqa: E402
from commands import RefusedError  # noqa: E402
from courtyard.dataset import CLIPS_PER_SHARD, ClipStore, DatasetSpec, shard_path  # noqa: E402
from courtyard.files import write_whole  # noqa: E402

SPEC = DatasetSpec("train", 0, height_px=CONFIG.height_px, width_px=CONFIG.width_px)
ALL = tuple(range(train_world.NUM_LATENT_FRAMES))


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
    """One shard of clips whose walks are real and whose pictures are noise that drifts, and a codec."""
    folder = tmp_path_factory.mktemp("cache")
    path = shard_path(folder, SPEC, 0)
    path.parent.mkdir(parents=True)
    rng = np.random.default_rng(0)
    shape = (CLIPS_PER_SHARD, SPEC.num_frames, SPEC.height_px, SPEC.width_px, 3)
    drift = rng.normal(0, 8, shape).cumsum(1) + rng.uniform(0, 255, (CLIPS_PER_SHARD, 1, *shape[2:]))
    np.save(path, drift.clip(0, 255).astype(np.uint8))
    (folder / "runs" / "codec").mkdir(parents=True)
    codec = tiny_world(CONFIG).codec
    tensors = {name: value.contiguous() for name, value in codec.state_dict().items()}
    save_file(tensors, folder / "runs" / "codec" / "codec.safetensors")
    return folder


def world_trainer(cache, name, *more):
    settings = ["--no-compile", "--device", "cpu", "--threads", "1", "--codec", "codec", "--name", name]
    options = train_world.parse([*settings, *more])
    return train_world.WorldTrainer(options, cache, CONFIG)


def codec_trainer(cache, name):
    options = train_codec.parse(["--device", "cpu", "--threads", "1", "--batch", "2", "--frames", "5", "--name", name])
    return train_codec.CodecTrainer(options, cache, SPEC, SPEC, CONFIG)


def train(trainer, steps, budget_steps):
    taken = workbench.steps_of(trainer.run, workbench.Budget(60, budget_steps), trainer.step)
    return [loss for _, (_, loss) in zip(range(steps), taken, strict=False)]


def store(cache):
    return latents.LessonStore(cache, SPEC, tiny_world(CONFIG).codec, CONFIG)


@pytest.mark.parametrize(("session", "start"), [(0, 0), (1, 6), (2, 12)])
def test_a_lesson_is_what_a_session_on_the_same_clip_computes(cache, session, start):
    world, lessons = tiny_world(CONFIG), store(cache)
    lesson = lessons.lesson(5, session, ALL)
    clip = SPEC.clip(5)
    frames = np.load(shard_path(cache, SPEC, 0))[5, 4 * start : 4 * (start + 11) + 1]
    poses = clip.poses()[4 * start :: 4][:12]

    served = world.start(frames[0], clip.variants[start])
    conditions, cameras = [], []
    for chunk in range(4):
        own = slice(3 * chunk, 3 * chunk + 3)
        conditions.append(served.condition_of_next_chunk()[0])
        staged = world.next_chunk(served, Controls(cam_to_world=poses[own]), lambda: None).staged
        cameras.append(camera_input(staged.past.views, CONFIG, world.device))
        served.commit(staged)

    # Latents and conditions are kept in half precision.
    torch.testing.assert_close(lesson.condition, torch.cat(conditions, 1), atol=2e-3, rtol=2e-3)
    torch.testing.assert_close(latents.camera_of(lesson, CONFIG), torch.cat(cameras, 1), atol=1e-5, rtol=0)
    whole, _ = world.codec.encode(workbench.to_model(frames)[None])
    torch.testing.assert_close(lesson.latents, whole[0].transpose(0, 1), atol=2e-3, rtol=2e-3)
    assert lesson.looks == clip.variants[start : start + 12]


def test_the_past_is_tinted_alike_everywhere_behind_the_sink():
    tints = train_world.draw_tints(64, CONFIG, np.random.default_rng(0))
    assert tints.shape == (64, 16, train_world.NUM_LATENT_FRAMES, 1, 1)
    assert not tints[:, :, : CONFIG.sink_latent_frames].any()
    behind = tints[:, :, CONFIG.sink_latent_frames :]
    assert torch.equal(behind, behind[:, :, :1].expand_as(behind))
    num_tinted = int(behind.flatten(1).any(1).sum())
    assert 20 <= num_tinted <= 44
    assert 0.03 < behind[behind != 0].std() < train_world.PAST_TINT


def test_a_hasty_session_makes_its_first_step_twice_as_long(cache):
    lesson = store(cache).lesson(2, 3, ALL)
    poses = SPEC.clip(2).poses()[::4][11:]
    frames = np.load(shard_path(cache, SPEC, 0))[2, 44:]
    shown = frames[[0, 2, 4, 6, 8, *range(9, 49)]]

    np.testing.assert_allclose(lesson.relative[1], np.linalg.inv(poses[0]) @ poses[2], atol=1e-12)
    np.testing.assert_allclose(lesson.relative[2], np.linalg.inv(poses[2]) @ poses[3], atol=1e-12)
    whole, _ = tiny_world(CONFIG).codec.encode(workbench.to_model(shown)[None])
    torch.testing.assert_close(lesson.latents, whole[0].transpose(0, 1), atol=2e-3, rtol=2e-3)


def test_lessons_with_a_gap_keep_positions_cameras_and_conditions_of_their_session(cache):
    frames = train_world.Frames((0, 1, 2, *range(12, 21)), jump=9, learnt=(0, 1, 2, *range(6, 12)))
    with_gap, without = store(cache).lesson(1, 0, frames.shown), store(cache).lesson(1, 0, range(24))
    torch.testing.assert_close(with_gap.latents[:, 3:], without.latents[:, 12:21], rtol=0, atol=0)
    torch.testing.assert_close(with_gap.condition[:, 3:], without.condition[:, 12:21], rtol=0, atol=0)
    np.testing.assert_array_equal(with_gap.relative[3:], without.relative[12:21])
    np.testing.assert_array_equal(with_gap.cam_to_origin[3:], without.cam_to_origin[12:21])


def test_drawn_frames_are_whole_chunks_behind_an_unbroken_sink():
    drawn = [train_world.draw_frames(np.random.default_rng(n), CONFIG, 24) for n in range(200)]
    for frames in drawn:
        assert len(frames.shown) == 12
        assert frames.shown[:3] == (0, 1, 2)
        assert frames.shown[3] % 3 == 0
        assert frames.shown[3:] == tuple(range(frames.shown[3], frames.shown[3] + 9))
        assert frames.shown[-1] < 24
        assert (frames.jump > 0) == (frames.shown[3] > 3)
        assert frames.learnt == tuple(range(12))
        assert frames.jump >= frames.shown[3] - 3
    assert {frames.shown[3] for frames in drawn} == {3, 6, 9, 12, 15}


def test_what_follows_a_gap_is_not_learnt_where_nothing_says_where_the_camera_is():
    drawn = [train_world.draw_frames(np.random.default_rng(n), TINY, 24) for n in range(200)]
    assert all((frames.jump > 0) == (3 not in frames.learnt) for frames in drawn)
    assert all(set(frames.learnt) >= {0, 1, 2, *range(6, 12)} for frames in drawn)


def test_a_run_begins_with_weights_that_were_told_of_fewer_rays(cache, tmp_path):
    before, file = tiny_world(TINY, seed=5).transformer, tmp_path / "transformer.safetensors"
    save_file(before.state_dict(), file)
    trainer = world_trainer(cache, "taken over", "--start-from", str(file))

    camera = torch.randn(1, CONFIG.transformer.camera_channels, 3, 4, 6, generator=torch.Generator().manual_seed(1))
    told = trainer.transformer.embed_camera(camera)
    torch.testing.assert_close(told, before.embed_camera(camera[:, :384]), atol=1e-5, rtol=0)
    torch.testing.assert_close(trainer.average.values["head.head.weight"], before.head.head.weight, atol=0, rtol=0)

    trainer.save()
    digest = hashlib.sha256(file.read_bytes()).hexdigest()
    save_file(tiny_world(TINY, seed=6).transformer.state_dict(), file)
    with pytest.raises(RefusedError, match=r"^--start-from: run taken over began with other weights"):
        world_trainer(cache, "taken over", "--start-from", str(file))
    file.unlink()
    resumed = world_trainer(cache, "taken over", "--start-from", str(file))  # the same command goes on
    assert json.loads((resumed.run.folder / "settings.json").read_text())["start_from"] == digest


def test_what_a_run_cannot_begin_with_is_told_by_name(cache, tmp_path):
    (tmp_path / "damaged.safetensors").write_bytes(b"no weights")
    (tmp_path / "codec.safetensors").write_bytes((cache / "runs" / "codec" / "codec.safetensors").read_bytes())
    tensors = tiny_world(CONFIG).transformer.state_dict()
    narrow = {**tensors, "patch_embedding_wancamctrl.weight": torch.zeros(48, 100)}
    save_file(narrow, tmp_path / "narrow.safetensors")
    for name, words in {
        "missing.safetensors": r"missing\.safetensors: no such file",
        "damaged.safetensors": r"damaged\.safetensors: cannot be read as safetensors",
        "codec.safetensors": r"keys missing .* not known \(decoder",
        "narrow.safetensors": r"wancamctrl\.weight: wanted shape \[48, 3072\], the file has \[48, 100\]",
    }.items():
        with pytest.raises(RefusedError, match=rf"^--start-from: .*{words}"):
            world_trainer(cache, f"begins with {name}", "--start-from", str(tmp_path / name))


def test_a_run_begun_with_given_weights_trains_all_of_them(cache, tmp_path):
    file = tmp_path / "transformer.safetensors"
    save_file(tiny_world(CONFIG, seed=5).transformer.state_dict(), file)
    trainer = world_trainer(cache, "begun with and trained", "--start-from", str(file))
    before = {name: value.clone() for name, value in trainer.transformer.state_dict().items()}
    train(trainer, 2, budget_steps=100)
    for name, value in trainer.transformer.named_parameters():
        assert not torch.equal(value, before[name]), name


def test_a_run_that_began_with_another_optimizer_is_not_gone_on_with(cache):
    for began, other in (("muon", "adamw"), ("adamw", "muon")):
        world_trainer(cache, f"of {began}", "--optimizer", began).save()
        with pytest.raises(RefusedError, match=rf"run of {began}: its checkpoint is of another model or optimizer"):
            world_trainer(cache, f"of {began}", "--optimizer", other)


def test_settings_are_those_that_a_run_was_trained_with(cache):
    # A call that was refused, or found the run done, left its own: a model card told of what never was.
    done = world_trainer(cache, "with settings", "--rate", "0.002")
    train(done, 1, budget_steps=1)
    done.save()
    done.export_path.touch()
    world_trainer(cache, "with settings", "--rate", "9").train(workbench.Budget(60, 1))
    with pytest.raises(RefusedError):
        world_trainer(cache, "with settings", "--optimizer", "adamw")
    settings = json.loads((done.run.folder / "settings.json").read_text())
    assert (settings["rate"], settings["optimizer"]) == (0.002, "muon")


def test_a_checkpoint_of_another_kind_of_run_is_not_gone_on_with(cache):
    world_trainer(cache, "of a world").save()
    with pytest.raises(RefusedError, match=r"run of a world: its checkpoint is of another model"):
        codec_trainer(cache, "of a world")


def test_a_codec_that_does_not_fit_is_told_by_its_option(cache):
    with pytest.raises(RefusedError, match=r"^--codec: wanted a run of train_decoder\.py, got none: .*no such file"):
        world_trainer(cache, "without a codec", "--codec", "none")
    options = train_decoder.parse(["--device", "cpu", "--name", "without a codec", "--codec", "none"])
    with pytest.raises(RefusedError, match=r"^--codec: run none for run without a codec: .*no such file"):
        train_decoder.DecoderTrainer(options, cache, SPEC, SPEC, CONFIG)
    other = dataclasses.replace(CONFIG.codec, decoder_blocks=(2, 1, 1))
    (cache / "runs" / "other").mkdir()
    tensors = {name: value.contiguous() for name, value in train_codec.new_codec("cpu", other).state_dict().items()}
    save_file(tensors, cache / "runs" / "other" / "codec.safetensors")
    with pytest.raises(RefusedError, match=r"^--codec: .*, got other: .*not known \(decoder"):
        world_trainer(cache, "with another codec", "--codec", "other")


def test_a_run_learns_from_as_many_walks_as_its_settings_say(cache):
    # Settings, and a model card, told of walks that were wanted and not there.
    with pytest.raises(RefusedError, match=r"^--clips: wanted 8 at most, the walks that are rendered, got 9$"):
        world_trainer(cache, "of too many", "--clips", "9")
    assert world_trainer(cache, "of five", "--clips", "5").run.settings["clips"] == 5
    assert world_trainer(cache, "of all").run.settings["clips"] == 8


def test_a_damaged_shard_of_latents_is_told_by_its_place(cache):
    codec = tiny_world(CONFIG, seed=9).codec  # another encoder: its latents are nobody else's
    lessons = latents.LessonStore(cache, SPEC, codec, CONFIG)
    lessons.prepare()
    [path] = (cache / "latents" / f"{latents.encoder_digest(codec)}-v1").rglob("*.safetensors")
    path.write_bytes(path.read_bytes()[:1000])
    with pytest.raises(OSError, match=r"00000\.safetensors: cannot be read as latents, it is damaged; remove it"):
        latents.LessonStore(cache, SPEC, codec, CONFIG).lesson(0, 0, ALL)


def test_what_is_left_of_a_log_line_is_passed_over(tmp_path):
    # One half-written line ended every later check of the run, and its export.
    run = workbench.Run(tmp_path, "log", {})
    run.log(loss=2.0)
    with (run.folder / "log.jsonl").open("a") as file:
        file.write('{"step": 0, "lo\n\0\0\n')
    run.step = 25
    run.log(loss=1.0)
    assert run.history("loss") == [(0, 2.0), (25, 1.0)]
    assert [line["step"] for line in workbench.read_log(run.folder)] == [0, 25]


def test_one_run_is_trained_by_one_process_at_a_time(cache):
    first, second = world_trainer(cache, "held"), world_trainer(cache, "held")
    with first.run.held(), pytest.raises(RefusedError, match=r"^run held: another process trains it"):
        second.train(workbench.Budget(60, 1))
    assert second.run.step == 0
    with second.run.held():
        pass


def test_a_run_that_diverges_stops_and_keeps_its_last_checkpoint(cache):
    trainer = world_trainer(cache, "diverged")
    trainer.save()
    before = trainer.run.checkpoint_path.read_bytes()
    trainer.step = lambda spent: float("nan")
    with pytest.raises(RefusedError, match=r"^--rate: at step 1 the loss is nan; "):
        trainer.train(workbench.Budget(60, 100))
    assert trainer.run.checkpoint_path.read_bytes() == before


def test_a_world_is_exported_when_it_has_been_measured(cache, monkeypatch):
    # A run that broke off while it was measured counted as done, with the figures and steps of an earlier check.
    trainer = world_trainer(cache, "measured")
    trainer.held_out = ClipStore(cache, SPEC)
    monkeypatch.setattr(train_world, "CHECK_CLIPS", 1)
    with monkeypatch.context() as patch:
        patch.setattr(train_world, "stream_walk", stopped)
        with pytest.raises(KeyboardInterrupt):
            trainer.check()
    assert not trainer.export_path.exists()

    trainer.check()
    assert trainer.run.is_exported(trainer.export_path)
    [line] = workbench.read_log(trainer.run.folder)
    assert {f"chunk{number}_db" for number in range(1, 9)} < set(line)
    weights = load_file(trainer.export_path)
    assert torch.equal(weights["head.head.weight"], trainer.average.values["head.head.weight"])


def stopped(*_, **__):
    raise KeyboardInterrupt


def test_a_file_that_cannot_be_written_whole_stays_as_it_was(tmp_path):
    path = tmp_path / "checkpoint.pt"
    path.write_bytes(b"before")
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (2000, hard))  # as a full disk
    try:
        for write in (torch.save, save_file):
            with pytest.raises(OSError, match=r"checkpoint\.pt: cannot be written; is there room\? \("):
                write_whole(path, partial(write, {"weights": torch.zeros(10_000)}))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    with pytest.raises(KeyboardInterrupt):
        write_whole(path, stopped)
    assert [each.read_bytes() for each in tmp_path.iterdir()] == [b"before"]


def test_two_processes_that_write_one_file_have_unfinished_ones_of_their_own(tmp_path, monkeypatch):
    # Both encoded the same shard under one name: one's half was read as the other's whole.
    def write_while_another_does(unfinished):
        unfinished.write_text("first")
        with monkeypatch.context() as patch:
            patch.setattr(os, "getpid", lambda: 1)
            write_whole(tmp_path / "shard", lambda other: other.write_text("second"))
        assert (tmp_path / "shard").read_text() == "second"

    write_whole(tmp_path / "shard", write_while_another_does)
    assert [each.read_text() for each in tmp_path.iterdir()] == ["first"]


def test_a_checkpoint_that_is_none_is_told_by_its_place(cache):
    trainer = world_trainer(cache, "damaged")
    trainer.save()
    path = trainer.run.checkpoint_path
    for content in (b"", b"junk", path.read_bytes()[:-5000]):
        path.write_bytes(content)
        with pytest.raises(RefusedError, match=r"damaged/checkpoint\.pt: cannot be read"):
            world_trainer(cache, "damaged")


@pytest.mark.parametrize("optimizer", ["muon", "adamw"])
def test_every_weight_has_one_optimiser_and_those_on_rays_a_fifth_of_the_rate(cache, optimizer):
    trainer = world_trainer(cache, f"rates of {optimizer}", "--optimizer", optimizer, "--rate", "0.5")
    groups = [group for each in trainer.optimizers.each for group in each.param_groups]
    rates = [(id(weight), group["lr"]) for group in groups for weight in group["params"]]

    named = dict(trainer.transformer.named_parameters())
    assert sorted(weight for weight, _ in rates) == sorted(map(id, named.values()))
    slower = {weight for weight, rate in rates if rate != 0.5}
    assert slower == {id(named["patch_embedding_wancamctrl.weight"])}
    assert dict(rates)[slower.pop()] == pytest.approx(0.1)


@pytest.mark.parametrize("window", [9, 18])
def test_attention_by_chunks_equals_attention_under_the_mask(window):
    config = CONFIG.replace(window_latent_frames=window, sink_latent_frames=2)
    transformer, generator = tiny_world(config).transformer, torch.Generator().manual_seed(1)
    clean, noisy = (torch.randn(2, 16, 12, 4, 6, generator=generator) for _ in range(2))
    inputs = (
        torch.randn(2, 20, 12, 4, 6, generator=generator),
        torch.randn(2, CONFIG.transformer.camera_channels, 12, 4, 6, generator=generator),
        torch.rand(2, 12, generator=generator) * 1000,
        torch.randn(2, 2, 1, 16, generator=generator),
        torch.tensor([[0] * 12, [0] * 6 + [1] * 6]),
        5,
    )
    mask = teacher.teacher_mask(config, 12)
    masked = teacher.teacher_velocity(transformer, config, mask, clean[:, :, :9], noisy, *inputs)
    teacher.attend_chunkwise(transformer, config, 12)
    chunkwise = teacher.teacher_velocity(transformer, config, None, clean[:, :, :9], noisy, *inputs)
    torch.testing.assert_close(chunkwise, masked, atol=1e-4, rtol=1e-4)


def test_every_parameter_gets_a_finite_gradient(cache):
    trainer = world_trainer(cache, "gradients")
    frames = train_world.Frames(ALL, 0, ALL)
    batch = [trainer.lessons.lesson(clip, 0, ALL) for clip in range(4)]
    trainer.loss(batch, frames, np.random.default_rng(0), has_own_past=True).backward()
    without = [
        name
        for name, value in trainer.transformer.named_parameters()
        if value.grad is None or not value.grad.isfinite().all() or not value.grad.any()
    ]
    assert without == []


def test_a_resumed_run_takes_the_same_next_steps(cache):
    whole, broken = world_trainer(cache, "whole"), world_trainer(cache, "broken")
    wanted = train(whole, 6, budget_steps=6)
    got = train(broken, 3, budget_steps=6)
    broken.save()
    resumed = world_trainer(cache, "broken")
    assert resumed.run.step == 3
    assert got + train(resumed, 3, budget_steps=6) == wanted
    for name, value in whole.transformer.state_dict().items():
        assert torch.equal(value, resumed.transformer.state_dict()[name]), name
        assert torch.equal(whole.average.values[name], resumed.average.values[name]), name


def test_a_stop_signal_ends_after_the_step_with_all_of_it_saved(cache):
    trainer = world_trainer(cache, "stopped")
    step = trainer.step

    def step_and_be_told_to_stop(spent):
        os.kill(os.getpid(), signal.SIGTERM)
        return step(spent)

    trainer.step = step_and_be_told_to_stop
    with pytest.raises(KeyboardInterrupt):
        trainer.train(workbench.Budget(60, 100))
    resumed = world_trainer(cache, "stopped")
    assert resumed.run.step == 1
    for name, value in trainer.transformer.state_dict().items():
        assert torch.equal(value, resumed.transformer.state_dict()[name]), name
    assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL


def test_the_loss_falls_on_one_batch_learnt_by_heart(cache):
    trainer = world_trainer(cache, "by heart")
    frames, batch = train_world.Frames(ALL, 0, ALL), [trainer.lessons.lesson(clip, 0, ALL) for clip in range(2)]
    losses = []
    for _ in range(60):
        loss = trainer.loss(batch, frames, workbench.step_generator(0, 0), has_own_past=False)
        trainer.optimizers.step(loss, trainer.transformer.parameters(), rate_share=1.0)
        losses.append(float(loss.detach()))
    assert losses[-1] < 0.6 * losses[0]
    assert losses[-1] < losses[30] < losses[0]


def test_a_codec_run_resumes_with_the_same_next_steps(cache):
    wanted = train(codec_trainer(cache, "codec whole"), 6, budget_steps=6)  # crops, then whole pictures
    broken = codec_trainer(cache, "codec broken")
    got = train(broken, 3, budget_steps=6)
    broken.save()
    assert got + train(codec_trainer(cache, "codec broken"), 3, budget_steps=6) == wanted


def test_a_run_that_broke_off_before_its_last_export_makes_it_when_run_again(cache):
    # It took the export of an earlier check for the last one, and shipped weights that were trained for less.
    broken = codec_trainer(cache, "codec not exported")
    broken.check()
    train(broken, 2, budget_steps=2)
    broken.save()
    again = codec_trainer(cache, "codec not exported")
    again.train(workbench.Budget(60, 2))
    shipped = load_file(again.export_path)
    name = "decoder.outlet.weight"
    assert torch.equal(shipped[name], broken.average.values[name])
    assert again.run.is_exported(again.export_path)


def test_a_decoder_is_trained_on_under_the_same_latents(cache):
    def trainer(name):
        options = train_decoder.parse(
            ["--device", "cpu", "--threads", "1", "--batch", "2", "--frames", "5", "--name", name]
        )
        return train_decoder.DecoderTrainer(options, cache, SPEC, SPEC, CONFIG)

    before = load_file(cache / "runs" / "codec" / "codec.safetensors")
    trained = trainer("decoder")
    got = train(trained, 3, budget_steps=6)
    trained.check()
    again = trainer("decoder")
    assert got + train(again, 3, budget_steps=6) == train(trainer("decoder whole"), 6, budget_steps=6)
    after = load_file(trained.export_path)
    assert {name for name, value in after.items() if not torch.equal(value, before[name])} == {
        name for name in before if name.startswith("decoder.")
    }
    codec = tiny_world(CONFIG).codec
    codec.load_state_dict(after)
    assert latents.encoder_digest(codec) == latents.encoder_digest(tiny_world(CONFIG).codec)


def test_a_decoder_does_not_go_on_when_its_codec_has_learnt_more(cache):
    # What was shipped then said of the decoder's old encoder that it had been trained for as long as the new one.
    def trainer():
        options = train_decoder.parse(["--device", "cpu", "--frames", "5", "--codec", "more", "--name", "left behind"])
        return train_decoder.DecoderTrainer(options, cache, SPEC, SPEC, CONFIG)

    codec = codec_trainer(cache, "more")
    codec.check()
    begun = trainer()
    train(begun, 1, budget_steps=6)
    begun.save()
    assert trainer().run.step == 1
    train(codec, 1, budget_steps=6)
    codec.check()
    with pytest.raises(RefusedError, match=r"^--codec: run more for run left behind: its encoder has been trained on"):
        trainer()
    codec.export_path.unlink()
    assert trainer().run.step == 1


def test_a_decoder_that_grows_decodes_as_before_until_it_is_trained(cache):
    bigger = dataclasses.replace(CONFIG.codec, decoder_blocks=(1, 2, 3))
    codec, before = train_codec.new_codec("cpu", bigger), tiny_world(CONFIG).codec
    train_decoder.grow(codec, before.state_dict())
    latents_ = torch.randn(2, 3, 16, 4, 6)
    with torch.inference_mode():
        assert torch.equal(codec.decode(latents_)[0], before.decode(latents_)[0])
    tensors = {name: value for name, value in before.state_dict().items() if name != "decoder.outlet.weight"}
    with pytest.raises(ValueError, match=r"do not fit: decoder\.outlet\.weight"):
        train_decoder.grow(codec, tensors)


def test_latents_of_another_encoder_are_never_read(cache):
    codec = tiny_world(CONFIG).codec
    with torch.no_grad():
        codec.encoder.outlet.bias[3] += 1e-6
    assert latents.encoder_digest(codec) != latents.encoder_digest(tiny_world(CONFIG).codec)


@pytest.mark.parametrize("optimizer", ["muon", "adamw"])
def test_every_parameter_is_moved_by_either_optimiser(cache, optimizer):
    trainer = world_trainer(cache, f"moved by {optimizer}", "--optimizer", optimizer)
    before = {name: value.clone() for name, value in trainer.transformer.state_dict().items()}
    train(trainer, 2, budget_steps=100)
    for name, value in trainer.transformer.named_parameters():
        assert not torch.equal(value, before[name]), name


def test_a_run_is_counted_before_it_can_be_saved(tmp_path):
    run = workbench.Run(tmp_path, "count", {})
    seen = [run.step for _ in workbench.steps_of(run, workbench.Budget(1, 3), lambda spent: spent)]
    assert seen == [1, 2, 3]
