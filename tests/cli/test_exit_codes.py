"""The exit codes as a table: each documented one, by the situation that gives it."""

import json
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[2] / "docs" / "exit-codes.md"
ROWS = [{"prompt": f"row number {number}"} for number in range(20)]


@pytest.fixture
def command(tmp_path):
    """Writes rows and a job, then runs `batchgen` on it; the exit code."""

    def run(*arguments, rows=ROWS, errors=None, **extra):
        prepare(tmp_path, rows, errors, extra)
        return subprocess.run(
            [sys.executable, "-m", "batchgen", *arguments], cwd=tmp_path, capture_output=True
        ).returncode

    return run


def prepare(folder, rows, errors, extra):
    lines = [json.dumps(row) + "\n" for row in rows]
    (folder / "docs.jsonl").write_text("".join(lines))
    job = {
        "input": {"paths": ["docs.jsonl"]},
        "prompt": {"column": "prompt"},
        "model": {"engine": "simulated", "max_num_seqs": 2, "extra": extra},
        "sampling": {"max_tokens": 16, "temperature": 0.0},
        "output": {"path": "out"},
        "errors": {"stop_at": None, "engine_restarts": 1, **(errors or {})},
    }
    (folder / "job.yaml").write_text(json.dumps(job))


def bad(count):
    return [{"prompt": None}] * count + ROWS[count:]


@pytest.mark.parametrize(
    ("expected", "arguments", "settings"),
    [
        (0, ["run", "job.yaml"], {}),
        (0, ["run", "job.yaml"], {"rows": bad(3), "errors": {"max_failed": "20%"}}),
        (0, ["check", "job.yaml"], {"rows": bad(3)}),
        (2, ["run", "job.yaml", "--no-such-option"], {}),
        (2, ["run", "job.yaml", "--deadline", "soon"], {}),
        (2, ["run", "job.yaml", "--where", "row"], {}),
        (3, ["run", "job.yaml", "-s", "sampling.max_tokens=-5"], {}),
        (3, ["run", "no-such-job.yaml"], {}),
        (3, ["run", "job.yaml", "-s", "prompt={template: no column}"], {}),
        (4, ["run", "job.yaml", "-s", "input.paths=[gone.jsonl]"], {}),
        (4, ["run", "job.yaml", "-s", "prompt.column=promt"], {}),
        (4, ["verify", "."], {}),
        (5, ["run", "job.yaml"], {"faults": {"die_after_rows": 5, "die_on_start": "always"}}),
        (6, ["run", "job.yaml"], {"rows": bad(3)}),
        (7, ["run", "job.yaml", "--deadline", "2s"], {"clock": "simulated", "step_s": 1.0}),
    ],
)
def test_each_situation_has_its_code(command, expected, arguments, settings):
    if arguments[-2:-1] == ["--where"]:
        assert command("run", "job.yaml") == 0
    assert command(*arguments, **settings) == expected


def test_a_resume_under_another_job_is_a_data_error(command):
    assert command("run", "job.yaml") == 0
    assert command("run", "job.yaml", "-s", "sampling.max_tokens=9") == 4


def test_the_code_describes_the_output_and_stays(command):
    assert command("run", "job.yaml", rows=bad(3)) == 6
    assert command("run", "job.yaml", rows=bad(3)) == 6


def test_a_locked_directory_and_signals_have_their_codes(tmp_path):
    prepare(tmp_path, ROWS * 50, None, {"step_s": 0.02})
    command = [sys.executable, "-m", "batchgen", "run", "job.yaml"]
    for number, code in ((signal.SIGTERM, 143), (signal.SIGINT, 130)):
        process = subprocess.Popen(command, cwd=tmp_path, stderr=subprocess.PIPE)
        while not list(tmp_path.glob("out/.batchgen/journal/*.log")):
            assert process.poll() is None
            time.sleep(0.02)
        second = subprocess.run(command, cwd=tmp_path, capture_output=True)
        assert second.returncode == 75
        process.send_signal(number)
        process.communicate(timeout=60)
        assert process.returncode == code


def test_every_code_is_documented():
    documented = {int(code) for code in re.findall(r"^\| (\d+) \|", DOCS.read_text(), re.MULTILINE)}
    assert {0, 1, 2, 3, 4, 5, 6, 7, 75, 130, 143} <= documented
