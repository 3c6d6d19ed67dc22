"""A whole sweep over a job: its recommendation, its proposals, and every way in which it ends."""

import json
import random

import pandas as pd
import pytest

from batchgen.bench.latency_limit import parse_limit
from batchgen.bench.saving import result_folder
from batchgen.bench.tune import TuneOptions, tune_job
from batchgen.bench.tune_report import save_report
from batchgen.config.models import JobConfig
from batchgen.errors import EngineError
from batchgen.monitor.console import SilentConsole
from batchgen.run.job import run_job

LONG = TuneOptions(max_minutes=600)


@pytest.fixture
def job(write_jsonl, tmp_path):
    """A job for the simulated engine on its simulated clock: steps take 20 ms + 2 ms a sequence."""

    def make(num_rows=300, texts=None, *, slots=64, sampling=None, batch=None, **extra):
        texts = texts or [f"document number {i} of some length" for i in range(num_rows)]
        shard = write_jsonl("docs.jsonl", [{"text": text} for text in texts])
        costs = {"clock": "simulated", "step_s": 0.02, "decode_token_s": 0.002}
        return JobConfig.model_validate(
            {
                "input": {"paths": [str(shard)]},
                "prompt": {"template": "Say: {{ text }}"},
                "model": {
                    "engine": "simulated",
                    "max_num_seqs": slots,
                    "extra": {**costs, **extra},
                },
                "sampling": sampling or {"temperature": 0.0, "max_tokens": 64},
                "batch": batch or {},
                "output": {"path": str(tmp_path / "out")},
            }
        )

    return make


def note_about(report, word):
    return [note for note in report.notes if word in note]


def test_one_engine_start_finds_the_best_and_the_knee(job):
    report = tune_job(job(), LONG)
    assert report.engine_starts == 1
    assert report.overrides == ("model.max_num_seqs=64",)
    assert 8 <= report.recommended.knee <= 12
    assert (report.exit_code, report.stopped) == (0, None)


def test_a_limit_of_latency_recommends_less(job):
    report = tune_job(job(), TuneOptions(limits=(parse_limit("p95=3s"),)))
    chosen = report.recommended.num_running
    assert chosen == report.recommended.under_latency < report.recommended.best
    latencies = {point.num_running: point.latency_s_p95 for point in report.points}
    assert latencies[chosen] <= 3.0
    assert report.overrides == (f"model.max_num_seqs={chosen}",)


def test_a_limit_that_nothing_keeps_changes_nothing(job):
    report = tune_job(job(), TuneOptions(limits=(parse_limit("p95=10ms"),)))
    assert report.recommended.num_running is None
    assert report.recommended.limits[0].lowest_s > 0.01
    assert report.overrides == ()
    assert report.exit_code == 0


def test_max_concurrency_is_the_number_of_slots(job):
    report = tune_job(job(), TuneOptions(max_concurrency=16))
    assert report.engine["max_num_seqs"] == 16
    assert max(point.num_running for point in report.points) == 16


def test_slots_are_counted_in_sequences_where_a_row_has_several(job):
    sampling = {"temperature": 1.0, "seed": 0, "n": 4, "max_tokens": 32}
    report = tune_job(job(sampling=sampling))
    assert max(point.num_running for point in report.points) == 16
    assert report.overrides == ("model.max_num_seqs=64",)


def test_a_window_that_would_leave_slots_free_is_opened(job):
    report = tune_job(job(batch={"window": 8}))
    assert report.overrides == ("model.max_num_seqs=64", "batch.window=auto")


def test_a_small_input_is_repeated_and_says_so(job):
    report = tune_job(job(num_rows=10))
    assert max(point.num_running for point in report.points) == 64
    assert note_about(report, "10 different rows")


def test_another_feed_than_the_continuous_one_is_noted(job):
    assert note_about(tune_job(job(batch={"feed": "generate"})), "'generate'")


def test_a_full_kv_cache_is_noted(job):
    report = tune_job(job(kv_cache_tokens=1500), LONG)
    full = next(point for point in report.points if point.kv_limited)
    assert note_about(report, f"from {full.num_running} in flight on")
    assert report.proposals == ()


def test_failed_rows_are_noted(job):
    report = tune_job(job(script={"docs.jsonl:4": {"fault": "row_error"}}))
    assert note_about(report, "1 row failed")


def test_more_slots_are_proposed_and_not_measured(job):
    report = tune_job(job(slots=4))
    (proposal,) = report.proposals
    assert (proposal.override, proposal.gain) == ("model.max_num_seqs=8", None)
    assert report.overrides == ("model.max_num_seqs=4",)


def test_a_restart_measures_whether_more_slots_pay(job):
    report = tune_job(job(slots=4), TuneOptions(restart=True))
    (proposal,) = report.proposals
    assert report.engine_starts == 2
    assert proposal.pays
    assert proposal.gain == pytest.approx(8 / 0.036 / (4 / 0.028) - 1, rel=0.05)
    assert report.overrides == ("model.max_num_seqs=8",)
    assert [point.num_running for point in report.points if point.engine_start == 2] == [8]


