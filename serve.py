#!/usr/bin/env python3
"""Run the real tritonserver: from the nvidia-pytriton wheel on a machine without Docker, or a container's own.

Knows where the server is kept, what it needs around it, who may ask what of it, when it is truly ready (a canary
request has come back through every model), when it is dead and has to be started again (where that is wanted), and
how to leave nothing behind. Knows nothing of what the models compute.
Imports only the standard library until the server runs, so that it can explain what is missing.
"""

from __future__ import annotations

import argparse
import base64
import contextlib
import ctypes
import http.client
import importlib.metadata
import importlib.util
import json
import os
import queue
import random
import re
import resource
import secrets
import shutil
import signal
import socket
import ssl
import subprocess
import sys
import sysconfig
import tempfile
import threading
import time
import urllib.request
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import IO, Any, NoReturn

HOST = "127.0.0.1"
EVERYWHERE = "0.0.0.0"
USUAL_PORTS = {"http": 8000, "grpc": 8001, "metrics": 8002}
PYTHON = f"{sys.version_info[0]}.{sys.version_info[1]}"
SUPPORTED_PYTHONS = ("3.11", "3.12")
# A proxy that the environment names must not come between us and this machine.
NO_HTTP_PROXY = urllib.request.ProxyHandler({})
GRPC_OPTIONS = [("grpc.enable_http_proxy", 0), ("grpc.max_receive_message_length", -1)]
BACKEND_LIBRARY = "libtriton_python.so"
STOP_GRACE_S = 10.0
GROUP_END_S = 5.0  # how long killed processes may take to give back ports and memory
PATIENCE_S = 15.0  # a wait says so this often
DEAD_MODEL_GRACE_S = 5.0  # how long the server may take to notice that a model's process has ended
LONGEST_BACKOFF_S = 60.0
HEALTHY_S = 60.0  # a server that was ready for this long has not failed at once
LOG_TAIL_LINES = 40
DRAIN_VARIABLE = "WORLDSTREAM_DRAIN_FILE"  # names the file whose presence makes denoise refuse new sessions
SESSIONS = "worldstream_active_sessions{"  # how the lines of the metrics page begin that count them
STACK_BYTES = 256 << 20  # an HTTP JSON body from about 4 MB overruns the usual 8 MiB and kills the server
# What of Triton's interface changes the server, or reaches into its memory; and what serves.
CHANGING_APIS = ("model-repository", "trace", "logging")
MEMORY_API = "shared-memory"
SERVING_APIS = ("inference", "metadata", "model-config", "statistics")
API_KEY_HEADER = "x-api-key"  # over gRPC with triton-grpc-protocol- before it
CLOSED_HEADER = "x-closed"  # what a refusal names where no key helps
API_KEY = re.compile(r"[A-Za-z0-9._~-]{16,256}")
SHM_BYTES = 16 << 20  # a model's shared memory region at first: some frames, so that it need not grow while serving
# A 16 x 16 picture of one colour.
CANARY_PNG = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAABAAAAAQCAIAAACQkWg2AAAAGklEQVR42mNMaFjAQApgYiARjGoY1TB0NAAAyQwBoBPSDnMAAAAASUVORK5CYII="
)


class ServeError(Exception):
    """What the person who runs this can mend, in one message."""


class Stop(Exception):
    """A signal asked us to end."""

    def __init__(self, signum: int) -> None:
        super().__init__(signal.Signals(signum).name)
        self.signum = signum


class StopSignals:
    """Turns the signals that ask us to end into Stop; only inside of `raising`, so that no step is left half done."""

    def __init__(self) -> None:
        self._is_raising = False
        self._came: int | None = None
        for signum in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(signum, self._take)

    @contextlib.contextmanager
    def raising(self) -> Iterator[None]:
        """Raise Stop in the body, once, when a signal comes; at once if one has come already."""
        self._is_raising = True
        try:
            if self._came is not None:
                raise Stop(self._came)
            yield
        finally:
            self._is_raising = False

    def forget(self) -> None:
        """Let the next signal count as the first one."""
        self._came = None

    def _take(self, signum: int, _: FrameType | None) -> None:
        self._came = signum
        if self._is_raising:
            # What is closed on the way out must not be broken off by a second one.
            self._is_raising = False
            raise Stop(signum)


def say(message: str) -> None:
    """Tell the person; stdout is kept for the JSON line."""
    print(f"serve.py: {message}", file=sys.stderr, flush=True)


def libpython() -> Path | str | None:
    """The shared library of this very Python: its own file, else what the dynamic linker finds, else None."""
    name = f"libpython{PYTHON}.so.1.0"
    own = Path(sysconfig.get_config_var("LIBDIR") or "/", name)
    if own.is_file():
        return own
    try:
        ctypes.CDLL(name)
    except OSError:
        return None
    return name


def missing_packages() -> list[tuple[str, str]]:
    """(Debian package, what it is for) for each system package that this Python lacks."""
    missing = []
    if importlib.util.find_spec("ensurepip") is None or importlib.util.find_spec("venv") is None:
        missing.append((f"python{PYTHON}-venv", "to make the virtual environment"))
    if libpython() is None:
        missing.append((f"libpython{PYTHON}", "which Triton's Python backend loads"))
    return missing


def check_python() -> int:
    """Say whether this Python can serve: reasons on stderr, names of missing system packages on stdout."""
    if PYTHON not in SUPPORTED_PYTHONS:
        say(f"{sys.executable} is Python {PYTHON}; wanted: Python {' or '.join(SUPPORTED_PYTHONS)}")
        return 1
    missing = missing_packages()
    for package, purpose in missing:
        say(f"{sys.executable} lacks {package}, {purpose}: apt-get install {package}")
    print(" ".join(package for package, _ in missing))
    return 1 if missing else 0


