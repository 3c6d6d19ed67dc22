"""Which ways are measured, with how many rows, and how long that takes."""

import doctest

import pytest

from batchgen.bench import ways
from batchgen.bench.step_law import StepPoint
from batchgen.bench.ways import Pace, Way, engine_ways, num_rows_of, row_shares

SEQUENTIAL = Way("sequential", 1)
PACE = Pace(tuple(StepPoint(n, 0.02 + 0.002 * n) for n in (1, 4, 64)), prefill_token_s=0.001)


def test_examples_in_the_docstrings_hold():
    assert doctest.testmod(ways).failed == 0


def test_an_arrival_rate_adds_dynamic_and_continuous_of_the_largest_size():
    added = set(engine_ways((4, 16), 2.0)) - set(engine_ways((4, 16), None))
    assert added == {Way("dynamic", 16, 2.0), Way("continuous", 16, 2.0)}


@pytest.mark.parametrize(
    ("way", "seconds"),
    [
        (SEQUENTIAL, 19 * 0.022),
        (Way("generate", 2), 6 * 0.024 + 7 * 0.022),
        (Way("generate", 4), 3 * 0.028 + 7 * 0.022),
        (Way("continuous", 2), 19 / 2 * 0.024),
    ],
)
def test_the_time_of_a_way_follows_from_its_steps(way, seconds):
    lengths = [(5, 10), (5, 3), (5, 3), (5, 3)]
    assert PACE.predict_s(way, lengths) == pytest.approx(0.02 + seconds)


def test_a_budget_that_suffices_cuts_nothing():
    assert row_shares({SEQUENTIAL: 10.0, Way("generate", 4): 3.0}, 13.0) == {
        SEQUENTIAL: 1.0,
        Way("generate", 4): 1.0,
    }


def test_a_small_budget_cuts_the_slowest_ways_to_one_time():
    seconds = {SEQUENTIAL: 100.0, Way("generate", 2): 60.0, Way("generate", 64): 5.0}
    shares = row_shares(seconds, 45.0)
    times = {way: shares[way] * seconds[way] for way in seconds}
    assert times == pytest.approx(
        {SEQUENTIAL: 20.0, Way("generate", 2): 20.0, Way("generate", 64): 5.0}
    )


def test_no_budget_still_measures_something():
    shares = row_shares({SEQUENTIAL: 100.0, Way("generate", 16): 50.0}, -3.0)
    rows = [num_rows_of(way, 64, share) for way, share in shares.items()]
    assert rows == [4, 16]
