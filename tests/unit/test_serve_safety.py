"""serve.py's checks of keys, certificates and addresses, and the flags that they become; no server."""

from __future__ import annotations

import fcntl
import os
import pty
import subprocess
import sys
import termios
from pathlib import Path

import pytest
from launcher.access import Access, read_access, read_api_key, restrictions, safety
from launcher.options import Options, parse_arguments
from launcher.ports import reachable
from launcher.told import ServeError
from launcher.triton import find_triton

from tests.certificates import make_certificate

ROOT = Path(__file__).parents[2]
ALL_APIS = {"model-repository", "trace", "logging", "shared-memory"}
SERVING_APIS = {"inference", "metadata", "model-config", "statistics"}
KEY = "0123456789abcdef"


def parse(*arguments: str) -> Options:
    return parse_arguments(list(arguments))


def groups_of(flags: list[str], flag: str) -> dict[str, tuple[set[str], str]]:
    """The restricted APIs and the value, by the header that opens them."""
    groups = [each.removeprefix(f"{flag}=").split(":") for each in flags if each.startswith(f"{flag}=")]
    return {pair.split("=")[0]: (set(apis.split(",")), pair.split("=")[1]) for apis, pair in groups}


@pytest.mark.parametrize("flag", ["--http-restricted-api", "--grpc-restricted-protocol"])
def test_what_changes_the_server_is_closed_by_a_value_that_nobody_knows(flag: str) -> None:
    one, other = (groups_of(restrictions(False, None), flag) for _ in range(2))

    assert one.keys() == {"x-closed"}
    assert one["x-closed"][0] == ALL_APIS
    assert len(one["x-closed"][1]) == 32
    assert one["x-closed"][1] != other["x-closed"][1]


@pytest.mark.parametrize("flag", ["--http-restricted-api", "--grpc-restricted-protocol"])
def test_a_key_closes_what_serves_but_for_health(flag: str) -> None:
    groups = groups_of(restrictions(False, KEY), flag)

    assert groups["x-api-key"] == (SERVING_APIS, KEY)
    assert groups["x-closed"][0] == ALL_APIS


def test_shared_memory_is_open_to_all_or_to_those_with_the_key() -> None:
    flag = "--http-restricted-api"
    assert groups_of(restrictions(True, None), flag)["x-closed"][0] == ALL_APIS - {"shared-memory"}
    assert groups_of(restrictions(True, KEY), flag)["x-api-key"][0] == SERVING_APIS | {"shared-memory"}


def test_only_flags_that_the_release_knows_are_given() -> None:
    options = parse("--client-shared-memory")
    flags = frozenset({"--model-control-mode", "--allow-client-shm"})
    newer = safety(options, Access(), flags)
    older = safety(options, Access(), frozenset())

    assert newer[:2] == ["--model-control-mode=none", "--allow-client-shm=true"]
    assert all("-restricted-" in flag for flag in [*newer[2:], *older])


def test_client_shared_memory_stays_off_in_a_newer_release() -> None:
    flags = safety(parse(), Access(), frozenset({"--allow-client-shm"}))
    assert not any(flag.startswith("--allow-client-shm") for flag in flags)


def test_a_certificate_becomes_flags_and_what_the_canary_needs(tmp_path: Path) -> None:
    made = make_certificate(tmp_path)
    options = parse("--tls-cert", str(made.cert), "--tls-key", str(made.key), "--tls-name", "robot")
    access = read_access(options)

    assert safety(options, access, frozenset())[-3:] == [
        "--grpc-use-ssl=true",
        f"--grpc-server-cert={made.cert}",
        f"--grpc-server-key={made.key}",
    ]
    assert access.channel["root_certificates"] == str(made.cert)
    assert ("grpc.ssl_target_name_override", "robot") in access.channel["channel_args"]


