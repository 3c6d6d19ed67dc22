"""The whole run on real files, with the simulated engine on its own clock."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from batchgen import read_batches, read_outputs, run_job
from batchgen.config.loading import load_job
from batchgen.errors import DataError, ResumeMismatch, UsageError
from batchgen.records import Shard
from batchgen.run.options import RunOptions
from batchgen.run.planning import rows_by_bytes

JOB = """
input: {{paths: ['{folder}/in']}}
prompt: {{template: "Say: {{{{ text }}}}"}}
model:
  engine: simulated
  max_num_seqs: 8
  extra: {{clock: simulated, record: '{folder}/sent.jsonl'}}
sampling: {{max_tokens: 16, temperature: 0.0}}
batch: {{size: 10, look_ahead: 16}}
output: {{path: '{folder}/out', rows_per_part: 20}}
errors: {{max_failed: 100%, stop_at: null}}
"""


class Workplace:
    """A folder with input shards, a job and its output."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.out = folder / "out"
        (folder / "in").mkdir()
        (folder / "job.yaml").write_text(JOB.format(folder=folder))

    def jsonl(self, name: str, rows: list[dict]) -> Path:
        path = self.folder / "in" / name
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
        return path

    def run(self, *overrides: str, **options):
        job = load_job(self.folder / "job.yaml", overrides)
        return run_job(job, RunOptions(**options))

    def sent(self) -> list[tuple[str, int]]:
        path = self.folder / "sent.jsonl"
        lines = path.read_text().splitlines() if path.exists() else []
        return [(line["shard"], line["row"]) for line in map(json.loads, lines)]

    def outputs(self):
        return read_outputs(self.out)


@pytest.fixture
def place(tmp_path) -> Workplace:
    return Workplace(tmp_path)


def texts(count: int, start: int = 0) -> list[dict]:
    return [
        {"id": number, "text": f"text number {number}"} for number in range(start, start + count)
    ]


@pytest.mark.parametrize("feed", ["continuous", "generate", "sequential"])
@pytest.mark.parametrize("order", ["input", "longest_first", "prefix"])
def test_every_feed_and_order_leaves_the_same_rows_in_input_order(place, feed, order):
    place.jsonl("a.jsonl", texts(33))
    place.jsonl("b.jsonl", texts(12, 100))
    summary = place.run(f"batch.feed={feed}", f"batch.order={order}")
    frame = place.outputs()
    assert summary.exit_code == 0
    assert frame["id"].tolist() == [*range(33), *range(100, 112)]
    assert frame["row"].tolist() == [*range(33), *range(12)]
    for text, output in zip(frame["text"], frame["output"], strict=True):
        assert text in output or output in f"Reply to: Say: {text}"


@pytest.mark.parametrize("feed", ["continuous", "generate", "sequential"])
def test_batches_add_up_to_the_run(place, feed):
    place.jsonl("a.jsonl", [*texts(30), {"id": 1, "text": None}, {"id": 2}])
    summary = place.run(f"batch.feed={feed}")
    batches = read_batches(place.out)
    assert batches["num_rows"].sum() == summary.num_rows == 32
    assert batches["num_failed"].sum() == summary.num_failed == 2
    assert batches["num_output_tokens"].sum() == summary.num_output_tokens
    assert batches["wall_s"].sum() == pytest.approx(summary.generate_s, abs=1e-6)
    assert batches["batch_id"].tolist() == list(range(len(batches)))
    assert set(batches["num_rows"].iloc[:-1]) == {10}
    assert (read_outputs(place.out).groupby("batch_id").size().tolist()) == batches[
        "num_rows"
    ].tolist()


def test_a_second_run_finds_nothing_new_and_touches_no_part(place):
    place.jsonl("a.jsonl", texts(25))
    place.run()
    before = {path: path.stat().st_mtime_ns for path in place.out.rglob("*.parquet")}
    summary = place.run()
    assert summary.nothing_new
    assert summary.exit_code == 0
    assert {path: path.stat().st_mtime_ns for path in place.out.rglob("*.parquet")} == before
    assert len(place.sent()) == 25


