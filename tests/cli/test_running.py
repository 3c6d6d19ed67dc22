"""Commands on a real job: what goes where, and with which exit code."""

import json
import os
import re
import signal
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from typer.testing import CliRunner

from batchgen.cli.app import app

SCRIPT = Path(sys.executable).with_name("batchgen")


@pytest.fixture
def job(tmp_path, monkeypatch):
    """Writes data and a job file; the working directory is where they are."""
    monkeypatch.chdir(tmp_path)

    def make(rows=None, **extra):
        rows = [{"prompt": f"row number {n}"} for n in range(20)] if rows is None else rows
        Path("docs.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        Path("job.yaml").write_text(
            "input: {paths: [docs.jsonl]}\n"
            "prompt: {column: prompt}\n"
            f"model: {{engine: simulated, max_model_len: 64, extra: {json.dumps(extra)}}}\n"
            "sampling: {max_tokens: 16, temperature: 0.0}\n"
            "output: {path: out}\n"
            "errors: {stop_at: null}\n"
        )

    return make


@pytest.fixture
def invoke():
    return lambda *args: CliRunner().invoke(app, list(args))


def last_line(text):
    return json.loads(text.splitlines()[-1])


def test_the_answer_is_on_stdout_and_the_rest_on_stderr(job, invoke):
    job()
    result = invoke("run", "job.yaml")
    assert result.exit_code == 0, result.stderr
    assert "20: 20 ok, 0 failed" in result.stdout
    assert "20: 20 ok" not in result.stderr


def test_json_is_one_object_on_the_last_line(job, invoke):
    job()
    result = invoke("run", "job.yaml", "--json")
    answer = last_line(result.stdout)
    assert len(result.stdout.splitlines()) == 1
    assert (answer["num_rows"], answer["num_ok"], answer["exit_code"]) == (20, 20, 0)


def test_json_keys_are_documented(job, invoke):
    job()
    page = (Path(__file__).parents[2] / "docs/json-answers.md").read_text()
    answers = {
        "check": invoke("check", "job.yaml", "--json"),
        "run": invoke("run", "job.yaml", "--json"),
        "status": invoke("status", "out", "--json"),
        "verify": invoke("verify", "out", "--json"),
    }
    for command, result in answers.items():
        section = page.split(f"## batchgen {command}\n")[1].split("\n## ")[0]
        documented = set(re.findall(r"`(\w+)`", section))
        assert set(last_line(result.stdout)) <= documented, command


def test_quiet_says_nothing_when_all_is_well(job, invoke):
    job()
    result = invoke("run", "job.yaml", "--quiet")
    assert (result.exit_code, result.stdout, result.stderr) == (0, "", "")


def test_a_second_run_finds_nothing_new(job, invoke):
    job()
    invoke("run", "job.yaml")
    result = invoke("run", "job.yaml", "--json")
    assert last_line(result.stdout)["nothing_new"] is True


def test_too_many_failed_rows_are_exit_6_with_the_reason(job, invoke):
    job([{"prompt": "fine"}, {"prompt": ""}, {"prompt": None}, {"prompt": ""}])
    result = invoke("run", "job.yaml")
    assert result.exit_code == 6
    assert "4: 1 ok, 3 of 4 failed (empty_prompt 2, null_prompt 1)" in result.stdout
    assert "error: 3 of 4 rows failed" in result.stderr
    assert "empty_prompt" in result.stderr


def test_retryable_failures_come_with_the_command(job, invoke):
    job(script={"docs.jsonl:3": {"fault": "row_error_once"}})
    result = invoke("run", "job.yaml")
    assert result.exit_code == 6
    assert "batchgen run job.yaml --retry-failed" in result.stderr


def test_hostile_text_reaches_no_terminal(job, invoke):
    job([{"prompt": "\x1b]0;owned\x07 \x1b[2J \u202e"}])
    for result in (invoke("check", "job.yaml"), invoke("run", "job.yaml")):
        assert not re.search("[\x1b\x07\u202e]", result.stdout + result.stderr)
        assert "\\x1b[2J" in result.stdout


def test_a_stall_shows_by_the_age_of_the_last_completion(job):
    """Stdout and stderr are files; row 12 keeps the engine busy for 300 s of simulated time."""
    job(
        clock="simulated",
        script={"docs.jsonl:12": {"stall_s": 300.0}},
    )
    command = [SCRIPT, "run", "job.yaml", "-s", "batch.size=8", "-s", "batch.order=input"]
    with Path("stdout").open("w") as stdout, Path("stderr").open("w") as stderr:
        code = subprocess.call(
            [*command, "-s", "batch.feed=generate"], stdout=stdout, stderr=stderr
        )
    text = Path("stderr").read_text()
    assert code == 0, text
    lines = [line for line in text.splitlines() if line.startswith("progress")]
    elapsed = [line.split()[1] for line in lines]
    assert elapsed[:5] == ["00:01:00:", "00:02:00:", "00:03:00:", "00:04:00:", "00:05:00:"]
    assert any(re.search(r"last completion (\d{2,}) s ago", line) for line in lines)
    assert not re.search("[\r\x1b]", text)
    assert "progress" not in Path("stdout").read_text()


