"""A preview generates what a run would, tells its screen of each token, and leaves no file."""

import json
import os
import signal
from pathlib import Path

import pytest

from batchgen import read_outputs, run_job
from batchgen.config.loading import load_job
from batchgen.errors import DataError, UsageError
from batchgen.monitor.console import SilentConsole
from batchgen.records import RowKey
from batchgen.run.chosen_rows import parse_row
from batchgen.run.previewing import PreviewOptions, preview_job

JOB = """
input: {{paths: ['{folder}/in']}}
prompt: {{template: "Say: {{{{ text }}}}"}}
model: {{engine: simulated, max_num_seqs: 8, extra: {{clock: simulated}}}}
sampling: {{max_tokens: 40, temperature: 0.0}}
output: {{path: '{folder}/out'}}
"""


class Recording:
    """A screen that keeps what it is told."""

    def __init__(self, on_show=None):
        self.began = []
        self.texts = {}
        self.ended = []
        self._on_show = on_show or (lambda: None)

    def begin(self, rows):
        self.began = list(rows)

    def show(self, index, text):
        self.texts.setdefault(index, []).append(text)
        self._on_show()

    def end(self, index, row):
        self.ended.append((index, row))

    def leave(self):
        raise AssertionError("one signal is no reason to leave at once")


class Workplace:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "job.yaml").write_text(JOB.format(folder=folder))
        self.jsonl("a.jsonl", [{"text": f"text {number}"} for number in range(5)])
        self.jsonl("b.jsonl", [{"text": "first of b"}, {"text": None}, {"text": "last of b"}])

    def jsonl(self, name, rows):
        path = self.folder / "in" / name
        path.parent.mkdir(exist_ok=True)
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))

    def job(self, *overrides):
        return load_job(self.folder / "job.yaml", overrides)

    def preview(self, *overrides, screen=None, **options):
        return preview_job(
            self.job(*overrides),
            PreviewOptions(**options),
            screen=screen or Recording(),
            console=SilentConsole(),
        )


@pytest.fixture
def place(tmp_path) -> Workplace:
    return Workplace(tmp_path)


def keys(rows):
    return [f"{row.shard}:{row.row}" for row in rows]


def test_the_first_rows_are_shown_across_shards(place):
    assert keys(place.preview(num_rows=2).rows) == ["a.jsonl:0", "a.jsonl:1"]
    assert keys(place.preview(num_rows=7).rows)[4:] == ["a.jsonl:4", "b.jsonl:0", "b.jsonl:1"]
    assert len(place.preview(num_rows=99).rows) == 8


def test_named_rows_are_shown_in_the_order_of_their_names(place):
    names = (RowKey("b.jsonl", 2), RowKey("a.jsonl", 3), RowKey("b.jsonl", 2))
    report = place.preview(rows=names)
    assert keys(report.rows) == ["b.jsonl:2", "a.jsonl:3"]
    assert [row.prompt for row in report.rows] == ["Say: last of b", "Say: text 3"]


def test_a_named_row_of_parquet_is_found(place, write_parquet):
    write_parquet("in/c.parquet", [{"text": f"c {number}"} for number in range(1000)])
    report = place.preview(rows=(RowKey("c.parquet", 777),))
    assert [row.prompt for row in report.rows] == ["Say: c 777"]


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("b.jsonl:3", "has no such row"),
        ("c.parquet:1000", "has no such row"),
        ("aa.jsonl:0", "no such shard; did you mean 'a.jsonl'"),
    ],
)
def test_a_row_that_is_not_there_is_a_usage_error(place, write_parquet, name, problem):
    write_parquet("in/c.parquet", [{"text": f"c {number}"} for number in range(1000)])
    with pytest.raises(UsageError, match=problem):
        place.preview(rows=(parse_row(name),))


@pytest.mark.parametrize("name", ["a.jsonl", "a.jsonl:", ":3", "a.jsonl:x", "a.jsonl:-1", "a:²"])
def test_what_names_no_row_is_a_usage_error(name):
    with pytest.raises(UsageError, match="SHARD:ROW"):
        parse_row(name)


def test_a_preview_is_what_a_run_writes(place):
    report = place.preview(num_rows=5)
    run_job(place.job())
    frame = read_outputs(place.folder / "out")
    for row, output, reason, tokens in zip(
        report.rows,
        frame["output"],
        frame["finish_reason"],
        frame["num_output_tokens"],
        strict=False,
    ):
        assert (row.output, row.finish_reason, row.num_output_tokens) == (output, reason, tokens)


