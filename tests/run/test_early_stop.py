"""Rows that are stopped early, from the job file to the output, in every feed."""

import json
from pathlib import Path

import pytest

from batchgen import read_batches, read_outputs, run_job
from batchgen.config.loading import load_job
from batchgen.errors import ResumeMismatch
from batchgen.run.checking import check_job
from batchgen.run.options import RunOptions

WORDS = " ".join(f"w{number}" for number in range(100))
REPLIES = {
    "a.jsonl:1": WORDS.replace("w20", "END"),
    "a.jsonl:2": WORDS,
    "a.jsonl:4": "It is so. " * 40,
}
JOB = """
input: {{paths: ['{folder}/in']}}
prompt: {{column: text}}
model:
  engine: simulated
  max_num_seqs: 3
  extra: {{clock: simulated, step_s: 1, decode_token_s: 0, reply_tokens: 5, script: {script}}}
sampling: {{max_tokens: 300, temperature: 0.0}}
stop_early: {{pattern: END, repetition: true}}
batch: {{size: 4}}
output: {{path: '{folder}/out'}}
"""


class Workplace:
    def __init__(self, folder: Path) -> None:
        self.out = folder / "out"
        self.path = folder / "job.yaml"
        (folder / "in").mkdir()
        rows = [{"text": f"text {number}"} for number in range(6)]
        lines = [json.dumps(row) + "\n" for row in [*rows, rows[1]]]
        (folder / "in" / "a.jsonl").write_text("".join(lines))
        script = {row: {"reply": reply} for row, reply in REPLIES.items()}
        self.path.write_text(JOB.format(folder=folder, script=json.dumps(script)))

    def run(self, *overrides: str, **options):
        return run_job(load_job(self.path, overrides), RunOptions(**options))

    def outputs(self):
        return read_outputs(self.out)


@pytest.fixture
def place(tmp_path) -> Workplace:
    return Workplace(tmp_path)


@pytest.mark.parametrize("feed", ["continuous", "generate", "sequential"])
def test_every_feed_stops_the_same_rows_at_the_same_token(place, feed):
    summary = place.run(f"batch.feed={feed}")
    frame = place.outputs()
    assert summary.exit_code == 0
    assert frame["stopped_by"].dropna().to_dict() == {1: "pattern", 4: "repetition", 6: "pattern"}
    assert frame["finish_reason"].tolist() == [
        "stop", "abort", "stop", "stop", "abort", "stop", "abort",
    ]  # fmt: skip
    assert frame["num_output_tokens"].tolist()[1] == 24
    assert frame["output"].tolist()[1] == " ".join(WORDS.replace("w20", "END").split()[:24])
    assert frame["error_type"].isna().all()


def test_a_stopped_row_counts_with_what_it_saved_and_its_copy_does_not(place):
    summary = place.run()
    tokens = place.outputs()["num_output_tokens"]
    saved = (300 - tokens[1]) + (300 - tokens[4])
    assert summary.finish_reasons["abort"] == 3
    assert summary.stopped_early == {"pattern": 1, "repetition": 1}
    assert summary.num_saved_tokens_max == saved
    batches = read_batches(place.out)
    assert batches["num_stopped_early"].sum() == 2
    assert batches["num_saved_tokens_max"].sum() == saved


def test_a_copy_carries_what_its_leader_was_stopped_by(place):
    place.run()
    copy = place.outputs().iloc[6]
    assert (copy["duplicate_of"], copy["stopped_by"]) == ("a.jsonl:1", "pattern")


def test_without_rules_there_is_no_column_and_nothing_is_counted(place):
    summary = place.run("stop_early={}")
    assert "stopped_by" not in place.outputs()
    assert read_batches(place.out)["num_stopped_early"].isna().all()
    assert (summary.stopped_early, summary.num_saved_tokens_max) == (None, None)


def test_a_check_shows_the_rules(place):
    report = check_job(load_job(place.path))
    assert report.stop_early == load_job(place.path).stop_early.values()
    assert check_job(load_job(place.path, ["stop_early={}"])).stop_early is None


def test_rules_that_stop_nothing_count_zero(place):
    summary = place.run("stop_early={pattern: never there}")
    assert (summary.stopped_early, summary.num_saved_tokens_max) == ({}, 0)
    assert read_batches(place.out)["num_saved_tokens_max"].tolist() == [0, 0]
    assert place.outputs()["stopped_by"].isna().all()


def test_seconds_count_from_the_first_step_of_a_row(place):
    place.run("stop_early={max_seconds: 30}", "model.max_num_seqs=1")
    stopped = place.outputs().dropna(subset="stopped_by")
    assert set(stopped["num_output_tokens"]) == {32}
    assert set(stopped["stopped_by"]) == {"max_seconds"}


def test_stopped_rows_can_be_redone_without_the_rule(place):
    place.run()
    summary = place.run("stop_early={}", where="finish_reason == 'abort'")
    frame = place.outputs()
    assert summary.rows_this_run == 3
    assert frame["stopped_by"].isna().all()
    assert frame["output"].tolist()[1] == REPLIES["a.jsonl:1"]


def test_stopped_rows_can_be_redone_by_rule_and_with_another_one(place):
    place.run()
    summary = place.run("stop_early.pattern=w50", where="stopped_by == 'pattern'")
    assert summary.rows_this_run == 2
    assert place.outputs()["num_output_tokens"].tolist()[1] == 56


def test_another_rule_is_another_job(place):
    place.run()
    with pytest.raises(ResumeMismatch, match=r"stop_early\.pattern: 'END' → 'w50'"):
        place.run("stop_early.pattern=w50")


def test_the_prefix_stands_before_the_column(place):
    place.run("output.prefix=gen_")
    assert place.outputs()["gen_stopped_by"].notna().sum() == 3


def test_several_completions_stop_together(place):
    place.run("sampling.n=2", "sampling.temperature=1", "sampling.seed=1")
    row = place.outputs().iloc[1]
    assert list(row["finish_reason"]) == ["abort", "abort"]
    assert row["stopped_by"] == "pattern"


def test_a_row_is_stopped_also_after_a_death_of_the_engine(place):
    place.run("model.extra.faults={die_after_rows: 1}")
    stopped = place.outputs()["stopped_by"].dropna().to_dict()
    assert stopped == {1: "pattern", 4: "repetition", 6: "pattern"}
