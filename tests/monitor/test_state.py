"""A killed run cannot say so: its process is looked for."""

import json
import os
import socket
import subprocess
import sys
from datetime import UTC, datetime, timedelta

import pytest

from batchgen.errors import DataError
from batchgen.monitor.state import read_progress, run_state


def progress(phase="generate", *, pid=None, host=None, age_s=1.0):
    updated_at = datetime.now(UTC) - timedelta(seconds=age_s)
    return {
        "phase": phase,
        "pid": pid or os.getpid(),
        "host": host or socket.gethostname(),
        "updated_at": updated_at.isoformat(timespec="seconds"),
    }


@pytest.fixture(scope="module")
def gone_pid():
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    return process.pid


@pytest.mark.parametrize(
    ("phase", "is_complete", "state"),
    [
        ("generate", False, "running"),
        ("engine start", True, "running"),
        ("done", True, "done"),
        ("done", False, "stopped"),
        ("stopped", False, "stopped"),
        ("failed", False, "stopped"),
    ],
)
def test_state_of_a_run_whose_process_lives(phase, is_complete, state):
    assert run_state(progress(phase), is_complete=is_complete) == state


def test_a_run_without_its_process_was_killed(gone_pid):
    assert run_state(progress(pid=gone_pid), is_complete=False) == "killed"


def test_a_run_that_was_killed_behind_its_last_row_is_done_when_another_has_said_so(gone_pid):
    assert run_state(progress(pid=gone_pid), is_complete=True) == "done"


def test_a_younger_process_with_the_same_number_is_another_one():
    assert run_state(progress(age_s=10**8), is_complete=False) == "killed"


@pytest.mark.parametrize(("age_s", "state"), [(5, "running"), (600, "killed")])
def test_another_host_is_judged_by_age(age_s, state):
    assert run_state(progress(host="elsewhere", age_s=age_s), is_complete=False) == state


@pytest.mark.parametrize(("is_complete", "state"), [(True, "done"), (False, "stopped")])
def test_without_progress_the_mark_decides(is_complete, state):
    assert run_state(None, is_complete=is_complete) == state


def test_a_missing_file_is_no_progress(tmp_path):
    assert read_progress(tmp_path / "progress.json") is None


@pytest.mark.parametrize("text", ["{", "[]", "\x00"])
def test_a_broken_file_is_named(tmp_path, text):
    path = tmp_path / "progress.json"
    path.write_text(text)
    with pytest.raises(DataError, match=r"progress\.json"):
        read_progress(path)


def test_a_file_is_read(tmp_path):
    path = tmp_path / "progress.json"
    path.write_text(json.dumps({"phase": "done"}))
    assert read_progress(path) == {"phase": "done"}
