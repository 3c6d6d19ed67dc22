"""Every command has help, an example and docs; a mistake is a line and an exit code."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from batchgen.cli.app import app
from batchgen.cli.options import checked_overrides
from batchgen.cli.reference import cli_markdown, command_names
from batchgen.cli.run import with_retry_value

ROOT = Path(__file__).parents[2]
COMMANDS = command_names()
HEAVY = ("pandas", "pyarrow", "numpy", "vllm", "torch", "transformers", "tokenizers", "rich")


@pytest.fixture
def invoke():
    def run(*args):
        return CliRunner().invoke(app, list(args), env={"COLUMNS": "100"})

    return run


def loaded_modules(*args):
    """Modules that a command has loaded by its end."""
    code = (
        "import sys\n"
        "from batchgen.cli.app import app\n"
        "try:\n"
        "    app(sys.argv[1:])\n"
        "except SystemExit:\n"
        "    pass\n"
        "print(*sys.modules, file=sys.stderr)\n"
    )
    process = subprocess.run(
        [sys.executable, "-c", code, *args], capture_output=True, text=True, check=True
    )
    return {name.partition(".")[0] for name in process.stderr.split()}


def test_help_names_every_command(invoke):
    result = invoke("--help")
    assert result.exit_code == 0
    assert set(COMMANDS) <= set(result.stdout.split())


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_help_with_examples(invoke, command):
    result = invoke(command, "--help")
    assert result.exit_code == 0
    examples = re.findall(rf"^\s+(?:watch -n 10 )?batchgen {command}\b.*$", result.stdout, re.M)
    assert 2 <= len(examples) <= 4


@pytest.mark.parametrize("command", COMMANDS)
def test_first_sentence_of_help_is_not_cut(invoke, command):
    line = next(line for line in invoke("--help").stdout.splitlines() if f"  {command} " in line)
    assert line.endswith(".")
    assert not line.endswith("...")


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_appears_in_the_docs(command):
    assert f"## batchgen {command}\n" in (ROOT / "docs/cli.md").read_text()


def test_docs_are_what_the_program_says():
    assert (ROOT / "docs/cli.md").read_text() == cli_markdown(), "run: make docs"


@pytest.mark.parametrize("command", COMMANDS)
def test_every_option_has_a_meaning(command):
    section = cli_markdown().split(f"## batchgen {command}\n")[1].split("\n## ")[0]
    rows = [line for line in section.splitlines() if line.startswith("| `")]
    assert all(re.fullmatch(r"\| `[^`]+` \| .{8,} \|", row) for row in rows)


@pytest.mark.parametrize("code", [0, 1, 2, 3, 4, 5, 6, 7, 75, 130, 141, 143])
def test_every_exit_code_is_documented(code):
    assert f"| {code} |" in (ROOT / "docs/exit-codes.md").read_text()


@pytest.mark.parametrize(
    "args", [("--help",), ("run", "--help"), ("--version",), ("status", "missing")]
)
def test_no_heavy_module_is_loaded(args, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert loaded_modules(*args).isdisjoint(HEAVY)


def test_schema_loads_no_heavy_module():
    assert loaded_modules("schema").isdisjoint(HEAVY)


def test_schema_is_json_on_stdout(invoke):
    result = invoke("schema")
    assert result.exit_code == 0
    assert "properties" in json.loads(result.stdout)
    assert result.stderr == ""


def test_version(invoke):
    assert re.fullmatch(r"batchgen \d+\.\d+\.\d+\n", invoke("--version").stdout)


@pytest.mark.parametrize(
    "args",
    [
        ("run", "job.yaml", "--no-such-option"),
        ("no-such-command",),
        ("run",),
        ("run", "job.yaml", "-s", "sampling.max_tokens"),
        ("run", "job.yaml", "--limit", "0"),
        ("run", "job.yaml", "--retry-failed=some"),
        ("run", "job.yaml", "--fresh", "--retry-failed"),
        ("run", "job.yaml", "--log-format", "xml"),
    ],
)
def test_a_mistake_on_the_command_line_is_exit_2(invoke, args):
    result = invoke(*args)
    assert result.exit_code == 2
    assert result.stdout == ""
    assert "error" in result.stderr.lower()


@pytest.mark.parametrize("command", ["run", "check"])
def test_a_missing_job_file_is_exit_3(invoke, command, tmp_path):
    result = invoke(command, str(tmp_path / "job.yaml"))
    assert result.exit_code == 3
    assert result.stderr.startswith("error: ")
    assert "job.yaml" in result.stderr
    assert result.stdout == ""


def test_all_problems_of_a_job_file_are_lines(invoke, tmp_path):
    job = tmp_path / "job.yaml"
    job.write_text(
        "input: {paths: [x.jsonl]}\nprompt: {colum: text}\nmodel: {engine: simulated}\n"
        "sampling: {max_tokens: -5}\noutput: {path: out}\n"
    )
    result = invoke("check", str(job))
    assert result.exit_code == 3
    lines = result.stderr.splitlines()
    assert len(lines) >= 2
    assert all(line.startswith(f"error: {job}:") for line in lines)


@pytest.mark.parametrize("command", ["status", "verify"])
def test_a_directory_without_run_is_exit_4(invoke, command, tmp_path):
    result = invoke(command, str(tmp_path))
    assert result.exit_code == 4
    assert str(tmp_path) in result.stderr


def test_a_fault_of_the_program_is_one_line_and_a_file(invoke, tmp_path, monkeypatch):
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setattr("batchgen.config.loading.load_job", lambda *_: 1 / 0)
    result = invoke("run", "job.yaml")
    assert result.exit_code == 1
    (line,) = result.stderr.splitlines()
    assert line.startswith("error: unexpected ZeroDivisionError")
    (log,) = tmp_path.glob("*.log")
    assert str(log) in line
    assert "Traceback" in log.read_text()


def test_debug_shows_the_traceback(invoke, monkeypatch):
    monkeypatch.setenv("BATCHGEN_DEBUG", "1")
    result = invoke("run", "missing.yaml")
    assert result.exit_code == 3
    assert "Traceback" in result.stderr


@pytest.mark.parametrize(
    ("args", "meant"),
    [
        (["j.yaml"], ["j.yaml"]),
        (["--retry-failed", "j.yaml"], ["--retry-failed=retryable", "j.yaml"]),
        (["j.yaml", "--retry-failed"], ["j.yaml", "--retry-failed=retryable"]),
        (["--retry-failed=all", "j.yaml"], ["--retry-failed=all", "j.yaml"]),
        (["--retry-failed", "all", "j.yaml"], ["--retry-failed=all", "j.yaml"]),
        (["--retry-failed", "--json", "j"], ["--retry-failed=retryable", "--json", "j"]),
        (["--", "--retry-failed"], ["--", "--retry-failed"]),
        ([], []),
    ],
)
def test_retry_failed_takes_a_value_or_none(args, meant):
    assert list(with_retry_value(args)) == meant


def test_overrides_may_hold_equals_signs():
    assert checked_overrides(["prompt.template=a=b"]) == ["prompt.template=a=b"]


def test_completion_is_on(invoke):
    assert "--install-completion" in invoke("--help").stdout


def test_the_script_runs_as_a_process():
    script = Path(sys.executable).with_name("batchgen")
    process = subprocess.run(
        [script, "run"], capture_output=True, text=True, env={**os.environ, "NO_COLOR": "1"}
    )
    assert process.returncode == 2
    assert process.stdout == ""