def test_json_lines_on_stderr_are_all_objects(job):
    job(clock="simulated", script={"docs.jsonl:12": {"stall_s": 300.0}})
    process = subprocess.run(
        [SCRIPT, "run", "job.yaml", "--log-format", "json"], capture_output=True, text=True
    )
    entries = [json.loads(line) for line in process.stderr.splitlines()]
    assert process.returncode == 0
    assert "progress" in {entry["level"] for entry in entries}
    assert all({"time", "level", "message", "run_id"} <= set(entry) for entry in entries)
    log = [json.loads(line) for line in Path("out/.batchgen/log").read_text().splitlines()]
    assert {entry["run_id"] for entry in (*entries, *log)} == {entries[0]["run_id"]}


@pytest.mark.parametrize(
    ("override", "code", "has_run"),
    [("sampling.max_tokens=-1", 3, False), ("input.paths=gone.jsonl", 4, True)],
)
def test_errors_are_json_lines_too(job, override, code, has_run):
    job()
    process = subprocess.run(
        [SCRIPT, "run", "job.yaml", "--log-format", "json", "-s", override],
        capture_output=True,
        text=True,
    )
    (entry,) = map(json.loads, process.stderr.splitlines())
    assert (process.returncode, entry["level"]) == (code, "error")
    assert (entry["run_id"] is not None) is has_run


@pytest.mark.parametrize(
    ("fault", "name", "code"),
    [("interrupt_after_rows", "SIGINT", 130), ("terminate_after_rows", "SIGTERM", 143)],
)
def test_a_signal_saves_and_sets_the_exit_code(job, invoke, fault, name, code):
    job([{"prompt": f"row number {n}"} for n in range(2000)], faults={fault: 300})
    process = subprocess.run(
        [SCRIPT, "run", "job.yaml", "--json"], capture_output=True, text=True, timeout=60
    )
    assert process.returncode == code, process.stderr
    assert "Traceback" not in process.stderr
    assert f"stopped by {name}; run again to go on" in process.stderr
    assert "error:" not in process.stderr
    assert 300 <= last_line(process.stdout)["num_rows"] < 2000
    assert last_line(invoke("status", "out", "--json").stdout)["state"] == "stopped"


def test_status_follows_a_run_to_its_end(job, invoke):
    job()
    invoke("run", "job.yaml")
    answer = last_line(invoke("status", "out", "--json").stdout)
    assert answer["state"] == "done"
    assert (answer["rows_done"], answer["rows_total"], answer["rows_failed"]) == (20, 20, 0)
    assert answer["rows_per_s"] is None


def test_status_of_a_copied_output_comes_from_its_manifest(job, invoke, tmp_path):
    job([{"prompt": "fine"}, {"prompt": ""}])
    invoke("run", "job.yaml")
    (tmp_path / "out/.batchgen/progress.json").unlink()
    answer = last_line(invoke("status", "out", "--json").stdout)
    assert (answer["state"], answer["failed_by_type"]) == ("done", {"empty_prompt": 1})


def test_status_knows_a_killed_run(job, invoke):
    job(faults={"kill_process_after_rows": 5})
    process = subprocess.run([SCRIPT, "run", "job.yaml"], capture_output=True)
    assert process.returncode == -signal.SIGKILL
    result = invoke("status", "out")
    assert result.exit_code == 0
    assert "killed" in result.stdout


def test_status_of_a_killed_run_does_not_go_back_to_the_run_before(job, invoke):
    job()
    invoke("run", "job.yaml")
    progress = Path("out/.batchgen/progress.json")
    document = json.loads(progress.read_text())
    gone = {"phase": "generate", "pid": 2**22, "rows_done": 644, "rows_total": 900}
    progress.write_text(json.dumps(document | gone | {"run_id": "later"}))
    Path("out/_SUCCESS").unlink()
    answer = last_line(invoke("status", "out", "--json").stdout)
    assert (answer["state"], answer["run_id"]) == ("killed", "later")
    assert (answer["rows_done"], answer["rows_total"]) == (644, 900)


