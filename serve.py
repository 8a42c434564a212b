#!/usr/bin/env python3
"""Run the real tritonserver, from the nvidia-pytriton wheel, on a machine without Docker.

Knows where the wheel keeps the server, what the server needs around it, when it is truly ready (a canary request
has come back through every model) and how to leave nothing behind. Knows nothing of what the models compute.
Imports only the standard library until the server runs, so that it can explain what is missing.
"""

from __future__ import annotations

import argparse
import base64
import contextlib
import ctypes
import importlib.metadata
import importlib.util
import json
import os
import queue
import random
import re
import resource
import shutil
import signal
import socket
import subprocess
import sys
import sysconfig
import tempfile
import threading
import time
import urllib.request
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import IO, Any

HOST = "127.0.0.1"
USUAL_PORTS = {"http": 8000, "grpc": 8001, "metrics": 8002}
PYTHON = f"{sys.version_info[0]}.{sys.version_info[1]}"
SUPPORTED_PYTHONS = ("3.11", "3.12")
# A proxy that the environment names must not come between us and this machine.
NO_HTTP_PROXY = urllib.request.ProxyHandler({})
GRPC_OPTIONS = [("grpc.enable_http_proxy", 0), ("grpc.max_receive_message_length", -1)]
STOP_GRACE_S = 10.0
PATIENCE_S = 15.0  # a wait says so this often
DEAD_MODEL_GRACE_S = 5.0  # how long the server may take to notice that a model's process has ended
LOG_TAIL_LINES = 40
STACK_BYTES = 256 << 20  # an HTTP JSON body from about 4 MB overruns the usual 8 MiB and kills the server
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
    for name in ("libtriton_python.so", "triton_python_backend_utils.py"):
        (backend / name).symlink_to(tritonserver / "backends" / "python" / name)
    shutil.copy(stub, backend / stub.name)
    (backend / stub.name).chmod(0o755)
    # A link, not its folder on the search path: that folder may hold a libstdc++ older than the server's.
    if isinstance(library, Path):
        (workdir / "lib" / library.name).symlink_to(library)


def server_environment(site_packages: Path, workdir: Path) -> dict[str, str]:
    """The environment in which the server finds its libraries and the stub finds this virtual environment."""
    env = {key: value for key, value in os.environ.items() if key != "PYTHONHOME"}
    # The embedded interpreter takes the first python3 on PATH for itself, and with it that one's packages.
    folders = {
        "PATH": [Path(sys.prefix) / "bin"],
        "LD_LIBRARY_PATH": [workdir / "lib", site_packages / "nvidia_pytriton.libs"],
    }
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


def can_bind(port: int) -> bool:
    """Whether nothing listens on this port of HOST; one whose last connections are still closing counts as free."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError:
            return False
    return True


def choose_ports(given: dict[str, int | None], is_free_wanted: bool) -> dict[str, int]:
    """A port for each service: the one given, else a free one where wanted, else the usual one."""
    ports: dict[str, int] = {}
    # Below the range that the kernel hands to outgoing connections: none of these takes our port before we do.
    candidates = iter(random.SystemRandom().sample(range(10000, 32000), 2000))
    for service, usual in USUAL_PORTS.items():
        port = given[service]
        if port is None and is_free_wanted:
            port = next(port for port in candidates if can_bind(port))
        port = usual if port is None else port
        if port in ports.values() or not can_bind(port):
            # Free ports replace only those that nobody has named.
            free = "" if given[service] is not None else " or --free-ports (make serve SERVE_ARGS=--free-ports)"
            raise ServeError(
                f"port {port} ({service}) on {HOST} is in use: stop what listens there, "
                f"or pass another --{service}-port{free}"
            )
        ports[service] = port
    return ports


def server_command(
    options: argparse.Namespace, binary: Path, repository: Path, workdir: Path, ports: dict[str, int]
) -> list[str]:
    """The server's command line. Its shared memory is named after workdir, so that we can tell ours."""
    command = [
        str(binary),
        f"--model-repository={repository}",
        f"--backend-directory={workdir / 'backends'}",
        "--disable-auto-complete-config",
        f"--exit-timeout-secs={options.exit_timeout_s}",
        f"--backend-config=python,shm-region-prefix-name={workdir.name}",
        f"--backend-config=python,shm-default-byte-size={SHM_BYTES}",
    ]
    for service, port in ports.items():
        command += [f"--{service}-address={HOST}", f"--{service}-port={port}"]
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
    deadline = time.monotonic() + grace_s
    while not has_ended(process.pid) and time.monotonic() < deadline:
        time.sleep(0.05)
    is_clean = has_ended(process.pid)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    return is_clean