def find_wheel() -> Path:
    """The site-packages folder that holds the server."""
    spec = importlib.util.find_spec("pytriton")
    if spec is None or spec.origin is None:
        raise ServeError(
            f"{sys.executable} has no nvidia-pytriton, which carries the server: "
            "run `make setup`, then start `.venv/bin/python serve.py`"
        )
    # The stub reads array sizes in numpy 1's layout: under numpy 2 outputs leave the server empty, without an error.
    if int(importlib.metadata.version("numpy").split(".")[0]) >= 2:
        raise ServeError(f"{sys.executable} has numpy 2, with which this server sends empty outputs: run `make setup`")
    return Path(spec.origin).parent.parent


def link_backend(site_packages: Path, workdir: Path) -> None:
    """Lay out workdir/backends as the server wants it, and workdir/lib with this Python's own library."""
    tritonserver = site_packages / "pytriton" / "tritonserver"
    stub = tritonserver / "python_backend_stubs" / PYTHON / "triton_python_backend_stub"
    if not stub.is_file():
        wanted = " or ".join(SUPPORTED_PYTHONS)
        raise ServeError(f"nvidia-pytriton has no stub for Python {PYTHON}: make .venv with Python {wanted}")
    library = libpython()
    if library is None:
        package = f"libpython{PYTHON}"
        raise ServeError(f"{package}.so.1.0 is missing, the Python backend needs it: apt-get install {package}")
    backend = workdir / "backends" / "python"
    backend.mkdir(parents=True)
    (workdir / "lib").mkdir()
    for name in (BACKEND_LIBRARY, "triton_python_backend_utils.py"):
        (backend / name).symlink_to(tritonserver / "backends" / "python" / name)
    shutil.copy(stub, backend / stub.name)
    (backend / stub.name).chmod(0o755)
    # A link, not its folder on the search path: that folder may hold a libstdc++ older than the server's.
    if isinstance(library, Path):
        (workdir / "lib" / library.name).symlink_to(library)


@dataclass(frozen=True)
class Triton:
    """A server on this machine."""

    binary: Path
    backends: Path
    libraries: tuple[Path, ...]  # folders that the dynamic linker has to be told of


def find_triton(folder: Path | None, workdir: Path) -> Triton:
    """The server installed in a folder, as a container has it in /opt/tritonserver; None: the wheel's.

    Raises:
        ServeError: with what is missing.
    """
    if folder is None:
        site_packages = find_wheel()
        link_backend(site_packages, workdir)
        binary = site_packages / "pytriton" / "tritonserver" / "bin" / "tritonserver"
        return Triton(binary, workdir / "backends", (workdir / "lib", site_packages / "nvidia_pytriton.libs"))
    stub = Path("backends", "python", "triton_python_backend_stub")
    for name in (Path("bin", "tritonserver"), stub.with_name(BACKEND_LIBRARY), stub):
        if not (folder / name).is_file():
            raise ServeError(f"--server: {folder} has no {name}")
    return Triton(folder / "bin" / "tritonserver", folder / "backends", (folder / "lib",))


def known_flags(triton: Triton) -> frozenset[str]:
    """The flags that this release has, by its own help."""
    command = [str(triton.binary), "--help"]
    told = subprocess.run(command, env=server_environment(triton), capture_output=True, text=True, check=False)
    return frozenset(re.findall(r"--[a-z][a-z-]+", told.stdout + told.stderr))


def server_environment(triton: Triton) -> dict[str, str]:
    """The environment in which the server finds its libraries and the stub finds this virtual environment."""
    env = {key: value for key, value in os.environ.items() if key != "PYTHONHOME"}
    # The embedded interpreter takes the first python3 on PATH for itself, and with it that one's packages.
    folders = {"PATH": [Path(sys.prefix) / "bin"], "LD_LIBRARY_PATH": triton.libraries}
    for key, first in folders.items():
        env[key] = os.pathsep.join([*map(str, first), *filter(None, [env.get(key)])])
    return env


def parse_overrides(settings: list[str]) -> dict[str, dict[str, str]]:
    """["denoise.num_steps=2"] -> {"denoise": {"num_steps": "2"}}."""
    overrides: dict[str, dict[str, str]] = {}
    for setting in settings:
        target, equals, value = setting.partition("=")
        model, dot, key = target.partition(".")
        if not (equals and dot and model and key):
            raise ServeError(f"--set: wanted MODEL.KEY=VALUE, got {setting!r}")
        overrides.setdefault(model, {})[key] = value
    return overrides


def override_config(path: Path, model: str, values: dict[str, str]) -> str:
    """The text of the config.pbtxt at path with its `parameters` changed; an unknown key is refused."""
    from google.protobuf import text_format
    from tritonclient.grpc import model_config_pb2

    config = text_format.Parse(path.read_text(encoding="utf-8"), model_config_pb2.ModelConfig())
    for key, value in values.items():
        if key not in config.parameters:
            known = ", ".join(sorted(config.parameters)) or "none"
            raise ServeError(f"--set: model {model!r} has no parameter {key!r}; it has: {known}")
        config.parameters[key].string_value = value
    return str(text_format.MessageToString(config))


def linked_repository(repository: Path, settings: list[str], config_name: str, workdir: Path) -> Path:
    """A repository of links to the given one, whose changed config.pbtxt files are its own.

    It is served even where nothing changes: the server starts each model's process through a command line that falls
    apart where the repository's path holds a space.
    """
    overrides = parse_overrides(settings)
    models = sorted(path for path in repository.iterdir() if path.is_dir())
    unknown = overrides.keys() - {model.name for model in models}
    if unknown:
        raise ServeError(f"--set: no model {min(unknown)!r}; there are: {', '.join(model.name for model in models)}")
    copy = workdir / "models"
    for model in models:
        (copy / model.name).mkdir(parents=True)
        for entry in model.iterdir():
            (copy / model.name / entry.name).symlink_to(entry)
        if model.name in overrides:
            named = model / "configs" / f"{config_name}.pbtxt"
            source = named if config_name and named.is_file() else model / "config.pbtxt"
            # The server prefers a named configuration where there is one: leave it only the changed file.
            for name in ("config.pbtxt", "configs"):
                (copy / model.name / name).unlink(missing_ok=True)
            changed = override_config(source, model.name, overrides[model.name])
            (copy / model.name / "config.pbtxt").write_text(changed, encoding="utf-8")
    return copy