def test_an_engine_that_does_not_start_again_costs_the_proposal_alone(job, monkeypatch):
    asked_for = job(slots=4)
    import batchgen.bench.workload as workload

    start = workload.create_engine

    def few_slots_only(model, **options):
        if model.max_num_seqs > 4:
            raise EngineError("there is no room for 8 slots")
        return start(model, **options)

    monkeypatch.setattr(workload, "create_engine", few_slots_only)
    report = tune_job(asked_for, TuneOptions(restart=True))
    assert note_about(report, "no room for 8 slots")
    assert report.proposals[0].gain is None
    assert report.exit_code == 0


GROUPED = [" ".join([f"group{n % 16}"] * 256) + f" question {n}" for n in range(320)]
random.Random(3).shuffle(GROUPED)
"""Rows of 16 groups in any order; the KV cache below holds the starts of nine."""


def grouped(job, **costs):
    sampling = {"temperature": 0.0, "max_tokens": 16}
    cache = {"kv_block_tokens": 16, "kv_cache_tokens": 2400}
    settings = {"slots": 8, "sampling": sampling, "batch": {"order": "input"}}
    return job(texts=GROUPED, **settings, **cache, **costs)


def test_prefix_order_is_measured_on_the_same_engine(job):
    report = tune_job(grouped(job, prefill_token_s=0.001), LONG)
    order = next(p for p in report.proposals if p.key == "batch.order")
    assert report.engine_starts == 1
    assert order.pays
    assert "batch.order=prefix" in report.overrides


def test_prefix_order_that_gains_nothing_is_not_recommended(job):
    report = tune_job(grouped(job, prefill_token_s=0.0), LONG)
    order = next(p for p in report.proposals if p.key == "batch.order")
    assert order.pays is False
    assert "batch.order=prefix" not in report.overrides


def test_a_signal_keeps_the_points_so_far(job):
    report = tune_job(job(faults={"interrupt_after_rows": 100}), LONG)
    assert report.exit_code == 130
    assert "SIGINT" in report.stopped
    assert [point.num_running for point in report.points][:3] == [1, 2, 4]


@pytest.mark.parametrize(
    ("extra", "options", "ended_by"),
    [
        ({"faults": {"interrupt_after_rows": 100}}, LONG, "a signal"),
        ({}, TuneOptions(max_minutes=0.001), "--max-minutes"),
    ],
)
def test_a_climb_that_is_cut_short_recommends_nothing(job, extra, options, ended_by):
    report = tune_job(job(**extra), options)
    assert report.points
    assert (report.recommended, report.overrides, report.proposals) == (None, (), ())
    assert note_about(report, f"{ended_by} ended the sweep at {report.points[-1].num_running} in")


def test_a_limit_that_is_broken_ends_a_climb_as_well(job):
    limits = (parse_limit("p95=1500ms"),)
    report = tune_job(job(faults={"interrupt_after_rows": 300}), TuneOptions(limits=limits))
    assert report.exit_code == 130
    assert report.points[-1].latency_s_p95 > 1.5
    assert report.recommended.under_latency is not None


def test_a_latency_that_is_held_against_a_limit_has_forty_rows_behind_it(job):
    report = tune_job(job(), TuneOptions(limits=(parse_limit("p95=3s"),)))
    assert min(point.num_rows - 2 * point.num_running for point in report.points) >= 40


def test_an_engine_that_dies_keeps_the_points_so_far(job):
    report = tune_job(job(faults={"die_after_rows": 200}), LONG)
    assert report.exit_code == 5
    assert "the engine died with" in report.stopped
    assert report.points


def test_an_engine_that_dies_before_the_first_point_is_an_error(job):
    with pytest.raises(EngineError):
        tune_job(job(faults={"die_after_rows": 2}))


def test_the_budget_leaves_points_out(job):
    report = tune_job(job(), TuneOptions(max_minutes=0.5))
    assert report.left_out
    assert report.measured_s <= 30
    assert note_about(report, "--max-minutes")


def test_each_trial_is_a_line_on_the_console(job):
    console = SilentConsole()
    tune_job(job(slots=2), console=console)
    assert "2 slots" in console.lines[0]
    assert any(line.startswith("1 in flight: ") for line in console.lines)


def test_the_files_hold_the_report_and_its_points(job, tmp_path):
    asked_for = job(slots=8)
    text, table = save_report(tune_job(asked_for), tmp_path / "tuned", asked_for)
    answer = json.loads(text.read_text())
    assert answer["kind"] == "tune"
    assert answer["recommended"]["autoscaler"]["target_num_running"] == 8
    points = pd.read_parquet(table)
    assert list(points.num_running) == [point["num_running"] for point in answer["points"]]


def test_a_run_takes_the_directory_of_its_tune(job):
    asked_for = job(num_rows=20, slots=4)
    save_report(tune_job(asked_for), result_folder(asked_for, None), asked_for)
    assert run_job(asked_for).num_ok == 20


def test_the_wait_of_a_run_for_its_slots_is_noted(job):
    assert note_about(tune_job(job(slots=2)), "latency_s holds that wait")
    assert not note_about(tune_job(job(slots=2, batch={"window": 2})), "latency_s")


def test_a_restart_looks_beyond_refused_rows_at_the_start(job, write_jsonl):
    asked_for = job(slots=4)
    rows = [{"text": None}] * 8 + [{"text": f"document number {i}"} for i in range(200)]
    write_jsonl("docs.jsonl", rows)
    report = tune_job(asked_for, TuneOptions(restart=True))
    assert report.proposals[0].gain is not None