def test_status_of_a_live_run_counts_its_seconds_on(job, invoke):
    job()
    invoke("run", "job.yaml")
    progress = Path("out/.batchgen/progress.json")
    document = json.loads(progress.read_text())
    moment = datetime.now(UTC) - timedelta(seconds=60)
    known = {"elapsed_s": 5000.0, "last_completion_age_s": 2.0, "host": "elsewhere"}
    fresh = {"updated_at": moment.isoformat(timespec="seconds")}
    progress.write_text(json.dumps(document | known | fresh | {"phase": "generate"}))
    answer = last_line(invoke("status", "out", "--json").stdout)
    assert answer["state"] == "running"
    assert 5060 <= answer["elapsed_s"] < 5090
    assert 62 <= answer["last_completion_age_s"] < 92


def test_verify_proves_a_whole_output(job, invoke):
    job()
    invoke("run", "job.yaml")
    result = invoke("verify", "out")
    assert result.exit_code == 0
    assert "20 rows in 1 parts, all in place" in result.stdout


def test_verify_finds_a_missing_part(job, invoke):
    job()
    invoke("run", "job.yaml", "-s", "output.rows_per_part=5")
    sorted(Path("out/outputs").glob("*.parquet"))[1].unlink()
    result = invoke("verify", "out")
    assert result.exit_code == 4
    assert "error: docs.jsonl: 5 rows have no output row: 5, 6, 7, 8, 9" in result.stderr
    assert result.stdout == ""


def test_verify_respects_a_limit(job, invoke):
    job()
    invoke("run", "job.yaml", "--limit", "7")
    result = invoke("verify", "out-limit-7")
    assert result.exit_code == 0, result.stderr
    assert "7 rows" in result.stdout


def test_verify_notes_inputs_that_are_out_of_reach(job, invoke, tmp_path, monkeypatch):
    job()
    invoke("run", "job.yaml")
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    result = invoke("verify", str(tmp_path / "out"))
    assert result.exit_code == 0, result.stderr
    assert "note: 1 of 1 input shards cannot be found" in result.stderr


def test_verify_sees_that_the_input_has_changed(job, invoke):
    job()
    invoke("run", "job.yaml")
    with Path("docs.jsonl").open("a") as file:
        file.write('{"prompt": "one more"}\n')
    result = invoke("verify", "out")
    assert result.exit_code == 4
    assert "docs.jsonl: the input has changed" in result.stderr


def test_init_check_run_go_hand_in_hand(job, invoke):
    job()
    assert invoke("init", "docs.jsonl", "-o", "new.yaml").exit_code == 0
    engine = ("-s", "model.engine=simulated")
    checked = invoke("check", "new.yaml", *engine)
    assert checked.exit_code == 0, checked.stderr
    assert "the job can run: batchgen run new.yaml -s model.engine=simulated" in checked.stderr
    assert invoke("run", "new.yaml", *engine).exit_code == 0


def test_check_refuses_an_output_of_another_job_as_a_run_would(job, invoke):
    job()
    invoke("run", "job.yaml")
    assert invoke("check", "job.yaml").exit_code == 0
    result = invoke("check", "job.yaml", "-s", "sampling.max_tokens=8")
    assert result.exit_code == invoke("run", "job.yaml", "-s", "sampling.max_tokens=8").exit_code
    assert result.exit_code == 4
    assert "error:   sampling.max_tokens: 16 → 8" in result.stderr
    assert "can run" not in result.stderr
    assert "prompt of docs.jsonl:0" in result.stdout


def test_check_puts_what_a_run_would_refuse_into_its_answer(job, invoke):
    job()
    invoke("run", "job.yaml")
    result = invoke("check", "job.yaml", "-s", "sampling.max_tokens=8", "--json")
    assert result.exit_code == 4
    assert "sampling.max_tokens" in " ".join(last_line(result.stdout)["problems"])


@pytest.mark.parametrize(
    ("override", "code", "message"),
    [
        ("output.path=docs.jsonl", 4, "'docs.jsonl' is a file"),
        ("output.path=docs.jsonl/out", 4, "a file"),
        ("output.path=full", 4, "'full' holds files and is no run directory"),
        ("model.extra={script: none.json}", 3, "model.extra.script: cannot read the file 'none"),
        ("model.extra={script: full/file}", 3, "'full/file' is no script"),
        ("prompt.chat_template=none.jinja", 3, "-s prompt.chat_template: prompt.chat_template: "),
    ],
)
@pytest.mark.parametrize("command", ["check", "run"])
def test_check_refuses_what_a_run_refuses(job, invoke, command, override, code, message):
    job()
    Path("full").mkdir()
    Path("full/file").write_text("")
    result = invoke(command, "job.yaml", "-s", override)
    assert result.exit_code == code, result.stderr
    assert message in result.stderr


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_check_refuses_a_directory_without_permission(job, invoke):
    job()
    Path("locked").mkdir(mode=0o500)
    result = invoke("check", "job.yaml", "-s", "output.path=locked/out")
    assert result.exit_code == 4
    assert "no permission" in result.stderr


