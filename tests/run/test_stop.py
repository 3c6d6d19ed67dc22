"""Deadlines and signals end a run in order; the first reason counts."""

import os
import signal
from datetime import datetime

import pytest

from batchgen.engine.clock import RealClock, SimulatedClock
from batchgen.errors import UsageError
from batchgen.run.stop import StopRun, StopWatch, parse_deadline

EVENING = datetime(2026, 3, 1, 22, 0)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("06:00", datetime(2026, 3, 2, 6, 0)),
        ("23:30", datetime(2026, 3, 1, 23, 30)),
        ("22:00", datetime(2026, 3, 2, 22, 0)),
        ("8h", datetime(2026, 3, 2, 6, 0)),
        ("1h30m", datetime(2026, 3, 1, 23, 30)),
        ("90s", datetime(2026, 3, 1, 22, 1, 30)),
    ],
)
def test_a_deadline_is_the_next_such_time_or_a_duration(text, expected):
    assert parse_deadline(text, EVENING) == expected


@pytest.mark.parametrize("text", ["25:00", "06:61", "soon", "", "8", "h"])
def test_what_is_no_deadline_is_refused_with_examples(text):
    with pytest.raises(UsageError, match="--deadline"):
        parse_deadline(text, EVENING)


def test_a_deadline_passes_on_the_runs_own_clock():
    clock = SimulatedClock()
    with StopWatch(clock, 10.0, uses_timer=False) as stop:
        clock.sleep(9.9)
        stop.check()
        clock.sleep(0.2)
        with pytest.raises(StopRun) as raised:
            stop.check()
    assert raised.value.exit_code == 7


@pytest.mark.parametrize(
    ("number", "exit_code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 143)]
)
def test_a_signal_stops_at_the_next_check(number, exit_code):
    with StopWatch(RealClock()) as stop:
        os.kill(os.getpid(), number)
        with pytest.raises(StopRun) as raised:
            stop.check()
    assert raised.value.exit_code == exit_code


def long_call(stop: StopWatch) -> None:
    with stop.interruptible():
        os.kill(os.getpid(), signal.SIGTERM)
        raise AssertionError("the call went on")


def test_a_signal_breaks_out_of_an_interruptible_call():
    with StopWatch(RealClock()) as stop, pytest.raises(StopRun, match="SIGTERM"):
        long_call(stop)


def test_the_first_reason_counts():
    with StopWatch(SimulatedClock()) as stop:
        stop.request(StopRun("first", 6, "stop_at"))
        stop.request(StopRun("second", 7, "deadline"))
        with pytest.raises(StopRun, match="first"):
            stop.check()


def test_an_error_budget_waits_for_rows_in_flight():
    with StopWatch(SimulatedClock()) as stop:
        stop.request(StopRun("too many", 6, "stop_at", lets_finish=True))
        assert stop.ends_feeding
        stop.check(3)
        with pytest.raises(StopRun, match="too many"):
            stop.check(0)


def test_a_signal_does_not_wait_for_what_an_error_budget_waits_for():
    with StopWatch(SimulatedClock()) as stop:
        stop.request(StopRun("too many", 6, "stop_at", lets_finish=True))
        os.kill(os.getpid(), signal.SIGTERM)
        with pytest.raises(StopRun, match="SIGTERM"):
            stop.check(3)


def test_handlers_are_given_back():
    before = signal.getsignal(signal.SIGTERM)
    with StopWatch(RealClock()):
        assert signal.getsignal(signal.SIGTERM) is not before
    assert signal.getsignal(signal.SIGTERM) is before
