"""Other programs as contestants: started, watched from outside, and ended with all their children.

What a program writes and how much memory it takes is seen by looking, not by asking it, so that
every contestant is measured the same way. Engines and clusters start processes of their own, some
of which leave the process group or outlive their parent; all that were ever seen are ended, by
their process ids, whatever happens.
"""

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import psutil

GLANCE_S = 0.02
"""Between two looks at what a program has written; the precision of `seen_s`."""
WEIGH_S = 1.0
"""Between two looks at its descendants and their memory, which cost milliseconds."""
OFFLINE = {"HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", "VLLM_LOGGING_LEVEL": "WARNING"}
"""Environment of every vLLM: nothing is fetched or sent, and little is said."""


@dataclass(slots=True)
class Watched:
    """A program that has ended, as seen from outside."""

    began_at: float
    """Seconds since the epoch, as of `time.time`."""
    seconds: float = 0.0
    code: int | None = None
    """Exit code; None where it took too long."""
    stdout: str = ""
    stderr: str = ""
    peak_mb: float = 0.0
    """Memory of the process and its descendants together, shared pages counted once (PSS)."""
    seen_s: dict[str, float] = field(default_factory=dict)
    """When each thing that was watched for was first seen, in seconds since the start."""


def run_watched(
    command: Sequence[str],
    *,
    watch: Mapping[str, Callable[[], bool]] | None = None,
    environment: Mapping[str, str] | None = None,
    timeout_s: float = 3600.0,
    weighs: bool = True,
    on_glance: Callable[[subprocess.Popen[bytes]], None] | None = None,
) -> Watched:
    """Run a program to its end and look at it meanwhile.

    `on_glance` is called at each look, and may end the process. Without `weighs` nobody asks for
    memory, which disturbs a program that is measured in microseconds. Raises nothing about the
    program: see `code` and `stderr`.
    """
    # A time limit around the benchmark ends it with SIGTERM, which would leave the program behind.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    left = dict(watch or {})
    processes: dict[int, psutil.Process] = {}
    with tempfile.TemporaryFile() as stdout, tempfile.TemporaryFile() as stderr:
        watched = Watched(began_at=time.time())
        began = time.perf_counter()
        child = subprocess.Popen(
            command,
            stdout=stdout,
            stderr=stderr,
            stdin=subprocess.DEVNULL,
            env={**os.environ, **(environment or {})},
            start_new_session=True,
        )
        weighed = began
        try:
            while child.poll() is None and (now := time.perf_counter()) < began + timeout_s:
                for name in [name for name, is_there in left.items() if is_there()]:
                    watched.seen_s[name] = now - began
                    del left[name]
                if now - weighed >= WEIGH_S:
                    weighed = now
                    _meet_descendants(child.pid, processes)
                    if weighs:
                        watched.peak_mb = max(watched.peak_mb, _megabytes(processes))
                if on_glance is not None:
                    on_glance(child)
                time.sleep(GLANCE_S)
            watched.seconds = time.perf_counter() - began
            watched.code = child.poll()
            # What came in the last moment.
            watched.seen_s |= {name: watched.seconds for name, seen in left.items() if seen()}
        finally:
            _end(child, processes)
        watched.stdout, watched.stderr = _text(stdout), _text(stderr)
    return watched


def require_success(watched: Watched, name: str) -> None:
    """Exit with the end of what a program said where it has failed."""
    if watched.code == 0:
        return
    fate = "took too long" if watched.code is None else f"ended with exit code {watched.code}"
    raise SystemExit(f"{name} {fate} after {watched.seconds:.0f} s:\n{watched.stderr[-3000:]}")


def ray_python(given: str | None, current: str) -> str | None:
    """An interpreter that has Ray Data: `given`, else the current one; None where it has not.

    Exits with a message where `given` cannot be used.
    """
    python = given or current
    probe = "import importlib.util as u, sys; sys.exit(not (u.find_spec('ray') and 1))"
    with contextlib.suppress(OSError):
        if subprocess.run([python, "-c", probe], capture_output=True).returncode == 0:
            return python
    if given is not None:
        raise SystemExit(f"--ray-python {given}: this interpreter has no ray; {RAY_RECIPE}")
    return None


RAY_RECIPE = (
    "make an environment for it beside this one, then pass --ray-python:\n"
    "  python3.11 -m venv /tmp/ray-venv\n"
    "  ls -d $PWD/.venv/lib/python3*/site-packages"
    " > $(ls -d /tmp/ray-venv/lib/python3*/site-packages)/project.pth\n"
    "  /tmp/ray-venv/bin/pip install 'ray[data]==2.60.0'"
)
"""The second line lends it vLLM, pyarrow and pandas of this environment."""


def is_written(path: Path) -> bool:
    """Whether a file has content."""
    try:
        return path.stat().st_size > 0
    except OSError:
        return False


def _meet_descendants(pid: int, processes: dict[int, psutil.Process]) -> None:
    """Add a process and all its descendants to `processes`."""
    with contextlib.suppress(psutil.Error):
        root = psutil.Process(pid)
        for process in [root, *root.children(recursive=True)]:
            processes.setdefault(process.pid, process)


def _megabytes(processes: dict[int, psutil.Process]) -> float:
    total = 0
    for process in processes.values():
        with contextlib.suppress(psutil.Error):
            total += process.memory_full_info().pss
    return total / 2**20


def _end(child: subprocess.Popen[bytes], processes: dict[int, psutil.Process]) -> None:
    """Kill what is left of a program: itself, its descendants, and whoever is in its session."""
    _meet_descendants(child.pid, processes)
    if child.poll() is None:
        child.kill()
    child.wait()
    left = [process for process in processes.values() if process.pid != child.pid]
    left += [process for process in psutil.process_iter() if _session(process) == child.pid]
    for process in left:
        # psutil compares start times too, so a number that was used again is safe.
        with contextlib.suppress(psutil.Error):
            process.kill()
    psutil.wait_procs(left, timeout=10)


def _session(process: psutil.Process) -> int | None:
    with contextlib.suppress(OSError):
        return os.getsid(process.pid)
    return None


def _text(file: object) -> str:
    file.seek(0)  # type: ignore[attr-defined]
    data: bytes = file.read()  # type: ignore[attr-defined]
    return data.decode("utf-8", "replace")
