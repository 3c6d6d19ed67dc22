"""One writer per run directory.

The lock is a POSIX record lock on `.batchgen/lock`: the kernel drops it when its process ends,
however it ends, and engine processes do not inherit it. So what a killed run leaves behind is no
obstacle. `.batchgen/holder.json` beside it says who holds it, for the message that the second run
gives.

Where locks do not reach (another host on a network file system, or a file system without them)
the heartbeat in `holder.json` decides: the holder refreshes it, and one younger than 90 seconds
counts as alive. It also decides within one process, which a record lock does not exclude from
itself. The lock file itself is opened here only: a process that closes any descriptor of it drops
its lock.
"""

import errno
import fcntl
import os
import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Self

import orjson
import psutil

from batchgen.errors import DataError, RunLocked
from batchgen.output.disk import disk_error, make_folder, write_atomically
from batchgen.output.layout import RunLayout

HEARTBEAT_FRESH_S = 90.0
"""An older heartbeat is a dead holder's."""
HEARTBEAT_S = 30.0

_NO_LOCKS = frozenset({errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL})
"""What file systems without record locks answer."""


@dataclass(frozen=True, slots=True)
class Holder:
    """Who holds a run directory. Times are seconds since the epoch."""

    pid: int
    host: str
    boot_id: str
    process_started_at: float
    started_at: float
    heartbeat_at: float

    def describe(self) -> str:
        """`process 17 on host-a since 2026-01-31 23:00:00`, local time."""
        since = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(self.started_at))
        return f"process {self.pid} on {self.host} since {since}"

    def is_process(self, pid: int, process_started_at: float) -> bool:
        """Whether it is this process of this boot; a process id alone is used again and again."""
        return (self.boot_id, self.pid) == (boot_id(), pid) and (
            abs(self.process_started_at - process_started_at) < 1.0
        )


class RunLock:
    """Context manager: the only writer of a run directory, or `RunLocked`.

    While it is held, a thread refreshes the heartbeat each `beat_s` seconds.
    """

    def __init__(
        self,
        layout: RunLayout,
        *,
        now: Callable[[], float] = time.time,
        beat_s: float = HEARTBEAT_S,
    ) -> None:
        self._layout = layout
        self._now = now
        self._beat_s = beat_s
        self._is_over = threading.Event()
        self._thread = threading.Thread(
            target=self._keep_beating, name="batchgen-lock", daemon=True
        )
        self._descriptor: int | None = None
        self._holder: Holder | None = None

    def __enter__(self) -> Self:
        self._refuse_living(read_holder(self._layout), is_locked=True)
        make_folder(self._layout.hidden)
        self._acquire()
        now = self._now()
        process = psutil.Process()
        self._holder = Holder(
            process.pid, socket.gethostname(), boot_id(), process.create_time(), now, now
        )
        try:
            self.beat()
        except BaseException:
            self._release()
            raise
        self._thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._is_over.set()
        self._thread.join()
        with suppress(OSError):  # on a disk that has become read-only; the lock alone counts
            self._layout_holder.unlink(missing_ok=True)
        self._release()

    def _keep_beating(self) -> None:
        while not self._is_over.wait(self._beat_s):
            with suppress(DataError):  # a disk that is full now is no reason to end a run
                self.beat()

    def beat(self) -> None:
        """Say that the holder is alive."""
        if self._holder is None:
            return
        self._holder = replace(self._holder, heartbeat_at=self._now())
        data = orjson.dumps(asdict(self._holder))
        write_atomically(self._layout_holder, lambda file: file.write(data))

    @property
    def _layout_holder(self) -> Path:
        return holder_path(self._layout)

    def _acquire(self) -> None:
        path = self._layout.lock
        try:
            self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
            fcntl.lockf(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as exc:
            holder = read_holder(self._layout)
            if exc.errno in (errno.EACCES, errno.EAGAIN) and self._descriptor is not None:
                self._release()
                raise self._locked(holder) from exc
            if exc.errno not in _NO_LOCKS or self._descriptor is None:
                self._release()
                raise disk_error(exc, path) from exc
            self._refuse_living(holder, is_locked=False)

    def _refuse_living(self, holder: Holder | None, *, is_locked: bool) -> None:
        """Refuse where the holder is alive by what it says of itself.

        `is_locked`: a record lock will decide between the processes of one host.
        """
        if holder is None:
            return
        process = psutil.Process()
        if holder.is_process(process.pid, process.create_time()):
            raise self._locked(holder)
        is_local = holder.boot_id == boot_id()
        if is_local and (is_locked or _is_dead(holder)):
            return
        if self._now() - holder.heartbeat_at < HEARTBEAT_FRESH_S:
            self._release()
            raise self._locked(holder)

    def _locked(self, holder: Holder | None) -> RunLocked:
        who = holder.describe() if holder else "another process"
        return RunLocked(
            f"{self._layout.path}: another run is writing here, {who}; wait for its end, or stop it"
        )

    def _release(self) -> None:
        self._holder = None
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None


def holder_path(layout: RunLayout) -> Path:
    """Where the holder of the lock is described."""
    return layout.hidden / "holder.json"


def read_holder(layout: RunLayout) -> Holder | None:
    """Who holds the directory, or held it when it was killed; None after an orderly end."""
    try:
        return Holder(**orjson.loads(holder_path(layout).read_bytes()))
    except (OSError, ValueError, TypeError):
        return None


def boot_id() -> str:
    """Identifies this boot of this machine; host names repeat and clocks are wrong."""
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def _is_dead(holder: Holder) -> bool:
    """Whether the holder's process is gone, as far as its number can be looked up from here."""
    if holder.host != socket.gethostname():
        return False
    try:
        return not holder.is_process(holder.pid, psutil.Process(holder.pid).create_time())
    except psutil.NoSuchProcess:
        return True
