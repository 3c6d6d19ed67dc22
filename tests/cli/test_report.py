"""`batchgen report`, and the page that `batchgen run` leaves."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from batchgen.cli import report as command
from batchgen.cli.app import app

DOCS = Path(__file__).parents[2] / "docs" / "json-answers.md"


@pytest.fixture
def invoke():
    def run(*args, **env):
        return CliRunner().invoke(app, list(args), env={"BATCHGEN_NO_REPORT": "", **env})

    return run


@pytest.fixture
def job(tmp_path, monkeypatch):
    """Writes data and a job whose output is `out`, in the working directory."""
    monkeypatch.chdir(tmp_path)

    def make(rows=None, **extra):
        rows = [{"prompt": f"row number {n}"} for n in range(20)] if rows is None else rows
        Path("docs.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        document = {
            "input": {"paths": ["docs.jsonl"]},
            "prompt": {"column": "prompt"},
            "model": {"engine": "simulated", "extra": {"clock": "simulated", **extra}},
            "sampling": {"max_tokens": 16, "temperature": 0.0},
            "output": {"path": "out"},
            "errors": {"stop_at": None, "max_failed": "100%"},
        }
        Path("job.yaml").write_text(json.dumps(document))

    return make


@pytest.fixture
def done(job, invoke):
    """A finished run without a page."""
    job()
    assert invoke("run", "job.yaml", "--no-report").exit_code == 0


@pytest.fixture
def without_plots(monkeypatch):
    monkeypatch.setattr(command, "has_plots", lambda: False)


def test_it_answers_on_stdout_and_writes_the_page(done, invoke):
    result = invoke("report", "out")
    assert result.exit_code == 0
    assert re.search(r"^rows +20  \(20 ok\)$", result.stdout, re.M)
    assert result.stderr == "the page is out/report.html\n"
    assert Path("out/report.html").read_text().startswith("<!DOCTYPE html>")


def test_json_is_one_object_and_no_page(done, invoke):
    result = invoke("report", "out", "--json", "--price", "3")
    (line,) = result.stdout.splitlines()
    answer = json.loads(line)
    assert answer["summary"]["num_rows"] == 20
    assert answer["cost"]["price_per_hour"] == 3
    assert result.stderr == ""
    assert not Path("out/report.html").exists()


def test_every_key_of_the_answer_is_documented(done, invoke):
    answer = json.loads(invoke("report", "out", "--json").stdout)
    section = DOCS.read_text().split("## batchgen report\n")[1].split("\n## ")[0]
    documented = set(re.findall(r"`(\w+)`", section))
    nested = [answer, answer["summary"], answer["runs"][0], answer["curves"][0]]
    nested += [answer["distributions"][0], answer["finishes"][0], answer["prefix_cache"]]
    nested += [answer["provenance"]]
    assert {key for values in nested for key in values} <= documented


def test_no_html_writes_no_page(done, invoke):
    assert invoke("report", "out", "--no-html").exit_code == 0
    assert not Path("out/report.html").exists()


def test_html_names_the_page(done, invoke):
    assert invoke("report", "out", "--html", "page.html", "--json").exit_code == 0
    assert Path("page.html").exists()
    assert not Path("out/report.html").exists()


def test_without_matplotlib_the_terminal_report_stays(done, invoke, without_plots):
    result = invoke("report", "out")
    assert result.exit_code == 0
    assert "20 ok" in result.stdout
    assert "pip install 'batchgen[report]'" in result.stderr
    assert not Path("out/report.html").exists()


def test_a_page_by_name_needs_matplotlib(done, invoke, without_plots):
    result = invoke("report", "out", "--html", "page.html")
    assert result.exit_code == 2
    assert "pip install 'batchgen[report]'" in result.stderr


@pytest.mark.parametrize(
    "args",
    [
        ("--html", "x.html", "--no-html"),
        ("--price", "-1"),
        ("--price", "inf"),
        ("--price", "nan"),
        ("--html", ""),
        ("--html", "out/manifest.json"),
        ("--html", "out/outputs/x.html"),
        ("--html", "out/batches/x.htm"),
        ("--html", "out/.batchgen/x.html"),
        ("--html", "missing/x.html"),
    ],
)
def test_a_mistake_on_the_command_line_is_exit_2(done, invoke, args):
    before = Path("out/manifest.json").read_bytes()
    result = invoke("report", "out", *args)
    assert (result.exit_code, result.stdout) == (2, "")
    assert Path("out/manifest.json").read_bytes() == before
    assert not list(Path("out").rglob("x.htm*"))


@pytest.mark.parametrize("name", ["report", "status", "verify"])
def test_a_file_in_place_of_the_directory_is_exit_4(done, invoke, name):
    result = invoke(name, "job.yaml")
    assert result.exit_code == 4
    assert "job.yaml: is a file; give the directory that is output.path" in result.stderr


@pytest.mark.parametrize("text", ["{}", '{"phase": "generate"}', '{"phase": "x", "pid": "1"}'])
def test_a_progress_file_without_its_keys_is_exit_4(done, invoke, text):
    Path("out/.batchgen/progress.json").write_text(text)
    result = invoke("status", "out")
    assert result.exit_code == 4
    assert "is not a progress file of batchgen" in result.stderr


def test_a_directory_without_run_is_exit_4(invoke, tmp_path):
    result = invoke("report", str(tmp_path))
    assert result.exit_code == 4
    assert result.stderr.startswith(f"error: {tmp_path}")


def test_a_page_that_cannot_be_written_is_a_warning_unless_it_is_named(done, invoke):
    Path("out/report.html").mkdir()
    result = invoke("report", "out")
    assert result.exit_code == 0
    assert result.stderr.startswith("warning: out/report.html: cannot write")
    assert invoke("report", "out", "--html", "out/report.html").exit_code == 4


def test_hostile_text_reaches_no_terminal(job, invoke):
    rows = [{"prompt": "\x1b]0;owned\x07 \x1b[2J \u202e"}, {"prompt": 3}]
    job(rows, script={"docs.jsonl:0": {"reply": "\x1b[2J\u202e"}})
    invoke("run", "job.yaml")
    for args in ((), ("--json",)):
        result = invoke("report", "out", *args)
        assert result.exit_code == 0
        assert not re.search("[\x1b\x07\u202e]", result.stdout + result.stderr)


def test_json_loads_neither_plots_nor_tables(done):
    code = (
        "import sys\n"
        "from batchgen.cli.app import app\n"
        "try:\n"
        "    app(['report', 'out', '--json'])\n"
        "except SystemExit:\n"
        "    pass\n"
        "print(*sys.modules, file=sys.stderr)\n"
    )
    process = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    modules = {name.partition(".")[0] for name in process.stderr.split()}
    assert json.loads(process.stdout)["state"] == "done"
    assert modules.isdisjoint({"matplotlib", "pandas", "torch", "transformers", "vllm", "rich"})


def test_a_run_leaves_a_page(job, invoke):
    job()
    result = invoke("run", "job.yaml")
    assert result.exit_code == 0
    assert "20" in Path("out/report.html").read_text()
    assert "report" not in result.stderr


def test_a_stopped_run_leaves_a_page(job, invoke):
    job(faults={"terminate_after_rows": 5})
    assert invoke("run", "job.yaml").exit_code == 143
    assert Path("out/report.html").exists()


@pytest.mark.parametrize(
    ("args", "env"), [(("--no-report",), {}), ((), {"BATCHGEN_NO_REPORT": "1"})]
)
def test_a_run_leaves_no_page_where_none_is_wanted(job, invoke, args, env):
    job()
    assert invoke("run", "job.yaml", *args, **env).exit_code == 0
    assert not Path("out/report.html").exists()


def test_a_run_without_news_keeps_the_page(job, invoke):
    job()
    invoke("run", "job.yaml")
    before = Path("out/report.html").stat().st_mtime_ns
    assert json.loads(invoke("run", "job.yaml", "--json").stdout)["nothing_new"]
    assert Path("out/report.html").stat().st_mtime_ns == before


def test_a_run_without_news_mends_a_page_that_is_older_than_the_batches(job, invoke):
    job()
    invoke("run", "job.yaml")
    os.utime("out/report.html", ns=(1, 1))
    invoke("run", "job.yaml")
    assert Path("out/report.html").stat().st_mtime_ns > 1


def test_a_page_that_fails_is_a_warning_of_the_run(job, invoke, monkeypatch):
    job()
    monkeypatch.setattr("batchgen.report.html.render_html", lambda report: 1 / 0)
    result = invoke("run", "job.yaml")
    assert result.exit_code == 0
    assert result.stderr.splitlines()[-1].startswith("warning: out/report.html: was not written")


def test_a_run_without_matplotlib_says_nothing_of_a_page(job, invoke, without_plots):
    job()
    result = invoke("run", "job.yaml", "--quiet")
    assert (result.exit_code, result.stderr) == (0, "")
    assert not Path("out/report.html").exists()
