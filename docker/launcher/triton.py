"""Where the server's program, its backend and its libraries are."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from launcher.this_python import PYTHON, SUPPORTED_PYTHONS, libpython
from launcher.told import ServeError

BACKEND_LIBRARY = "libtriton_python.so"
SPIN_COUNT = "3000"  # turns that a thread waits with its core kept; none costs a quiet machine a third of its frames


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
    # Threads that share an operation wait for each other at its end, and by OpenMP's default long keep their cores for
    # it: beside one other busy program, two cores then streamed 3 frames a second instead of 24.
    if "OMP_WAIT_POLICY" not in env:
        env.setdefault("GOMP_SPINCOUNT", SPIN_COUNT)
    return env