def test_a_new_shard_is_picked_up_alone(place):
    place.jsonl("b.jsonl", texts(5))
    place.run()
    place.jsonl("a.jsonl", texts(3, 50))
    summary = place.run()
    assert summary.rows_this_run == 3
    assert place.sent()[5:] == [("a.jsonl", row) for row in (0, 1, 2)]
    assert place.outputs()["id"].tolist() == [50, 51, 52, 0, 1, 2, 3, 4]


def test_a_jsonl_that_only_grew_is_continued(place):
    path = place.jsonl("a.jsonl", texts(25))
    place.run()
    with path.open("a") as file:
        file.write("".join(json.dumps(row) + "\n" for row in texts(20, 25)))
    summary = place.run()
    assert summary.rows_this_run == 20
    assert place.outputs()["id"].tolist() == list(range(45))
    assert place.run().nothing_new


def test_a_shard_that_was_only_touched_is_the_same_shard(place):
    path = place.jsonl("a.jsonl", texts(25))
    place.run()
    os.utime(path, ns=(1, 1))
    assert place.run().nothing_new


def test_a_changed_shard_is_named_and_refused(place):
    path = place.jsonl("a.jsonl", texts(25))
    place.run()
    path.write_text(path.read_text().replace("number 3", "number X"))
    with pytest.raises(ResumeMismatch, match=r"a\.jsonl"):
        place.run()


def test_a_vanished_shard_is_a_warning_and_its_rows_stay(place):
    place.jsonl("a.jsonl", texts(4))
    place.jsonl("b.jsonl", texts(4, 10)).unlink(missing_ok=False)
    place.jsonl("b.jsonl", texts(4, 10))
    place.run()
    (place.folder / "in" / "b.jsonl").unlink()
    summary = place.run()
    assert any("b.jsonl" in warning for warning in summary.warnings)
    assert summary.num_rows == 8


@pytest.mark.parametrize(
    ("override", "key"),
    [
        ("sampling.max_tokens=9", "sampling.max_tokens"),
        ("prompt.template=Tell {{ text }}", "prompt.template"),
        ("model.revision=other", "model.revision"),
        ("output.rows_per_part=7", "output.rows_per_part"),
    ],
)
def test_a_changed_job_is_refused_with_the_key_old_and_new(place, override, key):
    place.jsonl("a.jsonl", texts(4))
    place.run()
    with pytest.raises(ResumeMismatch) as raised:
        place.run(override)
    assert key in str(raised.value)
    assert "--fresh" in str(raised.value)


def test_an_accepted_change_stays_accepted(place):
    place.jsonl("a.jsonl", texts(4))
    place.run()
    place.jsonl("b.jsonl", texts(2))
    place.run("sampling.max_tokens=9", accept_change=("sampling.max_tokens",))
    assert place.run("sampling.max_tokens=9").nothing_new


@pytest.mark.parametrize(
    "override",
    ["batch.size=3", "batch.feed=generate", "model.max_num_seqs=2", "errors.max_failed=1"],
)
def test_what_cannot_change_outputs_may_change(place, override):
    place.jsonl("a.jsonl", texts(4))
    place.run()
    assert place.run(override).nothing_new


def test_fresh_starts_over(place):
    place.jsonl("a.jsonl", texts(4))
    place.run()
    summary = place.run("sampling.max_tokens=9", fresh=True)
    assert summary.rows_this_run == 4
    assert len(set(place.outputs()["run_id"])) == 1


def test_a_limit_has_a_directory_of_its_own(place):
    place.jsonl("a.jsonl", texts(5))
    place.jsonl("b.jsonl", texts(30))
    summary = place.run(limit=12)
    assert summary.output_path.endswith("out-limit-12")
    assert summary.num_rows == 12
    assert read_outputs(summary.output_path)["shard"].tolist() == ["a.jsonl"] * 5 + ["b.jsonl"] * 7
    assert place.run(limit=12).nothing_new
    assert not place.out.exists()


def test_equal_prompts_are_generated_once(place):
    place.jsonl("a.jsonl", [{"text": word} for word in ("A", "B", "A", "A", "C")])
    summary = place.run()
    frame = place.outputs()
    assert len(place.sent()) == 3
    assert summary.num_duplicates == 2
    assert frame["duplicate_of"].tolist()[2:4] == ["a.jsonl:0", "a.jsonl:0"]
    assert frame["output"][2] == frame["output"][0]
    assert summary.num_output_tokens == frame["num_output_tokens"][[0, 1, 4]].sum()


