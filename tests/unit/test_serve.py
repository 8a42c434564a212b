"""serve.py's checks that come before a server is started; the server itself is in tests/server/test_serve.py."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from launcher import model_watch
from launcher.canary import CANARY_PNG
from launcher.model_watch import ModelWatch
from launcher.ports import USUAL_PORTS, choose_ports
from launcher.processes import has_members
from launcher.repository import check_config_name, linked_repository
from launcher.server_log import ServerLog
from launcher.serving import Backoff
from launcher.signals import Stop, StopSignals
from launcher.told import ServeError
from launcher.triton import SPIN_COUNT, Triton, server_environment

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
    with pytest.raises(ServeError, match=rf"port {taken_port} \(grpc\) on 127\.0\.0\.1 is in use"):
        choose_ports({**NO_PORTS, "grpc": taken_port}, is_free_wanted=True)


def test_a_usual_port_in_use_tells_how_to_take_free_ones(taken_port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(USUAL_PORTS, "http", taken_port)

    with pytest.raises(ServeError, match=r"--free-ports \(make serve SERVE_ARGS=--free-ports\)$"):
        choose_ports(NO_PORTS, is_free_wanted=False)


def test_free_ports_are_not_offered_for_a_port_that_was_asked_for(taken_port: int) -> None:
    with pytest.raises(ServeError, match=r"or pass another --http-port$"):
        choose_ports({**NO_PORTS, "http": taken_port}, is_free_wanted=True)


def test_one_port_for_two_services_is_refused() -> None:
    port = choose_ports(NO_PORTS, is_free_wanted=True)["http"]

    with pytest.raises(ServeError, match=rf"port {port} \(grpc\)"):
        choose_ports({**NO_PORTS, "http": port, "grpc": port}, is_free_wanted=True)


def test_free_ports_are_three_that_nobody_has() -> None:
    ports = choose_ports(NO_PORTS, is_free_wanted=True)

    assert list(ports) == ["http", "grpc", "metrics"]
    assert len(set(ports.values())) == 3
    for port in ports.values():
        with socket.socket() as probe:
            assert probe.connect_ex(("127.0.0.1", port)) != 0


def test_set_changes_only_the_named_parameter(repository: Path, tmp_path: Path) -> None:
    copy = linked_repository(repository, ["first.answer=42"], "", tmp_path / "work")

    changed = (copy / "first" / "config.pbtxt").read_text(encoding="utf-8")
    assert 'string_value: "42"' in changed
    assert 'string_value: "red"' in changed
    assert 'string_value: "41"' not in changed
    assert (copy / "first" / "1").resolve() == repository / "first" / "1"
    assert (copy / "second" / "config.pbtxt").resolve() == repository / "second" / "config.pbtxt"


def test_a_value_may_hold_equals_signs_and_dots(repository: Path, tmp_path: Path) -> None:
    copy = linked_repository(repository, ["first.colour=a=b.c"], "", tmp_path / "work")

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
    with pytest.raises(ServeError) as refusal:
        linked_repository(repository, [setting], "", tmp_path / "work")

    assert str(refusal.value) == f"--set: {message}"


@pytest.mark.parametrize("content", [None, b"name: { {", b"\xff"])
def test_a_setting_of_a_model_without_a_configuration_is_refused(
    repository: Path, tmp_path: Path, content: bytes | None
) -> None:
    config = repository / "first" / "config.pbtxt"
    config.unlink()
    if content is not None:
        config.write_bytes(content)

    with pytest.raises(ServeError, match=r"^--set: model 'first' has no config\.pbtxt that can be read: "):
        linked_repository(repository, ["first.answer=42"], "", tmp_path / "work")


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
    monkeypatch.setattr(model_watch, "DEAD_MODEL_GRACE_S", 0.0)
    stub = tmp_path / "triton_python_backend_stub"
    shutil.copy(shutil.which("bash") or "", stub)
    with subprocess.Popen(
        [stub, "-c", "read", "/models/first/1/model.py"], stdin=subprocess.PIPE, executable=stub
    ) as process:
        watch = ModelWatch(os.getpid(), {"first", "second"})
        watch.check()  # it runs
        process.kill()
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)  # a zombie, as the server leaves it
        watch.check()

        with pytest.raises(ServeError, match="the process of model 'first' ended by itself"):
            watch.check()


def test_the_canary_picture_is_a_picture() -> None:
    from io import BytesIO

    from PIL import Image

    picture = Image.open(BytesIO(CANARY_PNG))
    picture.load()

    assert (picture.size, picture.mode, picture.getpixel((8, 8))) == ((16, 16), "RGB", (96, 128, 160))


@pytest.fixture
def signals() -> Iterator[StopSignals]:
    """As serve.py has them; pytest has its own back afterwards."""
    before = {signum: signal.getsignal(signum) for signum in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    signal.signal(signal.SIGHUP, signal.SIG_DFL)  # these tests may run under nohup
    yield StopSignals()
    for signum, handler in before.items():
        signal.signal(signum, handler)


def test_a_signal_breaks_off_what_may_be_broken_off(signals: StopSignals) -> None:
    with pytest.raises(Stop, match="SIGTERM"), signals.raising():
        signal.raise_signal(signal.SIGTERM)


def test_under_nohup_a_hangup_is_no_signal_to_end(signals: StopSignals) -> None:
    signal.signal(signal.SIGHUP, signal.SIG_IGN)

    with StopSignals().raising():
        signal.raise_signal(signal.SIGHUP)


def test_a_signal_in_between_is_kept_for_later(signals: StopSignals) -> None:
    signal.raise_signal(signal.SIGHUP)

    with pytest.raises(Stop, match="SIGHUP"), signals.raising():
        pytest.fail("the signal was forgotten")


def test_a_second_signal_does_not_break_off_the_end(signals: StopSignals) -> None:
    def stop_twice() -> None:
        try:
            signal.raise_signal(signal.SIGINT)
        finally:
            signal.raise_signal(signal.SIGTERM)
            closed.append("all")

    closed: list[str] = []

    with pytest.raises(Stop, match="SIGINT"), signals.raising():
        stop_twice()

    assert closed == ["all"]


def test_waits_between_starts_double_up_to_a_minute() -> None:
    backoff = Backoff(limit=None)

    assert [backoff.next_s(ready_s=1) for _ in range(9)] == [1, 2, 4, 8, 16, 32, 60, 60, 60]


def test_a_server_that_stayed_well_starts_the_waits_anew() -> None:
    backoff = Backoff(limit=None)

    assert [backoff.next_s(ready_s) for ready_s in (0, 0, 3600, 0)] == [1, 2, 1, 2]


def test_only_restarts_in_a_row_count_towards_the_limit() -> None:
    backoff = Backoff(limit=2)

    assert [backoff.next_s(ready_s) for ready_s in (0, 0, 3600, 0, 0)] == [1, 2, 1, 2, None]


def test_no_restart_at_all_is_a_limit_too() -> None:
    assert Backoff(limit=0).next_s(ready_s=3600) is None


def test_a_command_goes_without_restarts() -> None:
    result = run_serve("--run", "true", "--restart")

    assert result.returncode == 2
    assert "--run goes with neither --restart nor --canary-every-s" in result.stderr


def test_the_members_of_a_group_are_those_that_run() -> None:
    with subprocess.Popen(["sleep", "60"], start_new_session=True) as process:
        assert has_members(process.pid)
        process.kill()
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)  # a zombie from here on

        assert not has_members(process.pid)


def test_a_configuration_that_no_model_has_is_refused_with_those_that_there_are(repository: Path) -> None:
    (repository / "second" / "configs").mkdir()
    for name in ("gpu", "sequences"):
        (repository / "second" / "configs" / f"{name}.pbtxt").write_text("", encoding="utf-8")
    check_config_name("gpu", repository)
    check_config_name(None, repository)
    with pytest.raises(ServeError, match=r"no model has a configuration 'gup'; there are: gpu, sequences"):
        check_config_name("gup", repository)


@pytest.mark.parametrize("end", ['\\n\\nAt:\\n  /tmp/x/model.py(3): f\\n"\n', '"\n', "\n"])
def test_the_log_remembers_why_a_model_could_not_be_loaded(tmp_path: Path, end: str) -> None:
    said = tmp_path / "log"
    said.write_text(f"E1130 model_lifecycle.cc:642] \"failed to load 'tiny' version 1: Internal: KeyError: a b{end}")
    with said.open("rb") as source:
        log = ServerLog(source, None)
        log.wait()
    assert log.failures == {"tiny": "KeyError: a b"}


@pytest.mark.parametrize(
    ("given", "spin_count"),
    [({}, SPIN_COUNT), ({"GOMP_SPINCOUNT": "7"}, "7"), ({"OMP_WAIT_POLICY": "ACTIVE"}, None)],
)
def test_computing_threads_give_their_cores_away_soon_unless_told_otherwise(given, spin_count, monkeypatch):
    for name in ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY"):
        monkeypatch.delenv(name, raising=False)
    for name, value in given.items():
        monkeypatch.setenv(name, value)
    triton = Triton(Path("bin/tritonserver"), Path("backends"), ())
    assert server_environment(triton).get("GOMP_SPINCOUNT") == spin_count