def can_bind(port: int, address: str) -> bool:
    """Whether nothing listens on this port there; one whose last connections are still closing counts as free."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((address, port))
        except OSError:
            return False
    return True


def choose_ports(given: Mapping[str, int | None], is_free_wanted: bool, address: str = HOST) -> dict[str, int]:
    """A port for each service: the one given, else a free one where wanted, else the usual one."""
    ports: dict[str, int] = {}
    # Below the range that the kernel hands to outgoing connections: none of these takes our port before we do.
    candidates = iter(random.SystemRandom().sample(range(10000, 32000), 2000))
    for service, usual in USUAL_PORTS.items():
        port = given[service]
        if port is None and is_free_wanted:
            port = next(port for port in candidates if can_bind(port, address))
        port = usual if port is None else port
        if port in ports.values() or not can_bind(port, address):
            # Free ports replace only those that nobody has named.
            free = "" if given[service] is not None else " or --free-ports (make serve SERVE_ARGS=--free-ports)"
            raise ServeError(
                f"port {port} ({service}) on {address} is in use: stop what listens there, "
                f"or pass another --{service}-port{free}"
            )
        ports[service] = port
    return ports


@dataclass(frozen=True)
class Access:
    """What a client needs to be let in."""

    api_key: str | None = None
    certificate: Path | None = None  # the server's; None: without TLS
    name: str = ""  # one that the certificate is for

    @property
    def headers(self) -> dict[str, str] | None:
        """What goes with each call over gRPC."""
        return None if self.api_key is None else {f"triton-grpc-protocol-{API_KEY_HEADER}": self.api_key}

    @property
    def channel(self) -> dict[str, Any]:
        """tritonclient's arguments for a connection from this machine."""
        if self.certificate is None:
            return {"channel_args": GRPC_OPTIONS}
        name = ("grpc.ssl_target_name_override", self.name)
        return {"channel_args": [*GRPC_OPTIONS, name], "ssl": True, "root_certificates": str(self.certificate)}


def read_access(options: argparse.Namespace) -> Access:
    """What the options say of key and certificate, checked before a server is started.

    Raises:
        ServeError: with what is wrong with them.
    """
    if (options.tls_cert is None) != (options.tls_key is None):
        raise ServeError("--tls-cert, --tls-key: wanted both or neither")
    if options.tls_cert is not None:
        try:
            ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(options.tls_cert, options.tls_key)
        except OSError as error:  # ssl.SSLError is one
            raise ServeError(f"--tls-cert, --tls-key: not a certificate and its key in PEM ({error})") from error
    return Access(read_api_key(options.api_key_file), options.tls_cert, options.tls_name)


def read_api_key(path: Path | None) -> str | None:
    """The key that a file holds; None where no file is named."""
    if path is None:
        return None
    try:
        key = path.read_text(encoding="ascii").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise ServeError(f"--api-key-file: cannot be read ({type(error).__name__})") from error
    if API_KEY.fullmatch(key) is None:
        raise ServeError("--api-key-file: wanted one line of 16 to 256 letters, digits and ._~-")
    return key


def restrictions(is_memory_open: bool, api_key: str | None) -> list[str]:
    """Flags that close what changes the server to all, and what serves to those without the key."""
    closed, keyed = [*CHANGING_APIS], [*SERVING_APIS]
    (keyed if is_memory_open else closed).append(MEMORY_API)
    # Nobody hears of this value. The flags are the only way to say it, so whoever may list our processes can see it.
    groups = [f"{','.join(closed)}:{CLOSED_HEADER}={secrets.token_hex(16)}"]
    if api_key is not None:
        groups.append(f"{','.join(keyed)}:{API_KEY_HEADER}={api_key}")
    return [f"{flag}={group}" for flag in ("--http-restricted-api", "--grpc-restricted-protocol") for group in groups]


def safety(options: argparse.Namespace, access: Access, flags: frozenset[str]) -> list[str]:
    """Flags that keep the server's inside from its clients, as far as this release knows them."""
    wanted = {"--model-control-mode": "none", "--allow-sagemaker": "false", "--allow-vertex-ai": "false"}
    if options.client_shared_memory:  # a newer release keeps it off by itself
        wanted["--allow-client-shm"] = "true"
    command = [f"{flag}={value}" for flag, value in wanted.items() if flag in flags]
    command += restrictions(options.client_shared_memory, access.api_key)
    if access.certificate is not None:
        command += [
            "--grpc-use-ssl=true",
            f"--grpc-server-cert={access.certificate.resolve()}",
            f"--grpc-server-key={options.tls_key.resolve()}",
        ]
    return command


def check_config_name(name: str | None, repository: Path) -> None:
    """Refuse a configuration that no model has: Triton would serve the default one without a word.

    Raises:
        ServeError: with the names that there are.
    """
    names = sorted({file.stem for file in repository.glob("*/configs/*.pbtxt")})
    if name and name not in names:
        raise ServeError(f"--model-config-name: no model has a configuration {name!r}; there are: {', '.join(names)}")


def server_command(
    options: argparse.Namespace, triton: Triton, repository: Path, workdir: Path, ports: dict[str, int]
) -> list[str]:
    """The server's command line. Its shared memory is named after workdir, so that we can tell ours."""
    command = [
        str(triton.binary),
        f"--model-repository={repository}",
        f"--backend-directory={triton.backends}",
        "--disable-auto-complete-config",
        f"--exit-timeout-secs={options.exit_timeout_s}",
        f"--backend-config=python,shm-region-prefix-name={workdir.name}",
        f"--backend-config=python,shm-default-byte-size={SHM_BYTES}",
    ]
    for service, port in ports.items():
        command += [f"--{service}-address={options.address}", f"--{service}-port={port}"]
    if options.model_config_name:
        command.append(f"--model-config-name={options.model_config_name}")
    if options.log_verbose:
        command.append(f"--log-verbose={options.log_verbose}")
    return command


