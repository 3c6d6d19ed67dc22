"""stdout is data, stderr the rest, and hostile text reaches neither unescaped."""

import io
import json
import re

import pytest

from batchgen.cli.output import Output, printable, shortened


class FakeTerminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def streams():
    return io.StringIO(), io.StringIO()


@pytest.mark.parametrize(
    ("hostile", "shown"),
    [
        ("\x1b[2J", "\\x1b[2J"),
        ("\x1b]0;title\x07", "\\x1b]0;title\\x07"),
        ("\x9b31m", "\\x9b31m"),
        ("over\rwrite", "over\\rwrite"),
        ("gone\x08", "gone\\x08"),
        ("a\u202egnp.exe", "a\\u202egnp.exe"),
        ("\u2066hidden\u2069", "\\u2066hidden\\u2069"),
        ("\x00\x7f", "\\x00\\x7f"),
        ("\ud800", "\\ud800"),
        ("line\n\ttab", "line\n\ttab"),
        ("Überraschung 日本語 👩‍👩‍👧", "Überraschung 日本語 👩‍👩‍👧"),
    ],
)
def test_control_characters_are_shown_not_obeyed(hostile, shown):
    assert printable(hostile) == shown


@pytest.mark.parametrize("say", ["line", "warn", "error"])
def test_sentences_go_to_stderr_escaped(streams, say):
    stdout, stderr = streams
    getattr(Output(stdout, stderr), say)("row says \x1b[31mhello")
    assert stdout.getvalue() == ""
    assert "row says \\x1b[31mhello\n" in stderr.getvalue()


@pytest.mark.parametrize("put", ["text", "json"])
def test_answers_go_to_stdout_escaped(streams, put):
    stdout, stderr = streams
    answer = {"text": "\x1b\x7f\x9b"}
    getattr(Output(stdout, stderr), put)({"text": str(answer), "json": answer}[put])
    assert stderr.getvalue() == ""
    assert not re.search("[\x1b\x7f\x9b]", stdout.getvalue())


def test_json_survives_the_way(streams):
    answer = {"text": "a\x1b\x7f\u202e\ud800\nb", "share": 0.5, "none": None}
    Output(*streams).json(answer)
    assert json.loads(streams[0].getvalue()) == answer


def test_text_is_silent_where_the_answer_is_json(streams):
    output = Output(*streams)
    output.set_mode(as_json=True)
    output.text("for people")
    output.json({})
    assert streams[0].getvalue() == "{}\n"


def test_quiet_keeps_warnings_and_errors(streams):
    output = Output(*streams)
    output.set_mode(quiet=True)
    output.line("information")
    output.warn("careful")
    output.error("no")
    assert streams[1].getvalue() == "warning: careful\nerror: no\n"


def test_json_lines_hold_level_and_message(streams):
    output = Output(*streams)
    output.set_mode(log_format="json")
    output.warn("careful")
    entry = json.loads(streams[1].getvalue())
    assert (entry["level"], entry["message"]) == ("warning", "careful")


@pytest.mark.parametrize(
    ("variables", "colored"),
    [
        ({"TERM": "xterm"}, True),
        ({"TERM": "dumb"}, False),
        ({"TERM": "xterm", "NO_COLOR": "1"}, False),
        ({"TERM": "xterm", "NO_COLOR": ""}, True),
    ],
)
def test_color_on_a_terminal_that_takes_it(monkeypatch, variables, colored):
    monkeypatch.delenv("NO_COLOR", raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    terminal = FakeTerminal()
    Output(io.StringIO(), terminal).error("no")
    assert ("\x1b[" in terminal.getvalue()) is colored


@pytest.mark.parametrize(("no_color", "is_styled"), [("1", False), ("", True)])
def test_tables_on_a_terminal_are_plain_where_color_is_not_wanted(monkeypatch, no_color, is_styled):
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("NO_COLOR", no_color)
    terminal = FakeTerminal()
    output = Output(terminal, io.StringIO())
    output.fields([("name", "value")])
    output.table(("head", "other"), [("name", "value")])
    assert "value" in terminal.getvalue()
    assert ("\x1b[" in terminal.getvalue()) is is_styled


def test_a_table_is_as_wide_as_its_values(streams):
    Output(*streams).table(("name", "rows"), [("a" * 200, "1"), ("b", "23")])
    lines = streams[0].getvalue().splitlines()
    assert lines[1] == "a" * 200 + "  1"
    assert {line.index(cell) for line, cell in zip(lines, ("rows", "1", "23"), strict=True)} == {
        202
    }


def test_a_stream_that_takes_only_ascii_gets_escapes():
    raw = io.BytesIO()
    stream = io.TextIOWrapper(raw, encoding="ascii")
    Output(stream, io.StringIO()).raw("é")
    assert raw.getvalue() == b"\\xe9\n"


def test_long_texts_are_shortened_in_the_middle():
    text = shortened("a" * 1000 + "\nend", 30)
    assert text.startswith("aaaa")
    assert text.endswith("end")
    assert "characters ..." in text
    assert len(text) < 80
