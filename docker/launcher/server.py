"""One tritonserver, from its start over its proof to its end."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import IO, NoReturn

from launcher.access import read_access
from launcher.canary import Canary, canaries_of, run_canary
from launcher.canary_watch import CanaryWatch
from launcher.env_folder import EnvFolder
from launcher.metrics import read_page
from launcher.model_watch import ModelWatch
from launcher.options import Options
from launcher.ports import choose_ports, reachable
from launcher.processes import has_ended, stop_group, was_told_to_end
from launcher.repository import served_repository
from launcher.server_log import ServerLog
from launcher.server_process import server_command, start_process
from launcher.told import ServeError, say
from launcher.triton import find_triton

STOP_GRACE_S = 10.0


class Server:
    """A tritonserver process with its temporary folder and its shared memory; a context manager."""

    def __init__(self, options: Options, ports: Mapping[str, int | None], is_again: bool) -> None:
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
        self.ready_since: float | None = None
        self.process: subprocess.Popen[bytes] | None = None
        self.log: ServerLog | None = None
        self._log_file: IO[bytes] | None = None
        self._model_watch: ModelWatch | None = None
        self._env_folder: EnvFolder | None = None

    def __enter__(self) -> Server:
        try:
            self._start()
        except BaseException as error:
            self.__exit__(type(error), error)
            raise
        return self

    def __exit__(self, _: type[BaseException] | None, error: BaseException | None, *__: object) -> None:
        if self.process is not None:
            self._end(self.process, is_broken=self.options.restart and isinstance(error, ServeError))
        if self.log is not None:
            self.log.wait()
        if self._log_file is not None:
            self._log_file.close()
        for region in Path("/dev/shm").glob(f"{self.workdir.name}*"):
            region.unlink(missing_ok=True)
        shutil.rmtree(self.workdir, ignore_errors=True)

    @property
    def pid(self) -> int:
        """Of tritonserver itself."""
        assert self.process is not None
        return self.process.pid

    @property
    def ready_s(self) -> float:
        """For how long it has been ready; 0 if it has never been."""
        return 0.0 if self.ready_since is None else time.monotonic() - self.ready_since

    @property
    def is_log_hidden(self) -> bool:
        """Whether the person has not seen the log yet."""
        return self.options.log_file is not None or self.options.run is not None

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

    def watch(self) -> NoReturn:
        """Raise ServeError once it is dead, whole or in part, or fails a periodic canary."""
        watches = [
            CanaryWatch(self.options, self.addresses, self.access, canary, self.check)
            for canary in self.canaries
            if self.options.canary_every_s > 0
        ]
        while True:
            self.check()
            for watch in watches:
                watch.check()
            time.sleep(1.0)

    def check(self) -> None:
        """Raise ServeError if the server has ended, or a model's process has a while ago."""
        assert self._model_watch is not None
        if has_ended(self.pid):
            if was_told_to_end(self.pid):
                me = f"serve.py, pid {os.getpid()}"
                raise ServeError(f"the server was told to end, and not by us: to stop it for good, signal {me}")
            when = "while it started" if self.ready_since is None else "by itself"
            raise ServeError(f"the server ended {when}; its log above says why{self._failures()}")
        self._model_watch.check()

    def pending(self) -> str:
        """What a start still waits for, in words."""
        loaded = set() if self.log is None else self.log.loaded
        return f"still waiting for: {', '.join(sorted(self.models - loaded)) or 'the first answer'}"

    def tell_log(self) -> None:
        """Show the end of a log that went elsewhere."""
        if self.log is None or not self.is_log_hidden:
            return
        where = "" if self.options.log_file is None else f" in {self.options.log_file}"
        say(f"the last lines of the server's log{where}:")
        print(self.log.tail(), end="", file=sys.stderr, flush=True)

    def _start(self) -> None:
        options = self.options
        self.ports = choose_ports(self.wanted_ports, options.free_ports or options.json, options.address)
        self.addresses = reachable(options.address, self.ports)
        triton = find_triton(options.server, self.workdir)
        repository = served_repository(options, self.workdir)
        self.models = {path.name for path in repository.iterdir() if (path / "1" / "model.py").is_file()}
        self.canaries = canaries_of(repository)
        log_target = self._log_target()  # before there is a process
        command = server_command(options, self.access, triton, repository, self.workdir, self.ports)
        self.process = start_process(command, triton, self.drain_file)
        assert self.process.stdout is not None
        self.log = ServerLog(self.process.stdout, log_target)
        self._model_watch = ModelWatch(self.pid, self.models)
        self._env_folder = EnvFolder(self.pid)

    def _log_target(self) -> IO[bytes] | None:
        """Where the server's log goes: a file, else nowhere beside a command's own output, else to stderr."""
        if self.options.log_file is not None:
            try:
                self._log_file = self.options.log_file.open("ab" if self.is_again else "wb")
            except OSError as error:
                raise ServeError(f"--log-file: {self.options.log_file}: cannot be written: {error.strerror}") from error
            return self._log_file
        # Our stdout is for the JSON line alone.
        return None if self.is_log_hidden else sys.stderr.buffer

    def _wait_until_loaded(self, deadline: float) -> None:
        assert self._env_folder is not None
        url = f"http://{self.addresses['http']}/v2/health/ready"
        while read_page(url) is None:
            self._env_folder.look()
            self._check_start(deadline)
            time.sleep(0.1)

    def _check_start(self, deadline: float) -> None:
        self.check()
        if time.monotonic() > deadline:
            raise ServeError(f"the server was not ready within {self.options.start_timeout_s} s; {self.pending()}")

    def _failures(self) -> str:
        """What models that could not be loaded said, to end that sentence with."""
        if self.log is None:
            return ""
        self.log.wait()
        return "".join(f"\n{model} could not be loaded: {text}" for model, text in self.log.failures.items())

    def _end(self, process: subprocess.Popen[bytes], is_broken: bool) -> None:
        """End the process; at once where it is broken and the next one waits."""
        if is_broken:
            stop_group(process, signal.SIGKILL, STOP_GRACE_S)
        else:
            say("stopping ...")
            grace_s = max(STOP_GRACE_S, self.options.exit_timeout_s + 5.0)
            if not stop_group(process, signal.SIGINT, grace_s):
                say(f"the server did not end within {grace_s:.0f} s and was killed")
            say("stopped")
        if process.returncode < 0 and self._env_folder is not None:  # killed: it could not remove this itself
            self._env_folder.remove()


def make_workdir() -> Path:
    """A new temporary folder whose path holds no whitespace, whatever TMPDIR says."""
    usual = tempfile.gettempdir()
    return Path(tempfile.mkdtemp(prefix="worldstream-serve-", dir=usual if len(usual.split()) == 1 else "/tmp"))