def die_with_parent(signum: int) -> None:
    """Ask Linux to send this process signum when the thread that started it ends. For use after fork."""
    pr_set_pdeathsig = 1
    ctypes.CDLL(None).prctl(pr_set_pdeathsig, signum)


def prepare_server_process() -> None:
    """In the child, before exec: end with the launcher, and have the stack that large JSON bodies need."""
    die_with_parent(signal.SIGKILL)
    _, hard = resource.getrlimit(resource.RLIMIT_STACK)
    soft = STACK_BYTES if hard == resource.RLIM_INFINITY else min(STACK_BYTES, hard)
    resource.setrlimit(resource.RLIMIT_STACK, (soft, hard))


def has_ended(pid: int, is_blocking: bool = False) -> bool:
    """Whether our child has ended. It stays unreaped, so that its group's number cannot become another's."""
    flags = os.WEXITED | os.WNOWAIT | (0 if is_blocking else os.WNOHANG)
    return os.waitid(os.P_PID, pid, flags) is not None


def stop_group(process: subprocess.Popen[bytes], signum: int, grace_s: float) -> bool:
    """Ask our child to end, then kill what is left of its process group; False if it had to be killed."""
    os.kill(process.pid, signum)
    is_clean = wait_for(lambda: has_ended(process.pid), grace_s)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    # The others are not our children: they still hold ports and memory for a moment after it.
    wait_for(lambda: not has_members(process.pid), GROUP_END_S)
    return is_clean


def wait_for(is_so: Callable[[], bool], timeout_s: float) -> bool:
    """Wait until something is so; whether it is, at the end."""
    deadline = time.monotonic() + timeout_s
    while not is_so():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)
    return True


@dataclass(frozen=True)
class Process:
    """A process of this machine."""

    pid: int
    name: str
    is_running: bool  # not a zombie
    parent: int
    group: int


def processes() -> Iterator[Process]:
    """All of now, from /proc."""
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            name, _, rest = path.read_text(encoding="utf-8", errors="replace").rpartition(")")
            state, parent, group, *_ = rest.split()
            yield Process(int(path.parent.name), name.partition("(")[2], state not in "ZX", int(parent), int(group))


def has_members(group: int) -> bool:
    """Whether a process of this group still runs."""
    return any(process.group == group and process.is_running for process in processes())


def python_env_folders() -> set[Path]:
    """The folders that the Python backend makes for packed environments: this path is built into it."""
    return set(Path("/tmp").glob("python_env_*"))


def has_mapped(pid: int, library: str) -> bool:
    """Whether a process has loaded this library."""
    try:
        return library in Path(f"/proc/{pid}/maps").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return False


def make_workdir() -> Path:
    """A new temporary folder whose path holds no whitespace, whatever TMPDIR says."""
    usual = tempfile.gettempdir()
    return Path(tempfile.mkdtemp(prefix="worldstream-serve-", dir=usual if len(usual.split()) == 1 else "/tmp"))


# Triton's line about a model that could not be loaded, without the places in the code that follow the text.
FAILURE = re.compile(rb"""failed to load '([^']+)' version \d+: (?:Internal: )?(.*?)(?:\\n|"?\s*$)""")


class ServerLog:
    """Takes what the server says: forwards it to a file, remembers its end and which models it says are loaded."""

    def __init__(self, source: IO[bytes], target: IO[bytes] | None) -> None:
        self.loaded: set[str] = set()
        self.failures: dict[str, str] = {}  # of models that could not be loaded: what they said
        self._tail: deque[bytes] = deque(maxlen=LOG_TAIL_LINES)
        self._source = source
        self._target = target
        self._reader = threading.Thread(target=self._read, name="server-log", daemon=True)
        self._reader.start()

    def wait(self) -> None:
        """Return once the server has said all, or a moment has passed."""
        self._reader.join(1.0)

    def tail(self) -> str:
        """The last lines; of a server that has ended, all of them."""
        self.wait()
        return b"".join(self._tail.copy()).decode("utf-8", errors="replace")

    def _read(self) -> None:
        for line in self._source:
            if not line.endswith(b"\n"):  # broken off by a kill: what we say next begins a line of its own
                line += b"\n"
            self._tail.append(line)
            if found := re.search(rb"successfully loaded '([^']+)'", line):
                self.loaded.add(found[1].decode())
            if found := FAILURE.search(line):
                self.failures[found[1].decode()] = found[2].decode("utf-8", errors="replace").strip()
            if self._target is not None:
                with contextlib.suppress(OSError):  # a reader that went away must not block the server
                    self._target.write(line)
                    self._target.flush()


def model_processes(server_pid: int) -> dict[int, bool]:
    """The server's processes of models, by pid, and whether each one runs; one that ended may be missing here."""
    return {
        process.pid: process.is_running
        for process in processes()
        if process.parent == server_pid and process.name.startswith("triton_python")
    }


def model_of(pid: int, models: set[str]) -> str:
    """The model that this process runs, from its command line; "" where that cannot be read any more."""
    try:
        command = Path(f"/proc/{pid}/cmdline").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
    return next((name for name in models if f"/{name}/1/model.py" in command), "")


class ModelWatch:
    """Notices when a model's process has ended: the server may wait for it for ever, and goes on saying "ready"."""

    def __init__(self, server_pid: int, models: set[str]) -> None:
        self._server_pid = server_pid
        self._models = models
        self._names: dict[int, str] = {}
        self._dead_since: dict[int, float] = {}

    def check(self) -> None:
        """Raise ServeError if a model's process ended a while ago; the server itself ends soon where it noticed."""
        running = model_processes(self._server_pid)
        now = time.monotonic()
        for pid in running:
            self._names[pid] = self._names.get(pid) or model_of(pid, self._models)
        for pid, name in self._names.items():
            if running.get(pid, False):
                continue
            if now - self._dead_since.setdefault(pid, now) > DEAD_MODEL_GRACE_S:
                whose = f"model {name!r}" if name else "a model"
                raise ServeError(f"the process of {whose} ended by itself; the server's log above says why")


