"""Every end that a run survives is told, once, and telling never changes how it ends."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from monitor.receiver import http_receiver, raw_server, refusing_url
from prometheus_client.parser import text_string_to_metric_families

from batchgen.config.loading import load_job
from batchgen.errors import DataError, EngineError, ResumeMismatch, RunLocked, UsageError
from batchgen.monitor.console import SilentConsole
from batchgen.output.layout import RunLayout
from batchgen.output.lock import RunLock
from batchgen.run.broadcast import Broadcast
from batchgen.run.job import run_job
from batchgen.run.options import RunOptions

SECRET = "hunter2-f00"
JOB = """
name: nightly
input: {{paths: ['{folder}/docs.jsonl']}}
prompt: {{column: text}}
model: {{engine: simulated, max_num_seqs: 4, extra: {{clock: simulated}}}}
sampling: {{max_tokens: 16, temperature: 0.0}}
output: {{path: '{folder}/out'}}
errors: {{stop_at: null, engine_restarts: 1}}
notify: {{ping_url: '{url}/ping/{secret}', webhook_url: '{url}/hook/{secret}', timeout: 10}}
metrics: {{textfile: '{folder}/nightly.prom'}}
"""


class Workplace:
    """A job that tells a server how it goes."""

    def __init__(self, folder: Path, url: str) -> None:
        self.folder = folder
        self.out = folder / "out"
        self.console = SilentConsole()
        self.write(url)
        self.rows(20)

    def write(self, url):
        text = JOB.format(folder=self.folder, url=url, secret=SECRET)
        (self.folder / "job.yaml").write_text(text)

    def rows(self, count, text="row"):
        lines = [json.dumps({"text": f"{text} {number}"}) + "\n" for number in range(count)]
        (self.folder / "docs.jsonl").write_text("".join(lines))

    def run(self, *overrides, **options):
        job = load_job(self.folder / "job.yaml", overrides)
        return run_job(job, RunOptions(**options), console=self.console)

    def progress(self):
        return json.loads((self.out / ".batchgen/progress.json").read_text())

    def metrics(self):
        text = (self.folder / "nightly.prom").read_text()
        return {
            sample.name: sample.value
            for family in text_string_to_metric_families(text)
            for sample in family.samples
        }


@pytest.fixture
def receiver(monkeypatch):
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    with http_receiver() as server:
        yield server


@pytest.fixture
def place(tmp_path, receiver):
    return Workplace(tmp_path, receiver.url)


def pings(receiver):
    return [path.removeprefix(f"/ping/{SECRET}") for path in receiver.paths if "ping" in path]


def webhook(receiver):
    (request,) = [request for request in receiver.received if "hook" in request.path]
    return json.loads(request.body)


def test_a_success_is_told(place, receiver):
    summary = place.run()
    assert pings(receiver) == ["/start", ""]
    told = webhook(receiver)
    assert told["text"].startswith("nightly: done; ")
    assert told["text"].endswith("; 20 rows in all, 0 failed")
    assert (told["job"], told["run_id"], told["exit_code"]) == ("nightly", summary.run_id, 0)
    assert place.console.warnings == []


def test_the_webhook_gets_what_run_json_prints_but_no_text_of_the_corpus(place, receiver):
    summary = place.run()
    told = webhook(receiver)
    plain = json.loads(json.dumps(summary.to_dict()))
    samples = plain.pop("samples")
    assert samples
    assert told == {**plain, "text": told["text"], "job": "nightly", "host": told["host"]}


def test_a_run_without_news_is_a_success(place, receiver):
    place.run()
    receiver.received.clear()
    assert place.run().nothing_new
    assert pings(receiver) == ["/start", ""]
    assert "nothing new" in webhook(receiver)["text"]


def test_too_many_failed_rows_are_a_failure(place, receiver):
    place.rows(20, text="")
    (place.folder / "docs.jsonl").write_text('{"text": ""}\n{"text": "fine"}\n')
    assert place.run().exit_code == 6
    assert pings(receiver) == ["/start", "/fail"]
    assert "exit code 6: 1 of 2 rows failed" in webhook(receiver)["text"]


@pytest.mark.parametrize(
    ("overrides", "options", "error", "steps"),
    [
        (["input.paths=gone.jsonl"], {}, DataError, ["/fail"]),
        ([], {"deadline": "soon"}, UsageError, ["/fail"]),
        (["prompt.column=txet"], {}, DataError, ["/start", "/fail"]),
        (
            ["model.extra={clock: simulated, faults: {die_after_rows: 5, die_on_start: always}}"],
            {},
            EngineError,
            ["/start", "/fail"],
        ),
    ],
    ids=["no input", "no deadline", "no column", "no engine"],
)
def test_an_error_is_told_before_it_is_raised(place, receiver, overrides, options, error, steps):
    with pytest.raises(error) as raised:
        place.run(*overrides, **options)
    assert pings(receiver) == steps
    told = webhook(receiver)
    assert told["error"] == list(raised.value.problems)
    assert told["exit_code"] == error.exit_code
    assert place.metrics()["batchgen_last_exit_code"] == error.exit_code


def test_a_fault_of_the_program_is_told(place, receiver, monkeypatch):
    monkeypatch.setattr("batchgen.run.job.make_plan", lambda *args, **options: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        place.run()
    assert webhook(receiver)["error"] == ["unexpected ZeroDivisionError: division by zero"]
    assert place.progress()["exit_code"] == 1


def test_a_locked_run_tells_nobody(place, receiver):
    with RunLock(RunLayout(place.out)), pytest.raises(RunLocked):
        place.run()
    assert receiver.received == []
    assert not (place.folder / "nightly.prom").exists()


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_signal_is_told(place, receiver, number, code):
    place.rows(2000)
    command = [sys.executable, "-m", "batchgen", "run", str(place.folder / "job.yaml")]
    slow = ["-s", "model.extra={step_s: 0.02}"]
    process = subprocess.Popen([*command, *slow], stderr=subprocess.PIPE, text=True)
    while not list(place.out.glob(".batchgen/journal/*.log")):
        assert process.poll() is None
        time.sleep(0.02)
    process.send_signal(number)
    _, stderr = process.communicate(timeout=60)
    assert (process.returncode, pings(receiver)) == (code, ["/start", "/fail"])
    assert webhook(receiver)["stopped"] == f"stopped by {number.name}"
    assert "notify" not in stderr


def test_a_deadline_is_a_failure_unless_the_job_says_otherwise(place, receiver):
    slow = "model.extra={clock: simulated, step_s: 1.0}"
    assert place.run(slow, deadline="2s").exit_code == 7
    assert place.run(slow, "notify.success_exit_codes=[7]", deadline="2s").exit_code == 7
    assert pings(receiver) == ["/start", "/fail", "/start", ""]


def test_an_engine_beyond_rescue_is_told_before_the_process_ends(place, receiver):
    job = load_job(place.folder / "job.yaml")
    broadcast = Broadcast(job, "r1", place.console)
    with broadcast.working(RunLayout(place.out)):
        place.out.joinpath(".batchgen").mkdir(parents=True)
        broadcast.gave_up("the engine hangs")
    assert pings(receiver) == ["/start", "/fail"]
    assert webhook(receiver)["text"] == "nightly: exit code 5: the engine hangs"
    assert place.progress()["reason"] == "the engine hangs"


@pytest.mark.parametrize("answer", [200, 500])
def test_the_same_exit_code_whatever_the_server_answers(place, receiver, answer):
    receiver.statuses = [answer]
    assert place.run("notify.timeout=1").exit_code == 0
    assert len(place.console.warnings) == (0 if answer == 200 else 2)


def test_a_server_that_never_answers_costs_two_warnings(place):
    with raw_server() as url:
        place.write(url)
        assert place.run("notify.timeout=0.3").exit_code == 0
    assert [warning.split(": ")[2] for warning in place.console.warnings] == [
        "no answer within 0.3 s; the run itself is not affected"
    ] * 2


def test_what_cannot_be_told_never_hides_an_error(place, monkeypatch):
    monkeypatch.setattr("batchgen.monitor.notify.Notifier.end", lambda *args: 1 / 0)
    with pytest.raises(DataError):
        place.run("input.paths=gone.jsonl")
    assert "could not tell how the run goes: ZeroDivisionError" in place.console.warnings[0]


def test_notifications_are_no_part_of_what_a_resume_compares(place):
    place.run()
    place.write(refusing_url())
    assert place.run("metrics.textfile=null", "notify.timeout=0.2").nothing_new


@pytest.mark.parametrize("options", [("--log-format", "json"), ()])
def test_secrets_are_neither_shown_nor_saved(place, options):
    place.write(refusing_url())
    command = [sys.executable, "-m", "batchgen", "run", "job.yaml", "--json", *options]
    inputs = ["-s", "input.paths=[docs.jsonl, 's3://me:hunter2-pw@bucket/x.jsonl']"]
    for arguments in ([], ["-s", "sampling.max_tokens=3"], inputs):
        process = subprocess.run(
            [*command, "-s", "notify.timeout=0.2", *arguments],
            cwd=place.folder,
            capture_output=True,
            text=True,
            env={**os.environ, "BATCHGEN_DEBUG": "1"},
        )
        assert "notify.ping_url: http://127.0.0.1:" in process.stderr
        assert "hunter2" not in process.stderr + process.stdout
    saved = [path for path in place.folder.rglob("*") if path.is_file()]
    assert len(saved) > 6
    assert [path.name for path in saved if b"hunter2" in path.read_bytes()] == ["job.yaml"]
    assert "/***" in (place.out / "manifest.json").read_text()


def test_progress_ends_with_the_exit_code(place):
    summary = place.run()
    progress = place.progress()
    assert (progress["phase"], progress["exit_code"], progress["reason"]) == ("done", 0, None)
    assert progress["run_id"] == summary.run_id


def test_progress_of_a_run_that_could_not_begin_says_why_and_keeps_the_rows(place):
    place.run()
    with pytest.raises(ResumeMismatch):
        place.run("sampling.max_tokens=3")
    progress = place.progress()
    assert (progress["phase"], progress["exit_code"], progress["rows_done"]) == ("failed", 4, 20)
    assert "sampling.max_tokens" in progress["reason"]


def test_progress_of_a_run_without_news_replaces_that_of_a_failed_one(place):
    place.run()
    with pytest.raises(ResumeMismatch):
        place.run("sampling.max_tokens=3")
    place.run()
    assert (place.progress()["exit_code"], place.progress()["rows_done"]) == (0, 20)


def test_metrics_are_those_of_the_whole_output(place):
    place.run()
    place.run()
    metrics = place.metrics()
    assert (metrics["batchgen_rows_done"], metrics["batchgen_rows_expected"]) == (20, 20)
    assert metrics["batchgen_output_tokens_total"] == 0
    assert metrics["batchgen_last_completion_timestamp_seconds"] > 1.7e9


def test_the_log_tells_start_and_end(place):
    place.run()
    log = (place.out / ".batchgen/log").read_text()
    assert "INFO nightly: started on " in log
    assert "INFO nightly: done; " in log
