"""A histogram holds every value once, in few bins that are wide enough to read."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from batchgen.capacity.lengths import MOST_BINS, histogram, length_stats


@given(st.lists(st.integers(0, 200_000), min_size=1, max_size=200))
def test_every_length_is_in_one_bin(lengths):
    bins = histogram(lengths)
    assert len(bins) <= MOST_BINS + 2
    assert sum(bin.num_rows for bin in bins) == len(lengths)
    for bin in bins:
        assert bin.num_rows == sum(bin.first <= length <= bin.last for length in lengths)
    for before, after in pairwise(bins):
        assert after.first == before.last + 1


def test_similar_lengths_get_bins_of_equal_width():
    widths = {bin.last - bin.first for bin in histogram([400, 450, 800, 1000])}
    assert widths == {99}


def test_skewed_lengths_get_bins_of_equal_ratio():
    bins = histogram([10, 20, 40, 5000])
    ratios = {(bin.last + 1) / bin.first for bin in bins}
    assert ratios == {2.0}


def test_equal_lengths_are_one_bin():
    assert [(bin.first, bin.last) for bin in histogram([7, 7])] == [(7, 7)]


def test_nothing_has_no_histogram():
    assert histogram([]) == ()
    assert length_stats([]) is None


def test_statistics_are_those_of_the_values():
    stats = length_stats([100, 200, 300])
    assert (stats.num_rows, stats.mean, stats.min, stats.p50, stats.max) == (3, 200, 100, 200, 300)
    assert stats.p95 == pytest.approx(290)
