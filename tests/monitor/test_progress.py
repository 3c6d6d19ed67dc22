"""Progress is driven by time: whole lines at a fixed period, also while nothing finishes."""

import io
import json
import re

import pytest

from batchgen.cli.output import Output
from batchgen.engine.clock import SimulatedClock
from batchgen.monitor.console import SilentConsole
from batchgen.monitor.progress import (
    Progress,
    ProgressReporter,
    RateWindow,
    Snapshot,
    duration,
    progress_line,
)


class FakeTerminal(io.StringIO):
    def isatty(self) -> bool:
        return True


class Work:
    """A run that finishes rows when told to."""

    def __init__(self, clock: SimulatedClock, total: int | None = 20) -> None:
        self.clock = clock
        self.total = total
        self.done = 0
        self.completed_at: float | None = None

    def finish(self, rows: int) -> None:
        self.done += rows
        self.completed_at = self.clock.now()

    def snapshot(self) -> Snapshot:
        age = None if self.completed_at is None else self.clock.now() - self.completed_at
        return Snapshot(
            phase="generate",
            rows_done=self.done,
            rows_total=self.total,
            num_output_tokens=10 * self.done,
            last_completion_age_s=age,
        )


@pytest.fixture
def clock():
    return SimulatedClock()


@pytest.fixture
def work(clock):
    return Work(clock)


def reporter(work, console, path=None, **options):
    return ProgressReporter(
        work.clock, work.snapshot, console=console, progress_path=path, run_id="r1", **options
    )


def test_a_line_comes_each_period_while_nothing_finishes(clock, work):
    console = SilentConsole()
    console.quiet = False
    with reporter(work, console):
        work.finish(12)
        clock.sleep(300)
    assert len(console.lines) == 5
    ages = [re.search(r"last completion (\d+) s ago", line)[1] for line in console.lines]
    assert ages == ["60", "120", "180", "240", "300"]


def test_nothing_is_written_after_the_end(clock, work):
    console = SilentConsole()
    console.quiet = False
    with reporter(work, console):
        clock.sleep(60)
    clock.sleep(600)
    assert len(console.lines) == 1


def test_lines_have_no_carriage_return_and_no_escape_codes(clock, work):
    stderr, stdout = io.StringIO(), io.StringIO()
    with reporter(work, Output(stdout, stderr)):
        work.finish(3)
        clock.sleep(180)
    assert re.fullmatch(r"(progress [^\r\x1b\n]+\n){3}", stderr.getvalue())
    assert stdout.getvalue() == ""


def test_a_quiet_console_gets_no_lines(clock, work):
    console = SilentConsole()
    with reporter(work, console):
        clock.sleep(600)
    assert console.lines == []


def test_json_lines_hold_the_numbers(clock, work):
    stderr = io.StringIO()
    output = Output(io.StringIO(), stderr)
    output.set_mode(log_format="json")
    with reporter(work, output):
        work.finish(6)
        clock.sleep(60)
    (entry,) = map(json.loads, stderr.getvalue().splitlines())
    assert entry["level"] == "progress"
    assert entry["rows_done"] == 6
    assert entry["last_completion_age_s"] == 60


def test_a_terminal_gets_a_bar_that_names_the_rows(clock, work):
    terminal = FakeTerminal()
    with reporter(work, Output(io.StringIO(), terminal)):
        work.finish(5)
        clock.sleep(1)
    assert "5/20" in terminal.getvalue()
    assert "\r" in terminal.getvalue()


def test_lines_stand_above_the_bar(clock, work):
    terminal = FakeTerminal()
    output = Output(io.StringIO(), terminal)
    with reporter(work, output):
        clock.sleep(1)
        output.line("engine restarted")
        clock.sleep(1)
    assert "engine restarted\n" in terminal.getvalue()
    output.line("after the bar")
    assert terminal.getvalue().endswith("after the bar\n")


def test_a_dumb_terminal_gets_lines(clock, work, monkeypatch):
    monkeypatch.setenv("TERM", "dumb")
    terminal = FakeTerminal()
    with reporter(work, Output(io.StringIO(), terminal)):
        clock.sleep(60)
    assert "\r" not in terminal.getvalue()
    assert "progress 00:01:00" in terminal.getvalue()