def test_check_claims_no_more_of_schemas_than_it_knows(job, invoke):
    job([{"prompt": "x", "schema": '{"type": "object"}'}])
    result = invoke("check", "job.yaml", "-s", "sampling.json_schema={column: schema}")
    assert "1 in the sample are valid JSON schemas; the engine, which is not asked" in result.stdout


def test_check_does_not_promise_a_run_in_which_every_row_fails(job, invoke):
    job([{"prompt": ""}, {"prompt": None}])
    result = invoke("check", "job.yaml")
    assert result.exit_code == 0
    assert "warning: all 2 rows looked at will be refused (null_prompt, empty_" in result.stderr
    assert "can run" not in result.stderr


def test_a_full_disk_behind_stdout_is_one_line(job):
    job()
    with Path("/dev/full").open("w") as full:
        process = subprocess.run(
            [SCRIPT, "run", "job.yaml"], stdout=full, stderr=subprocess.PIPE, text=True
        )
    assert process.returncode == 1
    last = process.stderr.splitlines()[-1]
    assert last == "error: stdout cannot be written: No space left on device"
    assert process.stderr.count("error") == 1


@pytest.mark.parametrize("options", [(), ("--json",)])
def test_a_pipe_without_reader_ends_quietly(job, options):
    job()
    reader, writer = os.pipe()
    os.close(reader)
    process = subprocess.run(
        [SCRIPT, "run", "job.yaml", *options], stdout=writer, stderr=subprocess.PIPE, text=True
    )
    os.close(writer)
    assert process.returncode == 141
    assert not re.search("error|Exception|Traceback", process.stderr)


def test_a_closed_stdout_is_no_obstacle(job):
    job()
    process = subprocess.run(
        f"{SCRIPT} run job.yaml >&-", shell=True, stderr=subprocess.PIPE, text=True
    )
    assert process.returncode == 0, process.stderr


@pytest.mark.parametrize(
    ("command", "code"),
    [
        (("run", "none.yaml"), 3),
        (("check", "none.yaml"), 3),
        (("run", "job.yaml", "-s", "input.paths=none.jsonl"), 4),
        (("run", "job.yaml", "--fresh", "--retry-failed"), 2),
        (("status", "none"), 4),
        (("verify", "none"), 4),
    ],
)
def test_json_holds_the_problems_of_a_command_that_fails(job, invoke, command, code):
    job()
    result = invoke(*command, "--json")
    answer = last_line(result.stdout)
    assert (result.exit_code, answer["exit_code"]) == (code, code)
    assert result.stderr == "".join(f"error: {problem}\n" for problem in answer["error"])


def test_the_keys_of_failures_are_documented():
    page = (Path(__file__).parents[2] / "docs/json-answers.md").read_text()
    assert {"error", "exit_code"} <= set(re.findall(r"^\| `(\w+)` \|", page.split("## ")[0], re.M))


@pytest.mark.parametrize("options", [("--deadline", "1h"), ()])
def test_quiet_has_nothing_to_say_of_an_orderly_stop(job, invoke, options):
    fault = {} if options else {"terminate_after_rows": 5}
    in_order = ("-s", "batch.feed=sequential", "-s", "errors.stall_timeout=null")
    job(clock="simulated", faults=fault, script={"docs.jsonl:12": {"stall_s": 7200.0}})
    process = subprocess.run(
        [SCRIPT, "run", "job.yaml", "--quiet", *options, *in_order],
        capture_output=True,
        text=True,
    )
    assert process.returncode == (7 if options else 143)
    assert (process.stdout, process.stderr) == ("", "")


def test_init_never_replaces_a_file(job, invoke):
    job()
    before = Path("job.yaml").read_text()
    result = invoke("init", "docs.jsonl", "-o", "job.yaml")
    assert result.exit_code == 2
    assert "job.yaml: exists already" in result.stderr
    assert Path("job.yaml").read_text() == before


def test_verify_says_which_part_is_damaged(job, invoke, tmp_path):
    job([{"prompt": f"text {number}"} for number in range(4)])
    assert invoke("run", "job.yaml").exit_code == 0
    (part,) = Path("out/outputs").rglob("*.parquet")
    part.write_bytes(part.read_bytes()[:-50])
    result = invoke("verify", "out")
    assert result.exit_code == 4
    assert "cannot be read" in result.stderr
    assert "fault of batchgen" not in result.stderr