@contextlib.contextmanager
def saying_every(period_s: float, words: Callable[[], str]) -> Iterator[None]:
    """Say something again and again while the body takes its time."""
    is_over = threading.Event()

    def repeat() -> None:
        while not is_over.wait(period_s):
            say(words())

    threading.Thread(target=repeat, name="patience", daemon=True).start()
    try:
        yield
    finally:
        is_over.set()


class Server:
    """One tritonserver process with its temporary folder and its shared memory; a context manager."""

    def __init__(self, options: argparse.Namespace, ports: Mapping[str, int | None], is_again: bool) -> None:
        """Prepare; entering starts it.

        Args:
            ports: for each service the wanted one, None for any.
            is_again: it follows one that has died: its log goes on in the same file.
        """
        self.options = options
        self.wanted_ports = ports
        self.is_again = is_again
        self.ports: dict[str, int] = {}
        self.addresses: dict[str, str] = {}
        self.access = read_access(options)
        self.workdir = make_workdir()
        self.drain_file = self.workdir / "drain"
        self.models: set[str] = set()  # those that have a process of their own
        self.canaries: list[Canary] = []
        self.own_env_folders: set[Path] = set()
        self.ready_since: float | None = None
        self.process: subprocess.Popen[bytes] | None = None
        self.log: ServerLog | None = None
        self._log_file: IO[bytes] | None = None
        self._watch: ModelWatch | None = None

    def __enter__(self) -> Server:
        try:
            self._start()
        except BaseException as error:
            self.__exit__(type(error), error)
            raise
        return self

    def __exit__(self, _: type[BaseException] | None, error: BaseException | None, *__: object) -> None:
        if self.process is not None:
            if self.options.restart and isinstance(error, ServeError):
                stop_group(self.process, signal.SIGKILL, STOP_GRACE_S)  # it is broken, and the next one waits
            else:
                self._stop(self.process)
            if self.process.returncode < 0:  # killed, by us or another: it could not remove this itself
                self._remove_env_folder()
        if self.log is not None:
            self.log.wait()
        if self._log_file is not None:
            self._log_file.close()
        for region in Path("/dev/shm").glob(f"{self.workdir.name}*"):
            region.unlink(missing_ok=True)
        shutil.rmtree(self.workdir, ignore_errors=True)

    def _stop(self, process: subprocess.Popen[bytes]) -> None:
        say("stopping ...")
        grace_s = max(STOP_GRACE_S, self.options.exit_timeout_s + 5.0)
        if not stop_group(process, signal.SIGINT, grace_s):
            say(f"the server did not end within {grace_s:.0f} s and was killed")
        say("stopped")

    def _start(self) -> None:
        options = self.options
        self.ports = choose_ports(self.wanted_ports, options.free_ports or options.json, options.address)
        self.addresses = reachable(options.address, self.ports)
        triton = find_triton(options.server, self.workdir)
        repository = self.options.model_repository.resolve()
        if not repository.is_dir():
            raise ServeError(f"--model-repository: no folder {self.options.model_repository}")
        name = self.options.model_config_name
        check_config_name(name, repository)
        repository = linked_repository(repository, self.options.set, name, self.workdir)
        self.models = {path.name for path in repository.iterdir() if (path / "1" / "model.py").is_file()}
        self.canaries = canaries_of(repository)
        command = server_command(options, triton, repository, self.workdir, self.ports)
        self.process = subprocess.Popen(
            command + safety(options, self.access, known_flags(triton)),
            env={**server_environment(triton), DRAIN_VARIABLE: str(self.drain_file)},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            preexec_fn=prepare_server_process,
        )
        assert self.process.stdout is not None
        self.log = ServerLog(self.process.stdout, self._log_target())
        self._watch = ModelWatch(self.pid, self.models)

    def _log_target(self) -> IO[bytes] | None:
        """Where the server's log goes: a file, else nowhere beside a command's own output, else to stderr."""
        if self.options.log_file is not None:
            self._log_file = self.options.log_file.open("ab" if self.is_again else "wb")
            return self._log_file
        # Our stdout is for the JSON line alone.
        return None if self.is_log_hidden else sys.stderr.buffer

    @property
    def is_log_hidden(self) -> bool:
        """Whether the person has not seen the log yet."""
        return self.options.log_file is not None or self.options.run is not None

    def tell_log(self) -> None:
        """Show the end of a log that went elsewhere."""
        if self.log is None or not self.is_log_hidden:
            return
        where = "" if self.options.log_file is None else f" in {self.options.log_file}"
        say(f"the last lines of the server's log{where}:")
        print(self.log.tail(), end="", file=sys.stderr, flush=True)

    def pending(self) -> str:
        """What a start still waits for, in words."""
        loaded = set() if self.log is None else self.log.loaded
        return f"still waiting for: {', '.join(sorted(self.models - loaded)) or 'the first answer'}"

    @property
    def pid(self) -> int:
        """Of tritonserver itself."""
        assert self.process is not None
        return self.process.pid

    @property
    def ready_s(self) -> float:
        """For how long it has been ready; 0 if it has never been."""
        return 0.0 if self.ready_since is None else time.monotonic() - self.ready_since

    def prove(self) -> None:
        """Return once all models are loaded and a canary has come back through each one that has one.

        Raises:
            ServeError: it ended, or was not ready in time, or a canary failed.
        """
        deadline = time.monotonic() + self.options.start_timeout_s
        self._wait_until_loaded(deadline)
        for canary in self.canaries:
            run_canary(self.addresses["grpc"], self.access, canary, lambda: self._check_start(deadline))
        self.ready_since = time.monotonic()

    def _wait_until_loaded(self, deadline: float) -> None:
        url = f"http://{self.addresses['http']}/v2/health/ready"
        env_folders = python_env_folders()
        while read_page(url) is None:
            before, env_folders = env_folders, python_env_folders()
            if not self.own_env_folders and has_mapped(self.pid, BACKEND_LIBRARY):
                self.own_env_folders = env_folders - before
            self._check_start(deadline)
            time.sleep(0.1)

    def _check_start(self, deadline: float) -> None:
        self.check()
        if time.monotonic() > deadline:
            raise ServeError(f"the server was not ready within {self.options.start_timeout_s} s; {self.pending()}")

    def check(self) -> None:
        """Raise ServeError if the server has ended, or a model's process has a while ago."""
        assert self._watch is not None
        if has_ended(self.pid):
            when = "while it started" if self.ready_since is None else "by itself"
            raise ServeError(f"the server ended {when}; its log above says why{self._failures()}")
        self._watch.check()

    def _failures(self) -> str:
        """What models that could not be loaded said, to end that sentence with."""
        if self.log is None:
            return ""
        self.log.wait()
        return "".join(f"\n{model} could not be loaded: {text}" for model, text in self.log.failures.items())

    def watch(self) -> NoReturn:
        """Raise ServeError once it is dead, whole or in part, or fails a periodic canary."""
        every_s = self.options.canary_every_s
        canaries = [CanaryWatch(self, canary) for canary in self.canaries if every_s > 0]
        while True:
            self.check()
            for canary in canaries:
                canary.check()
            time.sleep(1.0)

    def _remove_env_folder(self) -> None:
        # Nothing in the name says whose it is. The one that came with our backend is ours; of several, touch none.
        if len(self.own_env_folders) == 1:
            with contextlib.suppress(OSError):
                self.own_env_folders.pop().rmdir()


