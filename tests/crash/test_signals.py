"""SIGTERM, SIGINT, SIGHUP and the deadline: everything finished is published, within seconds."""

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from batchgen.output.journal import list_segments
from batchgen.output.parts import read_part_info
from batchgen.output.reading import part_files

WINDOW = 16
PROMPT_S = 5.0
CODES = {signal.SIGTERM: 143, signal.SIGINT: 130, signal.SIGHUP: 143}

pytestmark = pytest.mark.slow


def published(desk):
    """Rows that are in parts, as everything is that is durable after an orderly end."""
    assert list_segments(desk.layout.journal) == []
    infos = [read_part_info(file) for file in part_files(desk.layout)]
    assert sum(info.num_rows for info in infos) == len(desk.durable())
    assert not desk.layout.success.exists()
    return desk.durable()


@pytest.mark.parametrize(
    ("number", "feed"),
    [
        (signal.SIGTERM, "continuous"),
        (signal.SIGTERM, "generate"),
        (signal.SIGTERM, "sequential"),
        (signal.SIGINT, "continuous"),
        (signal.SIGINT, "generate"),
        (signal.SIGHUP, "continuous"),
    ],
)
def test_a_signal_ends_a_run_with_its_code_and_all_that_is_finished(
    number, feed, make_desk, slower, check_finished, undisturbed
):
    step_s = {"sequential": 0.001}.get(feed, 0.01)
    desk = make_desk(model=slower(step_s), batch={"feed": feed})
    run = desk.start()
    desk.await_rows(30, run)
    run.kill(number)
    began = time.monotonic()
    assert run.wait() == CODES[number]
    assert time.monotonic() - began < PROMPT_S
    assert f"stopped by {number.name}" in run.stderr
    assert "Traceback" not in run.stderr
    rows = published(desk)
    assert len(set(desk.received()) - rows) <= {"generate": 24}.get(feed, WINDOW)
    desk.finish("-s", "model.extra.step_s=0.002")
    check_finished(desk, undisturbed)


def test_a_signal_in_a_retry_keeps_what_it_has_done(
    make_finished_desk, retried, check_finished, undisturbed_retry
):
    desk = make_finished_desk()
    before = len(desk.received())
    run = desk.start(*retried, "-s", "model.extra.step_s=0.1")
    desk.await_rows(before + 1, run)
    run.kill(signal.SIGTERM)
    assert run.wait() == 143
    desk.finish(*retried)
    check_finished(desk, undisturbed_retry)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_second_signal_ends_the_process_at_once(
    number, make_desk, slower, check_finished, undisturbed
):
    desk = make_desk(model=slower(0.002, faults={"hang_after_rows": 30}))
    run = desk.start()
    desk.await_rows(31, run)
    time.sleep(0.5)
    run.kill(number)
    time.sleep(0.5)
    run.kill(number)
    began = time.monotonic()
    assert run.wait() == CODES[number]
    assert time.monotonic() - began < PROMPT_S
    desk.finish("-s", "model.extra.faults={}")
    check_finished(desk, undisturbed)


def test_a_signal_does_not_wait_for_a_model_that_loads(make_desk, slower):
    desk = make_desk(model=slower(0.002, start_s=30.0))
    run = desk.start()
    while not desk.layout.progress.exists():
        time.sleep(0.005)
    run.kill(signal.SIGTERM)
    assert run.wait(PROMPT_S) == 143
    assert desk.received() == []


@pytest.mark.parametrize("feed", ["continuous", "generate"])
def test_a_deadline_ends_a_run_with_code_7_and_all_that_is_finished(
    feed, make_desk, slower, check_finished, undisturbed
):
    desk = make_desk(model=slower(1.0, clock="simulated"), batch={"feed": feed})
    run = desk.run("--deadline", "1m")
    assert run.code == 7
    assert "deadline" in run.stderr
    rows = published(desk)
    assert 0 < len(rows) < 125
    desk.finish("--deadline", "8h")
    check_finished(desk, undisturbed)


def test_a_deadline_interrupts_a_call_on_the_real_clock(make_desk, slower):
    desk = make_desk(model=slower(60.0), batch={"feed": "generate"})
    run = desk.start("--deadline", "1s")
    assert run.wait(1.0 + PROMPT_S) == 7
    published(desk)


def test_the_installed_command_obeys_signals_too(make_desk, slower, check_finished, undisturbed):
    desk = make_desk(model=slower(0.02))
    command = [str(Path(sys.executable).with_name("batchgen")), "run", "job.yaml"]
    process = subprocess.Popen(command, cwd=desk.path, stderr=subprocess.PIPE, text=True)
    while len(desk.received()) < 30:
        time.sleep(0.01)
    process.send_signal(signal.SIGINT)
    _, stderr = process.communicate(timeout=30)
    assert process.returncode == 130, stderr
    published(desk)
    desk.finish()
    check_finished(desk, undisturbed)
