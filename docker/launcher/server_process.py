"""The process of a tritonserver: its command line, and what it is given before it runs."""

from __future__ import annotations

import resource
import signal
import subprocess
from pathlib import Path

from launcher.access import Access, safety
from launcher.options import Options
from launcher.processes import die_with_parent
from launcher.triton import Triton, known_flags, server_environment

DRAIN_VARIABLE = "WORLDSTREAM_DRAIN_FILE"  # names the file whose presence makes denoise refuse new sessions
STACK_BYTES = 256 << 20  # an HTTP JSON body from about 4 MB overruns the usual 8 MiB and kills the server
SHM_BYTES = 16 << 20  # a model's shared memory region at first: some frames, so that it need not grow while serving


def start_process(command: list[str], triton: Triton, drain_file: Path) -> subprocess.Popen[bytes]:
    """Start the server in a process group of its own; its log comes from its stdout."""
    return subprocess.Popen(
        command,
        env={**server_environment(triton), DRAIN_VARIABLE: str(drain_file)},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
        preexec_fn=prepare_server_process,
    )


def server_command(
    options: Options, access: Access, triton: Triton, repository: Path, workdir: Path, ports: dict[str, int]
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
    return command + safety(options, access, known_flags(triton))


def prepare_server_process() -> None:
    """In the child, before exec: end with the launcher, and have the stack that large JSON bodies need."""
    die_with_parent(signal.SIGKILL)
    _, hard = resource.getrlimit(resource.RLIMIT_STACK)
    soft = STACK_BYTES if hard == resource.RLIM_INFINITY else min(STACK_BYTES, hard)
    resource.setrlimit(resource.RLIMIT_STACK, (soft, hard))