def python_env_folders() -> set[Path]:
    """The folders that the Python backend makes for packed environments: this path is built into it."""
    return set(Path("/tmp").glob("python_env_*"))


def make_workdir() -> Path:
    """A new temporary folder whose path holds no whitespace, whatever TMPDIR says."""
    usual = tempfile.gettempdir()
    return Path(tempfile.mkdtemp(prefix="worldstream-serve-", dir=usual if len(usual.split()) == 1 else "/tmp"))


class ServerLog:
    """Takes what the server says: forwards it to a file, remembers its end and which models it says are loaded."""

    def __init__(self, source: IO[bytes], target: IO[bytes] | None) -> None:
        self.loaded: set[str] = set()
        self._tail: deque[bytes] = deque(maxlen=LOG_TAIL_LINES)
        self._source = source
        self._target = target
        self._reader = threading.Thread(target=self._read, name="server-log", daemon=True)
        self._reader.start()

    def tail(self) -> str:
        """The last lines, once the server has said all or a moment has passed."""
        self._reader.join(1.0)
        return b"".join(self._tail.copy()).decode("utf-8", errors="replace")

    def _read(self) -> None:
        for line in self._source:
            self._tail.append(line)
            if found := re.search(rb"successfully loaded '([^']+)'", line):
                self.loaded.add(found[1].decode())
            if self._target is not None:
                with contextlib.suppress(OSError):  # a reader that went away must not block the server
                    self._target.write(line)
                    self._target.flush()


