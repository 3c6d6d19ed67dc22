"""`batchgen compare` from outside: what it prints, what it leaves, its exit codes."""

import json
import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

from batchgen.cli.app import app

PAGE = Path(__file__).parents[2] / "docs/json-answers.md"


@pytest.fixture
def compare(tmp_path, monkeypatch, write_jsonl):
    """Runs the command on a simulated engine; keyword arguments go into `model.extra`."""
    monkeypatch.chdir(tmp_path)
    write_jsonl("docs.jsonl", [{"text": f"document number {i}"} for i in range(16)])

    def run(*args, **extra):
        costs = {"clock": "simulated", "step_s": 0.02, "decode_token_s": 0.002}
        job = {
            "input": {"paths": ["docs.jsonl"]},
            "prompt": {"template": "{{ text }}"},
            "model": {"engine": "simulated", "max_num_seqs": 16, "extra": {**costs, **extra}},
            "sampling": {"temperature": 0, "max_tokens": 20, "ignore_eos": True},
            "output": {"path": "out"},
        }
        Path("job.yaml").write_text(json.dumps(job))
        environment = {"COLUMNS": "200", "NO_COLOR": "1"}
        return CliRunner().invoke(app, ["compare", "job.yaml", *args], env=environment)

    return run


def test_the_table_has_a_line_for_each_way(compare):
    result = compare("--repeats", "2", "--sizes", "4,16")
    assert result.exit_code == 0
    lines = [line.split("  ")[0] for line in result.stdout.splitlines()]
    ways = ("sequential", "generate 4", "generate 16", "continuous 4", "continuous 16")
    assert {way: lines.count(way) for way in ways} == dict.fromkeys(ways, 2)  # speed, then times


def test_four_rows_in_one_call_against_one_by_one(compare):
    result = compare("--repeats", "1", "--sizes", "4,16")
    (line,) = re.findall(r"^4 .*$", result.stdout, re.M)[:1]
    assert line.split() == ["4", "0.56", "s", "1.76", "s", "3.14", "3.14", "to", "3.14"]


def test_the_law_and_the_reasons_are_shown(compare):
    result = compare("--repeats", "1")
    assert "20 + 2·n ms" in result.stdout
    assert "saturation: " in result.stdout
    assert "static was left out" in result.stdout


def test_progress_is_no_data(compare):
    result = compare("--repeats", "1", "--sizes", "4")
    assert "generate 4, 1 of 1" in result.stderr
    assert "1 of 1" not in result.stdout
    assert compare("--repeats", "1", "--sizes", "4", "--quiet").stderr == ""


def test_results_are_kept_beside_the_outputs(compare, tmp_path):
    compare("--repeats", "1", "--sizes", "4")
    assert {path.name for path in (tmp_path / "out").glob("[!.]*")} == {
        "compare.json",
        "compare.parquet",
    }
    compare("--repeats", "1", "--sizes", "4", "--output", "elsewhere")
    assert (tmp_path / "elsewhere/compare.json").exists()


def test_json_is_one_object_with_documented_keys(compare):
    result = compare("--repeats", "2", "--arrival-rate", "50", "--json")
    answer = json.loads(result.stdout.splitlines()[-1])
    section = PAGE.read_text().split("## batchgen compare\n")[1].split("\n## ")[0]
    documented = set(re.findall(r"`(\w+)`", section))
    ways, points = answer["ways"], answer["steps"]
    parts = (answer, ways[0], points[0], answer["step_law"], answer["facts"][0], answer["rows"])
    assert len(result.stdout.splitlines()) == 1
    assert {key for part in parts for key in part} <= documented
    assert answer["files"] == ["out/compare.json", "out/compare.parquet"]


@pytest.mark.parametrize(
    "args",
    [
        ("--sizes", "four"),
        ("--sizes", "1,4"),
        ("--sizes", "4,"),
        ("--arrival-rate", "0"),
        ("--arrival-rate", "inf"),
        ("--arrival-rate", "nan"),
        ("--max-minutes", "inf"),
        ("--max-wait", "inf"),
        ("--max-wait", "nan"),
        ("--max-minutes", "-1"),
        ("--rows", "0"),
        ("--gaps", "odd"),
    ],
)
def test_a_mistake_on_the_command_line_is_exit_2(compare, args, tmp_path):
    result = compare(*args)
    assert result.exit_code == 2
    assert result.stdout == ""
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("folder", ["/proc/nowhere", "docs.jsonl"])
def test_a_place_that_takes_no_results_is_refused_before_the_engine_starts(compare, folder):
    result = compare("--output", folder)
    assert result.exit_code == 4
    assert f"error: {folder}: " in result.stderr
    assert "engine" not in result.stderr


def test_results_that_cannot_be_saved_are_shown(compare, tmp_path):
    (tmp_path / "elsewhere/compare.json").mkdir(parents=True)
    args = ("--repeats", "1", "--sizes", "4", "--output", "elsewhere")
    shown, asked = compare(*args), compare(*args, "--json")
    assert (shown.exit_code, asked.exit_code) == (4, 4)
    assert "sequential" in shown.stdout
    assert "elsewhere/compare.json: cannot write" in shown.stderr
    answer = json.loads(asked.stdout)
    assert (answer["exit_code"], answer["files"]) == (4, None)
    assert answer["ways"]
    assert "cannot write" in answer["error"][0]


def test_a_signal_shows_what_was_measured(compare):
    result = compare("--sizes", "4", faults={"interrupt_after_rows": 60})
    assert result.exit_code == 130
    assert "sequential" in result.stdout
    assert "what was measured before is shown" in result.stderr
    assert "error" not in result.stderr


def test_a_signal_before_any_measurement_leaves_no_files(compare, tmp_path):
    result = compare(faults={"interrupt_after_rows": 3})
    assert result.exit_code == 130
    assert not (tmp_path / "out").exists()


def test_a_dead_engine_shows_what_was_measured(compare):
    result = compare("--sizes", "4", faults={"die_after_rows": 60})
    assert result.exit_code == 5
    assert "sequential" in result.stdout
    assert result.stderr.splitlines()[-1].startswith("error: ")


def test_a_run_directory_is_left_to_its_runs(compare):
    compare("--repeats", "1", "--sizes", "4")
    environment = {"COLUMNS": "200", "NO_COLOR": "1"}
    assert CliRunner().invoke(app, ["run", "job.yaml"], env=environment).exit_code == 0
    before = Path("out/manifest.json").read_bytes()
    assert compare("--repeats", "1", "--sizes", "4").exit_code == 0
    assert Path("out/manifest.json").read_bytes() == before
    assert CliRunner().invoke(app, ["verify", "out"], env=environment).exit_code == 0


def test_texts_of_a_model_never_reach_the_terminal_as_they_are(compare):
    script = {f"docs.jsonl:{i}": {"reply": f"\x1b[2J{i} bad"} for i in range(16)}
    result = compare("--repeats", "1", script=script)
    assert "\x1b" not in result.stdout + result.stderr