def test_sampled_prompts_are_not_shared_and_reproduce(place):
    place.jsonl("a.jsonl", [{"text": "same"}] * 4)
    overrides = ("sampling={max_tokens: 12, temperature: 0.8, seed: 7, n: 3}",)
    place.run(*overrides)
    first = place.outputs()["output"].tolist()
    assert len({tuple(row) for row in first}) > 1
    assert all(len(row) == 3 for row in first)
    place.run(*overrides, fresh=True)
    assert [list(row) for row in place.outputs()["output"]] == [list(row) for row in first]


def test_where_redoes_the_rows_that_it_selects(place):
    place.jsonl("a.jsonl", texts(30))
    place.run("sampling.max_tokens=3")
    cut = place.outputs().query("finish_reason == 'length'")["row"].tolist()
    assert cut
    before = len(place.sent())
    summary = place.run("sampling.max_tokens=900", where="finish_reason == 'length'")
    assert sorted(row for _, row in place.sent()[before:]) == cut
    assert summary.num_rows == 30
    assert summary.num_cut == 0
    assert place.run("sampling.max_tokens=3").nothing_new


def test_where_that_is_no_query_is_a_usage_error(place):
    place.jsonl("a.jsonl", texts(3))
    place.run()
    with pytest.raises(UsageError, match="finish_reason"):
        place.run(where="finish_raeson == 'length'")


@pytest.mark.parametrize("query", ["finish_reason==", "finish_raeson == 'length'"])
def test_where_that_is_no_query_is_refused_before_there_are_rows(place, query):
    place.jsonl("a.jsonl", texts(3))
    with pytest.raises(UsageError, match="--where"):
        place.run(where=query)
    assert place.sent() == []


@pytest.mark.parametrize(
    "query",
    ["finish_reason == 'length'", "num_output_tokens > 3", "output.str.contains('x')", "row < 5"],
)
def test_where_on_an_output_without_rows_selects_none(place, query):
    place.jsonl("a.jsonl", texts(3))
    assert place.run(where=query).num_rows == 3


def test_blank_lines_do_not_count_as_expected_rows(place):
    path = place.jsonl("a.jsonl", texts(2))
    path.write_text(path.read_text() + "\n" * 10)
    stat = path.stat()
    shard = Shard("a.jsonl", str(path), "jsonl", None, stat.st_size, stat.st_mtime_ns)
    assert rows_by_bytes(shard) == (2, True)


def test_kept_columns_are_chosen_and_typed(place):
    table = pa.table(
        {
            "text": ["one", "two"],
            "when": pa.array([1, 2], pa.timestamp("ms")),
            "tags": [["a"], []],
        }
    )
    pq.write_table(table, place.folder / "in" / "a.parquet")
    place.run("output.keep=[when, tags]")
    stored = pq.read_table(next(place.out.glob("outputs/*.parquet")))
    assert stored.schema.field("when").type == pa.timestamp("ms")
    assert stored.column("tags").to_pylist() == [["a"], []]
    assert "text" not in stored.column_names


def test_a_collision_with_an_input_column_names_the_prefix(place):
    place.jsonl("a.jsonl", [{"text": "x", "output": "y"}])
    with pytest.raises(DataError, match=r"output\.prefix"):
        place.run()
    summary = place.run("output.prefix=bg_")
    assert summary.exit_code == 0
    assert {"output", "bg_output", "bg_row"} <= set(place.outputs().columns)


def test_expected_json_is_judged(place):
    place.jsonl("a.jsonl", [{"text": "x"}])
    summary = place.run("output.json=true")
    assert place.outputs()["json_valid"].tolist() == [False]
    assert summary.num_invalid_json == 1


def test_an_output_path_that_holds_something_else_is_refused(place):
    place.jsonl("a.jsonl", texts(1))
    place.out.mkdir()
    (place.out / "thesis.txt").write_text("mine")
    with pytest.raises(DataError, match="no run directory"):
        place.run()
    assert sorted(path.name for path in place.out.iterdir()) == ["thesis.txt"]


