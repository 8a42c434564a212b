"""What serve.py's command line takes, and in one line why it does not take the rest."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from launcher.options import parse_arguments
from launcher.ports import choose_ports
from launcher.told import ServeError

from tests.conftest import ROOT

NOT_TAKEN = [
    ("--http-port", "99999", "a port, 1 to 65535"),
    ("--grpc-port", "0", "a port, 1 to 65535"),
    ("--metrics-port", "-1", "a port, 1 to 65535"),
    ("--http-port", "80a", "a port, 1 to 65535"),
    ("--http-port", "٣", "a port, 1 to 65535"),
    ("--address", "::", "an IPv4 address"),
    ("--address", "nowhere.invalid", "an IPv4 address"),
    ("--drain-s", "nan", "seconds, 0 or more"),
    ("--start-timeout-s", "inf", "seconds, 0 or more"),
    ("--canary-every-s", "-1", "seconds, 0 or more"),
    ("--canary-timeout-s", "soon", "seconds, 0 or more"),
    ("--exit-timeout-s", "1.5", "a whole number, 0 or more"),
    ("--max-restarts", "-1", "a whole number, 0 or more"),
    ("--log-verbose", "", "a whole number, 0 or more"),
]


@pytest.mark.parametrize(("option", "value", "wanted"), NOT_TAKEN)
def test_a_value_that_cannot_be_meant_is_refused_in_one_line(option, value, wanted, capsys):
    with pytest.raises(SystemExit) as ended:
        parse_arguments([f"{option}={value}"])
    assert ended.value.code == 2
    last = capsys.readouterr().err.splitlines()[-1]
    assert last == f"serve.py: error: argument {option}: wanted {wanted}, got {value!r}"


def test_the_variables_of_a_container_are_held_to_the_same(monkeypatch, capsys):
    monkeypatch.setenv("WORLDSTREAM_DRAIN_S", "a minute")
    with pytest.raises(SystemExit):
        parse_arguments([])
    assert "argument --drain-s: wanted seconds, 0 or more, got 'a minute'" in capsys.readouterr().err


def test_an_empty_variable_is_none(monkeypatch):
    for name in ("ADDRESS", "TLS_NAME", "DRAIN_S", "SERVER"):
        monkeypatch.setenv(f"WORLDSTREAM_{name}", "")
    options = parse_arguments([])
    assert (options.address, options.tls_name, options.drain_s, options.server) == ("127.0.0.1", "localhost", 0.0, None)


def test_values_that_are_meant_arrive_as_numbers():
    options = parse_arguments(
        ["--http-port=65535", "--drain-s=0.5", "--exit-timeout-s=0", "--restart", "--max-restarts=3"]
    )
    assert (options.http_port, options.drain_s, options.exit_timeout_s, options.max_restarts) == (65535, 0.5, 0, 3)


def test_a_limit_of_restarts_where_nothing_is_restarted_is_refused(capsys):
    with pytest.raises(SystemExit):
        parse_arguments(["--max-restarts=3"])
    assert "--max-restarts: wanted with --restart" in capsys.readouterr().err


def test_no_free_port_at_an_address_of_another_machine():
    address = "192.0.2.1"  # for documentation: nobody has it
    with pytest.raises(ServeError, match=r"no free port on 192\.0\.2\.1: is it an address of this machine\?"):
        choose_ports({"http": None, "grpc": None, "metrics": None}, is_free_wanted=True, address=address)


def test_a_log_file_that_cannot_be_written_is_told_before_a_server_runs(tmp_path: Path):
    target = tmp_path / "no" / "server.log"
    command = [sys.executable, "serve.py", "--free-ports", "--log-file", str(target)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 1
    assert (
        done.stderr.splitlines()[-1] == f"serve.py: --log-file: {target}: cannot be written: No such file or directory"
    )
    assert "Traceback" not in done.stderr
