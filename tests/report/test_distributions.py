"""Tallies: percentiles as numpy has them, in memory that does not grow."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from batchgen.report.distributions import NUM_BINS, Tally, bin_edges


def tally(*parts):
    found = Tally()
    for part in parts:
        found.add(np.asarray(part))
    return found


@given(st.lists(st.floats(1e-5, 1e5), min_size=1, max_size=200))
def test_percentiles_are_within_a_thousandth(values):
    found = tally(values).distribution("latency_s", is_count=False)
    expected = np.percentile(values, [50, 95, 99])
    assert (found.p50, found.p95, found.p99) == pytest.approx(tuple(expected), rel=1e-3)


@given(st.lists(st.integers(0, 500), min_size=1, max_size=200))
def test_token_counts_are_exact(values):
    found = tally(values).distribution("num_output_tokens", is_count=True)
    assert found.p50 == pytest.approx(np.percentile(values, 50), abs=1e-9)
    assert found.p95 == pytest.approx(np.percentile(values, 95), abs=1e-9)


@given(st.lists(st.floats(0, 1e5), min_size=1, max_size=100))
def test_every_value_is_in_a_bar(values):
    found = tally(values).distribution("latency_s", is_count=False)
    assert sum(found.counts) == found.num_values == len(values)
    assert len(found.edges) == len(found.counts) + 1
    assert len(found.counts) <= NUM_BINS + 2


def test_parts_are_counted_together():
    apart = tally([1.0, 2.0], [], [3.0]).distribution("x", is_count=False)
    assert apart == tally([1.0, 2.0, 3.0]).distribution("x", is_count=False)


def test_unknown_values_are_passed_over():
    found = tally([np.nan, 2.0]).distribution("x", is_count=False)
    assert (found.num_values, found.mean) == (1, 2.0)


def test_without_values_there_is_no_distribution():
    assert Tally().distribution("x", is_count=False) is None


def test_a_long_tail_gets_bins_of_equal_ratio():
    found = tally([*[0.1] * 99, 100.0]).distribution("latency_s", is_count=False)
    assert found.is_log
    assert found.edges[1] / found.edges[0] == pytest.approx(found.edges[2] / found.edges[1], 1e-3)


def test_bins_have_round_widths():
    assert bin_edges(0.0, 7.3, is_count=False, is_log=False)[1] == pytest.approx(0.2)
    assert bin_edges(3, 5, is_count=True, is_log=False).tolist() == [2.5, 3.5, 4.5, 5.5]