@dataclass(frozen=True)
class Canary:
    """A small request to one model."""

    model: str
    inputs: tuple[tuple[str, str, Any], ...]  # name, datatype, value
    output: str  # one that holds pictures
    proof: str  # how the lines of the metrics page begin that change with each answer, whoever asked


CANARIES = (
    Canary(
        "preprocess", (("image", "BYTES", CANARY_PNG),), "pixels", 'nv_inference_request_success{model="preprocess"'
    ),
    # One chunk from one picture goes through every model. What counts is a chunk's delivery: Triton's own count of a
    # decoupled model's successes grows before there is an answer.
    Canary(
        "world",
        (("image", "BYTES", CANARY_PNG), ("num_chunks", "INT32", 1)),
        "frames",
        "worldstream_stage_duration_seconds_count{",
    ),
)
# A model that holds as many sessions as it may is well, whatever they do.
FULL = "SESSION_LIMIT:"
# Denoise's and Triton's own words for a full queue.
BUSY = ("BUSY:", "Exceeds maximum queue size")


def canaries_of(repository: Path) -> list[Canary]:
    """Those whose models are there."""
    return [canary for canary in CANARIES if (repository / canary.model).is_dir()]


def run_canary(grpc_address: str, access: Access, canary: Canary, keep_waiting: Callable[[], None]) -> None:
    """Send a canary until it is answered.

    Only a request finds out: a model whose process has died still counts as ready.

    Args:
        keep_waiting: called every second; raises once it is not worth while any more.

    Raises:
        ServeError: it failed, or keep_waiting raised this.
    """
    from tritonclient.grpc import InferenceServerClient, InferenceServerException

    is_answered = False
    with InferenceServerClient(grpc_address, **access.channel) as client:
        while not is_answered:
            try:
                ask(client, access, canary, keep_waiting)
                is_answered = True
            except InferenceServerException as error:
                is_answered = FULL in str(error)
                if not is_answered and not any(word in str(error) for word in BUSY):
                    keep_waiting()  # it knows best why a stream broke off
                    raise ServeError(f"the canary request to model {canary.model!r} failed: {error}") from error
            finally:
                client.stop_stream(cancel_requests=True)
            if not is_answered:
                time.sleep(1.0)
                keep_waiting()


def ask(client: Any, access: Access, canary: Canary, keep_waiting: Callable[[], None]) -> None:
    """Send a canary once, as a session of its own, and take its responses up to the final one."""
    stream = responses(
        client,
        access,
        keep_waiting,
        model_name=canary.model,
        inputs=[input_tensor(*each) for each in canary.inputs],
        # A session of one request. With an id it passes under sequence batching too, which refuses requests without.
        sequence_id=random.SystemRandom().getrandbits(62) + 1,
        sequence_start=True,
        sequence_end=True,
    )
    pixels, *_ = [result.as_numpy(canary.output) for result in stream]
    if pixels is None or pixels.ndim != 4 or pixels.shape[0] < 1 or pixels.shape[3] != 3:
        came = "nothing" if pixels is None else f"shape {list(pixels.shape)}"
        raise ServeError(
            f"the canary request to model {canary.model!r} failed: "
            f"{canary.output}: wanted [n, H, W, 3] with n >= 1, got {came}"
        )


def input_tensor(name: str, datatype: str, value: Any) -> Any:
    """A request's input of shape [1]."""
    import numpy
    from tritonclient.grpc import InferInput
    from tritonclient.utils import triton_to_np_dtype

    tensor = InferInput(name, [1], datatype)
    tensor.set_data_from_numpy(numpy.array([value], dtype=triton_to_np_dtype(datatype)))
    return tensor


def responses(client: Any, access: Access, keep_waiting: Callable[[], None], **request: Any) -> Iterator[Any]:
    """The responses to one streamed request, up to the one with the final flag."""
    arrived: queue.SimpleQueue[tuple[Any, Any]] = queue.SimpleQueue()
    client.start_stream(callback=lambda result, error: arrived.put((result, error)), headers=access.headers)
    client.async_stream_infer(enable_empty_final_response=True, **request)
    is_final = False
    while not is_final:
        try:
            result, error = arrived.get(timeout=1.0)
        except queue.Empty:
            keep_waiting()
            continue
        if error is not None:
            raise error
        is_final = result.get_response().parameters["triton_final_response"].bool_param
        yield result


