"""Processes of this machine: what becomes of ours, and which there are. Linux only."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

GROUP_END_S = 5.0  # how long killed processes may take to give back ports and memory


def die_with_parent(signum: int) -> None:
    """Ask Linux to send this process signum when the thread that started it ends. For use after fork."""
    pr_set_pdeathsig = 1
    ctypes.CDLL(None).prctl(pr_set_pdeathsig, signum)


def has_ended(pid: int, is_blocking: bool = False) -> bool:
    """Whether our child has ended. It stays unreaped, so that its group's number cannot become another's."""
    flags = os.WEXITED | os.WNOWAIT | (0 if is_blocking else os.WNOHANG)
    return os.waitid(os.P_PID, pid, flags) is not None


def was_told_to_end(pid: int) -> bool:
    """Whether our child, which has ended, did so in good order, or died of a signal that asks for that."""
    end = os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
    assert end is not None, "it waits"
    return end.si_status in ((0,) if end.si_code == os.CLD_EXITED else (signal.SIGINT, signal.SIGTERM))


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


def has_mapped(pid: int, library: str) -> bool:
    """Whether a process has loaded this library."""
    try:
        return library in Path(f"/proc/{pid}/maps").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return False


def has_members(group: int) -> bool:
    """Whether a process of this group still runs."""
    return any(process.group == group and process.is_running for process in processes())