def test_progress_file_follows_the_clock(clock, work, tmp_path):
    path = tmp_path / "progress.json"
    with reporter(work, SilentConsole(), path):
        assert json.loads(path.read_text())["rows_done"] == 0
        work.finish(7)
        clock.sleep(10)
        document = json.loads(path.read_text())
    assert document["rows_done"] == 7
    assert document["phase"] == "generate"
    assert document["run_id"] == "r1"
    assert [entry.name for entry in tmp_path.iterdir()] == ["progress.json"]


def test_progress_file_keeps_how_the_run_ended(clock, work, tmp_path):
    path = tmp_path / "progress.json"
    progress = reporter(work, SilentConsole(), path)
    progress.start()
    progress.stop("stopped")
    assert json.loads(path.read_text())["phase"] == "stopped"


def test_progress_file_is_final_only_when_the_run_says_so(clock, work, tmp_path):
    path = tmp_path / "progress.json"
    with reporter(work, SilentConsole(), path):
        clock.sleep(1)
    assert json.loads(path.read_text())["phase"] == "finish"


def test_each_sample_and_the_last_one_are_handed_on(clock, work):
    seen = []
    with reporter(work, SilentConsole(), on_sample=seen.append):
        clock.sleep(3)
        work.finish(5)
    assert [progress.snapshot.rows_done for progress in seen] == [0, 0, 0, 0, 5]


def test_a_progress_file_that_cannot_be_written_is_warned_of_once(clock, work, tmp_path):
    console = SilentConsole()
    with reporter(work, console, tmp_path / "missing" / "progress.json"):
        clock.sleep(60)
    assert len(console.warnings) == 1


def test_rates_are_those_of_the_last_minute(clock, work, tmp_path):
    path = tmp_path / "progress.json"
    work.total = 1000
    with reporter(work, SilentConsole(), path):
        for _ in range(40):
            clock.sleep(5)
            work.finish(10)
        for _ in range(24):
            clock.sleep(5)
            work.finish(5)
        clock.sleep(5)
        document = json.loads(path.read_text())
    assert document["rows_per_s"] == pytest.approx(1.0, rel=0.01)
    assert document["output_tokens_per_s"] == pytest.approx(10.0, rel=0.01)
    assert document["eta_s"] == pytest.approx(480, rel=0.01)


def test_the_progress_file_is_a_second_old_at_most(clock, work, tmp_path):
    path = tmp_path / "progress.json"
    with reporter(work, SilentConsole(), path):
        clock.sleep(0.5)
        work.finish(5)
        clock.sleep(1.0)
        assert json.loads(path.read_text())["rows_done"] == 5


def test_a_stalled_run_has_no_time_left(clock, work, tmp_path):
    path = tmp_path / "progress.json"
    with reporter(work, SilentConsole(), path):
        work.finish(5)
        clock.sleep(300)
        assert json.loads(path.read_text())["eta_s"] is None


def test_rate_window_keeps_no_more_than_its_span():
    window = RateWindow(span_s=60)
    for second in range(0, 1000, 5):
        window.add(float(second), second, 0)
    assert len(window._samples) <= 14


@pytest.mark.parametrize(
    ("snapshot", "words"),
    [
        (Snapshot("generate", 5, 20), "5 of 20 rows (25.0%)"),
        (Snapshot("generate", 5, 20, total_is_estimate=True), "5 of about 20 rows (25.0%)"),
        (Snapshot("generate", 1234, None), "1,234 rows"),
        (Snapshot("generate", 0, 0), "0 of 0 rows"),
        (Snapshot("generate", 5, 20, rows_failed=2), "2 failed"),
        (Snapshot("engine start", 0, 20), "engine start; 0 of 20 rows"),
    ],
)
def test_a_line_says(snapshot, words):
    assert words in progress_line(Progress(snapshot, 60.0, None, None, None))


@pytest.mark.parametrize(
    ("seconds", "text"), [(0, "00:00:00"), (59.6, "00:01:00"), (360000, "100:00:00")]
)
def test_durations(seconds, text):
    assert duration(seconds) == text