class CanaryWatch:
    """Asks a model again and again whether it lives. While it answers others that is known, and it is left alone."""

    def __init__(self, server: Server | Running, canary: Canary) -> None:
        self._server = server
        self._canary = canary
        self._every_s = float(server.options.canary_every_s)
        self._timeout_s = float(server.options.canary_timeout_s)
        self._due = time.monotonic() + self._every_s
        self._deadline = 0.0
        self._answers: list[str] | None = None

    def check(self) -> None:
        """To be called about every second; asks when it is time to.

        Raises:
            ServeError: the canary failed, or for too long neither it nor anybody else got an answer.
        """
        if self._answers is None:  # the last canary's own answer is on the page by now
            self._has_answered()
        if time.monotonic() < self._due:
            return
        if not self._has_answered():
            self._deadline = time.monotonic() + self._timeout_s
            run_canary(self._server.addresses["grpc"], self._server.access, self._canary, self._keep_waiting)
            self._answers = None
        self._due = time.monotonic() + self._every_s

    def _keep_waiting(self) -> None:
        self._server.check()
        if self._has_answered():  # busy: the canary waits for its turn
            self._deadline = time.monotonic() + self._timeout_s
        if time.monotonic() > self._deadline:
            raise ServeError(f"model {self._canary.model!r} has answered nobody for {self._timeout_s:.0f} s")

    def _has_answered(self) -> bool:
        """Whether the model has answered a request since the last look."""
        before = self._answers
        self._answers = read_metrics(self._server.addresses["metrics"], self._canary.proof) or before
        return before is not None and self._answers != before


class Running:
    """A server that another process has started, on the ports that the options name."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        ports = {service: getattr(options, f"{service}_port") or usual for service, usual in USUAL_PORTS.items()}
        self.addresses = reachable(options.address, ports)
        self.access = read_access(options)

    def check(self) -> None:
        """Of its processes nothing is known."""


def reachable(address: str, ports: Mapping[str, int]) -> dict[str, str]:
    """Where clients on this machine find the services of a server that listens there."""
    return {service: f"{HOST if address == EVERYWHERE else address}:{port}" for service, port in ports.items()}


def probe(options: argparse.Namespace) -> int:
    """Ask each model of a running server that has a canary; 0 if each one has answered it, or others meanwhile.

    Raises:
        ServeError: one has not.
    """
    running = Running(options)
    for canary in canaries_of(options.model_repository):
        CanaryWatch(running, canary).check()
    return 0


def read_metrics(address: str, beginning: str) -> list[str]:
    """The lines of the metrics page that begin so; none if it cannot be had."""
    page = read_page(f"http://{address}/metrics") or ""
    return [line for line in page.splitlines() if line.startswith(beginning)]


def read_page(url: str) -> str | None:
    """What the server answers there, if it says that all is well."""
    opener = urllib.request.build_opener(NO_HTTP_PROXY)
    with contextlib.suppress(OSError, http.client.HTTPException), opener.open(url, timeout=5) as page:
        return str(page.read().decode())
    return None


def parse_arguments(arguments: list[str] | None = None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(prog="serve.py", description="Run the model repository on the real tritonserver.")
    add = parser.add_argument
    add("--model-repository", type=Path, default=Path(__file__).parent / "model_repository", metavar="DIR")
    add("--model-config-name", default="", metavar="NAME", help="use MODEL/configs/NAME.pbtxt where there is one")
    add("--set", action="append", default=[], metavar="MODEL.KEY=VALUE", help="change a model parameter for this run")
    add("--free-ports", action="store_true", help="listen on free ports, not on 8000 to 8002")
    for service, port in USUAL_PORTS.items():
        add(f"--{service}-port", type=int, metavar="PORT", help=f"instead of {port}")
    add("--json", action="store_true", help="print one line with addresses and the server's pid; implies --free-ports")
    add("--run", metavar="COMMAND", help="run a shell command against the server, then stop, with its exit status")
    add("--restart", action="store_true", help="start the server again when it dies after it was ready")
    add("--max-restarts", type=int, metavar="N", help="give up after N restarts in a row; else never")
    add(
        "--canary-every-s",
        type=float,
        default=0.0,
        metavar="S",
        help="ask each model so often whether it lives, unless it just answered others; a server that fails is dead",
    )
    add(
        "--canary-timeout-s",
        type=float,
        default=60.0,
        metavar="S",
        help="how long a model may answer nobody while a canary waits",
    )
    add("--start-timeout-s", type=float, default=900.0, metavar="S", help="longest start, canary included")
    add("--exit-timeout-s", type=int, default=5, metavar="S", help="how long a stop waits for running requests")
    add(
        "--drain-s",
        type=float,
        default=os.environ.get("WORLDSTREAM_DRAIN_S") or "0",  # text, so that argparse checks it
        metavar="S",
        help="on SIGTERM begin no new session, and give those that live so long to end; or $WORLDSTREAM_DRAIN_S",
    )
    add("--log-verbose", type=int, default=0, metavar="N", help="the server's own verbosity")
    add(
        "--log-file",
        type=Path,
        metavar="FILE",
        help="write the server's log there; --run alone shows it on failure only",
    )
    add("--check-python", action="store_true", help="only say whether this Python can serve")
    add_safety_options(parser)
    options = parser.parse_args(arguments)
    if options.address != HOST and options.server is None and not options.probe:
        parser.error(f"--address: the wheel's old server stays on {HOST}; name a current one with --server")
    if options.probe:
        options.canary_every_s = 0.0  # ask at once
    if options.run is not None and (options.restart or options.canary_every_s > 0):
        parser.error("--run goes with neither --restart nor --canary-every-s: the server ends with the command")
    return options


def add_safety_options(parser: argparse.ArgumentParser) -> None:
    """Those of another server than the wheel's, and of who may ask what of it; a container names them by variables."""
    add = parser.add_argument
    add(
        "--server",
        type=Path,
        default=path_of("WORLDSTREAM_SERVER"),
        metavar="DIR",
        help="an installed Triton, such as /opt/tritonserver, in place of the wheel's; or $WORLDSTREAM_SERVER",
    )
    add(
        "--address",
        default=os.environ.get("WORLDSTREAM_ADDRESS", HOST),
        metavar="IP",
        help=f"listen there, not on {HOST}; only with --server; or $WORLDSTREAM_ADDRESS",
    )
    add("--probe", action="store_true", help="start nothing: ask the server that listens there whether it lives")
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
        default=os.environ.get("WORLDSTREAM_TLS_NAME", "localhost"),
        metavar="NAME",
        help="one that the certificate is for, for the canary; default localhost; or $WORLDSTREAM_TLS_NAME",
    )


