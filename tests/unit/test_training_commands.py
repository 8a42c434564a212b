"""The training scripts' command lines: what cannot be meant is refused in one line that names the option."""

import multiprocessing
import os
import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import pytest

TRAINING = Path(__file__).parents[2] / "model_repository" / "denoise" / "training"
sys.path.append(str(TRAINING))  # the scripts there import one another by name

import draw_walk  # noqa: E402
import evaluate  # noqa: E402
import render_dataset  # noqa: E402
import train  # noqa: E402
import train_codec  # noqa: E402
import train_decoder  # noqa: E402
import train_world  # noqa: E402
from commands import RefusedError, run_command  # noqa: E402

COUNT = "wanted a whole number, 1 or more, got "


@pytest.mark.parametrize(
    ("main", "option", "value", "words"),
    [
        (evaluate.main, "--clips", "0", COUNT + "'0'"),
        (evaluate.main, "--chunks", "-1", COUNT + "'-1'"),
        (evaluate.main, "--window", "many", COUNT + "'many'"),
        (evaluate.main, "--device", "nope", "wanted a device that torch has here, such as cpu, got 'nope'"),
        (train_world.main, "--device", "meta", "wanted a device that torch has here, such as cpu, got 'meta'"),
        (render_dataset.main, "--clips", "0", COUNT + "'0'"),
        (render_dataset.main, "--workers", "0", COUNT + "'0'"),
        (render_dataset.main, "--latent-frames", "0", COUNT + "'0'"),
        (render_dataset.main, "--height", "0", COUNT + "'0'"),
        (render_dataset.main, "--seed", "-1", "wanted a whole number, 0 or more, got '-1'"),
        (train_world.main, "--batch", "0", COUNT + "'0'"),
        (train_world.main, "--clips", "1.5", COUNT + "'1.5'"),
        (train_world.main, "--minutes", "0", "wanted a number of minutes, more than 0, got '0'"),
        (train_codec.main, "--minutes", "nan", "wanted a number of minutes, more than 0, got 'nan'"),
        (train_decoder.main, "--steps", "0", COUNT + "'0'"),
        (train_codec.main, "--frames", "12", "wanted 1 + 4k frames, 93 at most, got '12'"),
        (train_codec.main, "--frames", "97", "wanted 1 + 4k frames, 93 at most, got '97'"),
        (train_decoder.main, "--rate", "-1", "wanted a number, more than 0, got '-1'"),
        (train_world.main, "--rate", "nan", "wanted a number, more than 0, got 'nan'"),
        (train_world.main, "--check-every", "0", "wanted a number of minutes, more than 0, got '0'"),
        (train.main, "--check-every", "nan", "wanted a number of minutes, more than 0, got 'nan'"),
        (train_world.main, "--name", "../a", "wanted the name of a run, a folder in <cache>/runs, got '../a'"),
        (train_codec.main, "--name", "", "wanted the name of a run, a folder in <cache>/runs, got ''"),
        (train_world.main, "--codec", "..", "wanted the name of a run, a folder in <cache>/runs, got '..'"),
        (draw_walk.main, "--chunks", "0", COUNT + "'0'"),
    ],
)
def test_a_value_that_cannot_be_meant_is_refused_by_its_option(main, option, value, words, capsys):
    with pytest.raises(SystemExit) as caught:
        main([option, value])
    assert caught.value.code == 2
    assert capsys.readouterr().err.splitlines()[-1].endswith(f"error: argument {option}: {words}")


def test_more_chunks_than_a_walk_has_are_refused(capsys):
    with pytest.raises(SystemExit):
        evaluate.main(["--chunks", "9"])
    assert capsys.readouterr().err.endswith("error: --chunks: a walk has 8, got 9\n")


def test_the_shipped_weights_are_measured_unless_others_are_named(monkeypatch, tmp_path, capsys):
    seen = []
    monkeypatch.setattr(evaluate, "load", lambda options: seen.append(options.weights))
    monkeypatch.setattr(evaluate, "held_out_clips", lambda *_: run_command(lambda: 7))  # far enough
    for arguments in ([], ["--seeded"], ["--weights", str(tmp_path)]):
        with pytest.raises(SystemExit):
            evaluate.main([*arguments, "--sheets", str(tmp_path)])
    assert seen == [TRAINING.parent / "1" / "weights", None, tmp_path]
    with pytest.raises(SystemExit):
        evaluate.main(["--seeded", "--weights", str(tmp_path)])
    assert capsys.readouterr().err.endswith("error: --seeded: wanted without --weights, got both\n")


def test_a_walk_that_is_drawn_for_nothing_is_refused(capsys):
    with pytest.raises(SystemExit):
        draw_walk.main(["--actions", "ww"])
    assert capsys.readouterr().err.endswith("error: wanted --picture or --truth, or both: what to write; got neither\n")


