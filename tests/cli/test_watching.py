"""A run is followed to its end, and the exit code says which end it was."""

import io
import json
import signal
import subprocess
import sys
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from typer.testing import CliRunner

from batchgen.cli.app import app
from batchgen.cli.output import Output
from batchgen.cli.watching import exit_code_of, follow, looks
from batchgen.errors import DataError
from batchgen.output.layout import RunLayout
from batchgen.output.lock import RunLock

SCRIPT = Path(sys.executable).with_name("batchgen")
RUNNING = {
    "path": "out",
    "state": "running",
    "run_id": "r1",
    "pid": 17,
    "host": "elsewhere",
    "phase": "generate",
    "started_at": "2026-01-31T02:00:00+00:00",
    "updated_at": "2026-01-31T02:01:00+00:00",
    "elapsed_s": 60.0,
    "rows_done": 5,
    "rows_total": 20,
    "total_is_estimate": False,
    "rows_failed": 1,
    "failed_by_type": {"timeout": 1},
    "num_prompt_tokens": 100,
    "num_output_tokens": 50,
    "exit_code": None,
    "reason": None,
    "rows_per_s": 0.5,
    "output_tokens_per_s": 5.0,
    "eta_s": 30.0,
    "last_completion_age_s": 2.0,
}
LIVE = ("rows_per_s", "output_tokens_per_s", "eta_s", "last_completion_age_s")
DONE = {**RUNNING, "state": "done", "rows_done": 20, "exit_code": 0, **dict.fromkeys(LIVE)}
KILLED = {**RUNNING, "state": "killed", **dict.fromkeys(LIVE)}


class Looking:
    """Answers in turn, each a number of seconds after the one before; no time really passes."""

    def __init__(self, *answers):
        self.answers = iter(answers)
        self.seconds = 0.0

    def look(self):
        answer = next(self.answers)
        if isinstance(answer, Exception):
            raise answer
        return answer

    def sleep(self, seconds):
        self.seconds += seconds

    def follow(self, interval_s=10.0):
        return list(looks(self.look, interval_s, now=lambda: self.seconds, sleep=self.sleep))


@pytest.fixture
def invoke():
    return lambda *args: CliRunner().invoke(app, list(args))


