"""A run names what limited it: each state is scripted into the simulated engine."""

import json
from pathlib import Path

import pytest

from batchgen import read_batches, run_job
from batchgen.config.loading import load_job

JOB = """
input: {{paths: ['{folder}/in']}}
prompt: {{template: "{{{{ text }}}}"}}
model:
  engine: simulated
  max_num_seqs: 8
  extra: {{clock: simulated, step_s: 0.01, decode_token_s: 0.0005, prefill_token_s: 0.0001}}
sampling: {{max_tokens: 200, temperature: 0.0}}
batch: {{size: 50}}
output: {{path: '{folder}/out'}}
"""


@pytest.fixture
def run(tmp_path: Path):
    """Run `num_rows` prompts of `num_words` words with changed settings; the summary."""

    def run(*overrides: str, num_rows: int = 400, num_words: int = 20):
        (tmp_path / "in").mkdir()
        with (tmp_path / "in" / "rows.jsonl").open("w") as file:
            for row in range(num_rows):
                text = " ".join(f"w{row}_{word}" for word in range(num_words))
                file.write(json.dumps({"text": text}) + "\n")
        (tmp_path / "job.yaml").write_text(JOB.format(folder=tmp_path))
        return run_job(load_job(tmp_path / "job.yaml", overrides))

    return run


def kinds(summary):
    return [verdict["kind"] for verdict in summary.diagnosis]


def test_short_prompts_and_long_outputs_are_bound_by_decode(run):
    summary = run()
    assert kinds(summary) == ["decode"]
    assert summary.diagnosis[0]["share"] > 0.8


def test_long_prompts_and_short_outputs_are_bound_by_prefill(run):
    summary = run("sampling.max_tokens=10", num_words=800)
    assert kinds(summary) == ["prefill"]
    assert "batch.order: prefix (now longest_first)" in summary.diagnosis[0]["remedy"]


def test_the_cost_of_prefill_is_told_from_the_steps(run, tmp_path):
    run("model.extra.prefix_caching=false", num_words=100)
    batches = read_batches(tmp_path / "out")
    known = batches[batches["prefill_s"].notna()]
    assert len(known) == len(batches)
    assert known["prefill_s"].sum() == pytest.approx(400 * 100 * 0.0001, rel=0.01)


def test_prompts_out_of_the_prefix_cache_cost_no_prefill(run, tmp_path):
    run("prompt.template='" + " ".join(["shared"] * 160) + " {{ text }}'", num_words=16)
    batches = read_batches(tmp_path / "out")
    assert batches["prefill_s"].sum() == pytest.approx((160 + 400 * 16) * 0.0001, rel=0.05)


def test_a_small_cache_keeps_slots_free_while_rows_wait(run, tmp_path):
    summary = run("model.extra.kv_cache_tokens=200", "model.max_model_len=512")
    verdict = summary.diagnosis[0]
    assert verdict["kind"] == "kv_cache"
    assert "100% full" in verdict["evidence"]
    assert "model.max_model_len (now 512)" in verdict["remedy"]
    batches = read_batches(tmp_path / "out")
    assert batches["num_running_mean"].max() < 8


@pytest.mark.parametrize("feed", ["sequential", "generate"])
def test_a_feed_that_drains_is_bound_by_the_feed(run, feed):
    summary = run(f"batch.feed={feed}", "batch.size=8", num_rows=64)
    assert summary.diagnosis[0]["kind"] == "feed"
    assert "batch.feed: continuous" in summary.diagnosis[0]["remedy"]


def test_a_window_smaller_than_the_slots_is_bound_by_the_feed(run):
    summary = run("batch.window=4")
    assert summary.diagnosis[0]["kind"] == "feed"
    assert "batch.window: auto (it is 4 for 8 slots)" in summary.diagnosis[0]["remedy"]


def test_one_long_row_at_the_end_is_a_tail(run, tmp_path):
    script = tmp_path / "script.json"
    script.write_text(json.dumps({"rows.jsonl:59": {"reply_tokens": 200}}))
    summary = run("batch.order=input", f"model.extra.script={script}", num_rows=60)
    verdict = summary.diagnosis[0]
    assert verdict["kind"] == "tail"
    assert "batch.order: longest_first" in verdict["remedy"]


def test_fewer_rows_than_slots_cannot_fill_them(run):
    summary = run("model.max_num_seqs=64", num_rows=20)
    assert summary.diagnosis[0]["summary"] == "too few rows to fill the slots"


def test_work_between_the_steps_is_bound_by_the_host(run, tmp_path):
    summary = run("model.extra.add_s=0.05")
    assert summary.diagnosis[0]["kind"] == "host"
    batches = read_batches(tmp_path / "out")
    assert batches["host_s"].sum() == pytest.approx((400 - 16) * 0.05, rel=0.02)
    assert batches["drain_s"].sum() < 3


@pytest.mark.parametrize("feed", ["continuous", "generate", "sequential"])
def test_steps_of_all_batches_add_up_to_the_engines(run, tmp_path, feed):
    run(f"batch.feed={feed}", "batch.order=input", num_rows=60)
    batches = read_batches(tmp_path / "out")
    tokens = (batches["output_tokens_per_s"] * batches["wall_s"]).sum()
    mean = tokens / batches["num_steps"].sum()
    expected = (batches["num_running_mean"] * batches["wall_s"]).sum() / batches["wall_s"].sum()
    assert mean == pytest.approx(expected, rel=0.1)


def test_time_after_a_restart_of_the_engine_is_diagnosed_as_well(run):
    assert kinds(run("model.extra.faults.die_after_rows=[100]")) == ["decode"]


def test_the_simulated_engine_has_no_roofline(run):
    summary = run(num_rows=20)
    assert summary.roofline_s is summary.roofline_fraction is summary.roofline_source is None


def test_a_run_without_news_says_nothing_of_its_limits(run, tmp_path):
    run(num_rows=20)
    again = run_job(load_job(tmp_path / "job.yaml"))
    assert again.nothing_new
    assert again.diagnosis == ()


def test_a_run_in_which_every_row_failed_has_no_limits(run):
    summary = run("model.max_model_len=8", "errors={max_failed: 100%, stop_at: null}", num_rows=20)
    assert summary.num_failed == 20
    assert summary.diagnosis == ()


def test_the_manifest_keeps_what_the_summary_says(run, tmp_path):
    summary = run()
    (entry,) = json.loads((tmp_path / "out" / "manifest.json").read_text())["runs"]
    assert entry["diagnosis"] == [dict(verdict) for verdict in summary.diagnosis]
    assert entry["roofline_fraction"] is None