def test_a_certificate_without_its_key_is_refused(tmp_path: Path) -> None:
    one, other = make_certificate(tmp_path), make_certificate_in(tmp_path / "other")
    with pytest.raises(ServeError, match="wanted both or neither"):
        read_access(parse("--tls-cert", str(one.cert)))
    with pytest.raises(ServeError, match="not a certificate and its key in PEM"):
        read_access(parse("--tls-cert", str(one.cert), "--tls-key", str(other.key)))
    with pytest.raises(ServeError, match="not a certificate and its key in PEM"):
        read_access(parse("--tls-cert", str(one.cert), "--tls-key", str(tmp_path / "nowhere")))


def test_an_encrypted_key_is_refused_without_asking_for_its_password(tmp_path: Path) -> None:
    made, encrypted = make_certificate(tmp_path), tmp_path / "encrypted.key"
    command = ["openssl", "ec", "-aes256", "-passout", "pass:secret", "-in", str(made.key), "-out", str(encrypted)]
    subprocess.run(command, check=True, capture_output=True)
    main, other = pty.openpty()  # a password is asked for on the terminal, if there is one

    arguments = ["--tls-cert", str(made.cert), "--tls-key", str(encrypted), "--run", "true"]
    result = subprocess.run(
        [sys.executable, str(ROOT / "serve.py"), *arguments],
        stdin=other,
        stdout=other,
        stderr=other,
        start_new_session=True,
        preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
        timeout=30,
    )

    said = os.read(main, 4096).decode()
    os.close(main)
    os.close(other)
    assert result.returncode == 1
    assert said.startswith("serve.py: --tls-cert, --tls-key: not a certificate and its key in PEM (")


def make_certificate_in(folder: Path):
    folder.mkdir()
    return make_certificate(folder)


def test_a_key_is_one_line_of_its_file(tmp_path: Path) -> None:
    (tmp_path / "key").write_text(f"  {KEY}\n", encoding="ascii")
    assert read_api_key(tmp_path / "key") == KEY
    assert read_api_key(None) is None


@pytest.mark.parametrize("content", ["", "short", f"{KEY}\n{KEY}", f"{KEY},model-repository", f"{KEY}=", "ä" * 20])
def test_what_cannot_be_a_key_is_refused_without_being_told(tmp_path: Path, content: str) -> None:
    (tmp_path / "key").write_text(content, encoding="utf-8")
    with pytest.raises(ServeError, match="--api-key-file: ") as refusal:
        read_api_key(tmp_path / "key")
    assert KEY not in str(refusal.value)


def test_files_may_be_named_by_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLDSTREAM_API_KEY_FILE", "/run/secrets/api_key")
    monkeypatch.setenv("WORLDSTREAM_TLS_CERT", "")
    options = parse()
    assert options.api_key_file == Path("/run/secrets/api_key")
    assert options.tls_cert is None


def test_the_wheels_server_stays_on_this_machine(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parse("--address", "0.0.0.0")
    assert "the wheel's old server stays on 127.0.0.1" in capsys.readouterr().err
    assert parse("--address", "0.0.0.0", "--server", "/opt/tritonserver").address == "0.0.0.0"


def test_a_server_that_listens_everywhere_is_asked_on_this_machine() -> None:
    assert reachable("0.0.0.0", {"grpc": 8001}) == {"grpc": "127.0.0.1:8001"}
    assert reachable("10.0.0.7", {"grpc": 8001}) == {"grpc": "10.0.0.7:8001"}


def test_what_an_installed_server_lacks_is_named(tmp_path: Path) -> None:
    with pytest.raises(ServeError, match=r"--server: .* has no bin/tritonserver"):
        find_triton(tmp_path, tmp_path)
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "tritonserver").touch()
    with pytest.raises(ServeError, match=r"has no backends/python/libtriton_python\.so"):
        find_triton(tmp_path, tmp_path)


def test_a_probe_of_nothing_fails_in_one_line() -> None:
    command = [sys.executable, str(ROOT / "serve.py"), "--probe", "--grpc-port", "1", "--canary-timeout-s", "5"]
    result = subprocess.run(command, capture_output=True, text=True, timeout=60, stdin=subprocess.DEVNULL)
    assert result.returncode == 1
    assert result.stderr == "serve.py: --probe: nothing listens on 127.0.0.1:1 (grpc)\n"