@pytest.fixture
def job(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    def make(num_rows=20, **extra):
        rows = [json.dumps({"prompt": f"row number {number}"}) for number in range(num_rows)]
        Path("docs.jsonl").write_text("\n".join(rows))
        Path("job.yaml").write_text(
            "input: {paths: [docs.jsonl]}\nprompt: {column: prompt}\n"
            f"model: {{engine: simulated, max_num_seqs: 4, extra: {json.dumps(extra)}}}\n"
            "sampling: {max_tokens: 16, temperature: 0.0}\noutput: {path: out}\n"
            "errors: {stop_at: null}\n"
        )

    return make


def running(**changes):
    return {**RUNNING, **changes}


def at(second, state="running"):
    return running(state=state, updated_at=f"2026-01-31T02:01:{second:02d}+00:00")


def test_the_last_answer_is_that_of_the_end():
    assert Looking(RUNNING, at(10), DONE).follow() == [RUNNING, at(10), DONE]


def test_a_look_comes_each_interval():
    looking = Looking(RUNNING, RUNNING, RUNNING, DONE)
    looking.follow(interval_s=2.5)
    assert looking.seconds == 7.5


def test_a_run_that_is_over_is_looked_at_once():
    assert Looking(KILLED).follow() == [KILLED]


def test_a_foreign_run_that_is_seen_to_change_lives_whatever_its_clock_says():
    answers = [at(0), at(1, "killed"), at(2, "killed"), DONE]
    assert [answer["state"] for answer in Looking(*answers).follow()] == [
        "running",
        "running",
        "running",
        "done",
    ]


def test_a_foreign_run_that_no_longer_changes_was_killed():
    answers = [at(0), *[at(1, "killed")] * 20]
    looking = Looking(*answers)
    assert looking.follow()[-1]["state"] == "killed"
    assert looking.seconds == 100


def test_a_file_that_cannot_be_read_for_a_moment_changes_nothing():
    answers = [RUNNING, DataError("stale handle"), DONE]
    assert Looking(*answers).follow() == [RUNNING, RUNNING, DONE]


def test_a_file_that_stays_unreadable_is_an_error():
    looking = Looking(RUNNING, *[DataError("stale handle")] * 20)
    with pytest.raises(DataError):
        looking.follow()
    assert looking.seconds == 90


@pytest.mark.parametrize(
    ("answer", "code"),
    [
        (DONE, 0),
        ({**DONE, "exit_code": 6}, 6),
        ({**DONE, "exit_code": None}, 0),
        ({**DONE, "state": "stopped", "exit_code": 143}, 143),
        ({**DONE, "state": "stopped", "exit_code": None}, 1),
        (KILLED, 137),
    ],
)
def test_the_exit_code_is_that_of_the_run(answer, code):
    assert exit_code_of(answer) == code


def test_off_a_terminal_a_live_run_is_a_plain_line():
    stdout, stderr = io.StringIO(), io.StringIO()
    looking = Looking(RUNNING, DONE)
    assert follow(looking.look, Output(stdout, stderr), 0.001) == 0
    first, *rest = stdout.getvalue().splitlines()
    assert first == (
        "00:01:00 generate: 5 of 20 (25.0%) rows; 1 failed; 5 output tokens/s; "
        "ETA 00:00:30; last completion 2 s ago"
    )
    assert rest[1] == "state    done: every input row has its output row"
    assert "\x1b" not in stdout.getvalue()


def test_a_terminal_is_drawn_over_and_keeps_the_end(monkeypatch):
    class Terminal(io.StringIO):
        def isatty(self):
            return True

    monkeypatch.setenv("TERM", "xterm")
    terminal = Terminal()
    looking = Looking(RUNNING, DONE)
    assert follow(looking.look, Output(terminal, io.StringIO()), 0.001) == 0
    assert "\x1b[" in terminal.getvalue()
    assert "every input row has its output row" in terminal.getvalue().split("\x1b[1A")[-1]


def test_control_c_ends_the_watching_alone():
    looking = Looking(KeyboardInterrupt())
    looking.look = lambda: (_ for _ in ()).throw(KeyboardInterrupt)
    assert follow(looking.look, Output(io.StringIO(), io.StringIO()), 1.0) == 130


def test_json_is_a_line_for_each_look(job, invoke):
    job()
    invoke("run", "job.yaml")
    result = invoke("status", "out", "--watch", "--json")
    assert result.exit_code == 0
    (answer,) = map(json.loads, result.stdout.splitlines())
    assert (answer["state"], answer["exit_code"]) == ("done", 0)


def test_a_run_in_another_process_is_followed_to_its_end(job):
    job(num_rows=40, step_s=0.01)
    process = subprocess.Popen([SCRIPT, "run", "job.yaml", "--quiet"])
    while not Path("out/.batchgen/progress.json").exists():
        assert process.poll() is None
        time.sleep(0.02)
    command = [SCRIPT, "status", "out", "--watch", "--interval", "0.1", "--json"]
    watching = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert process.wait() == watching.returncode == 0
    answers = [json.loads(line) for line in watching.stdout.splitlines()]
    assert {answer["state"] for answer in answers[:-1]} == {"running"}
    assert (answers[-1]["state"], answers[-1]["rows_done"]) == ("done", 40)


@pytest.mark.parametrize(
    ("number", "state", "code"),
    [(signal.SIGTERM, "stopped", 143), (signal.SIGKILL, "killed", 137)],
)
def test_a_run_that_is_ended_from_outside_shows_as_that(job, number, state, code):
    job(num_rows=2000, step_s=0.02)
    process = subprocess.Popen([SCRIPT, "run", "job.yaml", "--quiet"])
    while not list(Path("out").glob(".batchgen/journal/*.log")):
        assert process.poll() is None
        time.sleep(0.02)
    command = [SCRIPT, "status", "out", "--watch", "--interval", "0.1", "--json"]
    watching = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    process.send_signal(number)
    process.wait()
    stdout, _ = watching.communicate(timeout=60)
    assert watching.returncode == code
    assert json.loads(stdout.splitlines()[-1])["state"] == state


def test_a_run_that_still_plans_counts_as_running(job, invoke):
    job()
    with RunLock(RunLayout(Path("out"))):
        answer = json.loads(invoke("status", "out", "--json").stdout)
        text = invoke("status", "out").stdout
    assert (answer["state"], answer["phase"], answer["run_id"]) == ("running", "plan", None)
    assert "a run in out" in text
    assert invoke("status", "out").exit_code == 4


def test_a_holder_that_is_gone_plans_nothing(job, invoke):
    job()
    invoke("run", "job.yaml")
    moment = datetime.now(UTC) - timedelta(days=1)
    holder = dict.fromkeys(("process_started_at", "started_at", "heartbeat_at"), moment.timestamp())
    holder |= {"pid": 2**22, "host": "elsewhere", "boot_id": "x"}
    Path("out/.batchgen/holder.json").write_text(json.dumps(holder))
    assert json.loads(invoke("status", "out", "--json").stdout)["state"] == "done"


def test_status_says_why_a_run_could_not_begin(job, invoke):
    job()
    invoke("run", "job.yaml")
    assert invoke("run", "job.yaml", "-s", "sampling.max_tokens=3").exit_code == 4
    result = invoke("status", "out")
    assert result.exit_code == 0
    assert "exit code  4: out holds rows of a job that differs" in result.stdout
    assert invoke("status", "out", "--watch").exit_code == 4


def test_status_of_an_engine_that_died_shows_the_rows_of_this_run(job, invoke):
    job(num_rows=40, clock="simulated", faults={"die_after_rows": 12, "die_on_start": "always"})
    override = ("-s", "errors.engine_restarts=1")
    assert invoke("run", "job.yaml", *override).exit_code == 5
    answer = json.loads(invoke("status", "out", "--json").stdout)
    assert (answer["state"], answer["exit_code"]) == ("stopped", 5)
    assert answer["rows_done"] >= 12
    assert "the engine died" in answer["reason"]


@pytest.mark.parametrize("args", [("--interval", "5"), ("--watch", "--interval", "0")])
def test_an_interval_that_makes_no_sense_is_exit_2(job, invoke, args):
    job()
    invoke("run", "job.yaml")
    assert invoke("status", "out", *args).exit_code == 2
