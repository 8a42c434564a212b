"""serve.py's checks that come before a server is started; the server itself is in tests/server/test_serve.py."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import serve

ROOT = Path(__file__).parent.parent.parent
NO_PORTS: dict[str, int | None] = {"http": None, "grpc": None, "metrics": None}


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """Two models, the first with the parameters `answer` and `colour`."""
    for name in ("first", "second"):
        (tmp_path / "models" / name / "1").mkdir(parents=True)
        (tmp_path / "models" / name / "config.pbtxt").write_text(f'name: "{name}"\n', encoding="utf-8")
    (tmp_path / "models" / "first" / "config.pbtxt").write_text(
        """
        name: "first"  # a comment
        parameters { key: "answer" value { string_value: "41" } }
        parameters { key: "colour" value { string_value: "red" } }
        """,
        encoding="utf-8",
    )
    return tmp_path / "models"


@pytest.fixture
def taken_port() -> Iterator[int]:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        yield listener.getsockname()[1]


def run_serve(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(ROOT / "serve.py"), *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, stdin=subprocess.DEVNULL)


def test_a_port_in_use_is_named(taken_port: int) -> None:
    with pytest.raises(serve.ServeError, match=rf"port {taken_port} \(grpc\) on 127\.0\.0\.1 is in use"):
        serve.choose_ports({**NO_PORTS, "grpc": taken_port}, is_free_wanted=True)


def test_a_usual_port_in_use_tells_how_to_take_free_ones(taken_port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(serve.USUAL_PORTS, "http", taken_port)

    with pytest.raises(serve.ServeError, match=r"--free-ports \(make serve SERVE_ARGS=--free-ports\)$"):
        serve.choose_ports(NO_PORTS, is_free_wanted=False)


def test_free_ports_are_not_offered_for_a_port_that_was_asked_for(taken_port: int) -> None:
    with pytest.raises(serve.ServeError, match=r"or pass another --http-port$"):
        serve.choose_ports({**NO_PORTS, "http": taken_port}, is_free_wanted=True)


def test_one_port_for_two_services_is_refused() -> None:
    port = serve.choose_ports(NO_PORTS, is_free_wanted=True)["http"]

    with pytest.raises(serve.ServeError, match=rf"port {port} \(grpc\)"):
        serve.choose_ports({**NO_PORTS, "http": port, "grpc": port}, is_free_wanted=True)


def test_free_ports_are_three_that_nobody_has() -> None:
    ports = serve.choose_ports(NO_PORTS, is_free_wanted=True)

    assert list(ports) == ["http", "grpc", "metrics"]
    assert len(set(ports.values())) == 3
    for port in ports.values():
        with socket.socket() as probe:
            assert probe.connect_ex(("127.0.0.1", port)) != 0


def test_set_changes_only_the_named_parameter(repository: Path, tmp_path: Path) -> None:
    copy = serve.linked_repository(repository, ["first.answer=42"], "", tmp_path / "work")

    changed = (copy / "first" / "config.pbtxt").read_text(encoding="utf-8")
    assert 'string_value: "42"' in changed
    assert 'string_value: "red"' in changed
    assert 'string_value: "41"' not in changed
    assert (copy / "first" / "1").resolve() == repository / "first" / "1"
    assert (copy / "second" / "config.pbtxt").resolve() == repository / "second" / "config.pbtxt"


def test_a_value_may_hold_equals_signs_and_dots(repository: Path, tmp_path: Path) -> None:
    copy = serve.linked_repository(repository, ["first.colour=a=b.c"], "", tmp_path / "work")

    assert 'string_value: "a=b.c"' in (copy / "first" / "config.pbtxt").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("answer=42", "wanted MODEL.KEY=VALUE, got 'answer=42'"),
        ("first.answer", "wanted MODEL.KEY=VALUE, got 'first.answer'"),
        ("first.=42", "wanted MODEL.KEY=VALUE, got 'first.=42'"),
        ("third.answer=42", "no model 'third'; there are: first, second"),
        ("first.size=42", "model 'first' has no parameter 'size'; it has: answer, colour"),
        ("second.answer=42", "model 'second' has no parameter 'answer'; it has: none"),
    ],
)
def test_a_setting_that_changes_nothing_is_refused(
    repository: Path, tmp_path: Path, setting: str, message: str
) -> None:
    with pytest.raises(serve.ServeError) as refusal:
        serve.linked_repository(repository, [setting], "", tmp_path / "work")

    assert str(refusal.value) == f"--set: {message}"


def test_refusals_are_one_line_without_a_traceback(taken_port: int, tmp_path: Path) -> None:
    in_use = run_serve("--free-ports", "--http-port", str(taken_port))
    no_folder = run_serve("--free-ports", "--model-repository", tmp_path / "nowhere")

    assert (in_use.returncode, in_use.stderr.count("\n")) == (1, 1)
    assert f"port {taken_port} (http)" in in_use.stderr
    assert (no_folder.returncode, no_folder.stderr.count("\n")) == (1, 1)
    assert "nowhere" in no_folder.stderr


def test_without_the_packages_it_says_how_to_get_them() -> None:
    # -S leaves this environment's packages out.
    result = subprocess.run(
        [sys.executable, "-S", str(ROOT / "serve.py"), "--free-ports"], capture_output=True, text=True, timeout=60
    )

    assert result.returncode == 1
    assert "make setup" in result.stderr
    assert "Traceback" not in result.stderr


def test_this_python_can_serve() -> None:
    result = run_serve("--check-python")

    assert (result.returncode, result.stdout) == (0, "\n")


def test_a_models_process_that_ended_is_noticed_and_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serve, "DEAD_MODEL_GRACE_S", 0.0)
    stub = tmp_path / "triton_python_backend_stub"
    shutil.copy(shutil.which("bash") or "", stub)
    with subprocess.Popen(
        [stub, "-c", "read", "/models/first/1/model.py"], stdin=subprocess.PIPE, executable=stub
    ) as process:
        watch = serve.ModelWatch(os.getpid(), {"first", "second"})
        watch.check()  # it runs
        process.kill()
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)  # a zombie, as the server leaves it
        watch.check()

        with pytest.raises(serve.ServeError, match="the process of model 'first' ended by itself"):
            watch.check()


def test_the_canary_picture_is_a_picture() -> None:
    from io import BytesIO

    from PIL import Image

    picture = Image.open(BytesIO(serve.CANARY_PNG))
    picture.load()

    assert (picture.size, picture.mode, picture.getpixel((8, 8))) == ((16, 16), "RGB", (96, 128, 160))