def test_the_rules_of_the_job_stop_rows_as_in_a_run(place):
    rules = "stop_early={pattern: river keeps}"
    report = place.preview(rules, num_rows=5)
    run_job(place.job(rules))
    frame = read_outputs(place.folder / "out").head(5)
    assert "pattern" in [row.stopped_by for row in report.rows]
    assert [row.num_output_tokens for row in report.rows] == frame["num_output_tokens"].tolist()
    assert [row.stopped_by for row in report.rows] == [
        rule or None for rule in frame["stopped_by"].fillna("")
    ]


def test_the_screen_hears_of_every_token_of_every_row(place):
    screen = Recording()
    report = place.preview(num_rows=3, screen=screen)
    assert keys(screen.began) == keys(report.rows)
    for index, row in enumerate(report.rows):
        counts = [len(text.split()) for text in screen.texts[index]]
        assert counts == list(range(1, row.num_output_tokens))
    assert sorted(screen.ended, key=lambda end: end[0]) == list(enumerate(report.rows))


def test_refused_rows_are_shown_as_such_and_need_no_engine(place):
    screen = Recording()
    report = place.preview(rows=(RowKey("b.jsonl", 1),), screen=screen)
    (row,) = report.rows
    assert row.error_type == "null_prompt"
    assert row.output is None
    assert report.engine is None
    assert screen.ended == [(0, row)]


def test_a_pattern_stops_its_row_at_the_very_token(place):
    report = place.preview(num_rows=2, stop_when=r"text 1 and")
    other, stopped = report.rows
    assert other.stopped_by is None
    assert (stopped.stopped_by, stopped.finish_reason) == ("stop_when", "abort")
    assert stopped.output == "Reply to: Say: text 1 and"
    assert stopped.num_saved_tokens_max == 40 - stopped.num_output_tokens
    assert report.num_saved_tokens_max == stopped.num_saved_tokens_max
    assert report.exit_code == 0


def test_an_interrupt_keeps_what_came(place):
    calls = []

    def interrupt():
        calls.append(None)
        if len(calls) == 9:
            os.kill(os.getpid(), signal.SIGINT)

    report = place.preview(num_rows=2, screen=Recording(interrupt))
    assert (report.exit_code, report.stopped) == (130, "stopped by SIGINT")
    assert {row.stopped_by for row in report.rows} == {"signal"}
    assert all(row.output and row.finish_reason == "abort" for row in report.rows)
    assert report.num_saved_tokens_max == sum(40 - row.num_output_tokens for row in report.rows)


def test_a_row_that_waits_when_the_preview_ends_has_an_empty_text(place):
    def interrupt():
        os.kill(os.getpid(), signal.SIGINT)

    report = place.preview("model.max_num_seqs=1", num_rows=2, screen=Recording(interrupt))
    waiting = report.rows[1]
    assert (waiting.output, waiting.num_output_tokens, waiting.ttft_s) == ("", 0, None)
    assert waiting.num_saved_tokens_max == 40


def test_tokens_of_prompts_are_told_on_request(place):
    (row,) = place.preview(num_rows=1, with_tokens=True).rows
    assert row.prompt_tokens == ("Say:", "text", "0")
    assert place.preview(num_rows=1).rows[0].prompt_tokens is None


def test_speed_is_that_of_the_row(place):
    (row,) = place.preview(
        "model.extra.step_s=0.1", "model.extra.decode_token_s=0", num_rows=1
    ).rows
    assert row.ttft_s == pytest.approx(0.1, abs=0.01)
    assert row.output_tokens_per_s == pytest.approx(10)


def test_several_completions_are_lists(place):
    (row,) = place.preview("sampling.n=2", "sampling.temperature=1", num_rows=1).rows
    assert len(row.output) == len(row.finish_reason) == 2


def test_a_column_that_no_row_has_is_a_data_error_as_in_a_run(place):
    with pytest.raises(DataError, match="body"):
        place.preview("prompt={template: '{{ body }}'}")


def test_no_file_is_written(place):
    before = sorted(place.folder.rglob("*"))
    place.preview(num_rows=3)
    assert sorted(place.folder.rglob("*")) == before