def path_of(variable: str) -> Path | None:
    """What a variable of the environment names; None where it is absent or empty."""
    return Path(os.environ[variable]) if os.environ.get(variable) else None


def run_command(server: Server, command: str) -> int:
    """Run a shell command with the server's addresses in its environment; its exit status."""
    env = {f"WORLDSTREAM_{service.upper()}": address for service, address in server.addresses.items()}
    process = subprocess.Popen(
        command,
        shell=True,
        env={**os.environ, **env},
        start_new_session=True,
        preexec_fn=lambda: die_with_parent(signal.SIGTERM),
    )
    try:
        has_ended(process.pid, is_blocking=True)
    finally:
        stop_group(process, signal.SIGTERM, STOP_GRACE_S)
    return process.returncode if process.returncode >= 0 else 128 - process.returncode


class Backoff:
    """How long to wait before the next start: 1, 2, 4 ... 60 s, and anew from 1 s after a server that stayed well."""

    def __init__(self, limit: int | None) -> None:
        self._limit = limit
        self.num_in_a_row = 0

    def next_s(self, ready_s: float) -> float | None:
        """The seconds to wait after a server that was ready for ready_s; None: give up."""
        if ready_s >= HEALTHY_S:
            self.num_in_a_row = 0
        if self._limit is not None and self.num_in_a_row >= self._limit:
            return None
        self.num_in_a_row += 1
        return min(2.0 ** min(self.num_in_a_row - 1, 10), LONGEST_BACKOFF_S)


@contextlib.contextmanager
def telling_log_of_failure(server: Server) -> Iterator[None]:
    """Show the log's end before the error that it explains."""
    try:
        yield
    except ServeError:
        server.tell_log()
        raise


def hold(server: Server) -> int:
    """Prove, announce and watch a server that has been started; the exit status of --run."""
    options = server.options
    with telling_log_of_failure(server):
        with saying_every(PATIENCE_S, server.pending):
            server.prove()
        addresses = ", ".join(f"{service} {address}" for service, address in server.addresses.items())
        say(f"ready: {addresses}, pid {server.pid}")
        # Once: who reads it waits for one line. A later server has the same addresses, and its pid is said above.
        if options.json and not server.is_again:
            print(json.dumps({**server.addresses, "pid": server.pid}), flush=True)
        if options.run is None:
            server.watch()
        status = run_command(server, options.run)
        if status != 0 and options.log_file is not None:
            say(f"the command failed; the server's log is in {options.log_file}")
        return status


def drain(server: Server, signals: StopSignals) -> None:
    """Let no new session begin, and wait until those that live have ended, or for --drain-s; or for another signal.

    Raises:
        Stop: another signal came.
    """
    drain_s = server.options.drain_s
    server.drain_file.touch()
    say(f"draining: no new sessions; those that live have {drain_s:.0f} s; another signal ends them")
    signals.forget()
    with signals.raising():
        try:
            say(drained(server, time.monotonic() + drain_s))
        except ServeError as error:  # its sessions are gone with it
            say(f"drained: {error}")


def drained(server: Server, deadline: float) -> str:
    """Wait until no session is left, or until the deadline; what has come of it, in words."""
    num_empty, left = 0, None
    # Twice: one that was let in just before the file was there is counted a moment later.
    while num_empty < 2:
        if time.monotonic() > deadline:
            return f"drained: the time is up; sessions left: {'unknown' if left is None else left}"
        time.sleep(0.5)
        server.check()
        left = count_sessions(server.addresses["metrics"])
        num_empty = num_empty + 1 if left == 0 else 0
    return "drained: no session is left"


def count_sessions(metrics_address: str) -> int | None:
    """How many sessions live, by the metrics page; None where it cannot be had."""
    page = read_page(f"http://{metrics_address}/metrics")
    if page is None:
        return None
    return sum(int(float(line.rpartition(" ")[2])) for line in page.splitlines() if line.startswith(SESSIONS))


def hold_and_drain(server: Server, signals: StopSignals) -> int:
    """As `hold`; where a drain is wanted, SIGTERM begins one before it raises Stop."""
    try:
        with signals.raising():
            return hold(server)
    except Stop as stop:
        is_wanted = server.options.drain_s > 0 and server.options.run is None
        if stop.signum == signal.SIGTERM and is_wanted and server.ready_since is not None:
            drain(server, signals)
        raise


def serve(options: argparse.Namespace) -> int:
    """Serve until a signal raises Stop, or until --run's command has ended; its exit status.

    Raises:
        ServeError: the server died, or never came to be ready; with --restart, only the latter, or at its limit.
    """
    signals = StopSignals()
    ports: dict[str, int | None] = {service: getattr(options, f"{service}_port") for service in USUAL_PORTS}
    backoff = Backoff(options.max_restarts)
    was_ready = False
    while True:
        server = Server(options, ports, is_again=was_ready)
        try:
            with server:
                return hold_and_drain(server, signals)
        except ServeError as error:
            was_ready = was_ready or server.ready_s > 0
            # What has never run is not a matter of another try.
            delay_s = backoff.next_s(server.ready_s) if options.restart and was_ready else None
            if delay_s is None:
                if backoff.num_in_a_row > 0:
                    say(f"gave up after {backoff.num_in_a_row} restarts in a row")
                raise
            say(f"restart {backoff.num_in_a_row} in {delay_s:.0f} s: {error}")
        ports.update(server.ports)
        with signals.raising():
            time.sleep(delay_s)


def main() -> int:
    """Do what the command line says; the exit status."""
    options = parse_arguments()
    if options.check_python:
        return check_python()
    try:
        return probe(options) if options.probe else serve(options)
    except ServeError as error:
        say(str(error))
        return 1
    except Stop as stop:
        # An orderly end of a server is a success; a command that was broken off is not.
        return 128 + stop.signum if options.run is not None else 0


if __name__ == "__main__":
    sys.exit(main())
