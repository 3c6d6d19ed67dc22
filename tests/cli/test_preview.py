"""`batchgen preview`: completions as they come, on a terminal and in a pipe."""

import io
import json
import os
import pty
import re
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from batchgen.cli.app import app
from batchgen.cli.output import Output
from batchgen.cli.streaming import OneAfterAnother, SideBySide, ending, prompt_lines, screen_for
from batchgen.run.previewing import PreviewRow

SCRIPT = Path(sys.executable).with_name("batchgen")
ROW = PreviewRow("a.jsonl", 0, "Say it", num_prompt_tokens=2)


class FakeTerminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def job(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    def make(rows=None, **extra):
        rows = [{"prompt": f"row number {n}"} for n in range(5)] if rows is None else rows
        Path("docs.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        extra = {"clock": "simulated", **extra}
        Path("job.yaml").write_text(
            "input: {paths: [docs.jsonl]}\nprompt: {column: prompt}\n"
            f"model: {{engine: simulated, max_model_len: 64, extra: {json.dumps(extra)}}}\n"
            "sampling: {max_tokens: 16, temperature: 0.0}\noutput: {path: out}\n"
        )

    return make


@pytest.fixture
def invoke():
    return lambda *args: CliRunner().invoke(app, ["preview", "job.yaml", *args])


def test_rows_follow_each_other_in_a_pipe_with_a_table_at_the_end(job, invoke):
    job()
    result = invoke("-n", "2")
    assert result.exit_code == 0, result.stderr
    lines = result.stdout.splitlines()
    heads = [index for index, line in enumerate(lines) if line.startswith("docs.jsonl:")]
    assert lines[heads[0] : heads[0] + 2] == [
        "docs.jsonl:0, 3 prompt tokens", "  | row number 0",
    ]  # fmt: skip
    assert lines[heads[0] + 2].startswith("Reply to: row number 0 ")
    assert lines[heads[1] + 2].startswith("Reply to: row number 1 ")
    assert lines[-3].split()[:2] == ["row", "end"]
    assert re.fullmatch(r"docs\.jsonl:1 +(stop|length) +0\.\d+ s +[\d,.]+ +3 +\d+", lines[-1])


def test_json_is_one_object_whose_keys_are_documented(job, invoke):
    job([{"prompt": "one"}, {"prompt": ""}])
    result = invoke("--json", "--special-tokens")
    (line,) = result.stdout.splitlines()
    answer = json.loads(line)
    page = (Path(__file__).parents[2] / "docs/json-answers.md").read_text()
    section = page.split("## batchgen preview\n")[1].split("\n## ")[0]
    documented = set(re.findall(r"`(\w+)`", section))
    assert set(answer) | set(answer["rows"][0]) <= documented
    assert answer["rows"][0]["prompt_tokens"] == ["one"]
    assert answer["rows"][1]["error_type"] == "empty_prompt"


def test_refused_rows_say_why(job, invoke):
    job([{"prompt": ""}])
    result = invoke()
    assert result.exit_code == 0
    assert "empty_prompt: " in result.stdout
    assert "failed: empty_prompt" in result.stdout.splitlines()[-1]


def test_stop_when_is_a_success_with_what_it_saved(job, invoke):
    job()
    result = invoke("-n", "1", "--stop-when", "number")
    assert result.exit_code == 0
    assert "\nReply to: row number\n" in result.stdout
    assert re.search(r"abort: stop_when .* 4 +12$", result.stdout.splitlines()[-1])


def test_hostile_text_reaches_no_terminal(job, invoke):
    job([{"prompt": "\x1b]0;owned\x07 \x1b[2J \u202e"}])
    for args in ((), ("--special-tokens",), ("--json",)):
        result = invoke(*args)
        assert not re.search("[\x1b\x07\u202e]", result.stdout + result.stderr)
    assert "\\x1b[2J" in invoke().stdout


@pytest.mark.parametrize(
    "args",
    [
        ("--stop-when", "("),
        ("--stop-when", "a*"),
        ("--row", "docs.jsonl"),
        ("--row", "docs.jsonl:99"),
        ("--row", "dogs.jsonl:0"),
        ("--row", "docs.jsonl:0", "-n", "2"),
        ("-n", "0"),
    ],
)
def test_a_mistake_on_the_command_line_is_exit_2(job, invoke, args):
    job()
    result = invoke(*args)
    assert result.exit_code == 2
    assert result.stdout == ""
    assert "error" in result.stderr.lower()


def test_a_file_appears_nowhere(job, invoke, tmp_path):
    job()
    before = sorted(tmp_path.rglob("*"))
    invoke()
    assert sorted(tmp_path.rglob("*")) == before


def test_ctrl_c_ends_in_good_order(job):
    job(clock="real", step_s=0.05, reply_tokens=200, reply_sigma=0)
    command = [SCRIPT, "preview", "job.yaml", "-n", "2", "-s", "sampling.max_tokens=50"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout is not None
    text = ""
    while "Reply to" not in text:
        text += process.stdout.read(1)
    process.send_signal(signal.SIGINT)
    stdout, stderr = process.communicate(timeout=60)
    assert process.returncode == 130
    assert stdout.count("abort: signal") == 2
    assert re.search(r"stopped by SIGINT; what came is kept, at most \d+ tokens are saved", stderr)


def test_columns_come_with_the_first_text_so_that_an_engine_may_talk_before(monkeypatch):
    monkeypatch.setenv("COLUMNS", "120")
    stdout = FakeTerminal()
    with screen_for(Output(stdout, io.StringIO()), 2) as shown:
        shown.begin([ROW, replace(ROW, row=1)])
        shown.end(0, replace(ROW, error_type="null_prompt", error="has no prompt"))
        assert "null_prompt" not in stdout.getvalue()
    assert "null_prompt: has no prompt" in stdout.getvalue()


def test_a_second_signal_gives_the_terminal_back(monkeypatch):
    monkeypatch.setenv("COLUMNS", "120")
    stdout = FakeTerminal()
    with screen_for(Output(stdout, io.StringIO()), 2) as shown:
        shown.begin([ROW, replace(ROW, row=1)])
        shown.show(0, "text")
        assert stdout.getvalue().rfind("\x1b[?25l") > stdout.getvalue().rfind("\x1b[?25h")
        shown.leave()
        assert stdout.getvalue().rfind("\x1b[?25h") > stdout.getvalue().rfind("\x1b[?25l")


def test_a_reader_that_goes_away_ends_it(job):
    job(clock="real", step_s=0.01, reply_tokens=200, reply_sigma=0)
    command = (
        f"{SCRIPT} preview job.yaml -s sampling.max_tokens=60 | head -c 20; exit ${{PIPESTATUS[0]}}"
    )
    process = subprocess.run(["bash", "-c", command], capture_output=True, text=True, timeout=60)
    assert (process.returncode, process.stderr) == (141, "")


@pytest.mark.parametrize(("columns", "is_wide"), [(200, True), (100, False)])
def test_rows_stand_side_by_side_where_the_terminal_is_wide(job, columns, is_wide):
    job()
    text = on_terminal([str(SCRIPT), "preview", "job.yaml"], columns=columns)
    line = next(line for line in text.splitlines() if "Reply to: row number 0" in line)
    assert ("Reply to: row number 1" in line) is is_wide
    assert text.count("docs.jsonl:2, 3 prompt tokens") == 1


def on_terminal(command: list[str], *, columns: int) -> str:
    """What a command writes to a terminal of this width, at its end."""
    environment = {**os.environ, "TERM": "xterm", "COLUMNS": str(columns), "LINES": "40"}
    ours, theirs = pty.openpty()
    process = subprocess.Popen(command, stdin=theirs, stdout=theirs, stderr=theirs, env=environment)
    os.close(theirs)
    pieces = []
    while True:
        try:
            piece = os.read(ours, 65536)
        except OSError:
            break
        if not piece:
            break
        pieces.append(piece)
    os.close(ours)
    assert process.wait(timeout=60) == 0
    return b"".join(pieces).decode()


def screen(kind):
    stdout = FakeTerminal()
    return stdout, kind(Output(stdout, io.StringIO()))


def test_a_row_behind_another_waits_for_its_turn():
    stdout, shown = screen(OneAfterAnother)
    shown.begin([ROW, replace(ROW, row=1)])
    shown.show(1, "second")
    shown.show(0, "fir")
    assert stdout.getvalue().endswith("fir")
    shown.end(1, replace(ROW, row=1, output="second one"))
    shown.end(0, replace(ROW, output="first one"))
    assert re.sub(r".*\| ", "", stdout.getvalue()).split("\n") == [
        "a.jsonl:0, 2 prompt tokens", "Say it", "first one", "",
        "a.jsonl:1, 2 prompt tokens", "Say it", "second one", "", "",
    ]  # fmt: skip


def test_only_what_is_new_is_written():
    stdout, shown = screen(OneAfterAnother)
    shown.begin([ROW])
    for text in ("a", "a b", "a b\x1b c"):
        shown.show(0, text)
    shown.end(0, replace(ROW, output="a b\x1b c."))
    assert stdout.getvalue().count("a b\\x1b c.") == 1
    assert stdout.getvalue().count("a b") == 1


def test_columns_stay_whole_when_they_are_longer_than_the_window(monkeypatch):
    monkeypatch.setenv("COLUMNS", "120")
    monkeypatch.setenv("LINES", "10")
    stdout = FakeTerminal()
    output = Output(stdout, io.StringIO())
    text = "\n".join(f"line {number}" for number in range(50))
    with screen_for(output, 2) as shown:
        assert isinstance(shown, SideBySide)
        shown.begin([ROW, replace(ROW, row=1)])
        shown.show(0, text)
        assert "line 49" in stdout.getvalue()
        assert "line 0" not in stdout.getvalue()
        shown.end(0, replace(ROW, output=text))
    assert "line 0" in stdout.getvalue()


@pytest.mark.parametrize(
    ("shown", "values", "rest"),
    [
        ("", {"output": "all"}, "all"),
        ("al", {"output": "all"}, "l"),
        ("<think>a</think>b", {"output": "b"}, "\n\n[answer]\nb"),
        ("", {"error_type": "engine_error", "error": "no"}, "engine_error: no"),
        ("on", {"output": ["one", "two"]}, "e\n\n[completion 2]\ntwo"),
        ("", {}, ""),
    ],
)
def test_what_is_left_to_show_at_the_end_of_a_row(shown, values, rest):
    assert ending(shown, replace(ROW, **values)) == rest


def test_tokens_show_their_borders_and_line_ends():
    row = replace(ROW, prompt_tokens=("<s>", "Say", " it", "\n\n", "now"))
    assert list(prompt_lines(row))[1:] == ["  | [<s>][Say][ it][\\n\\n]", "  | [now]"]
