"""The Makefile's words around serve.py, with an environment whose Python only notes what it is asked to do."""

from __future__ import annotations

import os
import pty
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent
NOTING_PYTHON = """#!/bin/sh
echo "$@" >> calls
"""


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A folder with the Makefile, what it reads, and a Python in .venv that appends its arguments to ./calls."""
    folder = tmp_path / "my checkout"
    (folder / ".venv" / "bin").mkdir(parents=True)
    for name in ("Makefile", "pyproject.toml", "constraints.txt"):
        shutil.copy(ROOT / name, folder / name)
    (folder / ".venv" / "pyvenv.cfg").touch()
    (folder / ".venv" / "bin" / "python").write_text(NOTING_PYTHON, encoding="utf-8")
    (folder / ".venv" / "bin" / "python").chmod(0o755)
    (folder / "start.png").touch()
    return folder


def make(checkout: Path, *arguments: str, stderr: int = subprocess.PIPE) -> subprocess.CompletedProcess[str]:
    env = {key: value for key, value in os.environ.items() if key not in ("MAKEFLAGS", "MAKELEVEL", "MFLAGS")}
    return subprocess.run(
        ["make", *arguments], cwd=checkout, env=env, stdout=subprocess.PIPE, stderr=stderr, text=True, timeout=60
    )


def calls(checkout: Path) -> list[str]:
    path = checkout / "calls"
    return path.read_text(encoding="utf-8").splitlines() if path.exists() else []


def test_the_demo_refuses_poses_with_actions_before_it_sets_anything_up(checkout: Path) -> None:
    result = make(checkout, "demo", "PICTURE=start.png", "POSES=walk", "ACTIONS=www")

    assert result.returncode != 0
    assert result.stderr.startswith("make demo: POSES, ACTIONS: one of them steers, both came\n")
    assert calls(checkout) == []


@pytest.mark.parametrize(
    ("wish", "words"),
    [
        ("PICTURE=nowhere.png", "there is no picture nowhere.png; name one with PICTURE=FILE"),
        ("ACTIONS=ww[wx]", "ACTIONS: 'x' is no key; w a s d move, i j k l look, . stands still"),
        ("POSES=nowhere.npy", "POSES: wanted walk, pan, orbit, stand or a .npy file, got nowhere.npy"),
        ("STEPS=many", "STEPS: wanted an integer, got many"),
        ("STEPS=51", "STEPS: wanted 1 to 50, got 51"),
        ("STEPS=0", "STEPS: wanted 1 to 50, got 0"),
        ("CHUNKS=0", "CHUNKS: wanted 1 or more, got 0"),
    ],
)
def test_the_demo_refuses_what_cannot_be_before_it_sets_anything_up(checkout: Path, wish: str, words: str) -> None:
    result = make(checkout, "demo", "PICTURE=start.png", wish)

    assert result.returncode != 0
    assert result.stderr.startswith(f"make demo: {words}\n")
    assert calls(checkout) == []


@pytest.mark.parametrize("wish", ["ACTIONS=w[wl], .ijkl", "POSES=orbit", "POSES=start.png", "STEPS=50", "CHUNKS=12"])
def test_the_demo_goes_on_with_what_can_be(checkout: Path, wish: str) -> None:
    assert make(checkout, "demo", "PICTURE=start.png", wish).returncode == 0
    assert "serve.py" in calls(checkout)[-1]


def test_the_demo_keeps_the_servers_log_in_a_file(checkout: Path) -> None:
    result = make(checkout, "demo", "PICTURE=start.png", "ACTIONS=www")

    assert result.returncode == 0, result.stderr
    assert "serve.py --free-ports --log-file demo/server.log --run exec .venv/bin/worldstream" in calls(checkout)[-1]


def test_setup_says_how_much_it_fetches(checkout: Path) -> None:
    result = make(checkout, "setup")

    assert "about 2 GB and 2-5 minutes" in result.stderr
    installs = [call for call in calls(checkout) if "pip install" in call]
    assert len(installs) == 2
    assert all("--quiet" in call for call in installs)


def test_setup_shows_progress_on_a_terminal(checkout: Path) -> None:
    reader, terminal = pty.openpty()

    make(checkout, "setup", stderr=terminal)

    os.close(terminal)
    os.close(reader)
    installs = [call for call in calls(checkout) if "pip install" in call]
    assert len(installs) == 2
    assert not any("--quiet" in call for call in installs)