def test_success_stands_only_beside_a_complete_output(place):
    place.jsonl("a.jsonl", texts(4))
    place.run()
    assert (place.out / "_SUCCESS").exists()
    place.jsonl("b.jsonl", texts(50))
    script = "model.extra={clock: simulated, faults: {die_after_rows: 9, die_on_start: always}}"
    with pytest.raises(Exception, match="restarts in a row failed"):
        place.run(script, "errors.engine_restarts=1")
    assert not (place.out / "_SUCCESS").exists()
    assert place.run().num_rows == 54
    assert (place.out / "_SUCCESS").exists()


def test_where_that_is_no_condition_is_refused(place):
    place.jsonl("a.jsonl", texts(3))
    place.run()
    for expression in ("row", "num_output_tokens - 8"):
        with pytest.raises(UsageError, match="no condition"):
            place.run(where=expression)
    assert len(place.sent()) == 3


def test_a_redo_that_fails_leaves_the_completion(place):
    place.jsonl("a.jsonl", texts(3))
    place.run()
    before = place.outputs()["output"].tolist()
    script = "model.extra={clock: simulated, script: {'a.jsonl:1': {fault: row_error}}}"
    summary = place.run(script, where="row == 1")
    assert summary.rows_this_run == 1
    assert place.outputs()["output"].tolist() == before
    assert read_batches(place.out)["num_rows"].sum() == 4


def test_accepted_inputs_stay_accepted_also_when_nothing_was_left_to_do(place):
    path = place.jsonl("a.jsonl", texts(5))
    place.run()
    path.write_text(path.read_text().replace("number 3", "number X"))
    place.run(accept_change=("inputs",))
    assert place.run().nothing_new


def test_a_key_that_cannot_be_accepted_is_refused_with_the_nearest(place):
    place.jsonl("a.jsonl", texts(1))
    with pytest.raises(UsageError, match=r"did you mean 'sampling\.max_tokens'"):
        place.run(accept_change=("sampling.max_token",))


def test_cut_rows_are_counted_as_rows_with_several_completions(place):
    place.jsonl("a.jsonl", texts(4))
    summary = place.run("sampling={max_tokens: 2, temperature: 1.0, n: 3}")
    assert summary.num_cut == 4
    assert summary.finish_reasons == {"length": 12}


def test_an_empty_input_is_said(place):
    place.jsonl("a.jsonl", [])
    summary = place.run("output.keep=[]")
    assert summary.exit_code == 0
    assert any("no rows" in warning for warning in summary.warnings)


def test_a_file_without_a_last_line_feed_may_grow(place):
    path = place.folder / "in" / "a.jsonl"
    path.write_text('{"text": "a"}\n{"text": "b"}')
    place.run()
    path.write_text('{"text": "a"}\n{"text": "b"}\n{"text": "c"}')
    assert place.run().rows_this_run == 1
    assert place.outputs()["text"].tolist() == ["a", "b", "c"]


def test_a_template_that_computes_for_ever_does_not_keep_a_stopped_run(place):
    place.jsonl("a.jsonl", texts(2))
    loops = "{% for a in range(99999) %}" * 3 + "{{ text }}" + "{% endfor %}" * 3
    job = f"input: {{paths: [{place.folder}/in]}}\nprompt: {{template: '{loops}'}}\n"
    job += f"model: {{engine: simulated}}\noutput: {{path: {place.out}}}\n"
    (place.folder / "job.yaml").write_text(job)
    command = [sys.executable, "-m", "batchgen", "run", str(place.folder / "job.yaml")]
    process = subprocess.Popen(command, stderr=subprocess.PIPE)
    while not (place.out / "manifest.json").exists():
        assert process.poll() is None
        time.sleep(0.02)
    time.sleep(0.5)
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=60)
    assert process.returncode == 143


@pytest.mark.parametrize("override", ["prompt.template=Say {{ txet }}", "output.keep=[nothing]"])
def test_fresh_with_a_job_that_cannot_run_keeps_the_old_output(place, override):
    place.jsonl("a.jsonl", texts(3))
    place.run()
    with pytest.raises(DataError):
        place.run(override, fresh=True)
    assert len(place.outputs()) == 3
    assert (place.out / "_SUCCESS").exists()
