"""The command line. A container gives some options by variables of the environment."""

from __future__ import annotations

import argparse
import ipaddress
import math
import os
from pathlib import Path

from launcher.ports import HOST, USUAL_PORTS

ROOT = Path(__file__).parents[2]
API_KEY_HEADER = "x-api-key"  # over gRPC with triton-grpc-protocol- before it


class Options(argparse.Namespace):
    """What the command line says."""

    model_repository: Path
    model_config_name: str
    set: list[str]
    free_ports: bool
    http_port: int | None
    grpc_port: int | None
    metrics_port: int | None
    json: bool
    run: str | None
    restart: bool
    max_restarts: int | None
    canary_every_s: float
    canary_timeout_s: float
    start_timeout_s: float
    exit_timeout_s: int
    drain_s: float
    log_verbose: int
    log_file: Path | None
    check_python: bool
    server: Path | None
    address: str
    probe: bool
    client_shared_memory: bool
    api_key_file: Path | None
    tls_cert: Path | None
    tls_key: Path | None
    tls_name: str

    @property
    def ports(self) -> dict[str, int | None]:
        """The port named for each service; None where none is."""
        return {"http": self.http_port, "grpc": self.grpc_port, "metrics": self.metrics_port}


def parse_arguments(arguments: list[str] | None = None) -> Options:
    """Read the command line."""
    parser = argparse.ArgumentParser(prog="serve.py", description="Run the model repository on the real tritonserver.")
    add_model_options(parser.add_argument_group("what is served, and where"))
    add_life_options(parser.add_argument_group("its life"))
    add_log_options(parser.add_argument_group("its log"))
    add_safety_options(parser.add_argument_group("another server than the wheel's, and who may ask what of it"))
    instead = parser.add_argument_group("in place of serving")
    instead.add_argument("--check-python", action="store_true", help="only say whether this Python can serve")
    instead.add_argument("--probe", action="store_true", help="ask the server that listens there whether it lives")
    options = parser.parse_args(arguments, Options())
    if options.address != HOST and options.server is None and not options.probe:
        parser.error(f"--address: the wheel's old server stays on {HOST}; name a current one with --server")
    if options.probe:
        options.canary_every_s = 0.0  # ask at once
    if options.max_restarts is not None and not options.restart:
        parser.error("--max-restarts: wanted with --restart; without it nothing is started again")
    if options.run is not None and (options.restart or options.canary_every_s > 0):
        parser.error("--run goes with neither --restart nor --canary-every-s: the server ends with the command")
    return options


def add_model_options(group: argparse._ArgumentGroup) -> None:
    """The models, and the addresses."""
    add = group.add_argument
    add("--model-repository", type=Path, default=ROOT / "model_repository", metavar="DIR")
    add("--model-config-name", default="", metavar="NAME", help="use MODEL/configs/NAME.pbtxt where there is one")
    add("--set", action="append", default=[], metavar="MODEL.KEY=VALUE", help="change a model parameter for this run")
    add("--free-ports", action="store_true", help="listen on free ports, not on 8000 to 8002")
    for service, usual in USUAL_PORTS.items():
        add(f"--{service}-port", type=port, metavar="PORT", help=f"instead of {usual}")
    add("--json", action="store_true", help="print a line with addresses and tritonserver's pid; implies --free-ports")


def add_life_options(group: argparse._ArgumentGroup) -> None:
    """From its start over its deaths to its end."""
    add = group.add_argument
    add("--run", metavar="COMMAND", help="run a shell command against the server, then stop, with its exit status")
    add("--restart", action="store_true", help="start the server again when it dies after it was ready")
    add("--max-restarts", type=count, metavar="N", help="give up after N restarts in a row; else never")
    add(
        "--canary-every-s",
        type=seconds,
        default=0.0,
        metavar="S",
        help="ask each model so often whether it lives, unless it just answered others; a server that fails is dead",
    )
    add(
        "--canary-timeout-s",
        type=seconds,
        default=60.0,
        metavar="S",
        help="how long a model may answer nobody while a canary waits",
    )
    add("--start-timeout-s", type=seconds, default=900.0, metavar="S", help="longest start, canary included")
    add("--exit-timeout-s", type=count, default=5, metavar="S", help="how long a stop waits for running requests")
    add(
        "--drain-s",
        type=seconds,
        default=os.environ.get("WORLDSTREAM_DRAIN_S") or "0",  # text, so that argparse checks it
        metavar="S",
        help="on SIGTERM begin no new session, and give those that live so long to end; or $WORLDSTREAM_DRAIN_S",
    )


