import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict, replace
from itertools import count
from pathlib import Path

import orjson
import pytest

from batchgen.errors import RunLocked
from batchgen.output.layout import RunLayout
from batchgen.output.lock import Holder, RunLock, boot_id, holder_path, read_holder

HOLD = """
import sys, time
from pathlib import Path
from batchgen.output.layout import RunLayout
from batchgen.output.lock import RunLock
with RunLock(RunLayout(Path(sys.argv[1]))):
    print("held", flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def layout(tmp_path: Path) -> RunLayout:
    return RunLayout(tmp_path / "run")


@pytest.fixture
def other(layout: RunLayout) -> Iterator[subprocess.Popen[bytes]]:
    """Another process that holds the lock."""
    process = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(layout.path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == b"held\n"
    yield process
    process.kill()
    process.communicate()


def write_holder(layout: RunLayout, **changes: object) -> None:
    layout.hidden.mkdir(parents=True, exist_ok=True)
    now = time.time()
    holder = Holder(999_999, "elsewhere", "another boot", now, now, now)
    holder = replace(holder, **changes)  # type: ignore[arg-type]
    holder_path(layout).write_bytes(orjson.dumps(asdict(holder)))


def test_second_process_is_refused_with_the_holder(
    layout: RunLayout, other: subprocess.Popen[bytes]
) -> None:
    with pytest.raises(RunLocked, match=f"process {other.pid} on .* since 20"), RunLock(layout):
        pass


def test_the_refused_one_touches_nothing(layout: RunLayout, other: subprocess.Popen[bytes]) -> None:
    before = {path: path.stat().st_mtime_ns for path in layout.path.rglob("*")}
    with pytest.raises(RunLocked), RunLock(layout):
        pass
    assert {path: path.stat().st_mtime_ns for path in layout.path.rglob("*")} == before


def test_a_killed_holder_is_no_obstacle(layout: RunLayout, other: subprocess.Popen[bytes]) -> None:
    os.kill(other.pid, signal.SIGKILL)
    other.wait()
    assert read_holder(layout) is not None
    with RunLock(layout):
        holder = read_holder(layout)
    assert holder is not None
    assert holder.pid == os.getpid()


def test_the_same_process_is_refused_and_keeps_its_lock(layout: RunLayout) -> None:
    with RunLock(layout):
        with pytest.raises(RunLocked), RunLock(layout):
            pass
        done = subprocess.run(
            [sys.executable, "-c", HOLD, str(layout.path)], input=b"", capture_output=True
        )
        assert b"RunLocked" in done.stderr


def test_an_ended_run_leaves_no_holder(layout: RunLayout) -> None:
    with RunLock(layout):
        pass
    assert read_holder(layout) is None
    with RunLock(layout):
        pass


def test_a_living_run_on_another_host_is_respected(layout: RunLayout) -> None:
    write_holder(layout)
    with pytest.raises(RunLocked, match="process 999999 on elsewhere"), RunLock(layout):
        pass


def test_a_stale_run_on_another_host_is_taken_over(layout: RunLayout) -> None:
    write_holder(layout, heartbeat_at=time.time() - 91)
    with RunLock(layout):
        pass


def test_a_dead_process_with_our_number_is_no_obstacle(layout: RunLayout) -> None:
    write_holder(layout, pid=os.getpid(), boot_id=boot_id(), process_started_at=1.0)
    with RunLock(layout):
        pass


def test_beat_moves_the_heartbeat(layout: RunLayout) -> None:
    moments = iter([1000.0] * 5)
    later = [1000.0]
    with RunLock(layout, now=lambda: next(moments, later[0])) as lock:
        later[0] = 1060.0
        for _ in range(5):
            lock.beat()
        holder = read_holder(layout)
    assert holder is not None
    assert (holder.started_at, holder.heartbeat_at) == (1000.0, 1060.0)


def test_a_holder_refreshes_its_heartbeat_by_itself(layout: RunLayout) -> None:
    moments = count(1000.0)
    with RunLock(layout, now=lambda: next(moments), beat_s=0.001):
        first = read_holder(layout)
        while (holder := read_holder(layout)) == first:
            time.sleep(0.001)
    assert first is not None
    assert holder is not None
    assert holder.heartbeat_at > first.heartbeat_at


def test_children_do_not_inherit_the_lock(layout: RunLayout) -> None:
    with RunLock(layout):
        child = subprocess.Popen(["sleep", "30"], close_fds=False)
    with RunLock(layout):
        pass
    child.kill()
    child.wait()
