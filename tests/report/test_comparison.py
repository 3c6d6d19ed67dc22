"""The newest run beside the one before it."""

from dataclasses import replace

import pytest

from batchgen.report.comparison import compare_runs
from batchgen.report.runs import run_line

ENTRY = {
    "run_id": "one",
    "started_at": "2026-01-31T23:00:00+00:00",
    "status": "done",
    "num_rows": 1000,
    "num_prompt_tokens": 50_000,
    "num_output_tokens": 20_000,
    "generate_s": 100.0,
}


def line(**values):
    return run_line({**ENTRY, **values}, None, "killed")


@pytest.mark.parametrize(
    ("generate_s", "verdict"),
    [(100.0, "equal"), (108.0, "equal"), (130.0, "slower"), (70.0, "faster")],
)
def test_a_tenth_makes_a_difference(generate_s, verdict):
    found = compare_runs([line(), line(run_id="two", generate_s=generate_s)])
    assert found.verdict == verdict
    assert (found.before_run_id, found.run_id) == ("one", "two")


def test_runs_without_rows_are_passed_over():
    idle = line(run_id="idle", num_rows=None, generate_s=None)
    assert compare_runs([line(), idle, line(run_id="two"), idle]).before_run_id == "one"


def test_one_run_has_nothing_beside_it():
    assert compare_runs([line()]) is None


def test_settings_that_differ_are_named():
    before = {"batch.size": 512, "versions.vllm": "0.31.0", "batch.feed": "continuous"}
    after = {"batch.size": 512, "versions.vllm": "0.32.0", "batch.window": 64}
    found = compare_runs([line(settings=before), line(settings=after)])
    assert [(item.key, item.before, item.after) for item in found.changes] == [
        ("batch.feed", "continuous", None),
        ("batch.window", None, 64),
        ("versions.vllm", "0.31.0", "0.32.0"),
    ]


def test_engine_settings_of_a_killed_run_are_not_missing():
    before = {"batch.size": 512, "engine.max_num_seqs": 64}
    assert compare_runs([line(settings=before), line(settings={"batch.size": 512})]).changes == ()


def test_few_rows_are_a_warning():
    assert "fewer than 100 rows" in compare_runs([line(), line(num_rows=20)]).summary


def test_without_output_tokens_rows_are_compared():
    runs = [line(num_output_tokens=0), line(num_output_tokens=0, generate_s=200.0)]
    found = compare_runs(runs)
    assert found.verdict == "slower"
    assert "rows/s" in found.summary


def test_a_run_that_goes_on_is_measured_by_its_batches():
    assert line(num_rows=None).rows_per_s is None
    assert replace(line(), rows_per_s=None).rows_per_s is None


def test_runs_that_do_not_tell_their_sampling_are_not_called_equal():
    old = {"model.name": "m", "batch.size": 512}
    new = {**old, "sampling.max_tokens": 16}
    assert "No setting changed" not in compare_runs([line(settings=old)] * 2).summary
    assert (
        "No setting changed" not in compare_runs([line(settings=old), line(settings=new)]).summary
    )
    assert "No setting changed" in compare_runs([line(settings=new)] * 2).summary
