"""The wheel's server laid out as a container has it, and the key of a secured one."""

import shutil
import subprocess
import sys
from pathlib import Path

from launcher.this_python import PYTHON, libpython
from launcher.triton import BACKEND_LIBRARY, find_wheel

ROOT = Path(__file__).parents[2]
SITE_PACKAGES = find_wheel()
WHEEL = SITE_PACKAGES / "pytriton" / "tritonserver"
API_KEY = "a-key-for-tests-0123456789"


def install_server(folder: Path) -> Path:
    """/opt/tritonserver in small: bin, lib and backends of links to the wheel's."""
    backend = folder / "backends" / "python"
    for made in (folder / "bin", folder / "lib", backend):
        made.mkdir(parents=True)
    (folder / "bin" / "tritonserver").symlink_to(WHEEL / "bin" / "tritonserver")
    for library in (SITE_PACKAGES / "nvidia_pytriton.libs").iterdir():
        (folder / "lib" / library.name).symlink_to(library)
    python = libpython()
    if isinstance(python, Path):
        (folder / "lib" / python.name).symlink_to(python)
    for name in (BACKEND_LIBRARY, "triton_python_backend_utils.py"):
        (backend / name).symlink_to(WHEEL / "backends" / "python" / name)
    stub = WHEEL / "python_backend_stubs" / PYTHON / "triton_python_backend_stub"
    shutil.copy(stub, backend)
    (backend / stub.name).chmod(0o755)  # in the wheel it may not be run
    return folder


def write_api_key(folder: Path) -> Path:
    path = folder / "api_key"
    path.write_text(f"{API_KEY}\n", encoding="ascii")
    return path


def probe(*arguments: str | Path, timeout_s: float = 60.0) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(ROOT / "serve.py"), "--probe", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=timeout_s, stdin=subprocess.DEVNULL)