def model_processes(server_pid: int) -> dict[int, bool]:
    """The server's processes of models, by pid, and whether each one runs; one that ended may be missing here."""
    processes = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            name, _, rest = path.read_text(encoding="utf-8", errors="replace").rpartition(")")
            state, parent, *_ = rest.split()
            if int(parent) == server_pid and "(triton_python" in name:
                processes[int(path.parent.name)] = state not in "ZX"
    return processes


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
        processes = model_processes(self._server_pid)
        now = time.monotonic()
        for pid in processes:
            self._names[pid] = self._names.get(pid) or model_of(pid, self._models)
        for pid, name in self._names.items():
            if processes.get(pid, False):
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

    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        given = {"http": options.http_port, "grpc": options.grpc_port, "metrics": options.metrics_port}
        self.ports = choose_ports(given, options.free_ports or options.json)
        self.addresses = {service: f"{HOST}:{port}" for service, port in self.ports.items()}
        self.workdir = make_workdir()
        self.models: set[str] = set()  # those that have a process of their own
        self.others_env_folders = python_env_folders()
        self.own_env_folders: set[Path] = set()
        self.process: subprocess.Popen[bytes] | None = None
        self.log: ServerLog | None = None
        self._log_file: IO[bytes] | None = None

    def __enter__(self) -> Server:
        try:
            self._start()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        # The stop is bounded; a second signal must not break it off and leave things behind.
        for signum in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(signum, signal.SIG_IGN)
        if self.process is not None:
            say("stopping ...")
            grace_s = max(STOP_GRACE_S, self.options.exit_timeout_s + 5.0)
            if not stop_group(self.process, signal.SIGINT, grace_s):
                say(f"the server did not end within {grace_s:.0f} s and was killed")
            if self.process.returncode < 0:  # killed, by us or another: it could not remove this itself
                self._remove_env_folder()
            say("stopped")
        if self._log_file is not None:
            self._log_file.close()
        for region in Path("/dev/shm").glob(f"{self.workdir.name}*"):
            region.unlink(missing_ok=True)
        shutil.rmtree(self.workdir, ignore_errors=True)

    def _start(self) -> None:
        site_packages = find_wheel()
        repository = self.options.model_repository.resolve()
        if not repository.is_dir():
            raise ServeError(f"--model-repository: no folder {self.options.model_repository}")
        link_backend(site_packages, self.workdir)
        name = self.options.model_config_name
        repository = linked_repository(repository, self.options.set, name, self.workdir)
        self.models = {path.name for path in repository.iterdir() if (path / "1" / "model.py").is_file()}
        binary = site_packages / "pytriton" / "tritonserver" / "bin" / "tritonserver"
        self.process = subprocess.Popen(
            server_command(self.options, binary, repository, self.workdir, self.ports),
            env=server_environment(site_packages, self.workdir),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            preexec_fn=prepare_server_process,
        )
        assert self.process.stdout is not None
        self.log = ServerLog(self.process.stdout, self._log_target())

    def _log_target(self) -> IO[bytes] | None:
        """Where the server's log goes: a file, else nowhere beside a command's own output, else to stderr."""
        if self.options.log_file is not None:
            self._log_file = self.options.log_file.open("wb")
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

    def wait_until_ready(self, deadline: float) -> None:
        """Return once the server says that all its models are loaded."""
        url = f"http://{self.addresses['http']}/v2/health/ready"
        opener = urllib.request.build_opener(NO_HTTP_PROXY)
        watch = ModelWatch(self.pid, self.models)
        while time.monotonic() < deadline:
            if has_ended(self.pid):
                raise ServeError("the server ended while it started; its log above says why")
            watch.check()
            with contextlib.suppress(OSError), opener.open(url, timeout=5):
                self.own_env_folders = python_env_folders() - self.others_env_folders
                return
            time.sleep(0.1)
        raise ServeError(f"the server was not ready within {self.options.start_timeout_s} s")

    def wait_until_end(self) -> None:
        """Return once the server has ended, raise once a model's process has; a signal raises Stop."""
        watch = ModelWatch(self.pid, self.models)
        while not has_ended(self.pid):
            watch.check()
            time.sleep(1.0)

    def _remove_env_folder(self) -> None:
        # Nothing in the name says whose it is. The one that came while we started is ours; of several, touch none.
        if len(self.own_env_folders) == 1:
            with contextlib.suppress(OSError):
                self.own_env_folders.pop().rmdir()


def input_tensor(name: str, datatype: str, value: Any) -> Any:
    """A request's input of shape [1]."""
    import numpy
    from tritonclient.grpc import InferInput
    from tritonclient.utils import triton_to_np_dtype

    tensor = InferInput(name, [1], datatype)
    tensor.set_data_from_numpy(numpy.array([value], dtype=triton_to_np_dtype(datatype)))
    return tensor


def check_pixels(pixels: Any, name: str) -> None:
    """Raise ServeError unless these are one or more RGB pictures."""
    if pixels is None or pixels.ndim != 4 or pixels.shape[0] < 1 or pixels.shape[3] != 3:
        came = "nothing" if pixels is None else f"shape {list(pixels.shape)}"
        raise ServeError(f"{name}: wanted [n, H, W, 3] with n >= 1, got {came}")


def canary_preprocess(client: Any, timeout_s: float) -> None:
    """Decode one picture."""
    result = client.infer("preprocess", [input_tensor("image", "BYTES", CANARY_PNG)], client_timeout=timeout_s)
    check_pixels(result.as_numpy("pixels"), "pixels")


def responses(client: Any, timeout_s: float, **request: Any) -> Iterator[Any]:
    """The responses to one streamed request, up to the one with the final flag."""
    arrived: queue.SimpleQueue[tuple[Any, Any]] = queue.SimpleQueue()
    client.start_stream(callback=lambda result, error: arrived.put((result, error)))
    client.async_stream_infer(enable_empty_final_response=True, **request)
    is_final = False
    deadline = time.monotonic() + timeout_s
    while not is_final:
        try:
            result, error = arrived.get(timeout=max(0.0, deadline - time.monotonic()))
        except queue.Empty:
            raise ServeError(f"no response within {timeout_s:.0f} s") from None
        if error is not None:
            raise error
        is_final = result.get_response().parameters["triton_final_response"].bool_param
        yield result


