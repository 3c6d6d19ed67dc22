"""Starts runs of `batchgen` as real processes, without the second that an interpreter takes.

A process that has imported everything forks for each run it is asked for. The child is a process of
its own, with its own signals, limits and open files, and can be killed like any other. Requests
come as JSON lines on stdin, each is answered by one on stdout.
"""

import ctypes
import json
import os
import resource
import signal
import sys
import time
from typing import Any

import pyarrow.dataset
import pyarrow.parquet

import batchgen.cli.app
import batchgen.config.loading
import batchgen.engine.simulated
import batchgen.run.job
import batchgen.run.verifying

PRELOADED = (pyarrow.dataset, pyarrow.parquet, batchgen.run.job, batchgen.run.verifying)
POLL_S = 0.002
CAPABILITY_VERSION = 0x20080522
CAP_DAC = 1 << 1 | 1 << 2
"""CAP_DAC_OVERRIDE and CAP_DAC_READ_SEARCH."""


def serve() -> None:
    """Answer requests until stdin ends."""
    for line in sys.stdin:
        request = json.loads(line)
        answer = {"start": start, "wait": wait}[request.pop("do")](**request)
        sys.stdout.write(json.dumps(answer) + "\n")
        sys.stdout.flush()


def start(**request: Any) -> int:
    """Fork a run; its process id."""
    pid = os.fork()
    if pid == 0:
        try:
            become(**request)
            batchgen.cli.app.main()
        except SystemExit as exit_of_run:
            end(exit_of_run.code)
        except BaseException:  # noqa: BLE001  (whatever it is, this copy of the server ends here)
            sys.excepthook(*sys.exc_info())
        end(1)
    return pid


def end(code: Any) -> None:
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code if isinstance(code, int) else bool(code))


def become(
    args: list[str],
    cwd: str,
    stdout: str,
    stderr: str,
    env: dict[str, str],
    file_bytes: int | None,
    may_all: bool,
) -> None:
    """Make this process what `batchgen ARGS` in a shell would be."""
    os.chdir(cwd)
    os.environ.update(env)
    for number, path in enumerate(("/dev/null", stdout, stderr)):
        flags = os.O_RDONLY if number == 0 else os.O_WRONLY | os.O_CREAT | os.O_TRUNC
        os.dup2(os.open(path, flags, 0o644), number)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    if file_bytes is not None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (file_bytes, file_bytes))
    if not may_all:
        obey_permissions()
    sys.argv = ["batchgen", *args]


def obey_permissions() -> None:
    """Take from root what lets it write and read where permissions forbid it."""
    libc = ctypes.CDLL(None, use_errno=True)
    header = (ctypes.c_uint32 * 2)(CAPABILITY_VERSION, 0)
    sets = (ctypes.c_uint32 * 6)()
    libc.capget(header, sets)
    sets[0] &= ~CAP_DAC
    if libc.capset(header, sets):
        raise OSError(ctypes.get_errno(), "capset")


def wait(pid: int, timeout_s: float) -> int | None:
    """Exit code as subprocess has it (minus the signal's number); None while it still runs."""
    deadline = time.monotonic() + timeout_s
    while True:
        done, status = os.waitpid(pid, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status)
        if time.monotonic() >= deadline:
            return None
        time.sleep(POLL_S)


if __name__ == "__main__":
    serve()
