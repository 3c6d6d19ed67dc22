"""Engine processes follow batchgen: they end when it ends, and are deaf to the terminal's Ctrl-C.

vLLM may run its engine in processes of its own. When their parent is killed the hard way, they
stay, and hold the device's memory. So batchgen gives vLLM a plugin that each engine process
loads at its start: a thread in it waits for the end of batchgen, whose pid and start time
stand in the environment, and then ends the process. (The kernel's parent-death signal would do
the same, but it follows the *thread* that started the child, and a run may well start its engine in
a thread.) A process that batchgen did not start is left alone.

A Ctrl-C in a terminal goes to the whole process group. batchgen stops softly on it, finishing or
aborting what runs, and needs its engine for that; so engine processes leave the group.
"""

import contextlib
import multiprocessing
import os
import select
import signal
import threading
import time
from pathlib import Path
from typing import Final

OWNER: Final = "BATCHGEN_ENGINE_OWNER"
"""Environment variable with pid and start time of the process that the engine belongs to."""
_POLL_S: Final = 0.5


def owner_mark() -> str:
    """The value of `OWNER` for the current process."""
    return f"{os.getpid()}:{_start_ticks(os.getpid())}"


def follow_parent() -> None:
    """Entry point of the plugin, called by vLLM in each of its processes."""
    owner = os.environ.get(OWNER)
    if owner is None or multiprocessing.parent_process() is None:
        return
    pid, _, start_ticks = owner.partition(":")
    if int(pid) == os.getpid():
        return
    with contextlib.suppress(PermissionError):
        os.setsid()
    watch = threading.Thread(
        target=_end_with, args=(int(pid), int(start_ticks)), name="batchgen-owner", daemon=True
    )
    watch.start()


def _end_with(pid: int, start_ticks: int) -> None:
    """Wait until that process is gone, then end this one at once."""
    try:
        watched = os.pidfd_open(pid)
    except OSError:
        watched = None
    if watched is not None and _start_ticks(pid) == start_ticks:
        select.select([watched], [], [])
    while _start_ticks(pid) == start_ticks:
        time.sleep(_POLL_S)
    os.kill(os.getpid(), signal.SIGKILL)


def _start_ticks(pid: int) -> int:
    """When a process was started, in clock ticks since boot; -1: it is gone (or a zombie)."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return -1
    fields = stat.rpartition(")")[2].split()
    return -1 if fields[0] in "ZX" else int(fields[19])
