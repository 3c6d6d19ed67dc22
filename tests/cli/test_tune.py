"""`batchgen tune`: its answer, its files, and what it does to a job file."""

import doctest
import json
import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

from batchgen.cli import tune_answer
from batchgen.cli.app import app
from batchgen.cli.tune_answer import run_line
from batchgen.errors import JobFileError

DOCS = Path(__file__).parents[2] / "docs"
JOB = """\
# Summaries, every night.
input: {paths: [docs.jsonl]}
prompt: {template: "Say: {{ text }}"}
model:
  engine: simulated     # no GPU here
  max_num_seqs: 64      # slots
  extra: {clock: simulated, step_s: 0.02, decode_token_s: 0.002}
sampling: {temperature: 0.0, max_tokens: 64}
output: {path: out}     # see below

# the end
"""


@pytest.fixture
def job(tmp_path, monkeypatch):
    """The path of a job file in the working directory, its data beside it."""
    monkeypatch.chdir(tmp_path)
    rows = [{"text": f"document number {number} of some length"} for number in range(300)]
    Path("docs.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    path = Path("job.yaml")
    path.write_text(JOB)
    return path


@pytest.fixture
def tune():
    return lambda *args: CliRunner().invoke(app, ["tune", "job.yaml", *args])


def answer_of(result):
    return json.loads(result.stdout.splitlines()[-1])


def section_keys(heading):
    """Words that a section of the page on JSON answers explains."""
    page = (DOCS / "json-answers.md").read_text()
    section = page.split(f"## {heading}\n")[1].split("\n## ")[0]
    return set(re.findall(r"`(\w+)`", section))


def test_examples_in_docstrings_hold():
    results = doctest.testmod(tune_answer)
    assert results.attempted
    assert not results.failed


def test_the_answer_ends_with_the_run_to_copy(job, tune):
    result = tune("-s", "batch.size=100")
    assert result.exit_code == 0, result.stderr
    last = result.stdout.splitlines()[-1]
    assert last == "batchgen run job.yaml -s batch.size=100 -s model.max_num_seqs=64"
    assert "knee" in result.stdout
    assert "1 in flight" in result.stderr


def test_the_job_file_is_not_touched_without_write(job, tune):
    assert tune("--max-latency", "p95=3s").exit_code == 0
    assert job.read_text() == JOB


def test_write_changes_the_value_and_nothing_else(job, tune):
    result = tune("--max-latency", "p95=3s", "--write", "--json")
    answer = answer_of(result)
    slots = answer["recommended"]["num_running"]
    assert answer["overrides"] == [f"model.max_num_seqs={slots}"]
    assert answer["written"] == "job.yaml"
    assert job.read_text() == JOB.replace("max_num_seqs: 64", f"max_num_seqs: {slots}")


def test_write_shows_what_it_changes(job, tune):
    result = tune("--max-latency", "p95=3s", "--write")
    assert "-  max_num_seqs: 64      # slots" in result.stdout
    assert re.search(r"^\+  max_num_seqs: \d+ +# slots$", result.stdout, re.M)


def test_write_puts_in_a_key_that_is_not_there(job, tune):
    job.write_text(JOB.replace("  max_num_seqs: 64      # slots\n", ""))
    assert tune("--max-concurrency", "16", "--write").exit_code == 0
    assert "  max_num_seqs: 16\n" in job.read_text()
    assert "# no GPU here\n" in job.read_text()


def test_write_says_where_there_is_nothing_to_change(job, tune):
    assert "says this already" in tune("--write").stdout
    assert job.read_text() == JOB


def test_write_refuses_what_it_cannot_change_safely(job, tune):
    text = JOB.replace("max_num_seqs: 64 ", "max_num_seqs: ${TUNE_SLOTS:-64} ")
    job.write_text(text)
    result = tune("--max-latency", "p95=3s", "--write")
    assert result.exit_code == 3
    assert "job.yaml:6:17: model.max_num_seqs" in result.stderr
    assert job.read_text() == text
    assert "in flight" not in result.stderr


def test_write_that_fails_at_the_end_still_shows_the_results(job, tune, monkeypatch):
    def refuse(*args):
        raise JobFileError("job.yaml: has changed")

    monkeypatch.setattr("batchgen.config.editing.rewrite_job", refuse)
    result = tune("--max-latency", "p95=3s", "--write", "--json")
    answer = answer_of(result)
    assert result.exit_code == answer["exit_code"] == 3
    assert (answer["written"], answer["error"]) == (None, ["job.yaml: has changed"])
    assert answer["overrides"]


def test_results_that_cannot_be_saved_are_shown(job, tune):
    Path("sweeps/tune.json").mkdir(parents=True)
    result = tune("-o", "sweeps")
    assert result.exit_code == 4
    assert "knee" in result.stdout
    assert "error: sweeps/tune.json: cannot write" in result.stderr
    assert "Finished rows" not in result.stderr


def test_nothing_is_written_where_time_ran_out_in_the_climb(job, tune):
    result = tune("--write", "--max-minutes", "0.001")
    assert result.exit_code == 0
    assert "nothing is recommended, so job.yaml is left as it is" in result.stderr
    assert "batchgen run" not in result.stdout
    assert job.read_text() == JOB


def test_secrets_that_were_given_are_masked_in_the_run_to_copy(job, tune):
    url, token = "notify.ping_url=http://127.0.0.1:1/SECRET", "model.extra.hf_token=SECRET"
    line = run_line("job.yaml", [url, token], ["model.max_num_seqs=4"])
    assert "http://127.0.0.1:1/***" in line
    assert "SECRET" not in line
    assert "SECRET" not in tune("-s", url).stdout


def test_numbers_have_no_exponents(job, tune):
    job.write_text(JOB.replace("step_s: 0.02, decode_token_s: 0.002", "step_s: 0.00002"))
    result = tune()
    assert re.search(r"\d,\d{3} output tokens/s", result.stderr)
    assert not re.search(r"\de\+", result.stdout + result.stderr)


def test_a_limit_that_nothing_keeps_is_answered_and_writes_nothing(job, tune):
    result = tune("--max-latency", "p95=1ms", "--write")
    assert result.exit_code == 0
    assert "none of the points; the lowest value seen is" in result.stdout
    assert "batchgen run" not in result.stdout
    assert job.read_text() == JOB


def test_replicas_are_said_with_their_assumption(job, tune):
    result = tune("--arrival-rate", "100")
    assert re.search(r"replicas +\d+ for 100 rows/s, each at 80% of its", result.stdout)
    assert re.search(r"autoscaler +target 64 requests in flight per replica", result.stdout)


def test_results_lie_in_the_directory_of_the_job(job, tune):
    tune()
    assert json.loads(Path("out/tune.json").read_text())["kind"] == "tune"
    assert Path("out/tune.parquet").exists()


def test_results_lie_elsewhere_on_demand(job, tune):
    result = tune("-o", "sweeps/today")
    assert result.exit_code == 0
    assert Path("sweeps/today/tune.json").exists()
    assert not Path("out").exists()


def test_every_key_of_the_answer_is_documented(job, tune):
    answer = answer_of(tune("--max-latency", "p95=3s", "--arrival-rate", "9", "--json"))
    recommended = answer["recommended"]
    parts = [
        answer,
        answer["points"][0],
        recommended,
        recommended["autoscaler"],
        *recommended["limits"],
    ]
    assert {key for part in parts for key in part} <= section_keys("batchgen tune")


def test_every_key_of_a_proposal_is_documented(job, tune):
    (proposal,) = answer_of(tune("--max-concurrency", "4", "--json"))["proposals"]
    assert set(proposal) <= section_keys("batchgen tune")


def test_a_signal_ends_in_130_with_the_points_so_far(job, tune):
    job.write_text(JOB.replace("step_s", "faults: {interrupt_after_rows: 100}, step_s"))
    result = tune("--json")
    assert result.exit_code == 130
    answer = answer_of(result)
    assert answer["points"]
    assert "SIGINT" in answer["stopped"]
    assert Path("out/tune.json").exists()


def test_an_engine_that_dies_ends_in_5_with_the_points_so_far(job, tune):
    job.write_text(JOB.replace("step_s", "faults: {die_after_rows: 200}, step_s"))
    result = tune()
    assert result.exit_code == 5
    assert "knee" in result.stdout
    assert "error: the engine died with" in result.stderr


@pytest.mark.parametrize(
    ("args", "exit_code"),
    [
        (("--max-latency", "2s"), 2),
        (("--repeats", "0"), 2),
        (("--arrival-rate", "0"), 2),
        (("--arrival-rate", "inf"), 2),
        (("--arrival-rate", "nan"), 2),
        (("--max-minutes", "0"), 2),
        (("--max-minutes", "inf"), 2),
        (("--max-latency", f"p95={'9' * 400}s"), 2),
        (("-o", "/proc/nowhere"), 4),
        (("-o", "docs.jsonl"), 4),
        (("-s", "model.engine=unknown"), 3),
        (("-s", "input.paths=[nothing.jsonl]"), 4),
        (("-s", "prompt.template={{ body }}"), 4),
    ],
)
def test_a_mistake_ends_before_an_engine_starts(job, tune, args, exit_code):
    result = tune(*args, "-s", "model.extra.record=received.jsonl")
    assert result.exit_code == exit_code
    assert "error" in result.stderr.lower()
    assert not Path("received.jsonl").exists()