def add_log_options(group: argparse._ArgumentGroup) -> None:
    """What it says, and where."""
    add = group.add_argument
    add("--log-verbose", type=count, default=0, metavar="N", help="the server's own verbosity")
    add(
        "--log-file",
        type=Path,
        metavar="FILE",
        help="write the server's log there; --run alone shows it on failure only",
    )


def add_safety_options(group: argparse._ArgumentGroup) -> None:
    """Each may be a variable of the environment, as in a container."""
    add = group.add_argument
    add(
        "--server",
        type=Path,
        default=path_of("WORLDSTREAM_SERVER"),
        metavar="DIR",
        help="an installed Triton, such as /opt/tritonserver, in place of the wheel's; or $WORLDSTREAM_SERVER",
    )
    add(
        "--address",
        type=ipv4,
        default=os.environ.get("WORLDSTREAM_ADDRESS") or HOST,
        metavar="IP",
        help=f"listen there, not on {HOST}; only with --server; or $WORLDSTREAM_ADDRESS",
    )
    add(
        "--client-shared-memory",
        action="store_true",
        help="let clients hand over pictures in shared memory; clients that you trust",
    )
    add(
        "--api-key-file",
        type=Path,
        default=path_of("WORLDSTREAM_API_KEY_FILE"),
        metavar="FILE",
        help=f"serve only those who send the key in it, as {API_KEY_HEADER}; or $WORLDSTREAM_API_KEY_FILE",
    )
    add(
        "--tls-cert",
        type=Path,
        default=path_of("WORLDSTREAM_TLS_CERT"),
        metavar="FILE",
        help="gRPC over TLS (HTTP stays plain) with this certificate (PEM); or $WORLDSTREAM_TLS_CERT",
    )
    add(
        "--tls-key",
        type=Path,
        default=path_of("WORLDSTREAM_TLS_KEY"),
        metavar="FILE",
        help="the certificate's private key (PEM); or $WORLDSTREAM_TLS_KEY",
    )
    add(
        "--tls-name",
        default=os.environ.get("WORLDSTREAM_TLS_NAME") or "localhost",
        metavar="NAME",
        help="one that the certificate is for, for the canary; default localhost; or $WORLDSTREAM_TLS_NAME",
    )


# The types of options. argparse names the option and what it got.


def port(text: str) -> int:
    """A TCP port."""
    number = int(text) if text.isascii() and text.isdecimal() else 0
    if not 1 <= number <= 65535:
        raise argparse.ArgumentTypeError(f"wanted a port, 1 to 65535, got {text!r}")
    return number


def count(text: str) -> int:
    """A whole number, none below zero."""
    if not (text.isascii() and text.isdecimal()):
        raise argparse.ArgumentTypeError(f"wanted a whole number, 0 or more, got {text!r}")
    return int(text)


def seconds(text: str) -> float:
    """A time that ends."""
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not 0 <= number < math.inf:
        raise argparse.ArgumentTypeError(f"wanted seconds, 0 or more, got {text!r}")
    return number


def ipv4(text: str) -> str:
    """Where a server can listen: an address of this machine, or 0.0.0.0."""
    try:
        return str(ipaddress.IPv4Address(text))
    except ValueError:
        raise argparse.ArgumentTypeError(f"wanted an IPv4 address, got {text!r}") from None


def path_of(variable: str) -> Path | None:
    """What a variable of the environment names; None where it is absent or empty."""
    return Path(os.environ[variable]) if os.environ.get(variable) else None