def test_a_card_that_cannot_be_made_is_told_before_anything_is_measured(tmp_path, capsys):
    for arguments in (["--seeded"], ["--weights", str(tmp_path)], ["--window", "9"]):
        with pytest.raises(SystemExit):
            evaluate.main(["--keep", *arguments])
    [first, second, third] = [line for line in capsys.readouterr().err.splitlines() if "error: " in line]
    assert first.endswith("error: --keep: wanted weights of a folder, beside which it writes, got --seeded")
    assert second.endswith("error: --keep: wanted weights with their training.json, of which their card is made")
    assert third.endswith("error: --keep: wanted the window that is served, got --window")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["draw_walk", "--actions", "wx", "--truth", "{out}/t.npy"], "error: actions: frame 1: 'x' is no key; "),
        (["draw_walk", "--picture", "{out}/none/start.png"], "error: [Errno 2] No such file or directory: "),
        (["evaluate", "--weights", "{out}", "--sheets", "{out}"], "error: --weights: parameter checkpoint: "),
        (["evaluate", "--window", "2", "--sheets", "{out}"], "error: --window: embedded: a window of 2 latent frames "),
        (["evaluate", "--sheets", "{out}/file/sheets"], "error: [Errno 20] Not a directory: "),
        (["train_world", "--cache", "{out}"], "error: --cache: no train-0-24x96x160-v3 walks there; "),
        (["train_decoder", "--cache", "{out}"], "error: --cache: no train-0-24x96x160-v3 walks there; "),
    ],
)
def test_a_refusal_is_one_line(arguments, words, tmp_path):
    (tmp_path / "file").touch()
    script, *options = [each.format(out=tmp_path) for each in arguments]
    command = [sys.executable, str(TRAINING / f"{script}.py"), *options]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode, done.stdout) == (1, "")
    [line] = done.stderr.splitlines()
    assert line.startswith(words)


def test_refusals_and_stops_end_quietly_and_a_bug_keeps_its_traceback():
    def refused() -> None:
        raise RefusedError("wanted this, got that")

    def wrong() -> None:
        raise KeyError("a bug")

    def stopped() -> None:
        raise KeyboardInterrupt

    with pytest.raises(SystemExit, match=r"^error: wanted this, got that$"):
        run_command(refused)
    with pytest.raises(KeyError):
        run_command(wrong)
    with pytest.raises(SystemExit) as ended:
        run_command(lambda: 7)
    assert ended.value.code == 7
    with pytest.raises(SystemExit) as ended:
        run_command(stopped)
    assert ended.value.code == 130


def test_a_sigterm_stops_a_command_as_ctrl_c_does():
    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(SystemExit) as ended:
        run_command(lambda: os.kill(os.getpid(), signal.SIGTERM))
    assert ended.value.code == 130
    assert signal.getsignal(signal.SIGTERM) == before


def test_a_renderer_that_is_ended_from_outside_is_told_and_not_waited_for():
    # For want of memory, say: the pool waited for ever for what it had been doing.
    with pytest.raises(RefusedError, match=r"^--workers: one was ended from outside; fewer need less memory$"):
        render_dataset.run_in_processes([partial(os._exit, 9), partial(time.sleep, 100)], workers=2)
    assert multiprocessing.active_children() == []


def test_renderers_end_with_a_command_that_is_killed():
    # They waited for its next job for ever.
    jobs = "[partial(os.write, 2, b'up'), partial(time.sleep, 100)]"
    code = f"import os, time, render_dataset\nfrom functools import partial\nrender_dataset.run_in_processes({jobs}, 1)"
    command = [sys.executable, "-c", code]
    pipes = {"stdout": subprocess.DEVNULL, "stderr": subprocess.PIPE}
    with subprocess.Popen(command, cwd=TRAINING, **pipes) as parent:
        assert parent.stderr.read(2) == b"up"
        parent.kill()
        parent.communicate(timeout=30)  # ends when nobody can write there any more


def test_no_process_is_started_for_nothing_to_render(monkeypatch):
    monkeypatch.setattr(multiprocessing.process.BaseProcess, "start", None)
    render_dataset.run_in_processes([], workers=64)


def test_a_codec_learns_from_the_walks_that_are_rendered_whatever_its_seed(monkeypatch, tmp_path):
    # With another seed it rendered one shard of walks of that seed, and learnt from eight walks.
    seen = []

    class Noted:
        def __init__(self, options, cache, train, held_out, config) -> None:
            seen.append(train.name)

        def train(self, budget) -> None:
            pass

    monkeypatch.setattr(train_codec, "write_shard", lambda *_: None)
    monkeypatch.setattr(train_codec, "CodecTrainer", Noted)
    train_codec.main(["--seed", "5", "--cache", str(tmp_path)])
    assert seen == ["train-0-24x96x160-v3"]
