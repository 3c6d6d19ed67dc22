"""The report says what the files say, in every state of a run directory, and changes nothing."""

import json
import os
import socket
from dataclasses import replace
from datetime import UTC, datetime

import numpy as np
import pytest

from batchgen import read_batches, read_outputs
from batchgen.errors import DataError, EngineError
from batchgen.output.layout import RunLayout
from batchgen.output.lock import RunLock
from batchgen.report.build import MAX_BATCHES, build_report
from batchgen.report.facts import summary_facts
from batchgen.report.html import render_html
from batchgen.report.records import EarlyStop


def test_totals_are_those_of_the_outputs(two_nights, two_nights_report):
    outputs, summary = read_outputs(two_nights.out), two_nights_report.summary
    worked = outputs[outputs["error_type"].isna() & outputs["duplicate_of"].isna()]
    assert summary.num_rows == len(outputs) == 230
    assert summary.num_failed == outputs["error_type"].notna().sum() == 8
    assert summary.num_duplicates == outputs["duplicate_of"].notna().sum() == 10
    assert summary.num_output_tokens == worked["num_output_tokens"].sum()
    assert summary.num_cached_tokens == worked["num_cached_tokens"].sum()


@pytest.mark.parametrize("name", ["num_prompt_tokens", "num_output_tokens", "latency_s", "ttft_s"])
def test_percentiles_are_those_of_rows_that_an_engine_completed(
    two_nights, two_nights_report, name
):
    outputs = read_outputs(two_nights.out)
    values = outputs[outputs["error_type"].isna() & outputs["duplicate_of"].isna()][name]
    found = two_nights_report.distribution(name)
    assert found.num_values == sum(found.counts) == len(values)
    expected = np.percentile(values, [50, 95, 99])
    assert (found.p50, found.p95, found.p99) == pytest.approx(tuple(expected), rel=1e-3)
    assert (found.min, found.max) == (values.min(), values.max())
    assert found.mean == pytest.approx(values.mean())


def test_rates_are_rows_and_tokens_over_the_seconds_of_generation(two_nights, two_nights_report):
    manifest = json.loads((two_nights.out / "manifest.json").read_text())
    generate_s = sum(run["generate_s"] for run in manifest["runs"])
    tokens = sum(run["num_output_tokens"] for run in manifest["runs"])
    summary = two_nights_report.summary
    assert summary.rows_per_s == pytest.approx(230 / generate_s)
    assert summary.output_tokens_per_s == pytest.approx(tokens / generate_s)
    assert two_nights_report.curve("rows_per_s").edges_s[-1] == pytest.approx(generate_s, rel=1e-3)


def test_failures_come_with_their_meaning_and_a_few_examples(two_nights_report):
    by_type = {failure.error_type: failure for failure in two_nights_report.failures}
    assert {name: failure.num_rows for name, failure in by_type.items()} == {
        "engine_error": 5,
        "null_prompt": 2,
        "prompt_too_long": 1,
    }
    engine_error = by_type["engine_error"]
    assert two_nights_report.failures[0] is engine_error
    assert [example.row for example in engine_error.examples] == [10, 20, 30]
    assert engine_error.is_retryable
    assert not by_type["null_prompt"].is_retryable
    assert [example.row for example in by_type["null_prompt"].examples] == [3, 70]
    assert "no prompt" in by_type["null_prompt"].meaning


def test_finish_reasons_come_with_an_output(two_nights_report):
    assert {finish.reason for finish in two_nights_report.finishes} == {"stop", "length"}
    assert sum(finish.num_completions for finish in two_nights_report.finishes) == 222
    for finish in two_nights_report.finishes:
        assert finish.example.text.startswith("Reply to: shared words")


def test_a_slower_night_is_seen_with_the_setting_that_changed(two_nights_report):
    comparison = two_nights_report.comparison
    assert comparison.verdict == "slower"
    assert "model.max_num_seqs" in comparison.summary
    change = next(item for item in comparison.changes if item.key == "model.max_num_seqs")
    assert (change.before, change.after) == (8, 2)
    assert not any(item.key == "engine.max_num_seqs" for item in comparison.changes)