def canary_world(client: Any, timeout_s: float) -> None:
    """Stream one chunk from one picture, which goes through every model."""
    stream = responses(
        client,
        timeout_s,
        model_name="world",
        inputs=[input_tensor("image", "BYTES", CANARY_PNG), input_tensor("num_chunks", "INT32", 1)],
        # A session of one request. With an id it passes under sequence batching too, which refuses requests without.
        sequence_id=random.SystemRandom().getrandbits(62) + 1,
        sequence_start=True,
        sequence_end=True,
    )
    frames = [result.as_numpy("frames") for result in stream]
    check_pixels(frames[0], "frames")


CANARIES: dict[str, Callable[[Any, float], None]] = {"preprocess": canary_preprocess, "world": canary_world}


def run_canaries(grpc_address: str, deadline: float) -> None:
    """Send a request through each model that has a canary here; raise ServeError if one does not come back.

    Only a request finds out: a model whose process has died still counts as ready.
    """
    from tritonclient.grpc import InferenceServerClient, InferenceServerException

    with InferenceServerClient(grpc_address, channel_args=GRPC_OPTIONS) as client:
        loaded = {model.name for model in client.get_model_repository_index(client_timeout=10).models}
        for name in CANARIES.keys() & loaded:
            try:
                CANARIES[name](client, max(1.0, deadline - time.monotonic()))
            except (ServeError, InferenceServerException) as error:
                raise ServeError(f"the canary request to model {name!r} failed: {error}") from error
            finally:
                client.stop_stream(cancel_requests=True)


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
    add("--start-timeout-s", type=float, default=900.0, metavar="S", help="longest start, canary included")
    add("--exit-timeout-s", type=int, default=5, metavar="S", help="how long a stop waits for running requests")
    add("--log-verbose", type=int, default=0, metavar="N", help="the server's own verbosity")
    add(
        "--log-file",
        type=Path,
        metavar="FILE",
        help="write the server's log there; --run alone shows it on failure only",
    )
    add("--check-python", action="store_true", help="only say whether this Python can serve")
    return parser.parse_args(arguments)


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


def raise_stop(signum: int, _: FrameType | None) -> None:
    """Turn a signal into an exception, so that what is open is closed on the way out."""
    raise Stop(signum)


@contextlib.contextmanager
def telling_log_of_failure(server: Server) -> Iterator[None]:
    """Show the log's end before the error that it explains."""
    try:
        yield
    except ServeError:
        server.tell_log()
        raise


def serve(options: argparse.Namespace) -> int:
    """Start, prove, announce and hold the server; the exit status."""
    for signum in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(signum, raise_stop)
    deadline = time.monotonic() + options.start_timeout_s
    with Server(options) as server, telling_log_of_failure(server):
        with saying_every(PATIENCE_S, server.pending):
            server.wait_until_ready(deadline)
            run_canaries(server.addresses["grpc"], deadline)
        say("ready: " + ", ".join(f"{service} {address}" for service, address in server.addresses.items()))
        if options.json:
            print(json.dumps({**server.addresses, "pid": server.pid}), flush=True)
        if options.run is not None:
            status = run_command(server, options.run)
            if status != 0 and options.log_file is not None:
                say(f"the command failed; the server's log is in {options.log_file}")
            return status
        server.wait_until_end()
        raise ServeError("the server ended by itself; its log above says why")


def main() -> int:
    """Do what the command line says; the exit status."""
    options = parse_arguments()
    if options.check_python:
        return check_python()
    try:
        return serve(options)
    except ServeError as error:
        say(str(error))
        return 1
    except Stop as stop:
        # An orderly end of a server is a success; a command that was broken off is not.
        return 128 + stop.signum if options.run is not None else 0


if __name__ == "__main__":
    sys.exit(main())
