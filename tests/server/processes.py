"""What a running server's processes are and hold, from /proc: ids, memory of their own, shared memory."""

from pathlib import Path

SHM = "/dev/shm/"


def stub_pids(server_pid: int) -> list[int]:
    """The processes in which the models run, lowest id first."""
    children = [
        int(pid) for file in Path(f"/proc/{server_pid}/task").glob("*/children") for pid in file.read_text().split()
    ]
    return sorted(pid for pid in children if "triton_python_backend_stub" in _command(pid))


def _command(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text()
    except OSError:
        return ""  # ended meanwhile


def own_bytes(pid: int) -> int:
    """Resident memory that is the process's alone: what leaks, without files and shared memory."""
    return _status_bytes(pid, "RssAnon")


def peak_bytes(pid: int) -> int:
    """The most that the process has ever had resident, all kinds together."""
    return _status_bytes(pid, "VmHWM")


def _status_bytes(pid: int, name: str) -> int:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith(f"{name}:"):
            return int(line.split()[1]) * 1024
    raise ValueError(f"process {pid} has no {name}")


def shm_bytes(server_pid: int) -> int:
    """The size of all shared memory files that the server has mapped."""
    maps = Path(f"/proc/{server_pid}/maps").read_text().splitlines()
    files = {line.split(maxsplit=5)[5] for line in maps if SHM in line}
    return sum(Path(file).stat().st_size for file in files if Path(file).exists())
