"""Batches add up; what one of them does not know, the sum does not know either."""

import pytest

from batchgen.stats.batch import BatchRecord
from batchgen.stats.totals import BatchTotals


def batch(wall_s=10.0, running=8.0, **values):
    known = {"drain_s": 0.0, "tail_s": 0.0, "num_cached_tokens": None, **values}
    return BatchRecord(
        run_id="r",
        batch_id=0,
        feed="continuous",
        replica=0,
        started_at="2026-01-01T00:00:00+00:00",
        wall_s=wall_s,
        num_rows=10,
        num_failed=0,
        num_prompt_tokens=100,
        num_output_tokens=50,
        num_running_mean=running,
        **known,
    )


def added(*batches):
    totals = BatchTotals()
    for record in batches:
        totals.add(record)
    return totals


def test_slots_in_use_are_averaged_over_time():
    assert added(batch(30.0, 8.0), batch(10.0, 4.0)).num_running_mean == 7


def test_batches_of_a_killed_run_are_left_out():
    totals = added(batch(), batch(running=None, drain_s=None))
    assert totals.wall_s == 10
    assert totals.sum_of("drain_s") == 0


def test_a_column_that_one_batch_does_not_know_has_no_sum():
    totals = added(batch(host_s=1.0), batch(host_s=None), batch(host_s=1.0))
    assert totals.sum_of("host_s") is None


def test_prefill_of_early_batches_is_told_from_the_later_ones():
    totals = added(batch(10.0, prefill_s=None), batch(30.0, prefill_s=6.0))
    assert totals.prefill_s == pytest.approx(8.0)


def test_the_cached_share_is_known_where_the_engine_tells():
    assert added(batch(num_cached_tokens=25), batch(num_cached_tokens=75)).cached_share == 0.5
    assert added(batch()).cached_share is None


def test_nothing_added_is_nothing_known():
    totals = added()
    assert (totals.num_running_mean, totals.prefill_s, totals.sum_of("drain_s")) == (None,) * 3
