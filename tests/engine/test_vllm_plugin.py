"""Engine processes end with their owner, and with nobody else."""

import multiprocessing
import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import psutil
import pytest

from batchgen.engine import vllm_plugin

OWNER_SCRIPT = textwrap.dedent("""
    import multiprocessing, os, sys, threading, time
    from batchgen.engine import vllm_plugin

    def engine(marked):
        if not marked:
            os.environ.pop(vllm_plugin.OWNER, None)
        vllm_plugin.follow_parent()
        print(os.getpid(), os.getpgid(0), flush=True)
        time.sleep(60)

    if __name__ == "__main__":
        os.environ[vllm_plugin.OWNER] = vllm_plugin.owner_mark()
        context = multiprocessing.get_context("spawn")
        child = context.Process(target=engine, args=(sys.argv[1] == "marked",))
        starter = threading.Thread(target=child.start)
        starter.start()
        starter.join()
        time.sleep(60)
""")


def start_owner(tmp_path: Path, mark: str) -> tuple["subprocess.Popen[bytes]", int, int]:
    """The owner, and pid and process group of the engine process that a thread of it started."""
    script = tmp_path / "owner.py"
    script.write_text(OWNER_SCRIPT)
    owner = subprocess.Popen([sys.executable, str(script), mark], stdout=subprocess.PIPE)
    assert owner.stdout is not None
    pid, group = owner.stdout.readline().split()
    return owner, int(pid), int(group)


def ends_within(pid: int, limit_s: float) -> bool:
    began = time.monotonic()
    while time.monotonic() - began < limit_s:
        if not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE:
            return True
        time.sleep(0.01)
    return False


def test_an_engine_process_ends_with_its_killed_owner(tmp_path: Path) -> None:
    owner, pid, group = start_owner(tmp_path, "marked")
    assert not ends_within(pid, 0.2)  # the thread that started it is gone, its owner is not
    assert group == pid
    owner.kill()
    owner.wait()
    assert ends_within(pid, 20)


def test_a_process_that_batchgen_did_not_start_is_left_alone(tmp_path: Path) -> None:
    owner, pid, group = start_owner(tmp_path, "unmarked")
    try:
        assert group == os.getpgid(0)
        owner.kill()
        owner.wait()
        assert not ends_within(pid, 1)
    finally:
        os.kill(pid, signal.SIGKILL)


def test_the_owner_itself_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(vllm_plugin.OWNER, vllm_plugin.owner_mark())
    group = os.getpgid(0)
    vllm_plugin.follow_parent()
    assert os.getpgid(0) == group
    assert multiprocessing.parent_process() is None


def test_vllm_finds_the_plugin() -> None:
    from importlib.metadata import entry_points

    (plugin,) = entry_points(group="vllm.general_plugins", name="batchgen")
    assert plugin.load() is vllm_plugin.follow_parent