def test_cost_is_price_by_the_engine_s_seconds(two_nights_report):
    cost, summary = two_nights_report.cost, two_nights_report.summary
    assert cost.cost == pytest.approx(2.0 * summary.engine_s / 3600)
    assert cost.cost_per_1000_rows == pytest.approx(1000 * cost.cost / 230)


def test_without_a_price_there_is_no_cost(two_nights):
    assert two_nights.report().cost is None


def test_the_newest_run_is_diagnosed(two_nights, two_nights_report):
    manifest = json.loads((two_nights.out / "manifest.json").read_text())
    stored = manifest["runs"][-1]["diagnosis"]
    assert [finding.kind for finding in two_nights_report.findings] == [
        verdict["kind"] for verdict in stored
    ]
    assert two_nights_report.findings


def test_a_killed_run_is_seen_with_its_journaled_rows(place, make_prompts):
    place.write(make_prompts(100))
    place.killed(after_rows=64)
    report = place.report()
    assert report.state == "killed"
    assert 0 < report.summary.num_rows <= 64
    assert report.summary.rows_total == 100
    assert report.distribution("num_output_tokens").num_values == report.summary.num_rows
    (run,) = report.runs
    assert (run.status, run.ended_at, run.wall_s) == ("killed", None, None)
    assert run.rows_per_s > 0
    assert report.summary.rows_per_s == run.rows_per_s


def test_building_changes_nothing(place, make_prompts):
    place.write(make_prompts(100))
    place.killed(after_rows=64)
    before = place.files()
    place.report()
    assert place.files() == before


def test_a_live_run_is_reported_while_it_holds_the_lock(place, make_prompts):
    place.write(make_prompts(40))
    place.killed(after_rows=32)
    layout = RunLayout(place.out)
    progress = json.loads(layout.progress.read_text())
    here = {"pid": os.getpid(), "host": socket.gethostname(), "eta_s": 12.5}
    now = datetime.now(UTC).isoformat()
    with RunLock(layout):
        layout.progress.write_text(json.dumps({**progress, **here, "updated_at": now}))
        report = place.report()
    assert report.state == "running"
    assert report.runs[-1].status == "running"
    assert report.summary.eta_s == 12.5


def test_a_stopped_run_says_why(place, make_prompts):
    place.write(make_prompts(40))
    place.run("model.extra.faults={terminate_after_rows: 20}")
    report = place.report()
    assert report.state == "stopped"
    assert report.runs[-1].exit_code == 143
    assert report.runs[-1].stopped


def test_a_run_that_ended_in_an_error_says_why(place, make_prompts):
    place.write(make_prompts(4))
    with pytest.raises(EngineError):
        place.run("model.extra.faults={refuse_first_start: true}")
    report = place.report()
    (run,) = report.runs
    assert (run.status, run.exit_code) == ("failed", 5)
    assert run.stopped


def test_a_run_without_rows_is_a_report_of_nothing(place):
    place.write([])
    place.run()
    report = place.report()
    assert (report.state, report.summary.num_rows) == ("done", 0)
    assert (report.summary.rows_per_s, report.comparison) == (None, None)
    assert (report.curves, report.distributions, report.failures, report.batches) == ((),) * 4


def test_a_directory_without_run_is_named(tmp_path):
    with pytest.raises(DataError, match=r"output\.path of a job"):
        build_report(tmp_path)


def test_a_comparison_alone_is_reported(tmp_path):
    ways = [{"name": "sequential", "rows_per_s": 1.0}]
    (tmp_path / "compare.json").write_text(json.dumps({"kind": "compare", "ways": ways}))
    report = build_report(tmp_path)
    assert report.state == "not run"
    assert report.sweeps[0].points[0]["name"] == "sequential"


