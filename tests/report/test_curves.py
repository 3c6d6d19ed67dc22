"""Curves: what replicas do at once is joined, runs stand end to end, dips survive thinning."""

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from batchgen.report.curves import batch_curves, curve, joined_times, step_function, thinned
from batchgen.stats.batch import batch_schema

DAY = 86_400_000_000


def batches(*rows):
    """A table of batches; a row is (run_id, replica, started at in s, wall_s, rows_per_s)."""
    names = ("run_id", "replica", "started_at", "wall_s", "rows_per_s")
    plain = {field.name: None for field in batch_schema()}
    lines = [{**plain, **dict(zip(names, row, strict=True))} for row in rows]
    for number, line in enumerate(lines):
        line.update(batch_id=number, started_at=int(line["started_at"] * 1e6), num_prompt_tokens=10)
    return pa.Table.from_pylist(lines, schema=batch_schema())


def test_batches_of_a_run_follow_each_other_and_runs_stand_end_to_end():
    table = batches(
        ("one", 0, 0, 10.0, 1.0), ("one", 0, 10.1, 5.0, 1.0), ("two", 0, 86_400, 4.0, 1.0)
    )
    starts, ends, run_starts = joined_times(table)
    assert starts.tolist() == [0, 10, 15]
    assert ends.tolist() == [10, 15, 19]
    assert run_starts == (15,)


def test_a_pause_between_batches_stays_a_pause():
    table = batches(("one", 0, 0, 10.0, 2.0), ("one", 0, 100, 5.0, 2.0))
    (found,), _ = batch_curves(table)
    assert found.edges_s == (0, 10, 100, 105)
    assert found.mean == (2, None, 2)


def test_rates_of_replicas_add_up():
    starts, ends = np.array([0.0, 5.0]), np.array([10.0, 15.0])
    edges, levels = step_function(starts, ends, np.array([2.0, 3.0]), is_average=False)
    assert edges.tolist() == [0, 5, 10, 15]
    assert levels.tolist() == [2, 5, 3]


def test_shares_of_replicas_are_averaged():
    starts, ends = np.array([0.0, 5.0]), np.array([10.0, 15.0])
    _, levels = step_function(starts, ends, np.array([0.2, 0.4]), is_average=True)
    assert levels.tolist() == pytest.approx([0.2, 0.3, 0.4])


def test_what_nobody_observed_is_no_curve():
    assert curve("x", np.array([0.0]), np.array([1.0]), np.array([np.nan]), False) is None


def test_a_single_dip_survives_thinning():
    edges = np.arange(10_001.0)
    levels = np.full(10_000, 100.0)
    levels[7_777] = 1.0
    coarse, mean, low, high = thinned(edges, levels, 400)
    assert len(mean) == 400
    assert low.min() == 1
    assert high.max() == 100
    assert (coarse[0], coarse[-1]) == (0, 10_000)
    assert mean[int(low.argmin())] == pytest.approx((24 * 100 + 1) / 25)


@given(
    st.lists(
        st.tuples(st.floats(0.01, 10), st.one_of(st.none(), st.floats(0, 1e6))),
        min_size=1,
        max_size=200,
    ),
    st.integers(1, 50),
)
def test_thinning_keeps_the_area_under_the_curve(stretches, num_stretches):
    widths = np.array([width for width, _ in stretches])
    levels = np.array([np.nan if level is None else level for _, level in stretches])
    edges = np.concatenate([[0.0], np.cumsum(widths)])
    coarse, mean, _, _ = thinned(edges, levels, num_stretches)
    fine = np.unique(np.concatenate([edges, coarse]))
    middles = (fine[1:] + fine[:-1]) / 2
    known = np.isfinite(levels[np.clip(np.searchsorted(edges, middles) - 1, 0, None)])
    places = np.clip(np.searchsorted(coarse, middles) - 1, 0, num_stretches - 1)
    covered = np.bincount(places[known], np.diff(fine)[known], num_stretches)
    area = np.nansum(np.where(covered > 0, mean * covered, 0.0))
    assert area == pytest.approx(np.nansum(levels * widths), rel=1e-6, abs=1e-6)


def test_many_batches_make_a_thinned_curve():
    table = batches(*(("one", 0, number, 1.0, float(number % 7)) for number in range(2_000)))
    (found,), _ = batch_curves(table)
    assert found.is_thinned
    assert len(found.edges_s) == 401
    assert min(found.min) == 0
    assert max(found.max) == 6
