"""Whether this Python can serve. Runs on any Python 3, before a package is installed."""

from __future__ import annotations

import ctypes
import importlib.util
import sys
import sysconfig
from pathlib import Path

from launcher.told import say

PYTHON = f"{sys.version_info[0]}.{sys.version_info[1]}"
SUPPORTED_PYTHONS = ("3.11", "3.12")


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