def test_a_long_table_of_batches_shows_first_last_and_slowest(place, make_prompts):
    place.write(make_prompts(400))
    place.sections["batch"] = {"size": 2}
    place.run()
    report, batches = place.report(), read_batches(place.out)
    shown = {batch.batch_id for batch in report.batches}
    slowest = int(batches["output_tokens_per_s"].idxmin())
    assert report.summary.num_batches == 200
    assert len(shown) <= MAX_BATCHES
    assert {0, 199, int(batches["batch_id"][slowest])} <= shown
    assert any("of 200 batches are left out" in note for note in report.notes)


def test_several_completions_and_a_prefix_are_understood(place, make_prompts):
    place.write(make_prompts(12))
    place.sections["sampling"] = {"n": 3, "temperature": 1.0}
    place.sections["output"] = {"prefix": "my_"}
    place.run()
    report = place.report()
    assert sum(finish.num_completions for finish in report.finishes) == 36
    assert report.distribution("num_output_tokens").num_values == 12
    assert report.finishes[0].example.text


def test_batches_without_a_manifest_are_reported(place, make_prompts):
    place.write(make_prompts(20))
    place.run()
    (place.out / "manifest.json").unlink()
    report = place.report()
    assert report.runs[0].status == "unknown"
    assert report.runs[0].num_rows == 20


def test_all_numbers_are_json(two_nights_report):
    text = json.dumps(two_nights_report.to_dict(), allow_nan=False)
    assert json.loads(text)["summary"]["num_rows"] == 230


def test_a_sampling_setting_that_changed_is_named(place, make_prompts):
    place.write(make_prompts(100))
    place.run("sampling.max_tokens=8")
    place.run("sampling.max_tokens=30", where="finish_reason == 'length'")
    comparison = place.report().comparison
    change = next(item for item in comparison.changes if item.key == "sampling.max_tokens")
    assert (change.before, change.after) == (8, 30)
    assert "sampling.max_tokens" in comparison.summary


def test_rows_that_a_rule_has_stopped_are_counted_by_rule(place, make_prompts):
    script = {f"a.jsonl:{row}": {"reply": "word " * 60} for row in (2, 5)}
    place.sections["model"] = {
        "max_model_len": 200,
        "extra": {"clock": "simulated", "script": script},
    }
    place.write(make_prompts(12))
    place.run("stop_early={pattern: word word}", "sampling.max_tokens=100")
    outputs, early = read_outputs(place.out), place.report().early_stop
    assert early.rules == {"pattern": "word word"}
    assert early.by_rule == outputs["stopped_by"].value_counts().to_dict() == {"pattern": 2}
    assert early.num_rows == 2
    assert early.num_saved_tokens_max == read_batches(place.out)["num_saved_tokens_max"].sum() > 0


def test_without_rules_there_is_no_early_stop(two_nights_report):
    assert two_nights_report.early_stop is None


def test_what_rules_have_stopped_stands_in_every_picture(two_nights_report):
    early = EarlyStop({"pattern": "x"}, 3, {"pattern": 3}, 1200)
    report = replace(two_nights_report, early_stop=early)
    fact = next(fact for fact in summary_facts(report) if fact.name == "stopped early")
    assert fact.value == "3"
    assert fact.detail == "3 by pattern; rules: pattern; at most 1,200 output tokens saved"
    assert fact.detail in render_html(report)
    assert report.to_dict()["early_stop"]["by_rule"] == {"pattern": 3}


def test_the_whole_time_is_not_shown_beside_the_generation_of_more_runs(place, make_prompts):
    place.write(make_prompts(100))
    place.killed(after_rows=64)
    place.run()
    report = place.report()
    detail = next(fact.detail for fact in summary_facts(report) if fact.name == "generation")
    assert report.runs[0].wall_s is None
    assert report.runs[0].generate_s > 0
    assert detail == "2 runs; how long all of it took is not known of 1 without an end"
